package class

import (
	"cmp"
	"maps"
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// maxPrebuildKeys bounds the keys that Expected lists.
const maxPrebuildKeys = 128

// Expected lists keys of namespaces (see Key.OfNamespace) that the sidecars of the mesh's workloads are likely to have, the most frequent
// first, of those that take virtual hosts and stand upon what everybody shares. It is a guess: only a proxy says what it really is, and it
// may have another key.
func PrebuildKeys(state *mesh.Snapshot) []*Key {
	counts, keys := map[Hash]int{}, map[Hash]*Key{}
	state.Workloads(func(w *configv1.Workload) {
		if w.GetTlsMode() != configv1.TlsMode_TLS_MODE_ISTIO {
			return
		}
		n := &Node{Type: Sidecar, Name: w.GetName(), Namespace: w.GetNamespace(), Interception: Redirect, VirtualHosts: true}
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
