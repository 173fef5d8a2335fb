package mesh_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func TestAnUnreadableResourceLeavesTheLastGoodOne(t *testing.T) {
	good := meshtest.Config(mesh.KindSidecar, "a", "s", &networking.Sidecar{})
	state := meshtest.State(t, good)
	hash := state.HashOf(mesh.Key{Kind: "Sidecar", Namespace: "a", Name: "s"})
	for name, spec := range map[string]*anypb.Any{
		"garbage":    {TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.Sidecar", Value: []byte{0xff}},
		"other kind": {TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.Gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := &configv1.Resource{Key: good.GetKey(), Body: &configv1.Resource_IstioConfig{IstioConfig: &configv1.IstioConfig{Spec: spec}}}
			next, change := state.Apply(nil, []*configv1.Resource{bad}, nil)
			if len(change.Rejected) != 1 || len(change.Keys) != 0 {
				t.Errorf("change %+v", change)
			}
			if got := next.HashOf(mesh.Key{Kind: "Sidecar", Namespace: "a", Name: "s"}); got != hash {
				t.Errorf("hash %s, want %s", got, hash)
			}
			if next.Sidecar("a", "", nil) == nil {
				t.Error("the last good version is gone")
			}
		})
	}
}

func TestHeldResumesExactly(t *testing.T) {
	var resources []*configv1.Resource
	for i := range 25 {
		resources = append(resources, meshtest.Service("a", fmt.Sprintf("s%02d.a", i), 80))
	}
	resources = append(resources, meshtest.Workload("a", "w", "10.0.0.1"),
		meshtest.Config("EnvoyFilter", "a", "kept-unread", &networking.EnvoyFilter{}))
	state := meshtest.State(t, resources...)
	keys := map[string]bool{}
	for _, part := range state.Held(10) {
		if len(part.GetKeys()) > 10 || len(part.GetHashes()) != 16*len(part.GetKeys()) {
			t.Errorf("%s: %d keys, %d bytes of hashes", part.GetKind(), len(part.GetKeys()), len(part.GetHashes()))
		}
		for i, k := range part.GetKeys() {
			if i > 0 && part.GetKeys()[i-1] >= k {
				t.Errorf("%s is not sorted at %s", part.GetKind(), k)
			}
			keys[part.GetKind()+" "+k+fmt.Sprintf(" %x", part.GetHashes()[16*i:16*i+16])] = true
		}
	}
	for _, r := range resources {
		if k := fmt.Sprintf("%s %s/%s %x", r.GetKey().GetKind(), r.GetKey().GetNamespace(), r.GetKey().GetName(), r.GetHash()); !keys[k] {
			t.Errorf("%s is not held", k)
		}
	}
	if len(keys) != len(resources) {
		t.Errorf("%d held, want %d", len(keys), len(resources))
	}
}

func TestMeshSettings(t *testing.T) {
	state := mesh.Empty()
	if got := state.Mesh().GetRootNamespace(); got != "istio-system" {
		t.Errorf("root namespace %q before any settings", got)
	}
	settings := meshtest.Mesh(&meshv1alpha1.MeshConfig{RootNamespace: "root"})
	next, change := state.Apply(nil, []*configv1.Resource{settings}, nil)
	if got := next.Mesh(); got.GetRootNamespace() != "root" || got.GetTrustDomain() != "cluster.local" || !got.GetEnableAutoMtls().GetValue() {
		t.Errorf("settings %v", got)
	}
	if !change.Topics.Has(mesh.SettingsTopic()) {
		t.Error("topic not touched")
	}
	next, _ = next.Apply(nil, nil, []*configv1.ResourceKey{settings.GetKey()})
	if !proto.Equal(next.Mesh(), state.Mesh()) {
		t.Errorf("settings after removal %v", next.Mesh())
	}
}

func TestCovering(t *testing.T) {
	for host, want := range map[string][]string{
		"a.b.c":   {"a.b.c", "*.b.c", "*.c", "*"},
		"*.b.c":   {"*.b.c", "*.c", "*"},
		"single":  {"single", "*"},
		"*.c":     {"*.c", "*"},
		"*":       {"*"},
		"10.0.0.": {"10.0.0.", "*.0.0.", "*.0.", "*"},
	} {
		var got []string
		for h := range mesh.Covering(host) {
			got = append(got, h)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}

// BenchmarkApply shows that a revision costs what it changes: the figures of both sizes are to be equal within the
// noise.
func BenchmarkApply(b *testing.B) {
	for _, services := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			var resources []*configv1.Resource
			for i := range services {
				host := fmt.Sprintf("s%d.ns%d.svc.cluster.local", i, i%10)
				ns := fmt.Sprintf("ns%d", i%10)
				resources = append(resources, meshtest.Service(ns, host, 80), meshtest.Endpoints(ns, host, 80, "10.0.0.1", "10.0.0.2"))
			}
			state, err := mesh.FromResources(resources)
			if err != nil {
				b.Fatal(err)
			}
			host := "s0.ns0.svc.cluster.local"
			edits := [][]*configv1.Resource{
				{meshtest.Endpoints("ns0", host, 80, "10.0.0.3")}, {meshtest.Endpoints("ns0", host, 80, "10.0.0.1")},
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				state, _ = state.Apply(nil, edits[i%2], nil)
			}
		})
	}
}
