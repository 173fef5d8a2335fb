package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lease"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/record/secret"
	"fairlead.dev/services/ca/internal/replicas"
)

const (
	// leaseDuration is after which time without a sign of life another replica takes the steps. Issuing does not wait
	// for them.
	leaseDuration = 15 * time.Second
	// replicasFile is the file in --ca-dir with the names of the other replicas.
	replicasFile = "replicas.json"
	// maxReplicaBytes holds what replicas send each other in one message.
	maxReplicaBytes = 1 << 20
)

// checkReplicas reports what is wrong with the flags of a ca with several replicas.
func (o *Options) checkReplicas(errs *service.FlagErrors) {
	if o.StateSecret == "" {
		if o.Lease != "" || len(o.Peers) > 0 {
			errs.Add("state-secret", errors.New("is required with --lease and --peers: replicas have their state in common"))
		}
		return
	}
	namespace, name, ok := strings.Cut(o.StateSecret, "/")
	if !ok || len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Subdomain(name)) > 0 {
		errs.Add("state-secret", fmt.Errorf("%q is not namespace/name", o.StateSecret))
	}
	if !o.Kubernetes {
		errs.Add("state-secret", errors.New("needs --kubernetes"))
	}
	if o.SignerFile == "" {
		errs.Add("state-secret", errors.New("needs --signer-file: the root of --ca-dir is on one disk, and such a ca has one replica"))
	}
	if len(o.Peers) > 0 && o.Lease == "" {
		errs.Add("lease", errors.New("is required with --peers: one replica takes steps"))
	}
}

// movedFile is the name of the state file once a Secret has what it had.
const movedFile = "state-moved-to-secret.json"

// openRecord is where the ca's state is.
func (o *Options) openRecord(cluster *kube.Cluster, by clock.Clock) record.Store {
	if o.StateSecret == "" {
		return record.NewFile(filepath.Join(o.Dir, stateFile), by)
	}
	namespace, name, _ := strings.Cut(o.StateSecret, "/")
	return secret.New(secret.Config{API: cluster.API, Namespace: namespace, Name: name, Clock: by})
}

// openState is openRecord. A ca that gets a Secret for it, as before replicas are added, takes with it
// what its state file has; without the Secret it does not start any more, because it would go on from what is old.
func (s *Server) openState(ctx context.Context, cluster *kube.Cluster) (record.Store, error) {
	path, moved := filepath.Join(s.cfg.Dir, stateFile), filepath.Join(s.cfg.Dir, movedFile)
	file := record.NewFileOn(s.fs, path, s.Clock)
	if s.cfg.StateSecret == "" {
		_, here := os.Lstat(path)
		if _, err := os.Lstat(moved); err == nil && errors.Is(here, fs.ErrNotExist) {
			return nil, fmt.Errorf("the ca's state was moved to a Secret, as %s says: start the ca with --state-secret again, or restore a backup "+
				"into --ca-dir", moved)
		}
		return file, nil
	}
	to := s.cfg.openRecord(cluster, s.Clock)
	if err := takeAlong(ctx, file, to); err != nil {
		return nil, err
	}
	if err := os.Rename(path, moved); err == nil {
		s.Log.Info("the ca's state is in a Secret from now on", "secret", s.cfg.StateSecret, "before", moved)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return to, nil
}

// takeAlong writes the record of a store into another one that has none.
func takeAlong(ctx context.Context, from, to record.Store) error {
	if _, err := to.Load(ctx); !errors.Is(err, record.ErrNone) {
		return err
	}
	r, err := from.Load(ctx)
	if errors.Is(err, record.ErrNone) {
		return nil
	}
	if err == nil {
		_, err = to.Save(ctx, r.Data, "")
	}
	if errors.Is(err, record.ErrChanged) {
		return nil // another replica was first
	}
	return err
}

// leadership says which replica takes steps.
type leadership struct {
	leads  atomic.Bool
	holder func() string
}

// elect takes part in the election of the replica that takes steps. It begins at once, because a ca without any state
// is opened by the steps of that replica.
func (s *Server) elect(ctx context.Context, cluster *kube.Cluster) (*leadership, error) {
	l := &leadership{}
	if s.cfg.Lease == "" {
		l.leads.Store(true)
		l.holder = func() string { return s.cfg.Replica }
		return l, nil
	}
	namespace, _, _ := strings.Cut(s.cfg.StateSecret, "/")
	leads := prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_ca_leader", Help: "1 in the replica that takes the steps of rotations."})
	s.Registry.MustRegister(leads)
	election, err := lease.New(lease.Config{
		API: cluster.Config, Namespace: namespace, Name: s.cfg.Lease, Identity: s.cfg.Replica + "_" + rand.Text(),
		Duration: leaseDuration, Account: "the ca's service account", Leads: leads, Log: s.Log,
		Work: func(ctx context.Context) {
			l.leads.Store(true)
			defer l.leads.Store(false)
			<-ctx.Done()
		},
	})
	if err != nil {
		return nil, err
	}
	l.holder = func() string {
		name, _, _ := strings.Cut(election.Holder(), "_")
		return name
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = election.Run(ctx) // it ends with ctx
	}()
	end := func() { stop(); <-ended }
	s.stops = append(s.stops, end)
	s.Task("election", func(ctx context.Context) error {
		<-ctx.Done()
		end()
		return nil
	})
	return l, nil
}

// openReplicas makes what tells the other replicas of certificates, and hears from them; nil without others.
func (s *Server) openReplicas(sign *signing) (*replicas.Set, error) {
	if len(s.cfg.Peers) == 0 {
		return nil, nil //nolint:nilnil // there are no others
	}
	set, err := replicas.New(replicas.Config{
		Name: s.cfg.Replica, Registry: s.holders, LongestTTL: s.cfg.MaxWorkloadTTL, File: filepath.Join(s.cfg.Dir, replicasFile),
		Peers: rpc.NewPeers(rpc.PeersConfig{
			Peers: s.cfg.Peers, TLS: tlsconf.Client(s.ownCert, s.cfg.identity), MaxRecvBytes: maxReplicaBytes, Resolver: net.DefaultResolver,
			Log: s.Log,
		}),
		Own: func() replicas.Own {
			return replicas.Own{Signer: sign.driver.Issues(), RecordVersion: sign.driver.Version()}
		},
		Clock: s.Clock, Log: s.Log, Registerer: s.Registry,
	})
	if err != nil {
		return nil, err
	}
	s.Task("other replicas", set.Run)
	return set, nil
}
