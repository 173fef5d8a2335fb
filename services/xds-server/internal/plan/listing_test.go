package plan

import (
	"fmt"
	"slices"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"pgregory.net/rapid"

	"fairlead.dev/services/xds-server/internal/store"
)

func TestListingIsTheWildcardSetInOrder(t *testing.T) {
	s := store.New()
	rapid.Check(t, func(t *rapid.T) {
		scopes := make([]map[string]Item, rapid.IntRange(1, 3).Draw(t, "scopes"))
		for i := range scopes {
			scopes[i] = map[string]Item{}
			for range rapid.IntRange(0, 12).Draw(t, "items") {
				name := fmt.Sprintf("%d/%d", rapid.IntRange(0, 2).Draw(t, "table"), rapid.IntRange(0, 9).Draw(t, "host"))
				item := Item{Wildcard: rapid.Bool().Draw(t, "wildcard")}
				if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
					b, err := s.Put("type", name, &cluster.Cluster{Name: fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "content"))})
					if err != nil {
						t.Fatal(err)
					}
					item.Blob = b
				}
				scopes[i][name] = item
			}
		}
		snapshot := stack(scopes...)
		for _, prefix := range []string{"", "0/", "1/", "9/"} {
			var names []string
			var blobs []*store.Blob
			var size, nameBytes int
			var byName, byVersion Tally
			snapshot.ScanPrefix(prefix, func(name string, item Item) bool {
				if item.Wildcard && item.Blob != nil {
					names, blobs = append(names, name), append(blobs, item.Blob)
					size, nameBytes = size+item.Blob.Size(), nameBytes+len(name)
					byName.AddString(name)
					byVersion.AddString(item.Blob.Version())
				}
				return true
			})
			l := snapshot.Listing(prefix)
			if !slices.Equal(l.Names, names) || !slices.Equal(l.Blobs, blobs) {
				t.Fatalf("under %q: %q, want %q", prefix, l.Names, names)
			}
			if l.Size != size || l.NameBytes != nameBytes || !l.HasNames(byName) || !l.HasVersions(byVersion) {
				t.Fatalf("under %q: the counts %+v are wrong", prefix, l)
			}
		}
	})
}
