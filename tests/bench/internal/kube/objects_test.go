package kube

import (
	"encoding/json"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	security "istio.io/api/security/v1beta1"
)

func TestTheMeshHasDistinctParts(t *testing.T) {
	s := Spec{Namespaces: 500, Proxies: 200}
	if s.Services() != 10_000 {
		t.Errorf("%d Services", s.Services())
	}
	addresses, objects := map[string]bool{}, map[string]bool{}
	for n := range s.Namespaces {
		for _, o := range rulesOf(n) {
			objects[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = true
		}
		for i := range PerNamespace {
			for _, e := range NewSlice(n, i).Endpoints {
				if a, err := netip.ParseAddr(e.Addresses[0]); err != nil || !netip.MustParsePrefix("10.64.0.0/10").Contains(a) {
					t.Fatalf("address %q, %v", e.Addresses[0], err)
				}
				addresses[e.Addresses[0]] = true
			}
		}
	}
	if len(addresses) != 100_000 || len(objects) != 5000 {
		t.Errorf("%d addresses, %d mesh objects", len(addresses), len(objects))
	}
	ids := map[string]bool{}
	for _, c := range s.Clients() {
		ids[c.ID] = true
	}
	if len(ids) != s.Proxies {
		t.Errorf("%d proxies", len(ids))
	}
}

func TestASliceTakesOtherAddressesFirst(t *testing.T) {
	plain, slice := NewSlice(3, 4), NewSlice(3, 4, "100.64.0.1")
	if len(slice.Endpoints) != PerService || slice.Endpoints[0].Addresses[0] != "100.64.0.1" ||
		slice.Endpoints[1].Addresses[0] != plain.Endpoints[1].Addresses[0] {
		t.Errorf("got %v", slice.Endpoints)
	}
}

// TestFewNamespacesHoldAllProxies: in a small mesh, proxies that do not fit into two of each namespace are Pods of the
// same Deployments.
func TestFewNamespacesHoldAllProxies(t *testing.T) {
	seen := map[pod]bool{}
	for _, p := range (Spec{Namespaces: 50, Proxies: 200}).pods() {
		if p.n < 1 || p.n > 49 || p.e < 0 || p.e >= PerService || seen[p] {
			t.Errorf("proxy in %+v", p)
		}
		seen[p] = true
	}
}

func TestPoliciesAreIstios(t *testing.T) {
	for i := range Policies {
		p := Policy(7, i, "mark-1.")
		raw, err := json.Marshal(p.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		var spec security.AuthorizationPolicy
		if err := protojson.Unmarshal(raw, &spec); err != nil {
			t.Fatal(err)
		}
		last := spec.GetRules()[RulesOfPolicy-1].GetTo()[0].GetOperation().GetPaths()
		if p.GetNamespace() != Namespace(7) || spec.GetSelector().GetMatchLabels()["app"] != ServiceName(i) || last[0] != "/mark-1./*" {
			t.Errorf("%v", &spec)
		}
	}
}
