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
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/store"
)

// DefaultLinger is how long a class without watchers, and a resource without subscribers, stays built.
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
	// Workers is how many goroutines of one Apply or Plan build at the same time; 0 means one per processor.
	Workers int
	// Credentials, if not nil, follows the credentials that resources depend on. It hands their content to
	// ApplyCredentials.
	Credentials Follower
	// Prebuild are the type URLs that Run builds for the scopes of the mesh and its namespaces before the first sidecar
	// connects: those that every sidecar subscribes to.
	Prebuild []string
}

// Follower follows credentials. Its methods must not block, nor call the engine.
type Follower interface {
	// Follow is called when the first result depends on a credential. One call of Unfollow follows each call of Follow.
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

	// failures counts the resources and lists that could not be built.
	failures atomic.Int64

	// applyMu serialises Apply, ApplyCredentials and ApplySignedBundle.
	applyMu sync.Mutex
	// updateMu is held for reading while classes are planned, and for writing while the shared scope plans are updated.
	updateMu sync.RWMutex
	// state is the newest snapshot. updateMu is held for writing when it changes.
	state atomic.Pointer[mesh.Snapshot]
	// nodeTopics are the topics that nodes depend on, answerTopics those that derived answers of views do.
	nodeTopics, answerTopics interests
	// lastUpdate is the update that Apply brings the classes to. Apply drops it after the last class, because an update
	// may be as large as the mesh.
	lastUpdate atomic.Pointer[update]

	mu       sync.Mutex
	sequence uint64 // of the last update
	served   Point
	classes  map[class.Hash]*Class
	// shared are the scope plans of the mesh and of namespaces, and lowest those of them with none below.
	shared map[scopeID]*scopePlan
	lowest scopePlans
	// waiting are the classes that have absent names, or had some before the last update.
	waiting  map[*Class]struct{}
	prebuilt prebuilt
}

// scopeID identifies a shared scope plan.
type scopeID struct {
	scope input.Scope
	hash  class.Hash
}

// NewEngine checks the configuration. The engine's mesh is empty until the first Apply.
func NewEngine(cfg Config) (*Engine, error) {
	if cfg.Store == nil || cfg.Log == nil || cfg.Registerer == nil || len(cfg.Translators) == 0 {
		return nil, errors.New("plan: Translators, Store, Log and Registerer are required")
	}
	e := &Engine{
		translators: map[string]Translator{}, store: cfg.Store, log: cfg.Log, clock: clock.Or(cfg.Clock),
		linger: cfg.Linger, workers: cfg.Workers, credentials: cfg.Credentials, classes: map[class.Hash]*Class{},
		shared: map[scopeID]*scopePlan{}, lowest: scopePlans{}, waiting: map[*Class]struct{}{},
		prebuilt:     prebuilt{types: cfg.Prebuild, requested: make(chan struct{}, 1), retained: map[scopeID]time.Time{}},
		nodeTopics:   interests{plans: map[mesh.Topic]scopePlans{}},
		answerTopics: interests{plans: map[mesh.Topic]scopePlans{}},
	}
	e.state.Store(mesh.Empty())
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

// State returns the newest snapshot of the mesh.
func (e *Engine) State() *mesh.Snapshot { return e.state.Load() }

// Served returns the newest state that every class has been updated to.
func (e *Engine) Served() Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served
}

// Knows reports whether there is a translator for the type.
func (e *Engine) Knows(url string) bool {
	_, ok := e.translators[url]
	return ok
}

// Apply updates every class to a later snapshot of the mesh, which differs from the last one in change, and notifies
// the watchers. It returns how many resources have changed. reclassify, if not nil, is called before the classes are
// updated, when Acquire already returns classes of the new snapshot: proxies that change class do so then.
func (e *Engine) Apply(state *mesh.Snapshot, change *mesh.Change, reclassify func()) int {
	e.applyMu.Lock()
	defer e.applyMu.Unlock()
	beside := e.State()
	return e.apply(state.WithCredentials(beside.Credentials()).WithSignedBundle(beside.SignedBundle()), change, reclassify)
}

// ApplyCredentials updates every class to a newer set of credentials, of which changed have changed, as Apply does.
func (e *Engine) ApplyCredentials(set *credential.Set, changed []credential.Ref) int {
	e.applyMu.Lock()
	defer e.applyMu.Unlock()
	change := &mesh.Change{Topics: mesh.Topics{}}
	for _, ref := range changed {
		change.Topics.Add(mesh.CredentialTopic(ref))
	}
	return e.apply(e.State().WithCredentials(set), change, nil)
}

// ApplySignedBundle updates every class to a newer trust bundle, as Apply does.
func (e *Engine) ApplySignedBundle(b *cav1.SignedBundle) int {
	e.applyMu.Lock()
	defer e.applyMu.Unlock()
	change := &mesh.Change{Topics: mesh.Topics{}}
	change.Topics.Add(mesh.SignedBundleTopic())
	return e.apply(e.State().WithSignedBundle(b), change, nil)
}

// apply is Apply for a caller that holds applyMu.
func (e *Engine) apply(state *mesh.Snapshot, change *mesh.Change, reclassify func()) int {
	u, updated := e.updateShared(state, change)
	if reclassify != nil {
		reclassify()
	}
	var count atomic.Int64
	classes := e.affectedClasses(u)
	each(e.workers, len(classes), func(i int) {
		changes, arrived := e.refresh(classes[i])
		classes[i].notify(changes, arrived)
		for _, names := range changes {
			count.Add(int64(len(names)))
		}
	})
	e.lastUpdate.Store(nil)
	for _, s := range updated {
		s.forgetUpdate()
	}
	e.dropWaiting()
	e.requestPrebuild()
	e.mu.Lock()
	e.served = pointOf(state)
	e.mu.Unlock()
	return int(count.Load())
}

// updateShared makes the snapshot the engine's, and updates the scope plans of the mesh and then those of namespaces,
// as far as they are affected. It returns the update and these plans.
func (e *Engine) updateShared(state *mesh.Snapshot, change *mesh.Change) (u *update, updated []*scopePlan) {
	e.updateMu.Lock()
	defer e.updateMu.Unlock()
	e.mu.Lock()
	e.state.Store(state)
	e.sequence++
	u = &update{sequence: e.sequence, state: state, change: change, affected: maps.Clone(e.lowest)}
	e.nodeTopics.addTo(u.affected, change.Topics)
	e.answerTopics.addTo(u.affected, change.Topics)
	e.addPrivate(u)
	e.lastUpdate.Store(u)
	e.mu.Unlock()
	for _, scope := range []input.Scope{input.MeshScope, input.NamespaceScope} {
		var plans []*scopePlan
		for s := range u.affected {
			if s.scope == scope {
				plans = append(plans, s)
			}
		}
		each(e.workers, len(plans), func(i int) {
			defer plans[i].lock()()
			plans[i].apply(u)
		})
		e.mu.Lock()
		for _, s := range plans {
			u.affectAbove(s)
		}
		e.mu.Unlock()
		updated = append(updated, plans...)
	}
	return u, updated
}

// addPrivate adds the plans of the namespaces whose private topics an update is about to those that it affects. The
// caller holds mu.
func (e *Engine) addPrivate(u *update) {
	if len(u.change.Private) == 0 {
		return
	}
	for s := range e.lowest {
		for above := range s.above {
			if above.isAboveMesh() && len(u.change.Private[above.graph.view.Class().Namespace]) > 0 {
				u.affected.add(above)
			}
		}
	}
}

// affectedClasses lists the classes on which an update can have an effect.
func (e *Engine) affectedClasses(u *update) []*Class {
	e.mu.Lock()
	defer e.mu.Unlock()
	classes := maps.Clone(e.waiting)
	for s := range u.affected {
		if s.class != nil {
			classes[s.class] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(classes))
}

// addWaiting notes that a class has absent names. The caller holds its plan's lock.
func (e *Engine) addWaiting(c *Class) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[c] = struct{}{}
}

// dropWaiting forgets the classes that have no absent names any more. The caller has notified the watchers of all.
func (e *Engine) dropWaiting() {
	e.mu.Lock()
	waiting := slices.Collect(maps.Keys(e.waiting))
	e.mu.Unlock()
	for _, c := range waiting {
		c.plan.mu.RLock()
		if c.absent.isEmpty() {
			e.mu.Lock()
			delete(e.waiting, c)
			e.mu.Unlock()
		}
		c.plan.mu.RUnlock()
	}
}

// each calls f for the numbers below n, up to so many at a time.
func each(workers, n int, f func(i int)) {
	if workers = min(workers, n); workers < 2 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	group.Wait()
}

// refresh updates a class and returns the changes that its watchers have to be notified of.
func (e *Engine) refresh(c *Class) (changes, arrived Changes) {
	e.updateMu.RLock()
	defer e.updateMu.RUnlock()
	defer c.plan.lock()()
	c.refresh()
	return c.takeUndelivered()
}

// Acquire returns the class of a key and registers a watcher with it. The caller must Release it.
func (e *Engine) Acquire(key *class.Key, w Watcher) *Class {
	e.updateMu.RLock()
	defer e.updateMu.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	hash := key.Hash()
	c, ok := e.classes[hash]
	if !ok {
		below := e.namespacePlan(key)
		c = newClass(e, key, newScopePlan(e, key, input.WorkloadScope, below))
		e.classes[hash] = c
	}
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	c.watchers[w] = struct{}{}
	return c
}

// namespacePlan returns the scope plan of the key's namespace. The caller holds mu and updateMu.
func (e *Engine) namespacePlan(key *class.Key) *scopePlan {
	return e.sharedPlan(key.OfNamespace(), input.NamespaceScope, e.sharedPlan(key.OfMesh(), input.MeshScope, nil))
}

// sharedPlan returns the scope plan of a key, a new one if there is none; nil for a nil key. The caller holds mu.
func (e *Engine) sharedPlan(key *class.Key, scope input.Scope, below *scopePlan) *scopePlan {
	if key == nil {
		return nil
	}
	id := scopeID{scope, key.Hash()}
	s, ok := e.shared[id]
	if !ok {
		s = newScopePlan(e, key, scope, below)
		e.shared[id] = s
		if below == nil {
			e.lowest.add(s)
		}
	}
	return s
}

// Release removes a watcher from a class. The class stays built for the linger time, in case a proxy of it comes back.
func (e *Engine) Release(c *Class, w Watcher) {
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	delete(c.watchers, w)
	if len(c.watchers) == 0 {
		c.idle = e.clock.Now()
	}
}

// Failing counts the resources and lists of names that cannot be built, each once for all the classes that share it.
func (e *Engine) Failing() int { return int(e.failures.Load()) }

// follow is called when the first node of a graph depends on a topic, unfollow when none of that graph does any more.
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

// countFailure adds a failure to the numbers of them, or takes it off with n = -1.
func (e *Engine) countFailure(err error, n int) {
	e.failures.Add(int64(n))
	e.metrics.failing.Add(float64(n))
	if _, ok := errors.AsType[*Unenforced](err); ok {
		e.metrics.unenforced.Add(float64(n))
	}
}

// Class returns the class with the ID, nil if there is none.
func (e *Engine) Class(id string) *Class {
	for _, c := range e.Classes() {
		if c.ID() == id {
			return c
		}
	}
	return nil
}

// Classes lists the classes that are held built.
func (e *Engine) Classes() []*Class {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.classes))
}

// Run prebuilds, and drops what has not been used for the linger time, until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	tick := e.clock.After(e.linger / 2)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.prebuilt.requested:
			e.prebuild()
		case <-tick:
			e.sweep()
			tick = e.clock.After(e.linger / 2)
		}
	}
}

// removeUnused removes a shared scope plan that no plan above and no prebuilding uses, and then those below it. It
// returns what it has removed, for the caller to close. The caller holds mu.
func (e *Engine) removeUnused(s *scopePlan) (unused []*scopePlan) {
	for ; s != nil && len(s.above) == 0 && !s.retained; s = s.below {
		delete(e.shared, scopeID{s.scope, s.hash})
		delete(e.lowest, s)
		if s.below != nil {
			delete(s.below.above, s)
		}
		unused = append(unused, s)
	}
	return unused
}

// sweep drops classes, shared scope plans and resources that have not been used for the linger time.
func (e *Engine) sweep() {
	before := e.clock.Now().Add(-e.linger)
	e.mu.Lock()
	var kept []*Class
	var unused []*scopePlan
	for hash, c := range e.classes {
		c.watchMu.Lock()
		idle := len(c.watchers) == 0 && c.idle.Before(before)
		c.watchMu.Unlock()
		if idle {
			delete(e.classes, hash)
			delete(e.waiting, c)
			delete(c.plan.below.above, c.plan)
			unused = append(append(unused, c.plan), e.removeUnused(c.plan.below)...)
		} else {
			kept = append(kept, c)
		}
	}
	unused = append(unused, e.releasePrebuilt(before)...)
	e.mu.Unlock()
	for _, s := range unused {
		s.close()
	}
	for _, c := range kept {
		c.sweep(before)
	}
}
