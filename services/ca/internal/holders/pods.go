package holders

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// pod is a Pod as one identity.
type pod struct {
	name, uid string
	identity  uint32
	sibling   uint32
	first     int32
	at        int64 // of the newest entry
}

// podOf returns the Pod of a certificate, and makes it if it is new.
func (t *table) podOf(c *Certificate, identity uint32) uint32 {
	uid := cut(c.PodUID)
	first := t.byUID[uid]
	for p := first; p != 0; p = t.pods[p].sibling {
		if t.pods[p].identity == identity {
			return p
		}
	}
	p := uint32(len(t.pods))
	if n := len(t.freePods); n > 0 {
		p, t.freePods = t.freePods[n-1], t.freePods[:n-1]
	} else {
		t.pods = append(t.pods, pod{})
	}
	t.pods[p] = pod{name: cut(c.Pod), uid: uid, identity: identity, first: none, sibling: first}
	t.byUID[uid] = p
	return p
}

func cut(s string) string { return s[:min(len(s), maxText)] }

// joinPod adds an entry to a Pod, with what came after it, and decides which certificates of the Pod count.
func (t *table) joinPod(i int32, p uint32) {
	for ; i != none && t.entries[i].pod == 0; i = t.entries[i].next {
		if t.entries[i].flags&branched != 0 {
			defer t.joinBranches(i, p)
		}
		e, of := &t.entries[i], &t.pods[p]
		e.pod, e.podNext, of.first = p, of.first, i
		if e.at >= of.at {
			of.at = e.at
			if other, ok := t.byName[of.name]; of.name != "" && (!ok || t.pods[other].at <= of.at) {
				t.byName[of.name] = p
			}
		}
	}
	t.settle(p)
}

// joinBranches adds to a Pod what came after an entry beside its next one. It searches the whole table: it is for
// certificates that arrive after their successors.
func (t *table) joinBranches(of int32, p uint32) {
	for i := range t.entries {
		if e := &t.entries[i]; e.flags&used != 0 && e.pod == 0 && e.pred == t.entries[of].print && e.identity == t.entries[of].identity {
			t.joinPod(int32(i), p)
		}
	}
}

// settle marks the certificates of a Pod that its newest one replaces. What one acknowledged counts for all.
func (t *table) settle(p uint32) {
	newest := t.newest(p)
	var epoch, generation uint64
	for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
		if e := &t.entries[i]; cmp.Or(cmp.Compare(e.epoch, epoch), cmp.Compare(e.generation, generation)) > 0 {
			epoch, generation = e.epoch, e.generation
		}
	}
	for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
		if newest != none && i != newest && t.before(i, newest) {
			t.entries[i].flags |= replaced
		}
		t.raiseOne(i, epoch, generation)
	}
}

// newest is the certificate of a Pod that replaces those before it.
func (t *table) newest(p uint32) int32 {
	newest := none
	for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
		if t.entries[i].flags&undelivered == 0 && (newest == none || t.before(newest, i)) {
			newest = i
		}
	}
	return newest
}

// rewind takes certificates that were issued more than jump after now, by a clock that is wrong or was, as issued now,
// in the order that they have: what is issued from now on replaces them.
func (t *table) rewind(now time.Time) {
	at, wrong := now.UnixMilli(), now.Add(jump).UnixMilli()
	if !slices.ContainsFunc(t.entries, func(e entry) bool { return e.flags&used != 0 && e.at > wrong }) {
		return
	}
	for p := range t.pods {
		of := &t.pods[p]
		var ahead []int32
		for i := of.first; p != 0 && i != none; i = t.entries[i].podNext {
			if t.entries[i].at > wrong {
				ahead = append(ahead, i)
			}
		}
		t.sortByAge(ahead)
		for n, i := range ahead {
			t.entries[i].at = at + int64(n)
			of.at = t.entries[i].at
		}
	}
	for i := range t.entries {
		if e := &t.entries[i]; e.pod == 0 && e.at > wrong {
			e.at = at
		}
	}
}

// forgetPods says that Pods are gone. What is issued there nevertheless counts.
func (t *table) forgetPods(uids []string) {
	for _, uid := range uids {
		for p := t.byUID[uid]; p != 0; p = t.pods[p].sibling {
			for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
				t.entries[i].flags |= gone
			}
		}
	}
}

// Foreign makes of the name or UID of a Pod in a remote cluster one that no Pod of the own cluster has.
func Foreign(cluster, text string) string { return cluster + "/" + text }

// isForeign reports whether a UID is one of Foreign.
func isForeign(uid string) bool { return strings.Contains(uid, "/") }

// livePods are the Pods of the own cluster whose certificates count, sorted by UID.
func (t *table) livePods(now time.Time) []Pod {
	at := now.Unix()
	var out []Pod
	for i := range t.entries {
		if e := &t.entries[i]; e.pod != 0 && e.live(at) && t.pods[e.pod].uid != "" &&
			!isForeign(t.pods[e.pod].uid) {
			out = append(out, Pod{UID: t.pods[e.pod].uid, Name: t.pods[e.pod].name})
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return strings.Compare(a.UID, b.UID) })
	return slices.Compact(out)
}

func (t *table) leavePod(i int32) {
	p := t.entries[i].pod
	of := &t.pods[p]
	for at := &of.first; *at != none; at = &t.entries[*at].podNext {
		if *at == i {
			*at = t.entries[i].podNext
			break
		}
	}
	if of.first != none {
		return
	}
	if first := t.byUID[of.uid]; first != p {
		for q := first; q != 0; q = t.pods[q].sibling {
			if t.pods[q].sibling == p {
				t.pods[q].sibling = of.sibling
			}
		}
	} else if of.sibling != 0 {
		t.byUID[of.uid] = of.sibling
	} else {
		delete(t.byUID, of.uid)
	}
	if t.byName[of.name] == p {
		delete(t.byName, of.name)
	}
	*of = pod{first: none}
	t.freePods = append(t.freePods, p)
}

// podOfCertificate is the Pod that a certificate belongs to, although it may not say so itself.
func (t *table) podOfCertificate(c *Certificate) (name, uid string) {
	if i, ok := t.byPrint[c.Fingerprint]; ok && t.entries[i].pod != 0 {
		p := &t.pods[t.entries[i].pod]
		return p.name, p.uid
	}
	return c.Pod, c.PodUID
}
