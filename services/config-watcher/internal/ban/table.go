// Package ban keeps the IdentityBans in force and ends each at its time. The aggregate submits changes to Table, which
// passes them on to the pipeline; packages access and credential call Banned.
package ban

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Config of a Table. All fields are required.
type Config struct {
	// Protected returns why the mesh needs an identity, which must then not be banned; "" for all others.
	Protected func(identity string) string
	// Next receives the changes, in order. It must not block.
	Next  func(context.Context, []normalise.Change)
	Clock clock.Clock
	Log   *slog.Logger
}

// Table holds the IdentityBans in force, and passes changes on to the pipeline. To the pipeline, a ban that has ended
// is removed, although its object still exists. It is safe for concurrent use.
type Table struct {
	// Notifier tells when a ban is added, changed, lifted or ended.
	notify.Notifier
	cfg Config

	mu   sync.Mutex
	held map[object.Key]*object.Object
	byID map[string][]*object.Ban // those of held, by identity
}

// NewTable returns an empty table. Run must be called for bans to end.
func NewTable(cfg Config) *Table {
	return &Table{cfg: cfg, held: map[object.Key]*object.Object{}, byID: map[string][]*object.Ban{}}
}

// Submit applies the IdentityBans among the changes and passes all changes on to Config.Next. Bans that have ended, or
// that name a protected identity, are passed on as removed.
func (t *Table) Submit(ctx context.Context, changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	touched := false
	for i, c := range changes {
		if !kinds.IsIdentityBan(c.Key) {
			continue
		}
		touched = true
		t.lift(c.Key)
		switch b := banOf(c.Object); {
		case b == nil:
		case t.cfg.Protected(b.Identity) != "":
			t.cfg.Log.Error("ban has no effect: the mesh needs the identity", "object", c.Key.String(), "identity", b.Identity,
				"needed_for", t.cfg.Protected(b.Identity), "location", c.Object.Location)
			changes[i].Object = nil
		case b.Ended(t.cfg.Clock.Now()):
			changes[i].Object = nil
		default:
			t.held[c.Key] = c.Object
			t.byID[b.Identity] = append(t.byID[b.Identity], b)
		}
	}
	if touched {
		t.Notify()
	}
	t.cfg.Next(ctx, changes)
}

func banOf(o *object.Object) *object.Ban {
	if o == nil {
		return nil
	}
	b, _ := o.Body.(*object.Ban)
	return b
}

// lift removes a ban from held and byID. The caller holds t.mu.
func (t *Table) lift(k object.Key) {
	b := banOf(t.held[k])
	if b == nil {
		return
	}
	delete(t.held, k)
	t.byID[b.Identity] = slices.DeleteFunc(t.byID[b.Identity], func(other *object.Ban) bool { return other == b })
	if len(t.byID[b.Identity]) == 0 {
		delete(t.byID, b.Identity)
	}
}

// Run ends bans at their time, until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	for {
		next, changed := t.expire(ctx)
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = t.cfg.Clock.After(next.Sub(t.cfg.Clock.Now()))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer:
		}
	}
}

// expire removes the bans that have ended, and returns when the next one ends; zero for never.
func (t *Table) expire(ctx context.Context) (next time.Time, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []normalise.Change
	for k, o := range t.held {
		b := banOf(o)
		switch {
		case b.Ended(t.cfg.Clock.Now()):
			ended = append(ended, normalise.Change{Key: k})
			t.lift(k)
			t.cfg.Log.Info("ban has ended", "identity", b.Identity, "object", k.String())
		case !b.Until.IsZero() && (next.IsZero() || b.Until.Before(next)):
			next = b.Until
		}
	}
	if len(ended) > 0 {
		t.Notify()
		t.cfg.Next(ctx, ended)
	}
	return next, t.Changed()
}

// Banned returns the ban of an identity, nil if there is none.
func (t *Table) Banned(identity string) *object.Ban {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.byID[identity] {
		if !b.Ended(t.cfg.Clock.Now()) {
			return b
		}
	}
	return nil
}
