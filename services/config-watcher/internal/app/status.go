package app

import (
	"context"
	"net"
	"os"
	"time"

	"istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/health"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/status"
	statuskube "fairlead.dev/services/config-watcher/internal/status/kubernetes"
)

// storeStatusesPerSecond bounds the writes of statuses into the store. Each is a few small files.
const storeStatusesPerSecond = 100

// maxFleetBytes is enough for the statuses of some ten thousand proxies.
const maxFleetBytes = 64 << 20

// Bounds of the requests that write statuses into Kubernetes, those of istiod. Most statuses need two.
const (
	kubeStatusQPS     = 100
	kubeStatusBurst   = 500
	kubeStatusWorkers = 8
)

// statusLease is how long the replica that writes statuses into Kubernetes may be silent before another takes over: as
// long as for Kubernetes' own controllers.
const statusLease = 15 * time.Second

// buildStatus wires what evaluates the statuses of objects, and what writes them back to their sources.
func (s *Server) buildStatus() error {
	metrics := status.NewMetrics(s.Registry)
	store := status.NewDispatcher(status.DispatcherConfig{
		Name: memory.Name, Writer: status.NewStoreWriter(s.store, storeStatusesPerSecond, s.Clock), Workers: 1, Metrics: metrics, Log: s.Log,
	})
	metrics.Add(store)
	s.Task("status in the store", store.Run)
	sinks := map[string]status.Sink{memory.Name: store}
	if s.kubernetes != nil {
		d, err := s.writeIntoKubernetes(metrics)
		if err != nil {
			return err
		}
		sinks[s.kubernetes.Name()] = d
	}
	if len(s.cfg.Peers) > 0 {
		peers := fleet.NewPeers(fleet.PeersConfig{
			Peers: rpc.NewPeers(rpc.PeersConfig{
				Peers: s.cfg.Peers, TLS: tlsconf.Client(s.identity, s.cfg.own), MaxRecvBytes: maxFleetBytes, Resolver: net.DefaultResolver, Log: s.Log,
			}),
			Awaited: func() bool { return s.statuses.Awaited() || s.health.Following() || s.registration.Following() }, Clock: s.Clock,
		})
		s.Task("proxies of other replicas", tlsconf.Identified(s.identity, peers.Run))
		s.others, s.registering = peers.Verified, peers.Registering
	}
	if err := s.buildRegistration(); err != nil {
		return err
	}
	var peerReporters func() int
	if s.registering != nil {
		peerReporters = func() int { return s.registering().Reporters }
	}
	s.statuses = status.NewTracker(status.Config{
		Domain: s.cfg.DomainSuffix, Revisions: s.revisions, Fleet: s.fleet, Credentials: s.secrets, Sources: s.sources,
		Overridden: s.joined.Overridden, Findings: s.findings.Of, Peers: s.others, PeerReporters: peerReporters, Sinks: sinks, Log: s.Log,
		Clock: s.Clock,
	})
	s.Task("status of objects", s.statuses.Run)
	s.ingresses = status.NewIngresses(sinks)
	return nil
}

// buildHealth makes the table of the WorkloadEntries that follow their proxies' health, and returns what takes changes
// on their way to the pipeline.
func (s *Server) buildHealth() func(context.Context, []normalise.Change) {
	s.health = health.NewTable(health.Config{
		Fleet: s.fleet, Next: s.pipeline.Submit, Clock: s.Clock, Log: s.Log,
		Peers: func() ([]fleet.View, bool) {
			if s.others == nil {
				return nil, false
			}
			return s.others()
		},
	})
	return s.health.Submit
}

// writeIntoKubernetes wires what writes statuses into the API server, in one replica at a time.
func (s *Server) writeIntoKubernetes(metrics *status.Metrics) (*status.Dispatcher, error) {
	api := s.kubernetes.API()
	writer, err := statuskube.NewWriter(statuskube.Config{API: api, QPS: kubeStatusQPS, Burst: kubeStatusBurst, Clock: s.Clock})
	if err != nil {
		return nil, err
	}
	var leader *statuskube.Leader
	d := status.NewDispatcher(status.DispatcherConfig{
		Name: s.kubernetes.Name(), Writer: writer, Workers: kubeStatusWorkers, Unable: func() error { return leader.Failure() }, Metrics: metrics,
		Log: s.Log,
	})
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	leader, err = statuskube.NewLeader(statuskube.LeaderConfig{
		API: api, Namespace: s.cfg.SystemNamespace, Name: statuskube.LeaseName(s.cfg.IstioRevision), Identity: host + "_" + s.revisions.Epoch(),
		Terms: statuskube.TermsOf(statusLease), Log: s.Log, Registerer: s.Registry,
		Lead: func(ctx context.Context) {
			writer.Reset()
			s.registrar.Lead(true)
			defer s.registrar.Lead(false)
			_ = d.Run(ctx) // ends with ctx
		},
	})
	if err != nil {
		return nil, err
	}
	metrics.Add(d)
	s.Task("status in Kubernetes", leader.Run)
	return d, nil
}

// discovered passes the changes of a revision on to those who judge objects.
func (s *Server) discovered(changes []normalise.Change, settings *v1alpha1.MeshConfig) {
	s.findings.Submit(changes, settings)
	s.registration.Submit(changes)
	s.statuses.Submit(changes)
	s.ingresses.Submit(changes, settings)
}
