package class

import (
	"cmp"
	"maps"
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// maxPrebuildKeys bounds the keys that PrebuildKeys lists.
const maxPrebuildKeys = 128

// PrebuildKeys lists the keys of namespaces (see Key.OfNamespace) that the sidecars of the mesh's workloads will
// probably have, the most frequent first. The engine builds their scopes before the sidecars connect. The keys are of
// sidecars of the newest Envoy that take virtual hosts (VHDS) and that no Sidecar resource limits. A proxy may turn out
// to have another key.
func PrebuildKeys(state *mesh.Snapshot) []*Key {
	counts, keys := map[Hash]int{}, map[Hash]*Key{}
	state.Workloads(func(w *configv1.Workload) {
		if w.GetTlsMode() != configv1.TlsMode_TLS_MODE_ISTIO {
			return
		}
		n := &Node{
			Type: Sidecar, Name: w.GetName(), Namespace: w.GetNamespace(), Interception: Redirect, VirtualHosts: true, Filters: newestFilters,
		}
		k, _ := n.Key(state)
		if k.Sidecar != "" {
			return
		}
		k = k.OfNamespace()
		hash := k.Hash()
		if counts[hash]++; keys[hash] == nil {
			keys[hash] = k
		}
	})
	hashes := slices.SortedFunc(maps.Keys(keys), func(a, b Hash) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), slices.Compare(a[:], b[:]))
	})
	expected := make([]*Key, 0, min(len(hashes), maxPrebuildKeys))
	for _, hash := range hashes[:cap(expected)] {
		expected = append(expected, keys[hash])
	}
	return expected
}
