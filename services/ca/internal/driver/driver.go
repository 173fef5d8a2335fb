// Package driver drives package rotation: it keeps the signer in use, the one that a rotation leads to and those before
// it, publishes the trust bundle, looks at who acknowledges it, and takes the next step when the one before is done.
// What it knows is in a record, which is written before anything is issued with it. Of several replicas one takes the
// steps; all of them issue from the signer that the record names.
//
// The record is a document. Each change of it is a pure function, applied to the newest version; whoever was second
// applies it again. Files: worker.go keeps one signer, observe.go looks, command.go takes orders, status.go tells.
package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

// tick is the time between two looks at the mesh during a rotation, idle that without one.
const (
	tick = time.Second
	idle = 5 * time.Second
	// settle is how long a gate, and the renewal, must have been done before the next step: a certificate or a root
	// that its holder has been handed may not be in use yet. Programs without a proxy read their files every few
	// seconds.
	settle = 10 * time.Second
)

// Holders knows who has which certificate; package holders implements it.
type Holders interface {
	// Behind are those with a certificate that is valid still who have not acknowledged the generation, Of those whose
	// newest certificate is of one of the signers.
	Behind(epoch, generation uint64) []caapi.Holder
	Of(signers ...uint64) []caapi.Holder
	// KeyIDs are the authority key identifiers of certificates of the signers that are valid still.
	KeyIDs(signers ...uint64) [][]byte
	Counts(epoch, generation uint64) caapi.Holders
	// Problem is why the answers may miss somebody; nil if they do not.
	Problem() error
}

// Config of a Driver. All fields but Leads, Leader, Replicas, Versions, Beside and Idle are required.
type Config struct {
	// Spec returns the signer file, or what stands for one.
	Spec   func() (*kinds.Spec, error)
	Record record.Store
	// First numbers the first trust bundle of a ca without a record: an older version has numbered some already.
	First func(ctx context.Context, roots []string) (uint64, error)
	// Before returns the signer that issued before there was a record, nil if nothing was issued.
	Before func() (*kinds.Spec, error)
	// Own opens the root of the ca's own that signs beside signers which cannot sign the names of services.
	Own       func(ctx context.Context) (*guard.Guard, []string, error)
	Env       kinds.Env
	Authority *authority.Authority
	Holders   Holders
	// Name is that of this replica.
	Name string
	// Leads reports whether this replica takes steps; nil means always. Leader names who does.
	Leads  func() bool
	Leader func() string
	// Replicas are the replicas of the ca, this one included; nil if there are no others. Versions are the versions of
	// the record that each has read, as Driver.Version returns them.
	Replicas func() []caapi.Replica
	Versions func() map[string]string
	// Beside are those who hold no certificate of the mesh, and must have the roots all the same, such as webhooks that
	// the API server calls: of each a sentence, if it has not got the generation.
	Beside func(epoch, generation uint64) []string
	// Settle is how long the gate and the renewal must have been done; 10 s if zero.
	Settle time.Duration
	// Idle is the time between two looks while no rotation is under way; 5 s if zero.
	Idle time.Duration
	Log  *slog.Logger
}

// ErrRecord is in errors about a record that cannot be read or written now.
var ErrRecord = errors.New("the ca's record cannot be written")

// Driver drives rotations. It is safe for concurrent use.
type Driver struct {
	cfg Config
	// wake makes Run look at once; changed tells waiters of a new document.
	wake    chan struct{}
	changed notify.Notifier

	mu      sync.Mutex
	doc     document
	version string
	order   uint64
	workers map[uint64]*worker
	// applied is the version that Run has applied last.
	applied string
	// publishedRoots are those of the bundle that this replica has published last.
	publishedRoots []string
	// failed are signers that cannot be opened at all.
	failed map[uint64]error
	// last is what the last look has seen.
	last rotation.Observation
	// doneAt is the step that was seen to be done, and since when; Run alone uses it.
	doneAt    rotation.Step
	doneSince time.Time
	problems  map[string]error
	// judged is what was found last of the lists of revoked certificates.
	judged judgement
}

// Open finds the ca's record, or begins one, and makes the signer that it names the one in use. It returns when a
// certificate of that signer has passed every check, so that a ca which serves can issue. Close ends what it has begun.
func Open(ctx context.Context, cfg Config) (_ *Driver, err error) {
	if cfg.Leads == nil {
		cfg.Leads = func() bool { return true }
	}
	d := &Driver{cfg: cfg, wake: make(chan struct{}, 1), workers: map[uint64]*worker{}, failed: map[uint64]error{},
		problems: map[string]error{}}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	d.cfg.Env.Trusted = d.trusted
	if err := d.load(ctx); err != nil {
		return nil, err
	}
	w, err := d.start(ctx, d.doc.Current)
	if err != nil {
		return nil, err
	}
	d.workers[w.id] = w
	if err := d.first(ctx, w); err != nil {
		return nil, fmt.Errorf("signer %s: %w", w.spec.Name, err)
	}
	d.apply(ctx)
	return d, nil
}

// load reads the record, or begins one.
func (d *Driver) load(ctx context.Context) error {
	spec, fileErr := d.cfg.Spec()
	r, err := d.cfg.Record.Load(ctx)
	switch {
	case err == nil:
		d.version, d.order = r.Version, r.Order
		if d.doc, err = decode(r.Data); err != nil {
			return err
		}
		d.note("file", fileErr)
		return nil
	case !errors.Is(err, record.ErrNone):
		return err
	case fileErr != nil:
		return fileErr
	}
	before, err := d.cfg.Before()
	if err != nil {
		return err
	}
	first := spec
	if before != nil {
		first = before
	}
	raw, err := json.Marshal(first)
	if err != nil {
		return err
	}
	d.doc = document{State: rotation.First(rotation.Signer{ID: 1, Name: first.Name, Spec: raw}, d.now()), File: raw}
	return nil
}

// first waits until the signer in use is ready.
func (d *Driver) first(ctx context.Context, w *worker) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %s", readyWithin))
	defer cancel()
	for {
		roots, problem := w.ready()
		if len(roots) > 0 {
			return d.update(ctx, func(doc document) (document, error) {
				if len(doc.Current.Roots) == 0 {
					doc.signer(w.id).Roots = roots
				}
				return doc, nil
			})
		}
		if err := w.hopeless(); err != nil {
			return err
		}
		timer := d.cfg.Env.Clock.NewTimer(tick)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(problem, context.Cause(ctx))
		case <-d.wake:
			timer.Stop()
		case <-timer.C(): // another replica may have written what this one waits for
			if err := d.reload(ctx); err != nil {
				return err
			}
			if d.document().Current.ID != w.id {
				return errors.New("a rotation has ended while the ca started")
			}
			notify.Wake(w.wake)
		}
	}
}

func (d *Driver) now() time.Time { return d.cfg.Env.Clock.Now() }

func (d *Driver) leads() bool { return d.cfg.Leads() }

// update changes the document: change is a pure function of the newest one.
func (d *Driver) update(ctx context.Context, change func(document) (document, error)) error {
	for {
		d.mu.Lock()
		before, version := d.doc, d.version
		d.mu.Unlock()
		next, err := change(before)
		if err != nil {
			return err
		}
		if version != "" && same(before, next) {
			return nil
		}
		data, err := json.Marshal(next)
		if err != nil {
			return err
		}
		r, err := d.cfg.Record.Save(ctx, data, version)
		if errors.Is(err, record.ErrChanged) {
			if err := d.reload(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRecord, err)
		}
		return d.take(r)
	}
}

// reload reads the record that another replica has written.
func (d *Driver) reload(ctx context.Context) error {
	r, err := d.cfg.Record.Load(ctx)
	if errors.Is(err, record.ErrNone) { // somebody has deleted it: it is written again
		d.mu.Lock()
		d.version = ""
		d.mu.Unlock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return d.take(r)
}

// take makes a version of the record the current one. What is no document is told and returned as an error, and the one
// before stays.
func (d *Driver) take(r record.Record) error {
	doc, err := decode(r.Data)
	d.note("record", err)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	d.mu.Lock()
	if d.version == r.Version || d.version != "" && r.Order < d.order {
		d.mu.Unlock()
		return nil
	}
	before := d.doc.Step
	d.doc, d.version, d.order = doc, r.Version, r.Order
	d.mu.Unlock()
	if doc.Step != before {
		d.cfg.Log.Info("rotation", "step", string(doc.Step), "signer", doc.Current.Name, "id", doc.Current.ID, "reason", doc.Reason)
	}
	d.changed.Notify()
	notify.Wake(d.wake)
	return nil
}

// document is the current one.
func (d *Driver) document() document {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.doc
}

// note remembers a problem by its subject, and logs it if it is new.
func (d *Driver) note(subject string, err error) {
	d.mu.Lock()
	before := d.problems[subject]
	d.problems[subject] = err
	if err == nil {
		delete(d.problems, subject)
	}
	d.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		d.cfg.Log.Error("something about the signer must be mended", "error", err)
	}
}

// Run follows the record, the signer file and the mesh, until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	defer d.Close()
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		follow := func(r record.Record) { _ = d.take(r) } // it has told what is wrong
		d.note("follow", d.cfg.Record.Follow(ctx, follow, func(err error) { d.note("reading of the record", err) }))
	})
	timer := d.cfg.Env.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C():
		}
		d.apply(ctx)
		if d.leads() {
			d.note("step", d.steps(ctx))
		} else {
			d.look()
		}
		if d.document().Step == rotation.Idle {
			timer.Reset(cmp.Or(d.cfg.Idle, idle))
		} else {
			timer.Reset(tick)
		}
	}
}

// apply opens and closes signers as the document says, and issues from its Current once that is ready.
func (d *Driver) apply(ctx context.Context) {
	d.mu.Lock()
	doc, version := d.doc, d.version
	d.mu.Unlock()
	wanted := []rotation.Signer{doc.Current}
	if doc.Next != nil {
		wanted = append(wanted, *doc.Next)
	}
	if doc.Step == rotation.Issue || doc.Step == rotation.Renew { // for a way back
		wanted = append(wanted, doc.Old...)
	}
	for _, s := range wanted {
		if d.workers[s.ID] != nil {
			continue
		}
		w, err := d.start(ctx, s)
		d.mu.Lock()
		if err == nil {
			d.workers[s.ID] = w
		}
		d.failed[s.ID] = err
		d.mu.Unlock()
		d.note(signerSubject(s.ID), err)
	}
	for id := range d.failed {
		if !slices.ContainsFunc(wanted, func(s rotation.Signer) bool { return s.ID == id }) {
			d.mu.Lock()
			delete(d.failed, id)
			d.mu.Unlock()
			d.note(signerSubject(id), nil)
		}
	}
	d.use(doc)
	for id, w := range d.workers {
		switch {
		case slices.ContainsFunc(wanted, func(s rotation.Signer) bool { return s.ID == id }):
			if d.applied != version {
				notify.Wake(w.wake)
			}
		case d.cfg.Authority.ID() != id: // the next one is ready
			w.close()
			d.mu.Lock()
			delete(d.workers, id)
			d.mu.Unlock()
		}
	}
	d.mu.Lock()
	d.applied = version
	d.mu.Unlock()
}

// signerSubject is the subject of problems of a signer that cannot be opened.
func signerSubject(id uint64) string { return fmt.Sprintf("signer %d", id) }

// use issues from the document's Current, once that is ready.
func (d *Driver) use(doc document) {
	w := d.workers[doc.Current.ID]
	if w == nil || d.cfg.Authority.ID() == w.id {
		return
	}
	if roots, _ := w.ready(); len(roots) == 0 {
		return
	}
	d.cfg.Authority.Use(w.id, w.opened.Guard, w.own)
	d.cfg.Log.Info("signer in use", "signer", w.spec.Name, "id", w.id)
}

// Close ends what follows the signers.
func (d *Driver) Close() {
	d.mu.Lock()
	workers := d.workers
	d.workers = map[uint64]*worker{}
	d.mu.Unlock()
	for _, w := range workers {
		w.close()
	}
}
