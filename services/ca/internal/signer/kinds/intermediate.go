package kinds

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/intermediate"
	"fairlead.dev/services/ca/internal/signer/keys/directory"
	"fairlead.dev/services/ca/internal/signer/keys/kms"
	"fairlead.dev/services/ca/internal/signer/keys/secret"
	"fairlead.dev/services/ca/internal/signer/selfsigned"
	"fairlead.dev/services/ca/internal/signer/vault"
)

// Lifetimes where the file has none.
const (
	rootTTL         = 10 * 365 * 24 * time.Hour
	intermediateTTL = 30 * 24 * time.Hour
)

// record is what is kept of an intermediate. It has nothing secret.
type record struct {
	// Root is a self-signed root in PEM.
	Root string `json:"root,omitempty"`
	// Count is how many intermediates were made, which numbers their keys.
	Count uint64 `json:"count"`
	// Made is the intermediate in use.
	Made *intermediate.Made `json:"made"`
}

// intermediates is a keeper.
type intermediates struct {
	held.Rotating
	spec *Intermediate
	env  Env
	keys signer.KeyManager
	// name begins the names of keys.
	name string
	// vault signs the intermediate; nil if a root of the ca's own does.
	vault *vault.Minter
}

func newIntermediate(s *Intermediate, id uint64, env Env) (*intermediates, error) {
	keys, err := openKeys(s.Keys, env)
	if err != nil {
		return nil, err
	}
	i := &intermediates{spec: s, env: env, keys: keys, name: fmt.Sprintf("signer-%d", id)}
	if s.Vault != nil {
		if i.vault, err = vault.NewMinter(*s.Vault, env.Deps); err != nil {
			return nil, err
		}
	}
	return i, nil
}

func openKeys(k Keys, env Env) (signer.KeyManager, error) {
	switch {
	case k.Directory != nil:
		return directory.NewOn(env.FS, *k.Directory), nil
	case k.Secret != nil && env.API == nil:
		return nil, errors.New("intermediate.keys.secret: needs Kubernetes; start the ca with --kubernetes, or keep keys elsewhere")
	case k.Secret != nil:
		return secret.New(*k.Secret, env.API), nil
	case k.KMS != nil:
		return kms.New(*k.KMS, env.Deps)
	}
	return nil, errors.New("intermediate.keys: none is chosen")
}

// Capabilities implements signer.Issuer. A token or a service that signs may be slow, or away.
func (i *intermediates) Capabilities() signer.Capabilities {
	can := held.Capabilities()
	can.Remote = i.spec.Keys.KMS != nil
	return can
}

// Run implements signer.Issuer: whoever opened the signer renews it, its keys may have a process to end, and a minter a
// login to keep.
func (i *intermediates) Run(ctx context.Context) error {
	if i.vault != nil {
		var login sync.WaitGroup
		defer login.Wait()
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		login.Go(func() { _ = i.vault.Run(ctx) }) // it ends with ctx, and without an error
	}
	if keys, ok := i.keys.(interface{ Run(context.Context) error }); ok {
		return keys.Run(ctx)
	}
	<-ctx.Done()
	return nil
}

// Problem is what is wrong with the minter.
func (i *intermediates) Problem() error {
	if i.vault != nil {
		return i.vault.Problem()
	}
	return nil
}

func (i *intermediates) prepare(ctx context.Context, kept json.RawMessage) (json.RawMessage, error) {
	r, err := i.decode(kept)
	if err != nil {
		return nil, err
	}
	minter, root, err := i.minter(ctx, r.Root)
	if err != nil {
		return nil, err
	}
	if root != nil {
		r.Root = tlsconf.EncodeCertificate(root)
	}
	r.Count++
	made, err := i.config(minter).Make(ctx, fmt.Sprintf("%s-intermediate-%d", i.name, r.Count), i.env.Clock.Now())
	if err != nil {
		return nil, err
	}
	r.Made = made
	return json.Marshal(r)
}

// config says how intermediates are made. One must outlive the leaves that it signs before the next is used.
func (i *intermediates) config(m signer.Minter) intermediate.Config {
	return intermediate.Config{
		Keys: i.keys, Minter: m, Algorithm: cmp.Or(i.spec.Algorithm, signer.ECDSAP256), TrustDomain: i.env.TrustDomain,
		TTL: cmp.Or(i.spec.TTL.Duration, intermediateTTL), MinTTL: 2 * i.env.LeafTTL, DNSNames: i.env.DNSNames,
	}
}

// minter returns the minter, and the root that it made if it is self-signed.
func (i *intermediates) minter(ctx context.Context, root string) (signer.Minter, *x509.Certificate, error) {
	if i.vault != nil {
		return i.vault, nil, nil
	}
	if i.spec.SelfSigned == nil {
		return nil, nil, errors.New("intermediate: no minter is chosen")
	}
	c := selfsigned.Config{
		Keys: i.keys, Algorithm: cmp.Or(i.spec.SelfSigned.Algorithm, signer.ECDSAP256), TrustDomain: i.env.TrustDomain,
		TTL: cmp.Or(i.spec.SelfSigned.TTL.Duration, rootTTL), Now: i.env.Clock.Now,
	}
	name := i.name + "-root"
	if root == "" {
		made, err := c.Make(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		return made, made.Certificate, nil
	}
	certs, err := tlsconf.ParseCertificates([]byte(root))
	if err != nil || len(certs) != 1 {
		return nil, nil, fmt.Errorf("the ca's record of its root has %d certificates: %w", len(certs), err)
	}
	opened, err := c.Open(ctx, name, certs[0])
	if err != nil {
		return nil, nil, err
	}
	return opened, certs[0], nil
}

func (i *intermediates) decode(kept json.RawMessage) (*record, error) {
	r := &record{}
	if len(kept) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(kept, r); err != nil {
		return nil, fmt.Errorf("the ca's record of its intermediate: %w", err)
	}
	return r, nil
}

func (i *intermediates) adopt(ctx context.Context, kept json.RawMessage) error {
	r, err := i.decode(kept)
	if err != nil {
		return err
	}
	if r.Made == nil {
		return errors.New("the ca's record of its intermediate is empty")
	}
	s, err := intermediate.Open(ctx, i.keys, r.Made)
	if err != nil {
		return err
	}
	if now := i.Current(); now == nil || !now.Issuer().Equal(s.Issuer()) {
		i.Set(s)
	}
	return nil
}

// due is at half of the intermediate's life.
func (i *intermediates) due() time.Time {
	s := i.Current()
	if s == nil {
		return i.env.Clock.Now()
	}
	c := s.Issuer()
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 2)
}
