package class_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// A StatefulSet gives Pods of several clusters the same name: the cluster that a proxy names chooses between them.
func TestTheClusterThatAProxyNamesChoosesBetweenWorkloadsOfItsAccount(t *testing.T) {
	of := func(cluster, account string) func(*configv1.Workload) {
		return func(w *configv1.Workload) {
			w.Name, w.Cluster, w.ServiceAccount, w.Network = "db-0", cluster, account, "net of "+cluster
			w.Source = &configv1.SourceRef{Kind: "Pod"}
		}
	}
	both := meshtest.Service("shop", "db.shop.svc.cluster.local", 80, func(s *configv1.Service) {
		s.ClusterAddresses = []*configv1.ClusterAddresses{{Cluster: "east"}, {Cluster: "west"}}
	})
	many := meshtest.State(t, both, meshtest.Workload("shop", "db-0", "10.0.0.1", of("west", "db")),
		meshtest.Workload("shop", "db-0/east", "10.1.0.1", of("east", "db")),
		meshtest.Workload("shop", "db-0/south", "10.2.0.1", of("south", "other")))
	one := meshtest.State(t, meshtest.Workload("shop", "db-0", "10.0.0.1", of("west", "db")))
	for name, c := range map[string]struct {
		state   *mesh.Snapshot
		cluster string
		network string
		foreign bool
	}{
		"the own cluster":                    {many, "west", "net of west", false},
		"a remote cluster":                   {many, "east", "net of east", false},
		"none":                               {many, "", "net of west", false},
		"one that has no such Pod":           {many, "north", "", false},
		"a Pod of another service account":   {many, "south", "", true},
		"whatever, in a mesh of one cluster": {one, "north", "net of west", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := authorizedNode(t, c.cluster)
			w, err := n.Workload(c.state)
			if w.GetNetwork() != c.network || (err != nil) != c.foreign {
				t.Errorf("Workload of %q, error %v", w.GetNetwork(), err)
			}
			key, topics := n.Key(c.state)
			if want := w.GetCluster(); c.state == many && w != nil && key.Cluster != want {
				t.Errorf("class of cluster %q, want %q", key.Cluster, want)
			}
			if c.state == one && key.Cluster != "" {
				t.Errorf("class of cluster %q in a mesh of one", key.Cluster)
			}
			_, change := c.state.Apply(nil, []*configv1.Resource{meshtest.Workload("shop", "db-0/"+c.cluster, "10.9.0.1")}, nil)
			if c.cluster != "" && !topics.Meets(change.Topics) {
				t.Error("a change of the Workload does not touch the class")
			}
		})
	}
}

func authorizedNode(t *testing.T, cluster string) *class.Node {
	t.Helper()
	return authorized(t, "sidecar~10.0.0.9~db-0.shop~shop.svc.cluster.local", "db", map[string]any{"CLUSTER_ID": cluster})
}
