package revision

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
)

func ns(name, value string) *configv1.Resource {
	r, err := resource.New(resource.Key{Kind: "Namespace", Name: name}, &configv1.Namespace{Name: name, Labels: map[string]string{"v": value}})
	if err != nil {
		panic(err)
	}
	return r
}

// TestDifferenceLeadsFromAnyToAny: after random edits the difference between any two revisions, by remembered keys or
// by comparison, turns the one into the other and has no superfluous entry.
func TestDifferenceLeadsFromAnyToAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLog("e", testkit.NewClock(time.Unix(0, 0)))
		var all []*Snapshot
		for range rapid.IntRange(2, 8).Draw(t, "revisions") {
			var upserts []*configv1.Resource
			var removed []resource.Key
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 5, rapid.ID[int]).Draw(t, "keys") {
				name := fmt.Sprint("n", i)
				if rapid.Bool().Draw(t, "remove") {
					removed = append(removed, resource.Key{Kind: "Namespace", Name: name})
				} else {
					upserts = append(upserts, ns(name, fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "value"))))
				}
			}
			all = append(all, l.Commit(upserts, removed, ""))
		}
		from := rapid.IntRange(0, len(all)-1).Draw(t, "from")
		to := rapid.IntRange(from, len(all)-1).Draw(t, "to")
		for how, d := range map[string]Difference{"keys": l.Between(all[from], all[to]), "comparison": all[from].compare(all[to])} {
			state := map[resource.Key][]byte{}
			all[from].Each(func(k resource.Key, r *configv1.Resource) bool { state[k] = r.Hash; return true })
			for _, r := range d.Upserts {
				k := resource.KeyOf(r.Key)
				if bytes.Equal(state[k], r.Hash) {
					t.Fatalf("%s: %v upserted though unchanged", how, k)
				}
				state[k] = r.Hash
			}
			for _, k := range d.Removed {
				if state[k] == nil {
					t.Fatalf("%s: %v removed though absent", how, k)
				}
				delete(state, k)
			}
			var sum resource.Sum
			for k, h := range state {
				sum.Add(k, h)
			}
			if !bytes.Equal(sum.Bytes(), all[to].Revision().StateHash) {
				t.Fatalf("%s: difference from %d to %d leads elsewhere", how, from+1, to+1)
			}
		}
	})
}

func TestOldKeysAreForgotten(t *testing.T) {
	l := NewLog("e", testkit.NewClock(time.Unix(0, 0)))
	first := l.Commit([]*configv1.Resource{ns("a", "0"), ns("gone", "0")}, nil, "")
	l.Commit(nil, []resource.Key{{Kind: "Namespace", Name: "gone"}}, "")
	var last *Snapshot
	for i := range keepRevisions + 10 {
		last = l.Commit([]*configv1.Resource{ns("a", fmt.Sprint(i))}, nil, "")
	}
	if len(l.keys) > keepRevisions {
		t.Errorf("%d revisions remembered", len(l.keys))
	}
	if d := l.Between(first, last); len(d.Upserts) != 1 || len(d.Removed) != 1 {
		t.Errorf("difference beyond memory: %d upserts, %d removed", len(d.Upserts), len(d.Removed))
	}
}

func TestStateHashIgnoresOrder(t *testing.T) {
	a, b := NewLog("a", testkit.NewClock(time.Unix(0, 0))), NewLog("b", testkit.NewClock(time.Unix(9, 0)))
	a.Commit([]*configv1.Resource{ns("x", "1"), ns("y", "1")}, nil, "")
	sa := a.Commit([]*configv1.Resource{ns("x", "2")}, []resource.Key{{Kind: "Namespace", Name: "y"}}, "")
	b.Commit([]*configv1.Resource{ns("z", "1")}, nil, "")
	sb := b.Commit([]*configv1.Resource{ns("x", "2")}, []resource.Key{{Kind: "Namespace", Name: "z"}}, "")
	if !bytes.Equal(sa.Revision().StateHash, sb.Revision().StateHash) {
		t.Error("the same resources have different state hashes")
	}
}
