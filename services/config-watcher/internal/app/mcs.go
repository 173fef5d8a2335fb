package app

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/pflag"
	"istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcs"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/status"
)

// MCSOptions are those of the Multi-Cluster Services API. Each has the meaning of a variable of istiod, such as
// ENABLE_MCS_HOST.
type MCSOptions struct {
	// Discovery is true if clients in other clusters find the endpoints of exported Services alone.
	Discovery bool
	// Host is true if imported Services have a host in all clusters together.
	Host bool
	// ClusterLocal is true if the ordinary host of a Service leads to the client's own cluster alone.
	ClusterLocal bool
	// AutoExport is true if exports are made.
	AutoExport bool
}

func (o *MCSOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.Discovery, "mcs-service-discovery", false,
		"read ServiceExports and ServiceImports of all clusters: clients find the endpoints of a Service in another cluster only if that "+
			"cluster exports it, and conditions of exports in the own cluster are written")
	flags.BoolVar(&o.Host, "mcs-host", false,
		"serve NAME.NAMESPACE.svc.clusterset.local for Services that a ServiceImport is about; needs --mcs-service-discovery")
	flags.BoolVar(&o.ClusterLocal, "mcs-cluster-local", false,
		"let the ordinary host of a Service lead to endpoints in the client's own cluster alone, exported or not; needs --mcs-host")
	flags.BoolVar(&o.AutoExport, "mcs-auto-export", false,
		"with --kubernetes, create a ServiceExport for each Service of the own cluster that is not cluster-local, once")
}

// reads reports whether exports and imports are read of API servers.
func (o *MCSOptions) reads() bool { return o.Discovery || o.AutoExport }

func (o *MCSOptions) check(errs *service.FlagErrors, kubernetes bool) {
	if o.Host && !o.Discovery {
		errs.Add("mcs-host", errors.New("needs --mcs-service-discovery"))
	}
	if o.ClusterLocal && !o.Host {
		errs.Add("mcs-cluster-local", errors.New("needs --mcs-host, or Services of other clusters would have no host"))
	}
	if o.AutoExport && !kubernetes {
		errs.Add("mcs-auto-export", errors.New("has no effect without --kubernetes"))
	}
}

// clusterSets is the table of exports and imports, and what the pipeline tells it. Without a flag that reads them there
// is no table.
type clusterSets struct {
	table  *mcs.Table
	submit func(context.Context, []normalise.Change)
	// discovered takes over what the mesh discovers, after each commit.
	discovered func([]normalise.Change, *v1alpha1.MeshConfig, map[string]status.Sink)
}

// newClusterSets makes the table before the next stage.
func (s *Server) newClusterSets(next func(context.Context, []normalise.Change)) clusterSets {
	if !s.cfg.MCS.reads() {
		var once sync.Once
		return clusterSets{submit: next, discovered: func(changes []normalise.Change, _ *v1alpha1.MeshConfig, _ map[string]status.Sink) {
			for _, c := range changes {
				if c.Key.Group == kinds.GroupMCS && c.Object != nil {
					once.Do(func() {
						s.Log.Warn("ServiceExports and ServiceImports have no effect without --mcs-service-discovery", "object", c.Key.String(),
							"place", c.Object.Place())
					})
				}
			}
		}}
	}
	table := mcs.NewTable(mcs.Config{Cluster: s.cfg.ClusterID, Domain: s.cfg.DomainSuffix, Discovery: s.cfg.MCS.Discovery,
		Hosts: s.cfg.MCS.Host, Strict: s.cfg.MCS.ClusterLocal, Next: next})
	return clusterSets{table: table, submit: table.Submit, discovered: table.Discovered}
}

// newExporter makes what creates exports in the API server; it does nothing without --mcs-auto-export.
func (s *Server) newExporter(sets clusterSets, cluster *kubernetes.Source) (func(context.Context), error) {
	if !s.cfg.MCS.AutoExport {
		return func(context.Context) {}, nil
	}
	exporter, err := mcs.NewExporter(mcs.ExporterConfig{API: cluster.API(), Source: cluster.Name(), Table: sets.table, Clock: s.Clock,
		Log: s.Log})
	if err != nil {
		return nil, err
	}
	return exporter.Run, nil
}
