package plan

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/store"
)

// DefaultLinger is how long a class, or a resource asked for by name, stays built after the last stream left.
const DefaultLinger = time.Minute

// Config of an Engine. Translators, Store, Log and Registerer are required.
type Config struct {
	// Translators, one per type.
	Translators []Translator
	Store       *store.Store
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	Clock       clock.Clock
	// Linger defaults to DefaultLinger.
	Linger time.Duration
	// Workers that build classes at a time; 0 means one per processor.
	Workers int
	// Credentials, if not nil, is told which credentials resources are made from. What it learns it gives to ApplyCredentials.
	Credentials Follower
	// Ahead are types that all sidecars ask for: Run plans them before the first sidecar comes, as far as the mesh tells what it will be.
	Ahead []string
}

// Follower follows credentials. Its methods must not block, nor call the engine.
type Follower interface {
	// Follow is called when something begins to depend on a credential; each call is followed by one of Unfollow.
	Follow(credential.Ref)
	Unfollow(credential.Ref)
}

// Engine keeps the classes in use built while the mesh changes. It is safe for concurrent use.
type Engine struct {
	translators map[string]Translator
	store       *store.Store
	log         *slog.Logger
	clock       clock.Clock
	linger      time.Duration
	workers     int
	credentials Follower
	metrics     *metrics

	// failing counts the resources and lists that could not be built.
	failing atomic.Int64

	// applying serialises Apply and ApplyCredentials.
	applying sync.Mutex
	// step is held, shared, while classes are worked on, and otherwise while the shared layers and the state move on. Order of locks:
	// step, a tier's, that of the one below it, mu.
	step sync.RWMutex
	// current is the newest step; nil before the first. step guards it.
	current *step

	mu       sync.Mutex
	state    *mesh.Snapshot
	sequence uint64
	served   *configv1.Revision
	classes  map[class.Hash]*Class
	// shared are the tiers of everybody and of namespaces.
	shared   map[tierID]*tier
	expected expectations
}

// tierID names a shared tier.
type tierID struct {
	scope input.Scope
	hash  class.Hash
}

// NewEngine checks the configuration; the state is empty until the first Apply.
func NewEngine(cfg Config) (*Engine, error) {
	if cfg.Store == nil || cfg.Log == nil || cfg.Registerer == nil || len(cfg.Translators) == 0 {
		return nil, errors.New("plan: Translators, Store, Log and Registerer are required")
	}
	e := &Engine{
		translators: map[string]Translator{}, store: cfg.Store, log: cfg.Log, clock: clock.Or(cfg.Clock),
		linger: cfg.Linger, workers: cfg.Workers, credentials: cfg.Credentials, state: mesh.Empty(), classes: map[class.Hash]*Class{},
		shared:   map[tierID]*tier{},
		expected: expectations{urls: cfg.Ahead, arrived: make(chan struct{}, 1), held: map[tierID]time.Time{}},
	}
	if e.linger == 0 {
		e.linger = DefaultLinger
	}
	if e.workers == 0 {
		e.workers = runtime.GOMAXPROCS(0)
	}
	for _, t := range cfg.Translators {
		if _, ok := e.translators[t.TypeURL()]; ok {
			return nil, errors.New("plan: two translators for " + t.TypeURL())
		}
		e.translators[t.TypeURL()] = t
	}
	e.metrics = newMetrics(cfg.Registerer, e)
	return e, nil
}

// State returns the newest state.
func (e *Engine) State() *mesh.Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Served returns the newest revision that every class has been brought to; nil before the first.
func (e *Engine) Served() *configv1.Revision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served
}

// Knows reports whether there is a translator for the type.
func (e *Engine) Knows(url string) bool {
	_, ok := e.translators[url]
	return ok
}

// Apply brings every class to a later state, of which change tells what is different from the one before, and tells the watchers. It
// returns the number of resources that came out different. regroup, if not nil, is called when Acquire already gives classes of the new
// state and before the others are brought there: the moment for proxies to change class.
func (e *Engine) Apply(state *mesh.Snapshot, change *mesh.Change, regroup func()) int {
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.apply(state.WithCredentials(e.State().Credentials()), change, regroup)
}

// ApplyCredentials brings every class to a newer set of credentials, which differs in what changed lists, as Apply does to a later state.
func (e *Engine) ApplyCredentials(set *credential.Set, changed []credential.Ref) int {
	e.applying.Lock()
	defer e.applying.Unlock()
	change := &mesh.Change{Topics: mesh.Topics{}}
	for _, ref := range changed {
		change.Topics.Add(mesh.CredentialTopic(ref))
	}
	return e.apply(e.State().WithCredentials(set), change, nil)
}

// apply does the work of both. The caller holds applying.
func (e *Engine) apply(state *mesh.Snapshot, change *mesh.Change, regroup func()) int {
	e.advance(state, change)
	if regroup != nil {
		regroup()
	}
	var count atomic.Int64
	each(e.workers, e.Classes(), func(c *Class) {
		changes, arrived := e.bring(c)
		c.notify(changes, arrived)
		for _, names := range changes {
			count.Add(int64(len(names)))
		}
	})

	e.expect()
	e.mu.Lock()
	e.served = state.Revision()
	e.mu.Unlock()
	return int(count.Load())
}

// advance moves the state and the shared layers on.
func (e *Engine) advance(state *mesh.Snapshot, change *mesh.Change) {
	e.step.Lock()
	defer e.step.Unlock()
	e.mu.Lock()
	e.state = state
	e.sequence++
	e.current = &step{sequence: e.sequence, state: state, change: change}
	current, tiers := e.current, slices.Collect(maps.Values(e.shared))
	e.mu.Unlock()
	for _, scope := range []input.Scope{input.MeshScope, input.NamespaceScope} {
		layer := slices.DeleteFunc(slices.Clone(tiers), func(t *tier) bool { return t.scope != scope })
		each(e.workers, layer, func(t *tier) {
			defer t.lock()()
			t.advance(current)
		})
	}
}

// each calls f for all items, by so many workers at a time.
func each[T any](workers int, items []T, f func(T)) {
	if workers = min(workers, len(items)); workers < 2 {
		for _, item := range items {
			f(item)
		}
		return
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(items); i = next.Add(1) - 1 {
				f(items[i])
			}
		})
	}
	group.Wait()
}

// bring brings a class to the current state and returns what its watchers have to hear.
func (e *Engine) bring(c *Class) (changes, arrived Changes) {
	e.step.RLock()
	defer e.step.RUnlock()
	defer c.tier.lock()()
	c.catchUp()
	return c.takeUndelivered()
}

// Acquire returns the class of a key, with the watcher registered. Every Acquire needs a Release.
func (e *Engine) Acquire(key *class.Key, w Watcher) *Class {
	e.step.RLock()
	defer e.step.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	hash := key.Hash()
	c, ok := e.classes[hash]
	if !ok {
		below := e.tier(key.OfNamespace(), input.NamespaceScope, e.tier(key.OfMesh(), input.MeshScope, nil))
		c = newClass(e, key, newTier(e, key, input.WorkloadScope, below, e.state, e.sequence))
		below.users++
		e.classes[hash] = c
	}
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	c.watchers[w] = struct{}{}
	return c
}

// tier returns the shared tier of a key, which may be nil. The caller holds mu.
func (e *Engine) tier(key *class.Key, scope input.Scope, below *tier) *tier {
	if key == nil {
		return nil
	}
	id := tierID{scope, key.Hash()}
	t, ok := e.shared[id]
	if !ok {
		t = newTier(e, key, scope, below, e.state, e.sequence)
		e.shared[id] = t
		if below != nil {
			below.users++
		}
	}
	return t
}

// Release takes the watcher off a class. The class stays for a while, in case a proxy of it comes back.
func (e *Engine) Release(c *Class, w Watcher) {
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	delete(c.watchers, w)
	if len(c.watchers) == 0 {
		c.idle = e.clock.Now()
	}
}

// Failing counts the resources and lists of names that cannot be built, each once for all the classes that share it.
func (e *Engine) Failing() int { return int(e.failing.Load()) }

// follow and unfollow tell what the resources of a layer have begun and ceased to depend on.
func (e *Engine) follow(t mesh.Topic) {
	if t.Subject == mesh.SubjectCredential && e.credentials != nil {
		e.credentials.Follow(t.Credential())
	}
}

func (e *Engine) unfollow(t mesh.Topic) {
	if t.Subject == mesh.SubjectCredential && e.credentials != nil {
		e.credentials.Unfollow(t.Credential())
	}
}

// fails counts so many more.
func (e *Engine) fails(n int) {
	e.failing.Add(int64(n))
	e.metrics.failing.Add(float64(n))
}

// Class returns a class by its id, nil if there is none.
func (e *Engine) Class(id string) *Class {
	for _, c := range e.Classes() {
		if c.ID() == id {
			return c
		}
	}
	return nil
}

// Classes lists the classes held.
func (e *Engine) Classes() []*Class {
	e.mu.Lock()
	defer e.mu.Unlock()
	classes := make([]*Class, 0, len(e.classes))
	for _, c := range e.classes {
		classes = append(classes, c)
	}
	return classes
}

// Run plans ahead, and drops what has not been used for the linger time, until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	tick := e.clock.After(e.linger / 2)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.expected.arrived:
			e.prepare()
		case <-tick:
			e.sweep()
			tick = e.clock.After(e.linger / 2)
		}
	}
}

// unuse counts one user less of a shared tier, and returns it and those below it if they have none left. The caller holds mu.
func (e *Engine) unuse(t *tier) (dead []*tier) {
	for ; t != nil; t = t.below {
		if t.users--; t.users > 0 {
			break
		}
		delete(e.shared, tierID{t.scope, t.hash})
		dead = append(dead, t)
	}
	return dead
}

func (e *Engine) sweep() {
	before := e.clock.Now().Add(-e.linger)
	e.mu.Lock()
	var kept []*Class
	var dead []*tier
	for hash, c := range e.classes {
		c.watchMu.Lock()
		unused := len(c.watchers) == 0 && c.idle.Before(before)
		c.watchMu.Unlock()
		if unused {
			delete(e.classes, hash)
			dead = append(append(dead, c.tier), e.unuse(c.tier.below)...)
		} else {
			kept = append(kept, c)
		}
	}
	dead = append(dead, e.unhold(before)...)
	e.mu.Unlock()
	for _, t := range dead {
		t.close()
	}
	for _, c := range kept {
		c.sweep(before)
	}
}
