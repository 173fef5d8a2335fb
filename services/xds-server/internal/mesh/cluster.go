package mesh

import (
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// indexCluster counts the services that look different to clients of different clusters.
func (w *writer) indexCluster(v *configv1.Service, add bool) {
	if (len(v.GetClusterAddresses()) > 0 || v.GetClusterLocal()) && w.count(&w.next.clustered, "", add) {
		w.touch(SubjectClusters, "", "")
	}
}

// ManyClusters reports whether any service looks different to clients of different clusters. Only then does the cluster
// of a proxy matter.
func (s *Snapshot) ManyClusters() bool { return s.clustered.len() > 0 }

// ManyClustersTopic names the answer of ManyClusters.
func ManyClustersTopic() Topic { return Topic{SubjectClusters, "", ""} }

// Cluster returns the id of config-watcher's own cluster. SettingsTopic names it too.
func (s *Snapshot) Cluster() string { return s.mesh.cluster }

// IsIn reports whether a service is in a cluster. One that comes from ServiceEntries alone is in every cluster.
func (s *Snapshot) IsIn(svc *configv1.Service, cluster string) bool {
	if len(svc.GetClusterAddresses()) == 0 {
		return svc.GetSource().GetKind() != "Service" || cluster == s.Cluster()
	}
	return slices.ContainsFunc(svc.GetClusterAddresses(), func(c *configv1.ClusterAddresses) bool { return c.GetCluster() == cluster })
}
