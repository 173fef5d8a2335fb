package holders

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
)

// aliases is how many replaced certificates of one holder are remembered.
const aliases = 4

// none is no index of an entry.
const none = int32(-1)

// table knows the certificates. It is pure: the time comes with each call. Every change of an entry gets the next
// number of table.seq, by which replicas ask for what has changed.
type table struct {
	limit, identityLimit int

	entries []entry
	free    []int32
	byPrint map[Fingerprint]int32
	// missing has predecessors that are not known (yet), with the entries that name each.
	missing map[Fingerprint][]int32

	identities interned
	keyIDs     interned
	perID      map[uint32]int

	pods     []pod
	freePods []uint32
	// byUID has the first Pod of a UID, pod.sibling the next: one for each identity, of which there is mostly one.
	byUID map[string]uint32
	// byName has the Pod that was issued a certificate last among those of one name.
	byName map[string]uint32

	// keys are the authority key IDs of each signer, with the end of the last certificate.
	keys   map[signerKey]int64
	folded map[foldKey]fold
	// unknown says until when certificates may be in use that the table does not have, and why.
	unknownUntil int64
	unknownWhy   string
	seq          uint64
}

// entry is one certificate.
type entry struct {
	print, pred       Fingerprint
	serial            [maxSerial]byte
	serialLen         uint8
	flags             uint8
	identity, keyID   uint32
	pod               uint32 // 0 for none
	next              int32  // the entry that replaced this one, outside of Pods
	podNext           int32  // the next entry of the same Pod
	signer            uint64
	epoch, generation uint64 // acknowledged
	at                int64  // milliseconds
	notAfter          int64  // seconds
	seq               uint64
}

// Flags of an entry.
const (
	used = 1 << iota
	replaced
	// forked: more than one certificate names this one as its predecessor, or the one that did is gone.
	forked
	undelivered
	// branched: certificates other than next name this one as their predecessor.
	branched
	// gone: the Pod is gone, and nobody has the key.
	gone
)

type signerKey struct {
	signer uint64
	keyID  string
}

func newTable(limit int) *table {
	return &table{
		limit: limit, identityLimit: limit / 2,
		byPrint: map[Fingerprint]int32{}, missing: map[Fingerprint][]int32{}, identities: newInterned(), keyIDs: newInterned(),
		perID: map[uint32]int{}, pods: make([]pod, 1), byUID: map[string]uint32{}, byName: map[string]uint32{},
		keys: map[signerKey]int64{}, folded: map[foldKey]fold{},
	}
}

// issued adds a certificate, or what is new about one that is known. Certificates come in any order and more than once,
// and the result is the same.
func (t *table) issued(c *Certificate, now time.Time) {
	if !c.NotAfter.After(now) {
		return
	}
	if len(c.Identity) > maxIdentity {
		t.doubt(c.NotAfter.Unix(), "a certificate has a longer identity than can be remembered")
		return
	}
	if i, ok := t.byPrint[c.Fingerprint]; ok {
		t.raise(i, c.Epoch, c.Generation)
		if e := &t.entries[i]; e.pod == 0 && c.PodUID != "" && t.identities.text(e.identity) == c.Identity {
			t.joinPod(i, t.podOf(c, e.identity))
			t.touch(i)
		}
		return
	}
	identity := t.identities.id(c.Identity)
	t.makeRoom(identity, now)
	i := t.add(c, identity)
	e := &t.entries[i]
	pred, known := none, false
	if c.Predecessor != (Fingerprint{}) && c.Predecessor != c.Fingerprint {
		pred, known = t.byPrint[c.Predecessor]
		known = known && t.entries[pred].identity == identity
		if _, ok := t.byPrint[c.Predecessor]; !ok {
			t.missing[c.Predecessor] = append(t.missing[c.Predecessor], i)
		}
	}
	successors := t.missing[c.Fingerprint]
	delete(t.missing, c.Fingerprint)
	for _, successor := range successors {
		if t.entries[successor].identity == identity {
			t.link(i, successor)
		}
	}
	p := uint32(0)
	switch {
	case c.PodUID != "":
		p = t.podOf(c, identity)
	case known:
		p = t.entries[pred].pod
	}
	if known {
		t.link(pred, i)
	}
	if p != 0 && e.pod == 0 {
		t.joinPod(i, p)
	}
	t.forgetAliases(i)
}

// add makes the entry of a certificate, without its relations.
func (t *table) add(c *Certificate, identity uint32) int32 {
	i := int32(len(t.entries))
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.entries = append(t.entries, entry{})
	}
	e := &t.entries[i]
	keyID := string(c.AuthorityKeyID[:min(len(c.AuthorityKeyID), maxKeyID)])
	*e = entry{
		print: c.Fingerprint, pred: c.Predecessor, flags: used, identity: identity, keyID: t.keyIDs.id(keyID), next: none, podNext: none,
		signer: c.Signer, epoch: c.Epoch, generation: c.Generation, at: c.At.UnixMilli(), notAfter: c.NotAfter.Unix(),
	}
	if serial, err := hex.DecodeString(c.Serial); err == nil && len(serial) <= maxSerial {
		e.serialLen = uint8(copy(e.serial[:], serial))
	}
	if c.Undelivered {
		e.flags |= undelivered
	}
	t.byPrint[c.Fingerprint] = i
	t.perID[identity]++
	key := signerKey{c.Signer, keyID}
	t.keys[key] = max(t.keys[key], e.notAfter)
	t.touch(i)
	return i
}

func (t *table) touch(i int32) {
	t.seq++
	t.entries[i].seq = t.seq
}

// link says that the certificate of entry after was issued to a caller with that of entry before.
func (t *table) link(before, after int32) {
	b, a := &t.entries[before], &t.entries[after]
	if a.flags&undelivered == 0 && b.flags&undelivered != 0 { // it has arrived after all
		b.flags &^= undelivered
		if first, ok := t.byPrint[b.pred]; ok && t.entries[first].identity == b.identity {
			t.link(first, before)
		}
		if b.pod != 0 {
			t.settle(b.pod)
		}
	}
	if b.pod != 0 && a.pod == 0 {
		t.joinPod(after, b.pod)
	}
	if a.flags&undelivered != 0 {
		b.flags |= branched
		return
	}
	b.flags |= replaced
	if b.next != none && b.next != after || b.flags&forked != 0 {
		b.flags |= forked | branched
		return
	}
	b.next = after
	t.raise(after, b.epoch, b.generation)
}

func (t *table) before(i, j int32) bool {
	a, b := &t.entries[i], &t.entries[j]
	return cmp.Or(cmp.Compare(a.at, b.at), bytes.Compare(a.print[:], b.print[:])) < 0
}

func (t *table) sortByAge(entries []int32) {
	slices.SortFunc(entries, func(a, b int32) int {
		if t.before(a, b) {
			return -1
		}
		return 1
	})
}

// raise records what the holder of a certificate acknowledges, for what came after it, too.
func (t *table) raise(i int32, epoch, generation uint64) {
	if p := t.entries[i].pod; p != 0 {
		for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
			t.raiseOne(i, epoch, generation)
		}
		return
	}
	for i != none {
		t.raiseOne(i, epoch, generation)
		if t.entries[i].flags&forked != 0 {
			return // whose acknowledgement it is nobody knows
		}
		i = t.entries[i].next
	}
}

func (t *table) raiseOne(i int32, epoch, generation uint64) {
	e := &t.entries[i]
	if e.acked(epoch, generation) {
		return
	}
	e.epoch, e.generation = epoch, generation
	t.touch(i)
}

// acked tells whether the holder has acknowledged this generation or a later one.
func (e *entry) acked(epoch, generation uint64) bool {
	return cmp.Or(cmp.Compare(e.epoch, epoch), cmp.Compare(e.generation, generation)) >= 0
}

// live tells whether the certificate counts.
func (e *entry) live(now int64) bool {
	return e.flags&(used|replaced|gone) == used && e.notAfter > now
}

// ackedBy records the acknowledgement of whoever has one of the certificates.
func (t *table) ackedBy(epoch, generation uint64, certificates []Fingerprint) {
	for _, c := range certificates {
		if i, ok := t.byPrint[c]; ok {
			t.raise(i, epoch, generation)
		}
	}
}

// ackedIn records the acknowledgement of Pods.
func (t *table) ackedIn(epoch, generation uint64, uids []string) {
	for _, uid := range uids {
		for p := t.byUID[uid]; p != 0; p = t.pods[p].sibling {
			t.raise(t.pods[p].first, epoch, generation)
		}
	}
}

// forgetAliases drops the oldest replaced certificates of an entry's holder, if there are more than aliases.
func (t *table) forgetAliases(i int32) {
	if p := t.entries[i].pod; p != 0 {
		var old []int32
		for i := t.pods[p].first; i != none; i = t.entries[i].podNext {
			if t.entries[i].flags&replaced != 0 {
				old = append(old, i)
			}
		}
		if len(old) > aliases {
			t.sortByAge(old)
			for _, i := range old[:len(old)-aliases] {
				t.remove(i) // comes it again, its Pod has newer ones
			}
		}
		return
	}
	for n := 0; ; n++ {
		pred, ok := t.byPrint[t.entries[i].pred]
		if !ok || t.entries[pred].flags&replaced == 0 || t.entries[pred].identity != t.entries[i].identity {
			return
		}
		if n == aliases {
			print := t.entries[pred].print
			t.remove(pred)
			t.missing[print] = []int32{i} // comes it again, it is replaced
			return
		}
		i = pred
	}
}

// remove forgets a certificate.
func (t *table) remove(i int32) {
	e := &t.entries[i]
	if before, ok := t.byPrint[e.pred]; ok && t.entries[before].next == i {
		t.entries[before].next = none
		t.entries[before].flags |= forked
	}
	if waiting, ok := t.missing[e.pred]; ok {
		if waiting = slices.DeleteFunc(waiting, func(w int32) bool { return w == i }); len(waiting) == 0 {
			delete(t.missing, e.pred)
		} else {
			t.missing[e.pred] = waiting
		}
	}
	if e.pod != 0 {
		t.leavePod(i)
	}
	delete(t.byPrint, e.print)
	if t.perID[e.identity]--; t.perID[e.identity] == 0 {
		delete(t.perID, e.identity)
	}
	t.identities.release(e.identity)
	t.keyIDs.release(e.keyID)
	*e = entry{}
	t.free = append(t.free, i)
}

// sweep forgets what has expired.
func (t *table) sweep(now time.Time) {
	at := now.Unix()
	for i := range t.entries {
		if e := &t.entries[i]; e.flags&used != 0 && e.notAfter <= at {
			t.remove(int32(i))
		}
	}
	maps.DeleteFunc(t.keys, func(_ signerKey, until int64) bool { return until <= at })
	t.sweepFolded(at)
	if t.unknownUntil <= at {
		t.unknownUntil, t.unknownWhy = 0, ""
	}
}

// certificate returns an entry as a Certificate. The generation is the one that was acknowledged last.
func (t *table) certificate(i int32) Certificate {
	e := &t.entries[i]
	c := Certificate{
		Fingerprint: e.print, Serial: e.serialText(), Identity: t.identities.text(e.identity), Signer: e.signer,
		Epoch: e.epoch, Generation: e.generation, AuthorityKeyID: []byte(t.keyIDs.text(e.keyID)), NotAfter: time.Unix(e.notAfter, 0).UTC(),
		Predecessor: e.pred, Undelivered: e.flags&undelivered != 0, At: time.UnixMilli(e.at).UTC(),
	}
	if e.pod != 0 {
		c.Pod, c.PodUID = t.pods[e.pod].name, t.pods[e.pod].uid
	}
	return c
}

func (e *entry) serialText() string { return hex.EncodeToString(e.serial[:e.serialLen]) }

// holder describes the holder of a certificate.
func (t *table) holder(i int32) caapi.Holder {
	e := &t.entries[i]
	h := caapi.Holder{
		Identity: t.identities.text(e.identity), Serial: e.serialText(), NotAfter: time.Unix(e.notAfter, 0).UTC(), Generation: e.generation,
		Signer: e.signer,
	}
	h.Name = h.Identity + " " + h.Serial
	if e.pod != 0 && t.pods[e.pod].name != "" {
		h.Name = t.pods[e.pod].name
		// The name alone is that of the newest certificate in the newest Pod of this name.
		if t.byName[h.Name] != e.pod || t.newest(e.pod) != i {
			h.Name += " " + h.Serial
		}
	}
	return h
}
