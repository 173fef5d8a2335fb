package app

import (
	"context"
	"path/filepath"
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
func (s *Server) openSigner(ctx context.Context, cluster *kube.Cluster) (*signing, error) {
	sign := &signing{Authority: authority.New(s.publisher)}
	if s.cfg.SignerFile == "" {
		return sign, s.openRoot(ctx, sign)
	}
	if err := private.EnsureDir(s.cfg.Dir); err != nil {
		return nil, err
	}
	env := kinds.Env{
		Deps:     signer.Deps{TrustDomain: s.cfg.trustDomain, Clock: s.Clock, Log: s.Log},
		Identity: s.cfg.identity, DNSNames: s.cfg.ownNames, LeafTTL: s.cfg.MaxWorkloadTTL,
	}
	if cluster != nil {
		env.API, env.Cluster = cluster.API, cluster.Config
	}
	keeper, err := inuse.Open(ctx, inuse.Config{
		File: s.cfg.SignerFile, Store: file.New(filepath.Join(s.cfg.Dir, stateFile), s.Clock), Authority: sign.Authority, Log: s.Log, Env: env,
	})
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, keeper.Close)
	sign.roots, sign.problem = keeper.Roots, keeper.Problem
	s.Task("signer", keeper.Run)
	return sign, nil
}

func (s *Server) openRoot(ctx context.Context, sign *signing) error {
	root, err := store.Open(ctx, store.Config{Dir: s.cfg.Dir, TrustDomain: s.cfg.trustDomain, RootTTL: s.cfg.RootTTL, Now: s.Clock.Now()})
	if err != nil {
		return err
	}
	s.logRoot(root)
	sign.Use(1, guard.New(held.New(root.Certificate, root.Key), guard.Config{Clock: s.Clock}))
	sign.roots = func() ([]string, <-chan struct{}, error) { return []string{string(root.CertPEM)}, nil, nil }
	sign.problem = func() error { return nil }
	return nil
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
