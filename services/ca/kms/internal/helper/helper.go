// Package helper is the program ca-kms: it does what package kms of the ca asks for, with keys that it opens once. When
// it has lost its session with them it says so, and the ca starts another.
package helper

import (
	"bufio"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"go.step.sm/crypto/kms/apiv1"

	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// maxInFlight bounds what is asked of token or service at once.
const maxInFlight = 32

// store is where keys are. All errors are of type *wire.Error. It is safe for concurrent use.
type store interface {
	// find returns the URI of a key, by which KeyManager finds it.
	find(key string) (uri string, err error)
	// make makes a key and returns its URI.
	make(key string, algorithm apiv1.SignatureAlgorithm, bits int) (uri string, err error)
	delete(key string) error
	manager() apiv1.KeyManager
	// explain says what an error of the KeyManager means.
	explain(err error) *wire.Error
}

// opener opens a store. The ca ends a helper for which that takes too long.
type opener func(ctx context.Context, s *wire.Store) (store, error)

type server struct {
	writing sync.Mutex
	out     io.Writer
	store   store

	mu      sync.Mutex
	signers map[string]crypto.Signer
}

// Serve answers requests until in ends.
func Serve(in io.Reader, out io.Writer) error {
	return serve(in, out, openers())
}

func serve(in io.Reader, out io.Writer, known map[string]opener) error {
	s := &server{out: out, signers: map[string]crypto.Signer{}}
	hello := wire.Hello{Version: wire.Version, Types: slices.Sorted(maps.Keys(known))}
	if err := wire.Write(out, hello); err != nil {
		return err
	}
	places := make(chan struct{}, maxInFlight)
	reader := bufio.NewReader(in)
	for {
		var r wire.Request
		if err := wire.Read(reader, &r); err != nil {
			if errors.Is(err, io.EOF) {
				// What is under way hangs perhaps, and nobody waits for it.
				return nil
			}
			return err
		}
		if r.Op == wire.Open {
			// Nothing else is under way: the ca waits.
			s.answer(r.ID, s.open(&r, known))
			continue
		}
		// Requests wait in goroutines, so that the end of the input is seen whatever hangs.
		go func() {
			places <- struct{}{}
			defer func() { <-places }()
			s.answer(r.ID, s.do(&r))
		}()
	}
}

func (s *server) answer(id uint64, r *wire.Response) {
	r.ID = id
	s.writing.Lock()
	defer s.writing.Unlock()
	// If the ca is gone, the input ends too.
	_ = wire.Write(s.out, r)
}

func failed(err error) *wire.Response {
	said, ok := errors.AsType[*wire.Error](err)
	if !ok {
		said = wire.Errorf(wire.Away, "%v", err)
	}
	const most = 2048
	if len(said.Text) > most {
		said.Text = said.Text[:most]
	}
	return &wire.Response{Error: said}
}

func (s *server) open(r *wire.Request, known map[string]opener) *wire.Response {
	if r.Store == nil || s.store != nil || known[r.Store.Type] == nil {
		return failed(wire.Errorf(wire.Refused, "cannot open this"))
	}
	opened, err := known[r.Store.Type](context.Background(), r.Store)
	if err != nil {
		return failed(err)
	}
	s.store = opened
	return &wire.Response{}
}

func (s *server) do(r *wire.Request) *wire.Response {
	if s.store == nil {
		return failed(wire.Errorf(wire.Refused, "nothing is open"))
	}
	switch r.Op {
	case wire.Find:
		uri, err := s.store.find(r.Key)
		return s.describe(uri, err)
	case wire.Make:
		algorithm, bits, err := algorithmOf(r.Algorithm)
		if err != nil {
			return failed(err)
		}
		uri, err := s.store.make(r.Key, algorithm, bits)
		return s.describe(uri, err)
	case wire.Delete:
		if err := s.store.delete(r.Key); err != nil {
			return failed(err)
		}
		return &wire.Response{}
	case wire.Sign:
		return s.sign(r)
	}
	return failed(wire.Errorf(wire.Refused, "unknown operation %.40q", r.Op))
}

// describe answers with the public key of a URI.
func (s *server) describe(uri string, err error) *wire.Response {
	if err != nil {
		return failed(err)
	}
	key, err := s.signer(uri)
	if err != nil {
		return failed(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return failed(wire.Errorf(wire.Refused, "the key is of a kind that the ca does not sign with (%T)", key.Public()))
	}
	return &wire.Response{URI: uri, PublicKey: public}
}

// signer returns the key of a URI, which it keeps.
func (s *server) signer(uri string) (crypto.Signer, error) {
	s.mu.Lock()
	key := s.signers[uri]
	s.mu.Unlock()
	if key != nil {
		return key, nil
	}
	key, err := s.store.manager().CreateSigner(&apiv1.CreateSignerRequest{SigningKey: uri})
	if err != nil {
		return nil, s.store.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signers[uri] = key
	return key, nil
}

func (s *server) sign(r *wire.Request) *wire.Response {
	hash := crypto.Hash(r.Hash)
	if !hash.Available() || hash.Size() != len(r.Digest) {
		return failed(wire.Errorf(wire.Unsuitable, "a digest of %d bytes of an unknown hash", len(r.Digest)))
	}
	key, err := s.signer(r.URI)
	if err != nil {
		return failed(err)
	}
	var opts crypto.SignerOpts = hash
	if r.PSS {
		opts = &rsa.PSSOptions{SaltLength: r.SaltLength, Hash: hash}
	}
	signature, err := key.Sign(rand.Reader, r.Digest, opts)
	if err != nil {
		return failed(s.store.explain(err))
	}
	return &wire.Response{Signature: signature}
}

// algorithmOf translates a signer.Algorithm.
func algorithmOf(a string) (apiv1.SignatureAlgorithm, int, error) {
	switch a {
	case "ECDSA-P256":
		return apiv1.ECDSAWithSHA256, 0, nil
	case "ECDSA-P384":
		return apiv1.ECDSAWithSHA384, 0, nil
	case "RSA-2048":
		return apiv1.SHA256WithRSA, 2048, nil
	case "RSA-3072":
		return apiv1.SHA256WithRSA, 3072, nil
	case "RSA-4096":
		return apiv1.SHA256WithRSA, 4096, nil
	}
	return 0, 0, wire.Errorf(wire.Unsuitable, "unknown algorithm %.40q", a)
}

// openKMS opens the KeyManager that a package of Smallstep's has registered.
func openKMS(ctx context.Context, kind apiv1.Type, options apiv1.Options) (apiv1.KeyManager, error) {
	open, ok := apiv1.LoadKeyManagerNewFunc(kind)
	if !ok {
		return nil, fmt.Errorf("not built for %s", kind)
	}
	return open(ctx, options)
}
