package plan

import (
	"slices"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/tidwall/btree"

	"fairlead.dev/services/xds-server/internal/store"
)

// stack returns the snapshot of scope plans with these items, the lowest first.
func stack(scopes ...map[string]Item) *TypeSnapshot {
	at := emptyType
	for _, scope := range scopes {
		items := btree.NewMap[string, Item](0)
		for name, item := range scope {
			items.Set(name, item)
		}
		at = &TypeSnapshot{items: items, below: at}
	}
	return at
}

func TestSnapshotReadsThroughItsScopePlans(t *testing.T) {
	s := store.New()
	blob := func(name, content string) *store.Blob {
		b, err := s.Put("type", name, &cluster.Cluster{Name: content})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b, b2, c := blob("a", "1"), blob("b", "1"), blob("b", "2"), blob("c", "1")
	snapshot := stack(
		map[string]Item{"a": {Blob: a, Wildcard: true}, "b": {Blob: b, Wildcard: true}, "c/1": {Blob: c, Wildcard: true}},
		map[string]Item{"b": {Blob: b2, Wildcard: true}, "c/1": {}},
		map[string]Item{"c/2": {Blob: c, Wildcard: true}, "d": {Blob: a, Wildcard: false}},
	)
	for _, tc := range []struct {
		prefix string
		want   []string
	}{
		{"", []string{"a", "b", "c/1", "c/2", "d"}},
		{"c/", []string{"c/1", "c/2"}},
		{"b", []string{"b"}},
		{"x", nil},
	} {
		var got []string
		snapshot.ScanPrefix(tc.prefix, func(name string, item Item) bool {
			if one, ok := snapshot.Get(name); !ok || one != item {
				t.Errorf("%s is %v when scanned and %v when asked for", name, item, one)
			}
			got = append(got, name)
			return true
		})
		if !slices.Equal(got, tc.want) {
			t.Errorf("under %q are %v, want %v", tc.prefix, got, tc.want)
		}
	}
	n := 0
	snapshot.Scan(func(string, Item) bool { n++; return n < 2 })
	if n != 2 {
		t.Errorf("a scan that was stopped after 2 went on to %d", n)
	}
	flat := stack(map[string]Item{"a": {Blob: a, Wildcard: true}, "b": {Blob: b2, Wildcard: true}, "c/2": {Blob: c, Wildcard: true}})
	if snapshot.Len() != 3 || flat.Len() != 3 {
		t.Errorf("%d and %d in the wildcard set, want 3", snapshot.Len(), flat.Len())
	}
	if snapshot.Version() != flat.Version() {
		t.Error("the same set has another version in several scope plans")
	}
	if snapshot.Version() != VersionOf([]*store.Blob{a, b2, c}) {
		t.Error("the version is not that of the set")
	}
}
