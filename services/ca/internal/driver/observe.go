package driver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// rootsOf are the roots that the record has of a signer.
func (d *Driver) rootsOf(id uint64) []string {
	doc := d.document()
	if s := doc.signer(id); s != nil {
		return s.Roots
	}
	return nil
}

// kept is what a signer has made, as the record has it; known is false for one that the record has not.
func (d *Driver) kept(id uint64) (kept json.RawMessage, known bool) {
	doc := d.document()
	if s := doc.signer(id); s != nil {
		return s.Kept, true
	}
	return nil, false
}

// setKept writes down what a signer has made, unless another replica was first.
func (d *Driver) setKept(ctx context.Context, id uint64, before, made json.RawMessage) error {
	return d.update(ctx, func(doc document) (document, error) {
		s := doc.signer(id)
		switch {
		case s == nil:
			return doc, errors.New("no rotation needs the signer any more")
		case !bytes.Equal(s.Kept, before):
			return doc, errors.New("another replica has made its keys meanwhile")
		}
		s.Kept = made
		return doc, nil
	})
}

// Own are the roots that signers need in the trust bundle. In a replica that takes no steps they are the whole bundle,
// as it was published.
func (d *Driver) Own() (trustbundle.Own, <-chan struct{}, error) {
	changed := d.changed.Changed()
	doc := d.document()
	if !d.leads() && doc.Bundle.Generation > 0 {
		return trustbundle.Own{Roots: doc.Bundle.Roots, Whole: true}, changed, nil
	}
	return trustbundle.Own{Roots: doc.needed(d.now())}, changed, nil
}

// Number numbers the trust bundle: all are its roots, own those of Own among them. A bundle that differs from the last
// one is written down before it is published. The error is errStale if the signers need other roots meanwhile.
func (d *Driver) Number(ctx context.Context, own, all []string) (trustbundle.Numbered, error) {
	if d.leads() {
		if err := d.number(ctx, own, all); err != nil {
			return trustbundle.Numbered{}, err
		}
	}
	doc := d.document()
	if !slices.Equal(doc.Bundle.Roots, all) {
		if err := d.reload(ctx); err != nil { // for the next attempt
			return trustbundle.Numbered{}, err
		}
		return trustbundle.Numbered{}, errors.New("the replica that takes steps has not published the bundle yet")
	}
	d.mu.Lock()
	d.publishedRoots = all
	d.mu.Unlock()
	out := trustbundle.Numbered{Epoch: doc.Epoch, Generation: doc.Bundle.Generation, Tainted: doc.Bundle.Tainted}
	out.CRLs = d.revocations(doc, all)
	return out, nil
}

// errStale says that roots were collected of an earlier state than the record has: a replica that does not know yet
// that it takes no steps any more must not publish them.
var errStale = errors.New("the ca's state has changed while its bundle was put together; it is published anew")

// number writes down the bundle of these roots, unless it is the last one.
func (d *Driver) number(ctx context.Context, own, all []string) error {
	doc := d.document()
	tainted, first := d.tainted(doc), doc.Bundle.Generation
	if first == 0 {
		var err error
		if first, err = d.cfg.First(ctx, all); err != nil {
			return err
		}
	}
	return d.update(ctx, func(doc document) (document, error) {
		if !slices.Equal(own, doc.needed(d.now())) {
			return doc, errStale
		}
		b := bundle{Generation: doc.Bundle.Generation, Roots: all, Own: own, Tainted: tainted}
		switch {
		case b.Generation == 0:
			b.Generation = first
		case !slices.Equal(doc.Bundle.Roots, all) || !slices.EqualFunc(doc.Bundle.Tainted, tainted, bytes.Equal):
			b.Generation++
		}
		doc.Bundle = b
		return doc, nil
	})
}

// tainted are the authority key identifiers of certificates that agents are to replace now. Those that the signer in
// use has, too, are left out: a new certificate would be tainted again.
func (d *Driver) tainted(doc document) [][]byte {
	old := doc.Tainted()
	if len(old) == 0 || doc.Paused {
		return nil
	}
	out := d.cfg.Holders.KeyIDs(old...)
	current := d.cfg.Holders.KeyIDs(doc.Current.ID)
	if w := d.worker(doc.Current.ID); w != nil {
		if a, _ := w.opened.Guard.Authorities(); a != nil {
			for _, c := range slices.Concat(a.Intermediates, a.Roots) {
				current = append(current, c.SubjectKeyId)
			}
		}
	}
	out = slices.DeleteFunc(out, func(id []byte) bool {
		return slices.ContainsFunc(current, func(other []byte) bool { return bytes.Equal(id, other) })
	})
	slices.SortFunc(out, bytes.Compare)
	return out
}

func (d *Driver) worker(id uint64) *worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.workers[id]
}

// trusted reports whether every holder verifies with a root.
func (d *Driver) trusted(root *x509.Certificate) bool {
	doc := d.document()
	if !slices.Contains(doc.Bundle.Roots, tlsconf.EncodeCertificate(root)) || d.cfg.Holders.Problem() != nil {
		return false
	}
	return len(d.behind(doc, doc.Bundle.Generation)) == 0
}

// behind are those that have not acknowledged a generation.
func (d *Driver) behind(doc document, generation uint64) []string {
	known := map[uint64]bool{0: true, doc.Current.ID: true}
	if doc.Next != nil {
		known[doc.Next.ID] = true
	}
	for _, old := range doc.Old {
		known[old.ID] = true
	}
	// A certificate of a signer that was left long ago verifies nowhere any more: its holder has another one.
	out := names(slices.DeleteFunc(d.cfg.Holders.Behind(doc.Epoch, generation), func(h caapi.Holder) bool { return !known[h.Signer] }))
	if d.cfg.Beside != nil {
		out = append(out, d.cfg.Beside(doc.Epoch, generation)...)
	}
	return out
}

func names(holders []caapi.Holder) []string {
	out := make([]string, len(holders))
	for i, h := range holders {
		out[i] = h.Name
	}
	return out
}

// observe looks at the signers and the mesh, as far as the step needs it.
func (d *Driver) observe(doc document) rotation.Observation {
	o := rotation.Observation{Generation: doc.Bundle.Generation}
	if slices.Equal(doc.Bundle.Own, doc.needed(d.now())) {
		o.Published = doc.Roots()
	}
	if err := errors.Join(d.cfg.Holders.Problem(), d.unread(doc)); err != nil {
		o.Unsure = err.Error()
	}
	switch doc.Step {
	case rotation.Prepare:
		o.Prepared, o.Problem = d.prepared(doc.Next.ID)
	case rotation.Gate:
		o.Behind = d.behind(doc, doc.Gated)
		o.Problem = d.unusable(doc.Next.ID)
	case rotation.Issue:
		o.Replicas = d.elsewhere(doc)
	case rotation.Renew:
		var old []uint64
		for _, s := range doc.Old {
			old = append(old, s.ID)
		}
		o.Unrenewed = names(d.cfg.Holders.Of(old...))
	case rotation.Retire:
		if doc.Compromised {
			o.Behind = d.behind(doc, doc.Bundle.Generation)
		}
	case rotation.Idle, rotation.Trust:
	}
	return o
}

// prepared are the roots of a signer that is ready, or why it is not.
func (d *Driver) prepared(id uint64) (roots []string, problem string) {
	d.mu.Lock()
	w, failed := d.workers[id], d.failed[id]
	d.mu.Unlock()
	switch {
	case w != nil:
		roots, err := w.ready()
		if err != nil {
			problem = err.Error()
		}
		return roots, problem
	case failed != nil:
		return nil, failed.Error()
	}
	return nil, "it is being opened"
}

// unusable is why a signer that was ready may issue nothing now; "" if it does.
func (d *Driver) unusable(id uint64) string {
	d.mu.Lock()
	w, failed := d.workers[id], d.failed[id]
	d.mu.Unlock()
	if w != nil {
		failed = w.fresh()
	} else if failed == nil {
		return "it is being opened"
	}
	if failed != nil {
		return failed.Error()
	}
	return ""
}

// Issues is the ID of the signer that this replica issues from; 0 while requests are with another one still.
func (d *Driver) Issues() uint64 {
	id := d.cfg.Authority.ID()
	d.mu.Lock()
	defer d.mu.Unlock()
	for other, w := range d.workers {
		if s := w.opened.Guard.State(); other != id && s.InFlight+s.Waiting > 0 {
			return 0
		}
	}
	return id
}

// elsewhere are the replicas that do not issue from Current.
func (d *Driver) elsewhere(doc document) []string {
	var out []string
	if d.Issues() != doc.Current.ID {
		out = append(out, d.cfg.Name)
	}
	if d.cfg.Replicas == nil {
		return out
	}
	for _, r := range d.cfg.Replicas() {
		if r.Name != d.cfg.Name && (r.Signer != doc.Current.ID || r.Problem != "") && !slices.Contains(doc.Accepted, replicaPrefix+r.Name) {
			out = append(out, r.Name)
		}
	}
	return out
}

// replicaPrefix is before the name of a replica where it stands among holders.
const replicaPrefix = "replica "

// unread is an error while a replica has not read the state as it is now: it may have issued certificates with an older
// bundle, or from an older signer, that nobody has heard of yet. Those that were accepted do not count.
func (d *Driver) unread(doc document) error {
	if d.cfg.Versions == nil {
		return nil
	}
	d.mu.Lock()
	version := d.version
	d.mu.Unlock()
	versions := d.cfg.Versions()
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		if versions[name] != version && !slices.Contains(doc.Accepted, replicaPrefix+name) {
			return fmt.Errorf("replica %s has not read the ca's state as it is now", name)
		}
	}
	return nil
}

// Version is that of the state which this replica follows.
func (d *Driver) Version() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied != d.version || !slices.Equal(d.publishedRoots, d.doc.Bundle.Roots) {
		return ""
	}
	return d.version
}

// look looks at the mesh as the document needs it, and remembers what is seen, for Status.
func (d *Driver) look() (document, rotation.Observation) {
	doc := d.document()
	o := d.observe(doc)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = o
	return doc, o
}

// steps does what the replica that takes steps does at each look.
func (d *Driver) steps(ctx context.Context) error {
	if err := d.followRoots(ctx); err != nil {
		return fmt.Errorf("write down the signer's roots: %w", err)
	}
	d.note("file", d.followFile(ctx))
	if err := d.update(ctx, func(doc document) (document, error) { return d.renewInTime(doc), nil }); err != nil {
		return fmt.Errorf("begin a rotation before the root ends: %w", err)
	}
	seen, o := d.look()
	if !d.settled(seen, o) {
		return nil
	}
	return d.update(ctx, func(doc document) (document, error) {
		if !same(doc, seen) {
			return doc, nil // an order came in between, for which the next look counts
		}
		doc.State, _ = doc.Advance(o, d.now())
		return doc, nil
	})
}

// settled reports whether the step has been done for long enough.
func (d *Driver) settled(doc document, o rotation.Observation) bool {
	now := d.now()
	if doc.Step != rotation.Gate && doc.Step != rotation.Renew || len(doc.Waits(o, now)) > 0 {
		d.doneAt = ""
		return true
	}
	if d.doneAt != doc.Step {
		d.doneAt, d.doneSince = doc.Step, now
	}
	since := now.Sub(d.doneSince)
	return since >= cmp.Or(d.cfg.Settle, settle) || since < 0 // the clock was set back
}

// followRoots writes down roots that signers announce anew, so that they reach the bundle.
func (d *Driver) followRoots(ctx context.Context) error {
	now := d.now()
	return d.update(ctx, func(doc document) (document, error) {
		if w := d.worker(doc.Current.ID); w != nil {
			if roots, _ := w.ready(); len(roots) > 0 {
				doc = doc.withRoots(doc.Current.ID, roots, now.Add(d.cfg.Env.LeafTTL), now)
			}
		}
		if doc.Next == nil || doc.Step != rotation.Trust && doc.Step != rotation.Gate {
			return doc, nil
		}
		if w := d.worker(doc.Next.ID); w != nil {
			if roots, _ := w.ready(); len(roots) > 0 && !slices.Equal(roots, doc.Next.Roots) {
				doc.signer(doc.Next.ID).Roots = roots
				doc.Step, doc.Since = rotation.Trust, now // the gate begins anew
			}
		}
		return doc, nil
	})
}
