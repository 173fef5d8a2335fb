package app

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/lease"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/offer"
	"fairlead.dev/services/config-watcher/internal/registration"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
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

// Gateways of the Gateway API are few, and each changes with every route: their statuses are written beside those of
// all other objects, so that they do not wait for those of thousands of routes.
const (
	gatewaysSuffix    = "/gateways"
	kubeGatewaysQPS   = 50
	kubeGatewaysBurst = 200
)

// statusLease is how long the replica that writes statuses into Kubernetes may be silent before another takes over: as
// long as for Kubernetes' own controllers.
const statusLease = 15 * time.Second

// replicas are the other config-watchers. Without --peers there are none, and its functions are nil.
type replicas struct {
	verified    func() ([]fleet.View, bool)
	registering func() fleet.Registering
	// reporters is the number of xds-servers that report to them.
	reporters func() int
	// run asks them, often while somebody waits for what proxies acknowledge.
	run func(ctx context.Context, awaited func() bool) error
}

func (s *Server) newReplicas(identity tlsconf.Source) replicas {
	if len(s.cfg.Peers) == 0 {
		return replicas{}
	}
	peers := fleet.NewPeers(rpc.NewPeers(rpc.PeersConfig{
		Peers: s.cfg.Peers, TLS: tlsconf.Client(identity, s.cfg.own), MaxRecvBytes: maxFleetBytes, Resolver: net.DefaultResolver, Log: s.Log,
	}), s.Clock)
	return replicas{
		verified: peers.Verified, registering: peers.Registering, run: peers.Run,
		reporters: func() int { return peers.Registering().Reporters },
	}
}

// statusSinks makes what writes the statuses of objects back to their sources. few are those of status.Config.
func (s *Server) statusSinks(
	from *sources, registrar *registration.KubernetesWriter, sets clusterSets, owner *status.Owner,
) (sinks, few map[string]status.Sink, err error) {
	metrics := status.NewMetrics(s.Registry)
	store := status.NewDispatcher(status.DispatcherConfig{
		Name: memory.Name, Writer: status.NewStoreWriter(from.store, storeStatusesPerSecond, s.Clock), Workers: 1, Metrics: metrics, Log: s.Log,
	})
	metrics.Add(store)
	s.Task("status in the store", store.Run)
	sinks, few = map[string]status.Sink{memory.Name: store}, map[string]status.Sink{}
	if from.kubernetes != nil {
		name := from.kubernetes.Name()
		if sinks[name], few[name], err = s.writeIntoKubernetes(from.kubernetes, metrics, registrar, sets, owner); err != nil {
			return nil, nil, err
		}
	}
	return sinks, few, nil
}

// writeIntoKubernetes wires what writes statuses into the API server, in one replica at a time.
func (s *Server) writeIntoKubernetes(
	cluster *kubernetes.Source, metrics *status.Metrics, registrar *registration.KubernetesWriter, sets clusterSets, owner *status.Owner,
) (all, few *status.Dispatcher, err error) {
	api := cluster.API()
	var election *lease.Election
	dispatcher := func(name string, qps float32, burst int) (*status.Dispatcher, *statuskube.Writer, error) {
		writer, err := statuskube.NewWriter(statuskube.Config{API: api, QPS: qps, Burst: burst, Clock: s.Clock})
		d := status.NewDispatcher(status.DispatcherConfig{
			Name: name, Writer: writer, Workers: kubeStatusWorkers, Unable: func() error { return election.Failure() }, Metrics: metrics,
			Log: s.Log,
		})
		return d, writer, err
	}
	all, writer, err := dispatcher(cluster.Name(), kubeStatusQPS, kubeStatusBurst)
	few, writerOfFew, err2 := dispatcher(cluster.Name()+gatewaysSuffix, kubeGatewaysQPS, kubeGatewaysBurst)
	export, err3 := s.newExporter(sets, cluster)
	offered, err4 := offer.New(offer.Config{
		API: api, Writer: writerOfFew, Writes: func(labels map[string]string) bool { return owner.Writes(labels, nil) }, Clock: s.Clock,
		Log: s.Log,
	})
	host, err5 := os.Hostname()
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return nil, nil, err
	}
	leads := prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_config_watcher_status_leader",
		Help: "1 while this replica holds the lease of those that write statuses into Kubernetes."})
	s.Registry.MustRegister(leads)
	name := statuskube.LeaseName(s.cfg.IstioRevision)
	election, err = lease.New(lease.Config{
		API: api, Namespace: s.cfg.SystemNamespace, Name: name, Identity: host + "_" + s.revisions.Epoch(), Duration: statusLease,
		Account: "config-watcher's service account", Leads: leads, Log: s.Log,
		Work: func(ctx context.Context) {
			s.Log.Info("this replica writes statuses into Kubernetes", "lease", s.cfg.SystemNamespace+"/"+name)
			writer.Reset()
			writerOfFew.Reset()
			registrar.Lead(true)
			defer registrar.Lead(false)
			var others sync.WaitGroup
			defer others.Wait()
			others.Go(func() { export(ctx) })
			others.Go(func() { offered.Run(ctx) })
			others.Go(func() { _ = few.Run(ctx) }) // ends with ctx
			_ = all.Run(ctx)                       // ends with ctx
		},
	})
	if err != nil {
		return nil, nil, err
	}
	metrics.Add(all)
	metrics.Add(few)
	s.Task("status in Kubernetes", election.Run)
	return all, few, nil
}
