package app

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/inuse"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/store"
)

// stateFile is the file in --ca-dir that holds what a signer has made, with --signer-file.
const stateFile = "state.json"

// signing is what the ca issues with.
type signing struct {
	*authority.Authority
	// roots are those of the signer, for package trustbundle.
	roots func() ([]string, <-chan struct{}, error)
	// problem is what somebody must mend while the signer goes on issuing; nil if nothing is.
	problem func() error
}

// openSigner opens the signer of --signer-file, and without one the root of --ca-dir, which signs leaves itself.
func (s *Server) openSigner(ctx context.Context, sign *signing, cluster *kube.Cluster) error {
	if s.cfg.SignerFile == "" {
		root, roots, err := s.openRoot(ctx)
		if err != nil {
			return err
		}
		sign.Use(1, root)
		sign.roots = func() ([]string, <-chan struct{}, error) { return roots, nil, nil }
		sign.problem = func() error { return nil }
		return nil
	}
	if err := private.EnsureDir(s.cfg.Dir); err != nil {
		return err
	}
	env := kinds.Env{
		Deps:     signer.Deps{TrustDomain: s.cfg.trustDomain, Clock: s.Clock, Log: s.Log},
		Identity: s.cfg.identity, DNSNames: s.cfg.ownNames, LeafTTL: s.cfg.MaxWorkloadTTL, Own: s.ownCert,
	}
	if cluster != nil {
		env.API, env.Cluster = cluster.API, cluster.Config
	}
	keeper, err := inuse.Open(ctx, inuse.Config{
		File: s.cfg.SignerFile, Record: record.NewFile(filepath.Join(s.cfg.Dir, stateFile)), Authority: sign.Authority, Log: s.Log, Env: env,
	})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, keeper.Close)
	s.Task("signer", keeper.Run)
	sign.roots, sign.problem = keeper.Roots, keeper.Problem
	if sign.Guard().Capabilities().IDsOnly {
		return s.openOwnRoot(ctx, sign)
	}
	return nil
}

// openOwnRoot opens the root of --ca-dir for what the signer cannot sign. The mesh trusts both.
func (s *Server) openOwnRoot(ctx context.Context, sign *signing) error {
	root, own, err := s.openRoot(ctx)
	if err != nil {
		return err
	}
	sign.SetOwn(root)
	theirs := sign.roots
	sign.roots = func() ([]string, <-chan struct{}, error) {
		roots, changed, err := theirs()
		return slices.Concat(roots, own), changed, err
	}
	return nil
}

// openRoot opens the root of --ca-dir, or makes it.
func (s *Server) openRoot(ctx context.Context) (*guard.Guard, []string, error) {
	root, err := store.Open(ctx, store.Config{Dir: s.cfg.Dir, TrustDomain: s.cfg.trustDomain, RootTTL: s.cfg.RootTTL, Now: s.Clock.Now()})
	if err != nil {
		return nil, nil, err
	}
	s.logRoot(root)
	return guard.New(held.New(root.Certificate, root.Key), guard.Config{Clock: s.Clock}), []string{string(root.CertPEM)}, nil
}

// rootExpiry is when the first root of the signer ends.
func (s *signing) rootExpiry() time.Time {
	_, first := signer.Window(s.authorities().Roots)
	return first
}

// expiry is when the first certificate that leaves need ends.
func (s *signing) expiry() time.Time { return s.authorities().NotAfter }

// authorities are those of the signer in use, which has some once it is opened.
func (s *signing) authorities() *signer.Authorities {
	authorities, _ := s.Guard().Authorities()
	return authorities
}
