package plan

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/replica"
	"fairlead.dev/services/xds-server/internal/store"
)

// Changes lists, per type URL, the names whose item may have changed.
type Changes map[string][]string

func (c Changes) add(url, name string) { c[url] = append(c[url], name) }

// Watcher hears of a class's changes. Changed is called after the snapshot that holds them was published, from any goroutine, and must
// not block.
type Watcher interface {
	Changed(Changes)
}

// Failure is a resource that could not be built; its last good version, if there was one, stays in use.
type Failure struct {
	TypeURL string
	// Name of the resource; "" where the list of names failed.
	Name string
	Err  error
	// Revision since which it fails.
	Revision *configv1.Revision
}

// Class is the plan of one class of proxies. It is safe for concurrent use.
type Class struct {
	key    *class.Key
	hash   class.Hash
	engine *Engine

	snapshot atomic.Pointer[Snapshot]

	watchMu  sync.Mutex
	watchers map[Watcher]struct{}
	idle     time.Time // since when nobody watches

	mu       sync.Mutex
	view     *input.View
	sequence uint64 // of the engine's states
	types    map[string]*typePlan
	nodes    map[replica.Topic]*topicNode
	unasked  map[*action]time.Time // by-name actions that nobody asks for any more, and since when
	failures int
	failed   map[*action]Failure
}

// typePlan is the plan of one type.
type typePlan struct {
	translator Translator
	// list is the action of the wildcard names; nil until somebody subscribes by wildcard.
	list    *action
	actions map[string]*action
	items   *btree.Map[string, Item]
	// sum and count are of the wildcard set.
	sum   sum
	count int
}

func newClass(e *Engine, key *class.Key, state *replica.State, sequence uint64) *Class {
	c := &Class{
		key: key, hash: key.Hash(), engine: e, sequence: sequence,
		watchers: map[Watcher]struct{}{}, view: input.NewView(key, state), types: map[string]*typePlan{},
		nodes: map[replica.Topic]*topicNode{}, unasked: map[*action]time.Time{}, failed: map[*action]Failure{},
	}
	c.snapshot.Store(&Snapshot{Revision: state.Revision()})
	return c
}

// Key returns the class's key.
func (c *Class) Key() *class.Key { return c.key }

// ID returns the class's hash.
func (c *Class) ID() string { return c.hash.String() }

// Snapshot returns what is planned and built now.
func (c *Class) Snapshot() *Snapshot { return c.snapshot.Load() }

// Failures lists what could not be built of one type, or of all for "", sorted by type and name.
func (c *Class) Failures(url string) []Failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []Failure
	for _, f := range c.failed {
		if url == "" || f.TypeURL == url {
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b Failure) int {
		return strings.Compare(a.TypeURL+"\x00"+a.Name, b.TypeURL+"\x00"+b.Name)
	})
	return found
}

// Plan makes sure that the type's wildcard set (if wildcard) and the resources asked for by name are built. Every name asked for must be
// given back with Release.
func (c *Class) Plan(url string, wildcard bool, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.typePlan(url)
	if p == nil {
		return
	}
	changes := Changes{}
	if wildcard && p.list == nil {
		p.list = &action{plan: p}
		c.run(p.list, changes)
	}
	for _, name := range names {
		a := c.action(p, name, false, changes)
		a.refs++
		delete(c.unasked, a)
	}
	if len(changes) > 0 {
		c.publish()
	}
}

// Release gives back names that were asked for with Plan. They stay built for a while, in case a stream comes back.
func (c *Class) Release(url string, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.types[url]
	if !ok {
		return
	}
	for _, name := range names {
		if a, ok := p.actions[name]; ok && a.refs > 0 {
			if a.refs--; a.refs == 0 && !a.wildcard {
				c.unasked[a] = c.engine.clock.Now()
			}
		}
	}
}

func (c *Class) typePlan(url string) *typePlan {
	if p, ok := c.types[url]; ok {
		return p
	}
	t, ok := c.engine.translators[url]
	if !ok {
		return nil
	}
	p := &typePlan{translator: t, actions: map[string]*action{}, items: btree.NewMap[string, Item](0)}
	c.types[url] = p
	return p
}

// action returns the action of a name, run at least once. wildcard says that a new one is part of the wildcard set.
func (c *Class) action(p *typePlan, name string, wildcard bool, changes Changes) *action {
	a, ok := p.actions[name]
	if !ok {
		a = &action{plan: p, name: name, wildcard: wildcard}
		p.actions[name] = a
		c.run(a, changes)
	}
	return a
}

// advance moves the class to a later state and returns what changed.
func (c *Class) advance(state *replica.State, touched replica.Topics, sequence uint64) Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sequence <= c.sequence {
		return nil
	}
	c.sequence = sequence
	topics := c.view.Advance(state, touched)
	lists, resources := c.dependants(topics)
	changes := Changes{}
	for _, a := range lists {
		c.run(a, changes)
	}
	for _, a := range resources {
		if a.plan.actions[a.name] == a { // not dropped by its list in the meantime
			c.run(a, changes)
		}
	}
	c.publish()
	return changes
}

// dependants collects the actions that depend on one of the topics, each once, in an order that does not depend on chance.
func (c *Class) dependants(topics replica.Topics) (lists, resources []*action) {
	seen := map[*action]struct{}{}
	collect := func(node *topicNode) {
		for _, a := range node.actions {
			if _, ok := seen[a]; ok {
				continue
			}
			seen[a] = struct{}{}
			if a.name == "" {
				lists = append(lists, a)
			} else {
				resources = append(resources, a)
			}
		}
	}
	if len(topics) < len(c.nodes) {
		for topic := range topics {
			if node, ok := c.nodes[topic]; ok {
				collect(node)
			}
		}
	} else {
		for topic, node := range c.nodes {
			if topics.Has(topic) {
				collect(node)
			}
		}
	}
	byName := func(a, b *action) int {
		if d := strings.Compare(a.plan.translator.TypeURL(), b.plan.translator.TypeURL()); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	}
	slices.SortFunc(lists, byName)
	slices.SortFunc(resources, byName)
	return lists, resources
}

// run does an action again and takes over its result.
func (c *Class) run(a *action, changes Changes) {
	r := c.view.Reader()
	t := a.plan.translator
	start := c.engine.clock.Now()
	if a.name == "" {
		names, err := listNames(t, r)
		c.engine.metrics.observe(t.TypeURL(), "names", c.engine.clock.Now().Sub(start))
		c.attach(a, r.Dependencies(), err)
		c.settle(a, err)
		if err == nil {
			c.setNames(a.plan, names, changes)
		}
		return
	}
	blob := a.blob
	m, err := buildResource(t, r, a.name)
	if err == nil {
		blob = nil
		if m != nil {
			blob, err = c.engine.store.Put(t.TypeURL(), a.name, m)
		}
	}
	c.engine.metrics.observe(t.TypeURL(), "build", c.engine.clock.Now().Sub(start))
	c.attach(a, r.Dependencies(), err)
	c.settle(a, err)
	if err == nil {
		c.set(a, blob, changes)
	} else if _, ok := a.plan.items.Get(a.name); !ok {
		c.set(a, nil, changes)
	}
}

// settle records the outcome of a run.
func (c *Class) settle(a *action, err error) {
	switch {
	case err != nil:
		if a.failure == nil {
			c.failures++
			c.engine.metrics.failing.Inc()
		}
		if a.failure == nil || a.failure.Error() != err.Error() {
			c.failed[a] = Failure{TypeURL: a.plan.translator.TypeURL(), Name: a.name, Err: err, Revision: c.view.State().Revision()}
			c.engine.log.Error("resource not built, its last good version stays", "type", a.plan.translator.TypeURL(), "name", a.name,
				"class", c.ID(), "namespace", c.key.Namespace, "error", err)
		}
		c.engine.metrics.failures.WithLabelValues(shortType(a.plan.translator.TypeURL())).Inc()
	case a.failure != nil:
		c.failures--
		c.engine.metrics.failing.Dec()
		delete(c.failed, a)
	}
	a.failure = err
}

// set makes blob the result of an action.
func (c *Class) set(a *action, blob *store.Blob, changes Changes) {
	p := a.plan
	old, ok := p.items.Get(a.name)
	if ok && old.Blob == blob && old.Wildcard == a.wildcard {
		return
	}
	if old.Wildcard && old.Blob != nil {
		p.sum.remove(old.Blob)
		p.count--
	}
	a.blob = blob
	if a.wildcard && blob != nil {
		p.sum.add(blob)
		p.count++
	}
	p.items.Set(a.name, Item{Blob: blob, Wildcard: a.wildcard})
	changes.add(p.translator.TypeURL(), a.name)
}

// setNames takes over a new wildcard set, in O(names).
func (c *Class) setNames(p *typePlan, names []string, changes Changes) {
	for _, name := range names {
		a := c.action(p, name, true, changes)
		if !a.wildcard {
			a.wildcard = true
			delete(c.unasked, a)
			c.set(a, a.blob, changes)
		}
	}
	if len(p.actions) == len(names) {
		return
	}
	for name, a := range p.actions {
		if _, ok := slices.BinarySearch(names, name); ok || !a.wildcard {
			continue
		}
		a.wildcard = false
		c.set(a, a.blob, changes)
		if a.refs == 0 {
			c.drop(a)
		}
	}
}

// drop removes a resource from the plan.
func (c *Class) drop(a *action) {
	a.plan.items.Delete(a.name)
	delete(c.unasked, a)
	delete(c.failed, a)
	c.forget(a)
}

// publish makes the plan's state the snapshot.
func (c *Class) publish() {
	types := make(map[string]*TypeSnapshot, len(c.types))
	for url, p := range c.types {
		types[url] = &TypeSnapshot{items: p.items.Copy(), sum: p.sum, count: p.count}
	}
	c.snapshot.Store(&Snapshot{Revision: c.view.State().Revision(), types: types})
}

// sweep drops by-name resources that nobody has asked for since before.
func (c *Class) sweep(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	dropped := false
	for a, since := range c.unasked {
		if since.Before(before) {
			c.drop(a)
			dropped = true
		}
	}
	if dropped {
		c.view.Forget(func(t replica.Topic) bool {
			_, ok := c.nodes[t]
			return ok
		})
		c.publish()
	}
}

// notify tells the watchers.
func (c *Class) notify(changes Changes) {
	if len(changes) == 0 {
		return
	}
	c.watchMu.Lock()
	watchers := make([]Watcher, 0, len(c.watchers))
	for w := range c.watchers {
		watchers = append(watchers, w)
	}
	c.watchMu.Unlock()
	for _, w := range watchers {
		w.Changed(changes)
	}
}

// close gives back what the class holds outside itself.
func (c *Class) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.engine.metrics.failing.Sub(float64(c.failures))
}

// String describes the class for logs.
func (c *Class) String() string {
	return fmt.Sprintf("%s of namespace %s (%s)", c.key.Type, c.key.Namespace, c.ID())
}
