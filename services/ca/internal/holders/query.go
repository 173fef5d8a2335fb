package holders

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
)

// behind are the holders that have not acknowledged a generation.
func (t *table) behind(epoch, generation uint64, now time.Time) []caapi.Holder {
	return t.list(now, func(e *entry) bool { return !e.acked(epoch, generation) }, func(uint64) bool { return true })
}

// of are the holders whose certificates one of the signers issued.
func (t *table) of(signers []uint64, now time.Time) []caapi.Holder {
	ours := func(signer uint64) bool { return slices.Contains(signers, signer) }
	return t.list(now, func(e *entry) bool { return ours(e.signer) }, ours)
}

// list describes holders, and what the table knows by number only or not at all, sorted by name.
func (t *table) list(now time.Time, wanted func(*entry) bool, signer func(uint64) bool) []caapi.Holder {
	at := now.Unix()
	var out []caapi.Holder
	for i := range t.entries {
		if e := &t.entries[i]; e.live(at) && wanted(e) {
			out = append(out, t.holder(int32(i)))
		}
	}
	folded := map[string]caapi.Holder{}
	counts := map[string]int{}
	for key, f := range t.folded {
		if f.until <= at || !signer(key.signer) {
			continue
		}
		h := folded[key.identity]
		if until := time.Unix(f.until, 0).UTC(); until.After(h.NotAfter) {
			h.NotAfter = until
		}
		h.Identity, h.Signer = key.identity, max(h.Signer, key.signer)
		counts[key.identity] += f.count
		h.Name = fmt.Sprintf("%d certificates of %s", counts[key.identity], key.identity)
		folded[key.identity] = h
	}
	for _, h := range folded {
		out = append(out, h)
	}
	if t.unknownUntil > at {
		until := time.Unix(t.unknownUntil, 0).UTC()
		out = append(out, caapi.Holder{Name: "unknown certificates until " + until.Format(time.RFC3339), NotAfter: until})
	}
	slices.SortFunc(out, func(a, b caapi.Holder) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Serial, b.Serial))
	})
	return out
}

// authorityKeyIDs are those in unexpired certificates of the signers, sorted.
func (t *table) authorityKeyIDs(signers []uint64, now time.Time) [][]byte {
	var ids []string
	for key, until := range t.keys {
		if until > now.Unix() && key.keyID != "" && slices.Contains(signers, key.signer) {
			ids = append(ids, key.keyID)
		}
	}
	slices.Sort(ids)
	var out [][]byte
	for _, id := range slices.Compact(ids) {
		out = append(out, []byte(id))
	}
	return out
}

// counts counts holders. Certificates that were folded have acknowledged nothing.
func (t *table) counts(epoch, generation uint64, now time.Time) caapi.Holders {
	at := now.Unix()
	out := caapi.Holders{BySigner: map[uint64]int{}}
	for i := range t.entries {
		e := &t.entries[i]
		if !e.live(at) {
			continue
		}
		out.Total++
		out.BySigner[e.signer]++
		if e.acked(epoch, generation) {
			out.Acknowledged++
		}
	}
	for key, f := range t.folded {
		if f.until > at {
			out.Total += f.count
			out.BySigner[key.signer] += f.count
		}
	}
	if t.unknownUntil > at {
		out.UnknownUntil, out.UnknownReason = time.Unix(t.unknownUntil, 0).UTC(), t.unknownWhy
	}
	return out
}
