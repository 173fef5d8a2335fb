package jwks

import (
	"cmp"
	"slices"

	"fairlead.dev/services/config-watcher/internal/object"
)

// admit decides which sources are fetched: of each namespace those of its oldest RequestAuthentications, as many as
// PerNamespace; and if there are more than maxSources, the first of every namespace before the second of any. So no
// namespace takes the place of another's, what exists is not displaced by what comes later, and replicas agree.
func (t *Table) admit() {
	if len(t.entries) <= min(t.cfg.PerNamespace, maxSources) {
		for _, e := range t.entries {
			t.setAdmitted(e, true)
		}
		return
	}
	type wish struct {
		owner object.Key
		e     *entry
	}
	wishes := map[string][]wish{}
	for _, e := range t.entries {
		oldest := map[string]object.Key{}
		for k := range e.owners {
			if o, has := oldest[k.Namespace]; !has || t.compareAge(k, o) < 0 {
				oldest[k.Namespace] = k
			}
		}
		for ns, k := range oldest {
			wishes[ns] = append(wishes[ns], wish{k, e})
		}
	}
	ranks := map[*entry]int{}
	for _, of := range wishes {
		slices.SortFunc(of, func(a, b wish) int {
			return cmp.Or(t.compareAge(a.owner, b.owner), compareSources(a.e.source, b.e.source))
		})
		for i, w := range of[:min(len(of), t.cfg.PerNamespace)] {
			if rank, has := ranks[w.e]; !has || i < rank {
				ranks[w.e] = i
			}
		}
	}
	admitted := make([]*entry, 0, len(ranks))
	for e := range ranks {
		admitted = append(admitted, e)
	}
	slices.SortFunc(admitted, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(ranks[a], ranks[b]), compareSources(a.source, b.source))
	})
	for _, e := range admitted[min(len(admitted), maxSources):] {
		delete(ranks, e)
	}
	for _, e := range t.entries {
		_, has := ranks[e]
		t.setAdmitted(e, has)
	}
}

func (t *Table) setAdmitted(e *entry, admitted bool) {
	if e.admitted != admitted {
		e.admitted = admitted
		t.dirty[e] = true
	}
}

// compareAge orders owners by age.
func (t *Table) compareAge(a, b object.Key) int {
	return cmp.Or(t.owners[a].created.Compare(t.owners[b].created), a.Compare(b))
}
