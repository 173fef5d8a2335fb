package input_test

import (
	"fmt"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// Clusters may use the same range of VIPs: what is at an address depends on the client's cluster.
func TestVIPsAreThoseOfTheClientsCluster(t *testing.T) {
	service := func(name string, addresses ...*configv1.ClusterAddresses) *configv1.Resource {
		return meshtest.Service("shop", name+".shop.svc.cluster.local", 80, func(s *configv1.Service) {
			s.Source, s.ClusterAddresses, s.Addresses = &configv1.SourceRef{Kind: "Service"}, addresses, addresses[0].GetAddresses()
		})
	}
	in := func(cluster, address string) *configv1.ClusterAddresses {
		return &configv1.ClusterAddresses{Cluster: cluster, Addresses: []string{address}}
	}
	state := meshtest.State(t, service("both", in("east", "10.0.0.1"), in("west", "10.0.0.9")), service("west", in("west", "10.0.0.1")),
		service("east", in("east", "10.0.0.9")), service("far", in("east", "10.0.0.5")))
	for cluster, want := range map[string]string{
		"east": "both=[10.0.0.1] west=[] east=[10.0.0.9] far=[10.0.0.5] at 10.0.0.1: both 10.0.0.9: east 10.0.0.5: far",
		"west": "both=[10.0.0.9] west=[10.0.0.1] east=[] far=[10.0.0.5] at 10.0.0.1: west 10.0.0.9: both 10.0.0.5: far",
	} {
		t.Run(cluster, func(t *testing.T) {
			r := input.NewView(&class.Key{Type: class.Sidecar, Namespace: "shop", Cluster: cluster, Families: class.IPv4}, state).Reader()
			got := ""
			for _, name := range []string{"both", "west", "east", "far"} {
				got += fmt.Sprintf("%s=%v ", name, r.VIPs(r.Service(name+".shop.svc.cluster.local")))
			}
			got += "at"
			for _, address := range []string{"10.0.0.1", "10.0.0.9", "10.0.0.5"} {
				got += " " + address + ":"
				for _, svc := range r.ServicesAt(80, address) {
					got += " " + svc.GetHostname()[:len(svc.GetHostname())-len(".shop.svc.cluster.local")]
				}
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
