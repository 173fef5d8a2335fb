// Package keystest has what must hold of every signer.KeyManager: Contract runs it over one.
package keystest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/signer"
)

// Subject is what Contract tests.
type Subject struct {
	// Open returns a KeyManager of the test's store; each one is as that of a process of its own.
	Open func(t testing.TB) signer.KeyManager
	// Shared is what KeyManager.Shared must say.
	Shared bool
	// Algorithms that it can make; all if empty.
	Algorithms []signer.Algorithm
	// Makers is how many make one key at once; 8 if it is 0.
	Makers int
}

func (s *Subject) algorithms() []signer.Algorithm {
	if len(s.Algorithms) > 0 {
		return s.Algorithms
	}
	return []signer.Algorithm{signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048, signer.RSA3072, signer.RSA4096}
}

// Contract runs the expectations as subtests. The store is empty before it.
func Contract(t *testing.T, s Subject) {
	t.Run("keys that were made are found", s.made)
	t.Run("a key that is not there", s.absent)
	t.Run("a name is of one key", s.taken)
	t.Run("a deleted key is gone, and its name free", s.deleted)
	t.Run("names and algorithms that are refused", s.refused)
	t.Run("of many that make one key, one does", s.raced)
	t.Run("keys of several names at once", s.several)
	t.Run("a request that is over makes no key", s.over)
	if got := s.Open(t).Shared(); got != s.Shared {
		t.Errorf("Shared is %v", got)
	}
}

func (s *Subject) made(t *testing.T) {
	for _, a := range s.algorithms() {
		name := "made-" + strings.ToLower(string(a))
		key, err := s.Open(t).Make(t.Context(), name, a)
		if err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		found, err := s.Open(t).Find(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		if !SameKey(key, found) {
			t.Errorf("%s: another key is found than was made", a)
		}
		checkKind(t, a, found.Public())
		for _, k := range []crypto.Signer{key, found} {
			if err := Signs(k); err != nil {
				t.Errorf("%s: %v", a, err)
			}
		}
	}
}

func checkKind(t *testing.T, a signer.Algorithm, public crypto.PublicKey) {
	t.Helper()
	got := ""
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		got = "ECDSA-" + strings.ReplaceAll(key.Curve.Params().Name, "-", "")
	case *rsa.PublicKey:
		got = fmt.Sprintf("RSA-%d", key.N.BitLen())
	}
	if got != string(a) {
		t.Errorf("the key of algorithm %s is of %q", a, got)
	}
}

func (s *Subject) absent(t *testing.T) {
	keys := s.Open(t)
	if _, err := keys.Find(t.Context(), "absent"); !errors.Is(err, signer.ErrNoKey) || !strings.Contains(err.Error(), "absent") {
		t.Errorf("Find: %v", err)
	}
	if err := keys.Delete(t.Context(), "absent"); err != nil {
		t.Errorf("Delete: %v", err)
	}
}

func (s *Subject) taken(t *testing.T) {
	first, err := s.Open(t).Make(t.Context(), "taken", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []signer.Algorithm{signer.ECDSAP256, signer.RSA2048} {
		_, err := s.Open(t).Make(t.Context(), "taken", a)
		if !errors.Is(err, signer.ErrKeyExists) || !strings.Contains(err.Error(), "taken") {
			t.Errorf("a second key: %v", err)
		}
	}
	if found, err := s.Open(t).Find(t.Context(), "taken"); err != nil || !SameKey(first, found) {
		t.Errorf("the first key is lost: %v", err)
	}
}

func (s *Subject) deleted(t *testing.T) {
	keys := s.Open(t)
	first, err := keys.Make(t.Context(), "deleted", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	other, err := keys.Make(t.Context(), "deleted-not", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Open(t).Delete(t.Context(), "deleted"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := keys.Find(t.Context(), "deleted"); !errors.Is(err, signer.ErrNoKey) {
		t.Errorf("found after it was deleted: %v", err)
	}
	if found, err := keys.Find(t.Context(), "deleted-not"); err != nil || !SameKey(other, found) {
		t.Errorf("another key is lost: %v", err)
	}
	second, err := keys.Make(t.Context(), "deleted", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if SameKey(first, second) {
		t.Error("the deleted key is back")
	}
}

func (s *Subject) refused(t *testing.T) {
	keys := s.Open(t)
	for _, name := range []string{"", "A", "a.b", "../a", "a/b", "-a", "a-", "a_b", "a b", "a\x00", "ä", strings.Repeat("a", 64), "a;id=1", "a%2e"} {
		if _, err := keys.Make(t.Context(), name, signer.ECDSAP256); err == nil || !strings.Contains(err.Error(), "DNS label") {
			t.Errorf("Make %q: %v", name, err)
		}
		if _, err := keys.Find(t.Context(), name); err == nil || !strings.Contains(err.Error(), "DNS label") {
			t.Errorf("Find %q: %v", name, err)
		}
		if err := keys.Delete(t.Context(), name); err == nil || !strings.Contains(err.Error(), "DNS label") {
			t.Errorf("Delete %q: %v", name, err)
		}
	}
	for _, a := range []signer.Algorithm{"", "RSA-1024", "ECDSA-P224", "Ed25519"} {
		if _, err := keys.Make(t.Context(), "refused", a); err == nil || !strings.Contains(err.Error(), string(signer.ECDSAP256)) {
			t.Errorf("Make of %q: %v", a, err)
		}
	}
	if _, err := keys.Find(t.Context(), "refused"); !errors.Is(err, signer.ErrNoKey) {
		t.Errorf("a key of an unknown algorithm was made: %v", err)
	}
}

func (s *Subject) raced(t *testing.T) {
	makers := s.Makers
	if makers == 0 {
		makers = 8
	}
	made, errs := make([]crypto.Signer, makers), make([]error, makers)
	var wg sync.WaitGroup
	for i := range makers {
		keys := s.Open(t)
		wg.Go(func() { made[i], errs[i] = keys.Make(t.Context(), "raced", signer.ECDSAP256) })
	}
	wg.Wait()
	found, err := s.Open(t).Find(t.Context(), "raced")
	if err != nil {
		t.Fatal(err)
	}
	winners := 0
	for i, key := range made {
		switch {
		case errs[i] == nil && SameKey(key, found):
			winners++
		case errs[i] == nil:
			t.Error("a maker has a key that is not there")
		case !errors.Is(errs[i], signer.ErrKeyExists):
			t.Errorf("a maker failed: %v", errs[i])
		}
	}
	if winners != 1 {
		t.Errorf("%d makers have made the key", winners)
	}
}

func (s *Subject) several(t *testing.T) {
	const names = 4
	var wg sync.WaitGroup
	for i := range names {
		keys, name := s.Open(t), fmt.Sprintf("several-%d", i)
		wg.Go(func() {
			key, err := keys.Make(t.Context(), name, signer.ECDSAP256)
			if err != nil {
				t.Error(err)
				return
			}
			for range 8 {
				wg.Go(func() {
					if err := Signs(key); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	for i := range names {
		if _, err := s.Open(t).Find(t.Context(), fmt.Sprintf("several-%d", i)); err != nil {
			t.Error(err)
		}
	}
}

func (s *Subject) over(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(t).Make(ctx, "over", signer.ECDSAP256); err == nil {
		t.Error("a key was made for a request that was over")
	}
	if _, err := s.Open(t).Find(t.Context(), "over"); !errors.Is(err, signer.ErrNoKey) {
		t.Errorf("Find: %v", err)
	}
}

// SameKey compares public keys.
func SameKey(a, b crypto.Signer) bool {
	known, ok := a.Public().(interface{ Equal(x crypto.PublicKey) bool })
	return ok && known.Equal(b.Public())
}

// Signs returns an error unless the key signs what its public key verifies: digests, and a certificate of its own.
func Signs(key crypto.Signer) error {
	for hash, sum := range map[crypto.Hash]func([]byte) []byte{
		crypto.SHA256: func(b []byte) []byte { s := sha256.Sum256(b); return s[:] },
		crypto.SHA384: func(b []byte) []byte { s := sha512.Sum384(b); return s[:] },
		crypto.SHA512: func(b []byte) []byte { s := sha512.Sum512(b); return s[:] },
	} {
		digest := sum([]byte("what is signed"))
		signature, err := key.Sign(rand.Reader, digest, hash)
		if err != nil {
			return fmt.Errorf("sign with %s: %w", hash, err)
		}
		switch public := key.Public().(type) {
		case *ecdsa.PublicKey:
			if !ecdsa.VerifyASN1(public, digest, signature) {
				return fmt.Errorf("the signature with %s does not verify", hash)
			}
		case *rsa.PublicKey:
			if err := rsa.VerifyPKCS1v15(public, hash, digest, signature); err != nil {
				return fmt.Errorf("the signature with %s: %w", hash, err)
			}
		}
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "keystest"}, NotBefore: now, NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	return cert.CheckSignatureFrom(cert)
}
