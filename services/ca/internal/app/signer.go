package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/backup"
	"fairlead.dev/services/ca/internal/driver"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/holders"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/replicas"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/store"
)

const (
	// stateFile is the file in --ca-dir that holds the ca's record.
	stateFile = "state.json"
	// holdersFolder is the folder in --ca-dir of the journal of certificates.
	holdersFolder = backup.HoldersFolder
	// rootFolders are the folders in --ca-dir of the roots that rotations have made.
	rootFolders = "signer-%d"
	// maxSignerFileBytes bounds the signer file.
	maxSignerFileBytes = 64 << 10
)

// signing is what the ca issues with.
type signing struct {
	*authority.Authority
	driver *driver.Driver
	// replicas are nil without others.
	replicas *replicas.Set
}

// openHolders reads the journal of who has which certificate.
func (s *Server) openHolders(ctx context.Context, state record.Store) (err error) {
	_, noState := state.Load(ctx)
	before, err := s.before()
	if err != nil {
		return err
	}
	if noState != nil && !errors.Is(noState, record.ErrNone) {
		return noState
	}
	issued := noState == nil || before != nil
	s.holders, err = holders.Open(holders.Config{
		Dir: filepath.Join(s.cfg.Dir, holdersFolder), IssuedBefore: issued, Replicated: len(s.cfg.Peers) > 0, LongestTTL: s.cfg.MaxWorkloadTTL,
		Clock: s.Clock, Log: s.Log, FS: s.fs, Registerer: s.Registry, Current: func() (epoch, generation uint64) {
			if b, _ := s.publisher.Current(); b != nil {
				return b.Epoch, b.Generation
			}
			return 0, 0
		},
	})
	if err != nil {
		return err
	}
	s.Task("holders of certificates", s.holders.Run)
	return nil
}

// openSigner opens the signer of the ca's record; without a record that of --signer-file, and without both the root of
// --ca-dir, which signs leaves itself.
func (s *Server) openSigner(ctx context.Context, sign *signing, state record.Store, cluster *kube.Cluster) (err error) {
	leads, err := s.elect(ctx, cluster)
	if err != nil {
		return err
	}
	env := kinds.Env{
		Deps:     signer.Deps{TrustDomain: s.cfg.trustDomain, Clock: s.Clock, Log: s.Log},
		Identity: s.cfg.identity, DNSNames: s.cfg.ownNames, LeafTTL: s.cfg.MaxWorkloadTTL, Own: s.ownCert, FS: s.fs,
		OpenRoot: func(id uint64, ttl time.Duration) (signer.Issuer, error) {
			root, err := s.openRoot(ctx, s.rootDir(id), ttl)
			if err != nil {
				return nil, err
			}
			return held.New(root.Certificate, root.Key), nil
		},
	}
	if cluster != nil {
		env.API, env.Cluster = cluster.API, cluster.Config
	}
	cfg := driver.Config{
		Spec: s.signerFile, Record: state, Before: s.before, Own: s.openOwnRoot, Env: env,
		First: func(ctx context.Context, roots []string) (uint64, error) {
			return store.Generation(ctx, s.fs, s.cfg.Dir, roots)
		},
		Authority: sign.Authority, Holders: s.holders, Name: s.cfg.Replica, Beside: s.beside, Log: s.Log,
		Settle: s.cfg.Settle, Leads: leads.leads.Load, Leader: leads.holder,
	}
	if sign.replicas, err = s.openReplicas(sign); err != nil {
		return err
	}
	if sign.replicas != nil {
		cfg.Holders, cfg.Replicas, cfg.Versions = sign.replicas, sign.replicas.Replicas, sign.replicas.Versions
	}
	if sign.driver, err = driver.Open(ctx, cfg); err != nil {
		return err
	}
	s.stops = append(s.stops, sign.driver.Close)
	s.Task("signer", sign.driver.Run)
	return nil
}

// signerFile reads --signer-file.
func (s *Server) signerFile() (*kinds.Spec, error) {
	if s.cfg.SignerFile == "" {
		return kinds.BuiltInSpec(s.cfg.RootTTL), nil
	}
	text, err := fileio.Read(s.cfg.SignerFile, maxSignerFileBytes)
	if err != nil {
		return nil, fmt.Errorf("--signer-file: %w", err)
	}
	spec, err := kinds.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--signer-file: %s: %w", s.cfg.SignerFile, err)
	}
	return spec, nil
}

// before is the signer of a ca that has issued with the root of --ca-dir, and has no record of it: one of an earlier
// version.
func (s *Server) before() (*kinds.Spec, error) {
	_, err := os.Lstat(filepath.Join(s.cfg.Dir, store.RootFolder))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // nothing was issued
	case err != nil:
		return nil, err
	}
	return kinds.BuiltInSpec(s.cfg.RootTTL), nil
}

// rootDir is where the root of a signer is: that of the first is in --ca-dir itself.
func (s *Server) rootDir(id uint64) string {
	if id == 1 {
		return s.cfg.Dir
	}
	return filepath.Join(s.cfg.Dir, fmt.Sprintf(rootFolders, id))
}

// openOwnRoot opens the root of --ca-dir for what a signer cannot sign: names of services. The mesh trusts both.
func (s *Server) openOwnRoot(ctx context.Context) (*guard.Guard, []string, error) {
	if len(s.cfg.Peers) > 0 {
		return nil, nil, errors.New("it cannot sign the names of the mesh's services, for which the ca has a root of its own in --ca-dir: " +
			"such a ca has one replica; leave --peers out, or choose a signer that takes names from the ca")
	}
	root, err := s.openRoot(ctx, s.cfg.Dir, s.cfg.RootTTL)
	if err != nil {
		return nil, nil, err
	}
	return guard.New(held.New(root.Certificate, root.Key), guard.Config{Clock: s.Clock}), []string{string(root.CertPEM)}, nil
}

// openRoot opens the root of a directory, or makes it.
func (s *Server) openRoot(ctx context.Context, dir string, ttl time.Duration) (*store.Root, error) {
	root, err := store.Open(ctx, store.Config{
		Dir: dir, TrustDomain: s.cfg.trustDomain, Aliases: s.cfg.aliases, RootTTL: ttl, Now: s.Clock.Now(), FS: s.fs,
	})
	if err != nil {
		return nil, err
	}
	s.logRoot(root)
	return root, nil
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
