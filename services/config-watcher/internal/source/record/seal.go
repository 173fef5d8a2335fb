package record

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"fairlead.dev/pkg/fileio"
)

const (
	// keyBytes is the size of an AES-256 key.
	keyBytes = 32
	// maxKeyFileBytes bounds the file of keys: some hundred keys, far more than a rotation has.
	maxKeyFileBytes = 16 << 10
)

// Keys encrypts with AES-256-GCM. The first key encrypts, all keys decrypt. To rotate a key, put the new one first, and
// remove the old one after the next start, which encrypts everything anew.
type Keys struct {
	first string
	all   map[string]cipher.AEAD
}

// ReadKeys reads a file with one key a line, 32 bytes in base64 or hexadecimal; empty lines and those that begin with #
// are skipped. The file must be readable by its owner only.
func ReadKeys(path string) (*Keys, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so others than its owner can get at the keys; run: chmod 0600 %s", path, info.Mode().Perm(),
			path)
	}
	text, err := fileio.ReadAll(f, maxKeyFileBytes)
	if errors.Is(err, fileio.ErrTooLarge) {
		return nil, fmt.Errorf("%s: %w; keep one key a line", path, err)
	}
	if err != nil {
		return nil, err
	}
	k := &Keys{all: map[string]cipher.AEAD{}}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, ok := decodeKey(line)
		if !ok {
			// The line is not shown: it may be a key with a typing error.
			return nil, fmt.Errorf("%s:%d: not a key of %d bytes in base64 or hexadecimal; make one with: head -c %d /dev/urandom | base64", path,
				i+1, keyBytes, keyBytes)
		}
		if err := k.add(key); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	if k.first == "" {
		return nil, fmt.Errorf("%s holds no key; make one with: head -c %d /dev/urandom | base64", path, keyBytes)
	}
	return k, nil
}

func decodeKey(text string) ([]byte, bool) {
	for _, decode := range []func(string) ([]byte, error){hex.DecodeString, base64.StdEncoding.DecodeString} {
		if key, err := decode(text); err == nil && len(key) == keyBytes {
			return key, true
		}
	}
	return nil, false
}

func (k *Keys) add(key []byte) error {
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return err
	}
	// The ID says nothing about the key: a hash of 256 random bits cannot be reversed.
	digest := sha256.Sum256(append([]byte("fairlead store key\x00"), key...))
	id := hex.EncodeToString(digest[:4])
	if k.all[id] != nil {
		return errors.New("the same key twice; remove one")
	}
	k.all[id] = aead
	k.first = cmp.Or(k.first, id)
	return nil
}

// Key implements Sealer.
func (k *Keys) Key() string { return k.first }

// Seal implements Sealer.
func (k *Keys) Seal(key string, plain, context []byte) ([]byte, error) {
	aead := k.all[key]
	if aead == nil {
		return nil, fmt.Errorf("%w (key id %s)", ErrLocked, key)
	}
	return aead.Seal(nil, nil, plain, context), nil
}

// Open implements Sealer.
func (k *Keys) Open(key string, sealed, context []byte) ([]byte, error) {
	aead := k.all[key]
	if aead == nil {
		return nil, fmt.Errorf("%w (key id %s)", ErrLocked, key)
	}
	plain, err := aead.Open(nil, nil, sealed, context)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return plain, nil
}
