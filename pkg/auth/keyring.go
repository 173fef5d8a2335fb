package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/fileio"
)

const (
	maxJWKSBytes = 1 << 20
	// recheck is how long what a file says is used before it is read again.
	recheck = time.Second
)

// followed is the last good content of a file. While the file cannot be parsed, because it may be half written, the
// content before stays; without the file there is none.
type followed[T any] struct {
	path, what string
	parse      func(raw []byte) (T, error)

	raw   []byte
	value T
	err   error
}

// read reads the file and reports whether the content has changed.
func (f *followed[T]) read() bool {
	if f.path == "" {
		return false
	}
	raw, err := fileio.Read(f.path, maxJWKSBytes)
	if err != nil {
		had := f.raw != nil
		var none T
		f.raw, f.value, f.err = nil, none, fmt.Errorf("%s: %w", f.what, err)
		return had
	}
	if f.raw != nil && bytes.Equal(raw, f.raw) {
		f.err = nil
		return false
	}
	value, err := f.parse(raw)
	if err != nil {
		f.err = fmt.Errorf("%s %s: %w", f.what, f.path, err)
		return false
	}
	f.raw, f.value, f.err = raw, value, nil
	return true
}

// keyFiles follows the keys of the own cluster, and those of further clusters. It is safe for concurrent use.
type keyFiles struct {
	clock clock.Clock
	td    spiffeid.TrustDomain

	mu       sync.Mutex
	checked  time.Time
	own      followed[[]jose.JSONWebKey]
	clusters followed[[]clusterkeys.Cluster]
	ring     *keyring
	ringErr  error
}

func newKeyFiles(cfg *JWTConfig) *keyFiles {
	return &keyFiles{clock: cfg.Clock, td: cfg.TrustDomain,
		own:      followed[[]jose.JSONWebKey]{path: cfg.JWKSFile, what: "JWKS file", parse: clusterkeys.ParseSet},
		clusters: followed[[]clusterkeys.Cluster]{path: cfg.ClustersFile, what: "file of remote clusters", parse: clusterkeys.Read},
	}
}

// get returns the verification keys. With fresh it reads the files even if they were just read.
func (k *keyFiles) get(fresh bool) (*keyring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refresh(fresh)
}

func (k *keyFiles) refresh(fresh bool) (*keyring, error) {
	now := k.clock.Now()
	if age := now.Sub(k.checked); fresh || k.checked.IsZero() || age < 0 || age >= recheck {
		k.checked = now
		changed := k.own.read()
		changed = k.clusters.read() || changed
		if changed || k.ring == nil {
			if ring, err := newKeyring(k.td, k.own.value, k.clusters.value); err == nil || k.ring == nil {
				k.ring, k.ringErr = ring, err
			} else {
				k.ringErr = err
			}
		}
	}
	if k.own.value == nil {
		return nil, k.own.err
	}
	return k.ring, nil
}

// check returns what is wrong with the own keys' file, also while older keys are in force.
func (k *keyFiles) check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _ = k.refresh(false)
	return k.own.err
}

// checkClusters returns what is wrong with the file of further clusters, or with what it says beside the own keys.
func (k *keyFiles) checkClusters() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ring, _ := k.refresh(false)
	errs := []error{k.ringErr}
	if k.clusters.err != nil && !errors.Is(k.clusters.err, fs.ErrNotExist) {
		errs = append(errs, k.clusters.err)
	}
	if ring != nil {
		errs = append(errs, ring.wrong)
	}
	return errors.Join(errs...)
}

// verifyKey is a key and the cluster whose tokens it verifies.
type verifyKey struct {
	jose.JSONWebKey
	// of is nil for the own cluster.
	of *foreign
	// holders names the clusters that have the key, if several have it: then it verifies nothing, except for the own
	// cluster.
	holders string
}

// foreign is a further cluster.
type foreign struct {
	clusterkeys.Cluster
	td spiffeid.TrustDomain
}

// keyring has the keys of all clusters.
type keyring struct {
	own []verifyKey
	// foreign are the keys of further clusters by their ids, at most one of each cluster.
	foreign  map[string][]verifyKey
	clusters map[string]*foreign
	// wrong says which keys several clusters have, and which entries name another trust domain.
	wrong error
}

func newKeyring(td spiffeid.TrustDomain, own []jose.JSONWebKey, clusters []clusterkeys.Cluster) (*keyring, error) {
	r := &keyring{foreign: map[string][]verifyKey{}, clusters: map[string]*foreign{}}
	var shared map[string][]string
	if len(clusters) > 0 {
		var err error
		if shared, err = clusterkeys.Shared(own, clusters); err != nil {
			return nil, err
		}
	}
	verifies := func(k jose.JSONWebKey, of *foreign) verifyKey {
		v := verifyKey{JSONWebKey: k, of: of}
		if len(shared) > 0 && of != nil {
			sum, _ := clusterkeys.Fingerprint(k) // Shared has made it
			v.holders = strings.Join(shared[sum], " and ")
		}
		return v
	}
	for _, k := range own {
		r.own = append(r.own, verifies(k, nil))
	}
	var errs []error
	for i := range clusters {
		of := &foreign{Cluster: clusters[i], td: td}
		if of.TrustDomain != "" {
			var err error
			if of.td, err = spiffeid.TrustDomainFromString(of.TrustDomain); err != nil {
				return nil, fmt.Errorf("cluster %s: %w", of.Name, err)
			}
		}
		keys, err := clusterkeys.PublicKeys(of.Keys)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", of.Name, err)
		}
		r.clusters[of.Name] = of
		for _, k := range keys {
			r.foreign[k.KeyID] = append(r.foreign[k.KeyID], verifies(k, of))
		}
		if of.td != td {
			errs = append(errs, &ClusterError{Cluster: of.Name, Err: of.domainError(td)})
		}
	}
	for _, sum := range slices.Sorted(maps.Keys(shared)) {
		errs = append(errs, errors.New(clusterkeys.SharedProblem(sum, shared[sum])))
	}
	r.wrong = errors.Join(errs...)
	return r, nil
}

// candidates are the keys that may have signed a token with this header: those of the own cluster first.
func (r *keyring) candidates(header jose.Header) []*verifyKey {
	var out []*verifyKey
	for i := range r.own {
		k := &r.own[i]
		if header.KeyID != "" && k.KeyID != "" && k.KeyID != header.KeyID {
			continue
		}
		if fits(k, header) {
			out = append(out, k)
		}
		if len(out) == maxKeyAttempts {
			break
		}
	}
	if header.KeyID == "" {
		return out // keys of further clusters have an id
	}
	for i := range r.foreign[header.KeyID] {
		if k := &r.foreign[header.KeyID][i]; fits(k, header) {
			out = append(out, k)
		}
	}
	return out
}

func fits(k *verifyKey, header jose.Header) bool {
	return k.Algorithm == "" || k.Algorithm == header.Algorithm
}

// has reports whether a key has this id.
func (r *keyring) has(id string) bool {
	if id == "" {
		return false
	}
	for i := range r.own {
		if r.own[i].KeyID == id {
			return true
		}
	}
	return len(r.foreign[id]) > 0
}
