package app

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/proto/fairlead/caapi"
)

// remoteClusters is the page of the remote clusters whose tokens count.
func (s *Server) remoteClusters(tokens *auth.JWT) caapi.RemoteClusters {
	var page caapi.RemoteClusters
	if cluster := s.cluster.Load(); cluster != nil {
		page = cluster.Clusters()
	}
	if err := tokens.CheckClusters(); err != nil {
		page.Problem = err.Error()
	}
	return page
}

// clusterMetrics registers the metrics of the remote clusters.
func (s *Server) clusterMetrics(tokens *auth.JWT) {
	for _, state := range caapi.ClusterStates() {
		s.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_ca_remote_clusters", ConstLabels: prometheus.Labels{"state": state},
			Help: "ConfigMaps of remote clusters by state: trusted, refused (the last good content stays), shared_key (a key of two clusters), " +
				"ignored (of a cluster that an older one names).",
		}, func() float64 {
			n := 0
			for _, c := range s.remoteClusters(tokens).Clusters {
				if c.State == state {
					n++
				}
			}
			return float64(n)
		}))
	}
	s.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_ca_remote_clusters_problem",
		Help: "1 while the remote clusters cannot be read, or something is wrong with one.",
	}, func() float64 {
		page := s.remoteClusters(tokens)
		wrong := func(c caapi.RemoteCluster) bool { return c.Problem != "" }
		return flag(page.Unread != "" || page.Problem != "" || slices.ContainsFunc(page.Clusters, wrong))
	}))
}
