package mesh

import (
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestMeshIsAsLargeAsItSays(t *testing.T) {
	m := Spec{Services: 1000, Rules: 100, Sidecars: 1000, Classes: 100}
	kinds, workloads := map[string]int{}, map[string]*configv1.Workload{}
	seen := map[string]bool{}
	tcp := 0
	for _, r := range m.Resources() {
		kinds[r.GetKey().GetKind()]++
		if seen[r.GetKey().String()] {
			t.Errorf("%s occurs twice", r.GetKey())
		}
		seen[r.GetKey().String()] = true
		if w := r.GetWorkload(); w != nil {
			workloads[w.GetNamespace()+"/"+w.GetName()] = w
		}
		for _, p := range r.GetService().GetPorts() {
			if p.GetProtocol() == configv1.Protocol_PROTOCOL_TCP {
				tcp++
			}
		}
	}
	for kind, want := range map[string]int{"Service": 1001, "EndpointSet": 1001, "VirtualService": 100, "DestinationRule": 100,
		"Namespace": 11, "MeshConfig": 1} {
		if kinds[kind] != want {
			t.Errorf("%d of kind %s, want %d", kinds[kind], kind, want)
		}
	}
	if tcp != 100 {
		t.Errorf("%d services speak TCP", tcp)
	}
	ids := map[string]bool{}
	for _, p := range m.Proxies() {
		node := &core.Node{}
		if err := proto.Unmarshal(p.Node, node); err != nil {
			t.Fatal(err)
		}
		name := p.Namespace + "/" + node.GetMetadata().GetFields()["NAME"].GetStringValue()
		w := workloads[name]
		if w == nil || !slices.Contains(w.GetAddresses(), node.GetMetadata().GetFields()["INSTANCE_IPS"].GetStringValue()) {
			t.Errorf("%s is no workload of the mesh: %v", p.ID, w)
		}
		ids[p.ID] = true
	}
	if len(ids) != m.Sidecars {
		t.Errorf("%d different proxies", len(ids))
	}
}

// What differs must differ in the mesh's eyes too, and what is sent again must not.
func TestChangesChangeHashes(t *testing.T) {
	m := Spec{Services: 1000, Rules: 100, Sidecars: 200, Classes: 100}
	hashes, begins := map[string]string{}, map[string]bool{}
	for _, r := range m.Resources() {
		hashes[r.GetKey().String()], begins[r.GetKey().String()] = string(r.GetHash()), true
	}
	for name, do := range map[string]func(int) Change{
		"label": m.Label, "pod label": m.PodLabel, "unknown": m.Unknown, "endpoints": m.Endpoints, "few endpoints": m.FewEndpoints,
		"rule": m.Rule, "add": m.Add, "policy": m.Policy, "root policy": m.RootPolicy,
	} {
		a, b := do(1), do(2)
		for i, r := range a.Upserts {
			if string(r.GetHash()) == hashes[r.GetKey().String()] {
				t.Errorf("%s: %s is as it was", name, r.GetKey())
			}
			if string(r.GetHash()) == string(b.Upserts[i].GetHash()) {
				t.Errorf("%s: turns 1 and 2 are equal", name)
			}
		}
	}
	for _, r := range m.Resync(1).Upserts {
		if string(r.GetHash()) != hashes[r.GetKey().String()] {
			t.Errorf("resync: %s differs", r.GetKey())
		}
	}
	for n := range 6000 {
		c := m.Mixed(n)
		for _, r := range c.Upserts {
			if string(r.GetHash()) == hashes[r.GetKey().String()] {
				t.Errorf("change %d leaves %s as it is", n, r.GetKey())
			}
			hashes[r.GetKey().String()] = string(r.GetHash())
		}
		if len(c.Upserts)+len(c.Removed) == 0 {
			t.Errorf("change %d is none", n)
		}
		for _, k := range c.Removed {
			if begins[k.String()] {
				t.Errorf("change %d removes %s, which the mesh begins with", n, k)
			}
			delete(hashes, k.String())
		}
	}
}

func TestPoliciesAreOfTheirServicesPods(t *testing.T) {
	m := Spec{Services: 1000, Sidecars: 200, Classes: 100, Namespaces: 500, Policies: 1000}
	namespaces, selected := map[string]bool{}, 0
	var policy *configv1.Resource
	for _, r := range m.Resources() {
		if r.GetKey().GetKind() == "AuthorizationPolicy" {
			namespaces[r.GetKey().GetNamespace()] = true
			if r.GetKey().String() == m.Policy(0).Upserts[0].GetKey().String() {
				policy = r
			}
		}
	}
	if len(namespaces) != m.Namespaces || policy == nil {
		t.Fatalf("policies of %d namespaces; of Policy's key: %v", len(namespaces), policy)
	}
	if string(policy.GetHash()) == string(m.Policy(1).Upserts[0].GetHash()) {
		t.Error("a change leaves the policy as it is")
	}
	for _, p := range m.Proxies() {
		if p.Namespace == policy.GetKey().GetNamespace() {
			selected++
		}
	}
	if selected != m.Selected() || selected == 0 {
		t.Errorf("%d sidecars are of the policy's namespace, Selected says %d", selected, m.Selected())
	}
}
