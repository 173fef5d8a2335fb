package normalise

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// TestHeldMeshPolicyIsInTheRootNamespace: the PeerAuthentication that holds the whole mesh closed is in the root
// namespace, and moves when the root namespace changes.
func TestHeldMeshPolicyIsInTheRootNamespace(t *testing.T) {
	holds := hold.In("a.yaml", []byte("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {na"))
	if len(holds) != 1 {
		t.Fatal(manifest.Parse("a.yaml", nil))
	}
	held := holds[0].Object
	m := New(Config{})
	given := func(d Delta) (upserts, removed []string) {
		for _, r := range d.Upserts {
			if r.Key.Kind == held.Key.Kind {
				if !r.GetIstioConfig().GetHeldClosed() {
					t.Error("the resource does not say that it holds closed")
				}
				upserts = append(upserts, r.Key.Namespace+" "+strings.Join(r.GetIstioConfig().GetExportedTo(), ","))
			}
		}
		for _, k := range d.Removed {
			removed = append(removed, k.Namespace)
		}
		return upserts, removed
	}
	up, _ := given(m.Apply([]Change{{Key: held.Key, Object: held}}))
	if !slices.Equal(up, []string{"istio-system *"}) {
		t.Errorf("given out %v", up)
	}
	k := object.Key{Kind: "ConfigMap", Namespace: kinds.MeshNamespace, Name: kinds.MeshName}
	up, removed := given(m.Apply([]Change{
		{Key: k, Object: &object.Object{Key: k, Body: &corev1.ConfigMap{Data: map[string]string{kinds.MeshKey: "rootNamespace: other"}}}}}))
	if !slices.Equal(up, []string{"other *"}) || !slices.Equal(removed, []string{"istio-system"}) {
		t.Errorf("given out %v, removed %v", up, removed)
	}
	if _, removed = given(m.Apply([]Change{{Key: held.Key}})); !slices.Equal(removed, []string{"other"}) {
		t.Errorf("removed %v", removed)
	}
}
