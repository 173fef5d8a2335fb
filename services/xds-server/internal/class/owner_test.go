package class_test

import (
	"errors"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// authorized is a node of namespace shop whose caller's account is proven; "" leaves it unproven.
func authorized(t *testing.T, id, account string, fields map[string]any) *class.Node {
	t.Helper()
	n, err := class.ParseNode(&core.Node{Id: id, Locality: &core.Locality{Region: "claimed"}, Metadata: metadata(t, fields)})
	if err != nil {
		t.Fatal(err)
	}
	if account != "" {
		if err := n.Authorize(spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/" + account)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func from(kind, account string) func(*configv1.Workload) {
	return func(w *configv1.Workload) { w.ServiceAccount, w.Source = account, &configv1.SourceRef{Kind: kind} }
}

func TestWorkloadOfANode(t *testing.T) {
	state := meshtest.State(t,
		meshtest.Workload("shop", "web", "10.0.0.1", from("Pod", "web")),
		meshtest.Workload("shop", "old", "10.0.0.2", from("WorkloadEntry", "")),
		meshtest.Workload("shop", "entry", "10.0.0.3", from("WorkloadEntry", "vm")),
		meshtest.Workload("elsewhere", "entry", "10.0.0.4", from("WorkloadEntry", "vm")))
	for name, tc := range map[string]struct {
		id, account, claimed string
		want                 string
		foreign              bool
	}{
		"by name":                                  {id: "sidecar~10.0.0.1~web.shop~x", account: "web", want: "web"},
		"by name, elsewhere":                       {id: "sidecar~10.9.9.9~web.shop~x", account: "web", want: "web"},
		"another account's name":                   {id: "sidecar~10.0.0.1~web.shop~x", account: "vm", foreign: true},
		"another account's name, own address":      {id: "sidecar~10.0.0.3~web.shop~x", account: "vm", foreign: true},
		"an entry without an account":              {id: "sidecar~10.0.0.2~old.shop~x", account: "default", want: "old"},
		"which is not of every account":            {id: "sidecar~10.0.0.2~old.shop~x", account: "web", foreign: true},
		"nor at its address":                       {id: "sidecar~10.0.0.2~vm-1.shop~x", account: "web"},
		"a machine by its address":                 {id: "sidecar~10.0.0.3~vm-1.shop~x", account: "vm", want: "entry"},
		"another account's machine":                {id: "sidecar~10.0.0.3~vm-1.shop~x", account: "web"},
		"a machine of another namespace":           {id: "sidecar~10.0.0.4~vm-1.shop~x", account: "vm"},
		"a Pod is not found by its address":        {id: "sidecar~10.0.0.1~made-up.shop~x", account: "web"},
		"nothing known":                            {id: "router~10.9.9.9~made-up.shop~x", account: "web"},
		"unproven: by name":                        {id: "sidecar~10.0.0.1~web.shop~x", want: "web"},
		"unproven: by name, its account claimed":   {id: "sidecar~10.0.0.1~web.shop~x", claimed: "web", want: "web"},
		"unproven: by name, another one's claimed": {id: "sidecar~10.0.0.1~web.shop~x", claimed: "vm"},
	} {
		t.Run(name, func(t *testing.T) {
			n := authorized(t, tc.id, tc.account, map[string]any{"SERVICE_ACCOUNT": tc.claimed})
			w, err := n.Workload(state)
			if w.GetName() != tc.want || errors.Is(err, class.ErrForeign) != tc.foreign || (err != nil) != tc.foreign {
				t.Errorf("got %q, %v", w.GetName(), err)
			}
			if key, _ := n.Key(state); tc.want == "" && (len(key.Labels) > 0 || len(key.Targets) > 0 || key.Identity != "" || key.Locality != "") {
				t.Errorf("a proxy without a Workload has the key %+v", key)
			}
		})
	}
}

// TestClaimsOnlyNarrow gives two nodes of one account and one Workload, or none, all that a node can claim: what
// differs in their keys is how they are spoken to, and what filters ask of what the mesh does not know.
func TestClaimsOnlyNarrow(t *testing.T) {
	claimed := map[string]any{
		"LABELS": map[string]any{"istio": "gateway", "topology.kubernetes.io/region": "claimed"}, "INSTANCE_IPS": "10.0.0.7,10.0.0.8",
		"NETWORK": "n7", "CLUSTER_ID": "c7", "NAME": "gateway", "ROLE": "gateway", "WORKLOAD_NAME": "gateway",
	}
	const matching = `
configPatches:
- {applyTo: CLUSTER, match: {proxy: {metadata: {%s}}}, patch: {operation: REMOVE}}
`
	filter := func(condition string) *configv1.Resource {
		return meshtest.EnvoyFilter("shop", strings.ToLower(strings.Trim(strings.Fields(condition)[0], ":")),
			strings.Replace(matching, "%s", condition, 1))
	}
	mesh := []*configv1.Resource{
		meshtest.Service("gateways", "e.gateways.svc.cluster.local", 15443, func(s *configv1.Service) {
			s.NetworkGateway = &configv1.NetworkGateway{Network: "n7", Addresses: []string{"192.0.2.1"}, Port: 15443}
		}),
		meshtest.Config(mesh.KindGateway, "shop", "g", &networking.Gateway{Selector: map[string]string{"istio": "gateway"}}),
		meshtest.Config(mesh.KindSidecar, "shop", "s", &networking.Sidecar{
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"topology.kubernetes.io/region": "claimed"}},
		}),
		meshtest.Workload("shop", "gateway", "10.0.0.7", from("Pod", "gateway"),
			func(w *configv1.Workload) { w.Labels = map[string]string{"istio": "gateway"} }),
		filter("NAME: gateway"), filter("NETWORK: n7"), filter("CLUSTER_ID: c7"), filter("SERVICE_ACCOUNT: gateway"),
	}
	own := meshtest.Workload("shop", "batch", "10.0.0.9", from("Pod", "batch"),
		func(w *configv1.Workload) { w.Labels = map[string]string{"app": "batch"} })
	for _, kind := range []string{"sidecar", "router"} {
		for name, resources := range map[string][]*configv1.Resource{"known": append([]*configv1.Resource{own}, mesh...), "unknown": mesh} {
			t.Run(kind+" "+name, func(t *testing.T) {
				state := meshtest.State(t, resources...)
				plain, _ := authorized(t, kind+"~10.0.0.9~batch.shop~shop.svc.cluster.local", "batch", map[string]any{"INTERCEPTION_MODE": "NONE"}).Key(
					state)
				claimed["INTERCEPTION_MODE"] = "NONE"
				claiming, _ := authorized(t, kind+"~10.0.0.7~batch.shop~made.up", "batch", claimed).Key(state)
				if name == "unknown" {
					// Where no Workload tells, listeners are bound to what is claimed, but for what is another's.
					if d := cmp.Diff([]string{"10.0.0.8"}, claiming.Addresses); d != "" {
						t.Errorf("addresses (-want +got):\n%s", d)
					}
					plain.Addresses, claiming.Addresses = nil, nil
				}
				if d := cmp.Diff(plain, claiming); d != "" {
					t.Errorf("(-without claims +with them):\n%s", d)
				}
			})
		}
	}
}
