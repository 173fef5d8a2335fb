package holders

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// foldKey is whose certificates were folded.
type foldKey struct {
	identity string
	signer   uint64
}

// fold counts certificates that are no longer known one by one; the last of them ends at until.
type fold struct {
	count int
	until int64
}

const (
	// maxFolded bounds table.folded. What does not fit counts as unknown.
	maxFolded = 10_000
	// foldShare is the part of the table that is folded at once, so that a full table is searched now and then only.
	foldShare = 64
)

// makeRoom folds certificates of the identity if it has as many as one may have, and of the identity with the most if
// the table is full.
func (t *table) makeRoom(identity uint32, now time.Time) {
	if t.perID[identity] < t.identityLimit && len(t.byPrint) < t.limit {
		return
	}
	t.sweep(now)
	if t.perID[identity] >= t.identityLimit {
		t.foldOldest(identity)
	}
	if len(t.byPrint) >= t.limit {
		most := identity
		for id, n := range t.perID {
			if cmp.Or(cmp.Compare(n, t.perID[most]), cmp.Compare(most, id)) > 0 {
				most = id
			}
		}
		t.foldOldest(most)
	}
}

// foldOldest takes certificates of an identity out of the table: those that were replaced, which nothing waits for, and
// if there are none the oldest that count.
func (t *table) foldOldest(identity uint32) {
	var aside, counting []int32
	for i := range t.entries {
		switch e := &t.entries[i]; {
		case e.flags&used == 0 || e.identity != identity:
		case e.flags&replaced != 0:
			aside = append(aside, int32(i))
		default:
			counting = append(counting, int32(i))
		}
	}
	n := max(1, t.limit/foldShare)
	if len(aside) > 0 {
		for _, i := range aside[:min(n, len(aside))] {
			t.remove(i)
		}
		return
	}
	slices.SortFunc(counting, func(a, b int32) int {
		return cmp.Or(cmp.Compare(t.entries[a].at, t.entries[b].at), cmp.Compare(a, b))
	})
	for _, i := range counting[:min(n, len(counting))] {
		e := &t.entries[i]
		t.addFolded(foldKey{t.identities.text(e.identity), e.signer}, fold{1, e.notAfter})
		t.remove(i)
	}
}

// addFolded adds certificates that are known by their number only.
func (t *table) addFolded(key foldKey, f fold) {
	before, ok := t.folded[key]
	if !ok && len(t.folded) >= maxFolded {
		t.doubt(f.until, "there are more certificates than can be remembered")
		return
	}
	t.folded[key] = fold{before.count + f.count, max(before.until, f.until)}
}

func (t *table) sweepFolded(now int64) {
	maps.DeleteFunc(t.folded, func(_ foldKey, f fold) bool { return f.until <= now })
}

// doubt says that certificates may be in use until then that the table does not have.
func (t *table) doubt(until int64, why string) {
	if until > t.unknownUntil {
		t.unknownUntil, t.unknownWhy = until, why
	}
}
