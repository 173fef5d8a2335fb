// Package jwks fetches the keys with which proxies verify tokens, and keeps them fresh: those that
// RequestAuthentications name by an address or an issuer. The table of bans submits changes to Table, which passes them
// on to the next stage with the keys: one Jwks for each source (contract.KeySource), which normalise makes a resource
// of.
//
// table.go follows the RequestAuthentications, entry.go keeps the keys of one source, run.go fetches when it is time,
// fetcher.go reads the documents, admit.go bounds how many sources there are, and saved.go keeps keys through restarts.
package jwks

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

const (
	// DefaultPerNamespace bounds the sources of a namespace, and maxSources those of all.
	DefaultPerNamespace = 100
	maxSources          = 2000
	// maxFetches bounds the fetches that run at once, and maxFetchesPerNamespace those for one namespace.
	maxFetches             = 16
	maxFetchesPerNamespace = 4
	// holdFor is how long a RequestAuthentication waits for the first attempt to fetch its keys. Without it each new or
	// changed jwksUri would refuse tokens for a moment.
	holdFor = 2 * time.Second
)

// Config of a Table. Saved may be nil; all other fields are required.
type Config struct {
	Fetcher *Fetcher
	// PerNamespace bounds the sources of a namespace; 0 means DefaultPerNamespace.
	PerNamespace int
	// Shortest is the shortest interval between two fetches of a source, whatever its Cache-Control, and the longest
	// pause after failures; 0 means DefaultShortest.
	Shortest time.Duration
	// Saved keeps the keys through restarts.
	Saved *lastgood.Dir
	// Next receives the changes, in order. It must not block.
	Next  func(context.Context, []normalise.Change)
	Clock clock.Clock
	Log   *slog.Logger
	// Random returns a number in [0, 1), by which fetches are spread.
	Random func() float64
}

// Table holds the wanted sources and their keys. It is safe for concurrent use.
type Table struct {
	cfg  Config
	wake chan struct{}
	pool *fairshare.Pool
	// released tells Wait that RequestAuthentications have been passed on.
	released notify.Notifier

	mu      sync.Mutex
	owners  map[object.Key]*owner
	entries map[contract.KeySource]*entry
	// dirty are the entries that pass has to look at.
	dirty map[*entry]bool
	// held are the RequestAuthentications that wait for keys; holds counts them from the start.
	held    map[object.Key]*hold
	holds   uint64
	results map[result]uint64
}

// owner is a RequestAuthentication.
type owner struct {
	created time.Time
	// sources are those of the version that was passed on, and of the one that is held.
	sources []wanted
}

// wanted is a source of an object, and how long one request may take.
type wanted struct {
	contract.KeySource
	timeout time.Duration
}

// hold is a version of a RequestAuthentication that is not passed on yet.
type hold struct {
	ctx      context.Context
	change   normalise.Change
	sources  []wanted
	deadline time.Time
	number   uint64
}

// NewTable returns an empty table; Run fetches.
func NewTable(c Config) *Table {
	if c.PerNamespace <= 0 {
		c.PerNamespace = DefaultPerNamespace
	}
	if c.Shortest <= 0 {
		c.Shortest = DefaultShortest
	}
	return &Table{
		cfg: c, wake: make(chan struct{}, 1),
		pool: fairshare.New(fairshare.Config{Places: maxFetches, PerOwner: maxFetchesPerNamespace, Waiting: fairshare.Unlimited,
			WaitingPerOwner: fairshare.Unlimited, Clock: c.Clock}),
		owners: map[object.Key]*owner{}, entries: map[contract.KeySource]*entry{}, dirty: map[*entry]bool{}, held: map[object.Key]*hold{},
		results: map[result]uint64{},
	}
}

// Submit takes the RequestAuthentications among the changes over and passes the changes on to Config.Next. One that
// names a source which was never tried waits for the first attempt, at most holdFor.
func (t *Table) Submit(ctx context.Context, changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.ContainsFunc(changes, isRequestAuthentication) {
		t.cfg.Next(ctx, changes)
		return
	}
	var pass, own []normalise.Change
	for _, c := range changes {
		if isRequestAuthentication(c) {
			own = append(own, c)
		} else {
			pass = append(pass, c)
		}
	}
	for _, c := range own {
		t.want(c, sourcesOf(c.Object), true)
	}
	t.admit()
	now := t.cfg.Clock.Now()
	for _, c := range own {
		sources := sourcesOf(c.Object)
		if t.tried(sources) {
			delete(t.held, c.Key)
			t.want(c, sources, false)
			pass = append(pass, c)
			continue
		}
		t.holds++
		deadline := now.Add(holdFor)
		if former := t.held[c.Key]; former != nil { // an object that changes all the time is not held for ever
			deadline = former.deadline
		}
		t.held[c.Key] = &hold{ctx: ctx, change: c, sources: sources, deadline: deadline, number: t.holds}
	}
	t.pass(ctx, pass)
	notify.Wake(t.wake)
}

func isRequestAuthentication(c normalise.Change) bool {
	return c.Key.Group == kinds.GroupSecurity && c.Key.Kind == "RequestAuthentication" && c.Key.Cluster == ""
}

// sourcesOf lists the sources of an object's rules without inline keys, each once.
func sourcesOf(o *object.Object) (out []wanted) {
	if o == nil {
		return nil
	}
	ra, _ := o.Body.(*security.RequestAuthentication)
	for _, rule := range ra.GetJwtRules() {
		source := contract.KeySourceOf(rule.GetJwksUri(), rule.GetIssuer())
		if rule.GetJwks() != "" || source == (contract.KeySource{}) {
			continue
		}
		timeout := DefaultTimeout
		if rule.GetTimeout() != nil {
			timeout = min(max(rule.GetTimeout().AsDuration(), minTimeout), MaxTimeout)
		}
		at := slices.IndexFunc(out, func(w wanted) bool { return w.KeySource == source })
		if at < 0 {
			out = append(out, wanted{source, timeout})
		} else {
			out[at].timeout = max(out[at].timeout, timeout)
		}
	}
	return out
}

// want sets the sources of an object: with both, those of the version that is in force besides. The caller holds t.mu,
// as of all methods below but the exported ones.
func (t *Table) want(c normalise.Change, sources []wanted, both bool) {
	o := t.owners[c.Key]
	var former []wanted
	if o != nil {
		former = o.sources
	}
	if both {
		for _, w := range former {
			if !slices.ContainsFunc(sources, func(s wanted) bool { return s.KeySource == w.KeySource }) {
				sources = append(slices.Clip(sources), w)
			}
		}
	}
	for _, w := range sources {
		e := t.entries[w.KeySource]
		if e == nil {
			e = newEntry(w.KeySource)
			t.load(e)
			t.entries[w.KeySource] = e
		}
		e.owners[c.Key] = w.timeout
		t.dirty[e] = true
	}
	for _, w := range former {
		if slices.ContainsFunc(sources, func(s wanted) bool { return s.KeySource == w.KeySource }) {
			continue
		}
		if e := t.entries[w.KeySource]; e != nil {
			delete(e.owners, c.Key)
			t.dirty[e] = true
		}
	}
	if len(sources) == 0 {
		delete(t.owners, c.Key)
		return
	}
	if o == nil {
		o = &owner{}
		t.owners[c.Key] = o
	}
	o.sources = sources
	if c.Object != nil {
		o.created = c.Object.Created
	}
}

// tried reports whether all sources have been tried, or are left out.
func (t *Table) tried(sources []wanted) bool {
	return !slices.ContainsFunc(sources, func(w wanted) bool {
		e := t.entries[w.KeySource]
		return e != nil && e.admitted && !e.tried
	})
}

// release adds the held objects that need not wait any more to the changes that are passed on.
func (t *Table) release(pass []normalise.Change) ([]normalise.Change, context.Context) {
	ctx := context.Background()
	now := t.cfg.Clock.Now()
	for _, k := range slices.SortedFunc(maps.Keys(t.held), object.Key.Compare) {
		h := t.held[k]
		if now.Before(h.deadline) && !t.tried(h.sources) {
			continue
		}
		delete(t.held, k)
		t.want(h.change, h.sources, false)
		pass, ctx = append(pass, h.change), h.ctx
	}
	return pass, ctx
}

// pass hands changes on, with the keys that have changed, and forgets sources that nobody wants.
func (t *Table) pass(ctx context.Context, changes []normalise.Change) {
	t.admit()
	for _, e := range slices.SortedFunc(maps.Keys(t.dirty), func(a, b *entry) int { return compareSources(a.source, b.source) }) {
		if len(e.owners) == 0 {
			delete(t.entries, e.source)
			t.forget(e)
			if e.told != nil {
				changes = append(changes, normalise.Change{Key: e.key()})
			}
			continue
		}
		if c, changed := e.change(t.waitsFor(e)); changed {
			changes = append(changes, c)
		}
	}
	clear(t.dirty)
	if len(changes) > 0 {
		t.cfg.Next(ctx, changes)
	}
	t.released.Notify()
}

// waitsFor reports whether all that want an untried source are held, so that there is nothing to tell of it.
func (t *Table) waitsFor(e *entry) bool {
	if e.tried || !e.admitted {
		return false
	}
	for k := range e.owners {
		if t.held[k] == nil {
			return false
		}
	}
	return true
}

// Settled reports whether no RequestAuthentication waits for keys. The first revision waits for it, so that a restart
// does not take keys from proxies that another replica has fetched.
func (t *Table) Settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held) == 0
}

// Wait blocks until everything submitted before the call has been passed on.
func (t *Table) Wait(ctx context.Context) error {
	t.mu.Lock()
	last := t.holds
	t.mu.Unlock()
	for {
		changed := t.released.Changed()
		t.mu.Lock()
		waits := false
		for _, h := range t.held {
			waits = waits || h.number <= last
		}
		t.mu.Unlock()
		if !waits {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
