package aggregate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// TestOldestVersionIsInForce: the version in force depends on the versions alone, not on the order of their arrival.
func TestOldestVersionIsInForce(t *testing.T) {
	// age is the second of creation; -1 means none.
	type versions map[string]int
	for name, tc := range map[string]struct {
		versions versions
		order    string
	}{
		"the pinned source comes first, though it states no time": {versions{"pinned": -1, "store": 1, "kube": 2, "files": -1},
			"pinned store kube files"},
		"the older object wins over the order of sources":         {versions{"store": 5, "kube": 4}, "kube store"},
		"equal times go by the order of sources":                  {versions{"kube": 4, "store": 4}, "store kube"},
		"an object of the API hides one of a file without a time": {versions{"files": -1, "store": 9}, "store files"},
		"a file that states a time counts by it":                  {versions{"files": 1, "store": 9}, "files store"},
		"objects without a time go by the order of sources":       {versions{"files": -1, "kube": -1}, "kube files"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				sources := map[string]*fake{}
				var list []source.Source
				for _, n := range []string{"pinned", "store", "kube", "files"} {
					sources[n] = &fake{name: n}
					list = append(list, sources[n])
				}
				var inForce *object.Object
				a := New(testkit.Logger(t), func(_ context.Context, changes []normalise.Change) { inForce = changes[len(changes)-1].Object }, "pinned",
					list...)
				k := object.Key{Kind: "VirtualService", Namespace: "shop", Name: "web"}
				var names []string
				for n := range tc.versions {
					names = append(names, n)
				}
				rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				objects := map[string]*object.Object{}
				for _, n := range names {
					o := &object.Object{Key: k, Source: n}
					if at := tc.versions[n]; at >= 0 {
						o.Created = time.Unix(int64(at), 0)
					}
					objects[n] = o
					sources[n].handle(context.Background(), n, []source.Event{{Key: k, Object: o}})
				}
				var got []string
				for _, o := range a.Overridden()[0] {
					got = append(got, o.Source)
				}
				if strings.Join(got, " ") != tc.order || inForce.Source != got[0] {
					t.Fatalf("arrival %v: order %v, in force %s, want %s", names, got, inForce.Source, tc.order)
				}
				more, less := a.Others(objects[got[1]])
				if len(more) != 1 || len(less) != len(got)-2 {
					t.Fatalf("of the second, before %v and after %v", more, less)
				}
				sources[got[0]].handle(context.Background(), got[0], []source.Event{{Key: k}})
				if inForce.Source != got[1] {
					t.Fatalf("after the first has gone, %s is in force, want %s", inForce.Source, got[1])
				}
				if len(a.Overridden()) != min(1, len(got)-2) {
					t.Fatal(fmt.Sprint("overridden ", a.Overridden()))
				}
			}
		})
	}
}
