package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
)

const (
	maxJWKSBytes = 1 << 20
	maxJWKSKeys  = 256
	// jwksRecheck is how long a key set is used before its file is read again.
	jwksRecheck = time.Second
)

// keySet holds the keys of a JWKS file. While the file cannot be parsed, because it may be half written, the last good
// keys stay in force; without the file there are none.
type keySet struct {
	path  string
	clock clock.Clock

	mu      sync.Mutex
	checked time.Time
	raw     []byte
	keys    []jose.JSONWebKey
	err     error
}

// get returns the verification keys. With fresh it reads the file even if it was just read.
func (s *keySet) get(fresh bool) ([]jose.JSONWebKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if age := now.Sub(s.checked); !fresh && !s.checked.IsZero() && age >= 0 && age < jwksRecheck {
		return s.result()
	}
	s.checked = now
	raw, err := fileio.Read(s.path, maxJWKSBytes)
	switch {
	case err != nil:
		s.raw, s.keys = nil, nil
		s.err = fmt.Errorf("JWKS file: %w", err)
	case s.raw != nil && bytes.Equal(raw, s.raw):
		s.err = nil
	default:
		keys, err := parseJWKS(raw)
		if err != nil {
			s.err = fmt.Errorf("JWKS file %s: %w", s.path, err)
		} else {
			s.raw, s.keys, s.err = raw, keys, nil
		}
	}
	return s.result()
}

func (s *keySet) result() ([]jose.JSONWebKey, error) {
	if s.keys == nil {
		return nil, s.err
	}
	return s.keys, nil
}

// check returns what is wrong with the file, also while older keys are in force.
func (s *keySet) check() error {
	_, _ = s.get(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func parseJWKS(raw []byte) ([]jose.JSONWebKey, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	if len(set.Keys) > maxJWKSKeys {
		return nil, fmt.Errorf("more than %d keys", maxJWKSKeys)
	}
	keys := make([]jose.JSONWebKey, 0, len(set.Keys))
	for i, k := range set.Keys {
		switch {
		case !k.IsPublic():
			return nil, fmt.Errorf("key %d (kid %q) is not a public key: remove private and symmetric keys from the file", i, k.KeyID)
		case !k.Valid():
			return nil, fmt.Errorf("key %d (kid %q) is not valid", i, k.KeyID)
		case k.Use != "" && k.Use != "sig":
			continue
		}
		keys = append(keys, k)
	}
	return keys, nil
}
