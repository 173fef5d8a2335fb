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
	"fairlead.dev/services/ca/internal/record/file"
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
		File: s.cfg.SignerFile, Store: file.New(filepath.Join(s.cfg.Dir, stateFile), s.Clock), Authority: sign.Authority, Log: s.Log, Env: env,
	})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, keeper.Close)
	s.Task("signer", keeper.Run)
	sign.roots, sign.problem = keeper.Roots, keeper.Problem
	if sign.Guard().Capabilities().IDsOnly {
		return s.besideIt(ctx, sign)
	}
	return nil
}

// besideIt opens the root of --ca-dir for what the signer cannot sign. The mesh trusts both.
func (s *Server) besideIt(ctx context.Context, sign *signing) error {
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

// state is what the bounds of the signer know of it.
func (s *signing) state() guard.State {
	if g := s.Guard(); g != nil {
		return g.State()
	}
	return guard.State{}
}

// rootExpiry is when the first root of the signer ends; zero while nobody knows.
func (s *signing) rootExpiry() time.Time {
	var first time.Time
	if g := s.Guard(); g != nil {
		if authorities, _ := g.Authorities(); authorities != nil {
			for _, root := range authorities.Roots {
				if first.IsZero() || root.NotAfter.Before(first) {
					first = root.NotAfter
				}
			}
		}
	}
	return first
}

// expiry is when the first certificate that leaves need ends; zero while nobody knows.
func (s *signing) expiry() time.Time {
	if g := s.Guard(); g != nil {
		if authorities, _ := g.Authorities(); authorities != nil {
			return authorities.NotAfter
		}
	}
	return time.Time{}
}
