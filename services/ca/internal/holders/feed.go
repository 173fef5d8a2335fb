package holders

import (
	"cmp"
	"slices"
	"time"
)

// Feed returns certificates for another replica: all of them, and then those that change. It is for one goroutine.
type Feed struct {
	r    *Registry
	next int    // entry of the first pass
	seq  uint64 // what was sent
	// whole says that the first pass is over.
	whole bool
}

// Feed begins a Feed.
func (r *Registry) Feed() *Feed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Feed{r: r, seq: r.table.seq}
}

// Changed returns a channel that is closed when a certificate is issued or acknowledged. A caller gets it before Next.
func (r *Registry) Changed() <-chan struct{} { return r.changed.Changed() }

// Next returns at most this many certificates; none if nothing has changed. complete says that everything which was
// known when the Feed began has been returned.
func (f *Feed) Next(most int) (certificates []Certificate, complete bool) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	t := f.r.table
	if !f.whole {
		to := min(f.next+most, len(t.entries))
		for i := f.next; i < to; i++ {
			if t.entries[i].flags&used != 0 {
				certificates = append(certificates, t.certificate(int32(i)))
			}
		}
		f.next, f.whole = to, to == len(t.entries)
		return certificates, f.whole
	}
	if f.seq == t.seq {
		return nil, true
	}
	var changed []int32
	for i := range t.entries {
		if e := &t.entries[i]; e.flags&used != 0 && e.seq > f.seq {
			changed = append(changed, int32(i))
		}
	}
	f.seq = t.seq
	if len(changed) > most {
		slices.SortFunc(changed, func(a, b int32) int { return cmp.Compare(t.entries[a].seq, t.entries[b].seq) })
		changed = changed[:most]
		f.seq = t.entries[changed[most-1]].seq
	}
	for _, i := range changed {
		certificates = append(certificates, t.certificate(i))
	}
	return certificates, true
}

// Merge adds what another replica knows.
func (r *Registry) Merge(certificates []Certificate) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	before, latest := r.table.seq, now.Add(jump)
	ahead := false
	for i := range certificates {
		c := &certificates[i]
		trim(c)
		ahead = ahead || c.At.After(latest)
		_, known := r.table.byPrint[c.Fingerprint]
		r.table.issued(c, now)
		if !known {
			r.journal.append(&event{kind: kindIssued, cert: *c})
		}
	}
	if ahead {
		r.table.rewind(now) // the other's clock is wrong, or was
	}
	if r.table.seq != before {
		r.changed.Notify()
		r.wake()
	}
}

// Doubt says that certificates may be in use until then which nobody knows of.
func (r *Registry) Doubt(until time.Time, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until.After(r.cfg.Clock.Now()) && until.Unix() > r.table.unknownUntil {
		r.doubt(until, why)
		r.wake()
	}
}

// Unasked tells whether there was no journal at the start and other replicas have not told yet whether one was lost.
func (r *Registry) Unasked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unasked
}

// Asked ends Unasked. lost says that there was a journal: what it had and no other replica knows is unknown from now
// on.
func (r *Registry) Asked(lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.unasked {
		return
	}
	if lost {
		r.doubt(r.cfg.Clock.Now().Add(r.cfg.LongestTTL), "there is no journal")
	}
	r.unasked = false
	r.journal.append(&event{kind: kindAsked})
	r.wake()
}

// Unknown returns until when certificates may be in use that are not known, and why; zero if all are.
func (r *Registry) Unknown() (until time.Time, why string) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table.unknownUntil <= now.Unix() {
		return time.Time{}, ""
	}
	return time.Unix(r.table.unknownUntil, 0).UTC(), r.table.unknownWhy
}

// Folded are certificates that are known by their number only.
type Folded struct {
	Identity string
	Signer   uint64
	Count    int
	// Until is when the last of them expires.
	Until time.Time
}

// Folded returns the certificates that are known by their number only, most first.
func (r *Registry) Folded() []Folded {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Folded
	for key, f := range r.table.folded {
		if until := time.Unix(f.until, 0).UTC(); until.After(now) {
			out = append(out, Folded{key.identity, key.signer, f.count, until})
		}
	}
	slices.SortFunc(out, func(a, b Folded) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Signer, b.Signer))
	})
	return out
}

// Pod is one with a certificate.
type Pod struct {
	UID string
	// Name is namespace/name.
	Name string
}

// Pods are those whose certificates are valid still, sorted by UID.
func (r *Registry) Pods() []Pod {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.livePods(now)
}

// Gone says that the Pods with these UIDs have been deleted, so that nobody has the keys of their certificates any
// more. It is not written down: whoever knows says it again after a restart.
func (r *Registry) Gone(podUIDs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table.forgetPods(podUIDs)
}
