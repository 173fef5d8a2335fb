package plan

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Changes lists, by type URL, the names whose item may have changed.
type Changes map[string][]string

func (c Changes) add(url, name string) { c[url] = append(c[url], name) }

// Watcher is notified of the changes of a class; each stream is one.
type Watcher interface {
	// Changed is called, from any goroutine, after the class has published the snapshot with the changes. It must not
	// block, and must not change what it is given. arrived are the changes of resources that did not exist before.
	Changed(changes, arrived Changes)
}

// Failure is a resource or list that could not be built; its last good version, if there is one, stays in use. If Err
// is an *Incomplete, the resource was built without a part of its configuration and is in use.
type Failure struct {
	TypeURL string
	// Name of the resource; "" if a list of names failed.
	Name string
	Err  error
	// Revision since which it fails.
	Revision *configv1.Revision
}

// Class is the plan of one class of proxies. It is safe for concurrent use.
type Class struct {
	key    *class.Key
	engine *Engine
	plan   *scopePlan // the workload's

	snapshot atomic.Pointer[Snapshot]

	watchMu  sync.Mutex
	watchers map[Watcher]struct{}
	idle     time.Time // when the last watcher was released

	// undelivered and arrived are changes that the watchers have not been notified of. The plan's lock guards them and
	// absent.
	undelivered, arrived Changes
	absent               absentNames
}

func newClass(e *Engine, key *class.Key, plan *scopePlan) *Class {
	c := &Class{key: key, engine: e, plan: plan, watchers: map[Watcher]struct{}{}, undelivered: Changes{}, arrived: Changes{}}
	plan.class = c
	c.snapshot.Store(&Snapshot{Point: pointOf(plan.graph.view.State())})
	return c
}

// Key returns the class's key.
func (c *Class) Key() *class.Key { return c.key }

// ID returns the class's hash.
func (c *Class) ID() string { return c.plan.hash.String() }

// Snapshot returns the class's resources as published last.
func (c *Class) Snapshot() *Snapshot { return c.snapshot.Load() }

// Failures lists what could not be built of one type, or of all types for "", sorted by type and name.
func (c *Class) Failures(url string) []Failure {
	defer c.plan.lock()()
	var failures []Failure
	for s := c.plan; s != nil; s = s.below {
		for n, f := range s.graph.failed {
			if url != "" && f.TypeURL != url {
				continue
			}
			if n.list && c.plan.lookupList(f.TypeURL, n.name) == n || !n.list && c.plan.lookup(f.TypeURL, n.name).node == n {
				failures = append(failures, f)
			}
		}
	}
	slices.SortFunc(failures, func(a, b Failure) int {
		return strings.Compare(a.TypeURL+"\x00"+a.Name, b.TypeURL+"\x00"+b.Name)
	})
	return failures
}

// Undelivered lists changes that are in the snapshot and that the watchers have not been notified of yet.
func (c *Class) Undelivered() Changes {
	c.plan.mu.Lock()
	defer c.plan.mu.Unlock()
	all := Changes{}
	for url, names := range c.undelivered {
		all[url] = slices.Clone(names)
	}
	return all
}

// Plan builds the wildcard set of a type, if wildcard, and the resources of the names, and publishes them. A stream
// calls it when its proxy subscribes. who must give every name back with Release.
func (c *Class) Plan(who Watcher, url string, wildcard bool, names []string) {
	c.engine.updateMu.RLock()
	defer c.engine.updateMu.RUnlock()
	defer c.plan.lock()()
	c.refresh()
	p := c.plan.typePlan(url)
	if p == nil {
		return
	}
	if wildcard || p.translator.Traits().AlwaysListed {
		c.plan.planWildcard(url)
	}
	for _, name := range names {
		if !c.absent.addSubscriber(url, name, who) {
			c.subscribe(url, name, who)
		}
	}
	c.publish()
}

// Release gives back names that who has planned. The resources stay built for the linger time, in case a stream comes
// back, unless the type's traits say DropUnused.
func (c *Class) Release(who Watcher, url string, names []string) {
	if t, ok := c.engine.translators[url]; ok && t.Traits().DropUnused {
		c.drop(who, url, names)
		return
	}
	c.plan.mu.Lock()
	defer c.plan.mu.Unlock()
	c.unsubscribe(who, url, names, true)
}

// drop is Release without the linger time.
func (c *Class) drop(who Watcher, url string, names []string) {
	c.engine.updateMu.RLock()
	defer c.engine.updateMu.RUnlock()
	defer c.plan.lock()()
	c.refresh()
	c.unsubscribe(who, url, names, false)
	c.publish()
}

func (c *Class) unsubscribe(who Watcher, url string, names []string, linger bool) {
	for _, name := range names {
		c.absent.removeSubscriber(url, name, who)
		c.plan.unsubscribe(url, name, who, linger)
	}
}

// refresh applies the engine's last update to the class, if it has not been, and publishes the changes. The caller
// holds Engine.updateMu for reading and the plan's lock.
func (c *Class) refresh() {
	u := c.engine.lastUpdate.Load()
	if u == nil || u.sequence <= c.plan.sequence || c.plan.closed {
		return
	}
	if _, affected := u.affected[c.plan]; !affected && c.absent.isEmpty() {
		return
	}
	before := c.Snapshot()
	c.plan.apply(u)
	defer func() {
		c.plan.lastUpdate = updateResult{} // no plan is above
		c.planAppeared(u, before)
	}()
	if len(c.plan.lastUpdate.changed) == 0 {
		return
	}
	c.publish()
	after := c.Snapshot()
	for url, names := range c.plan.lastUpdate.changed {
		was, is := before.Type(url), after.Type(url)
		for _, name := range names {
			old, _ := was.Get(name)
			now, _ := is.Get(name)
			if old != now {
				c.addUndelivered(url, name, old, now)
			}
		}
	}
}

// addUndelivered adds a changed item to what the watchers have to be notified of.
func (c *Class) addUndelivered(url, name string, old, now Item) {
	c.undelivered.add(url, name)
	if old.Blob == nil && now.Blob != nil {
		c.arrived.add(url, name)
	}
}

// publish makes the plan's items the class's snapshot if they differ from it. The caller holds the plan's lock.
func (c *Class) publish() {
	before := c.Snapshot()
	same := len(before.types) == len(c.plan.graph.types)
	types := make(map[string]*TypeSnapshot, len(c.plan.graph.types))
	for url := range c.plan.graph.types {
		types[url] = c.plan.snapshot(url)
		same = same && types[url] == before.types[url]
	}
	if !same {
		c.snapshot.Store(&Snapshot{Point: pointOf(c.plan.graph.view.State()), types: types})
	}
}

// Explain builds one resource again and returns the objects and the topics that it was made from. The plan does not
// change.
func (c *Class) Explain(url, name string) (origins []input.Origin, topics []mesh.Topic, err error) {
	t, ok := c.engine.translators[url]
	if !ok {
		return nil, nil, fmt.Errorf("no translator makes resources of type %s", url)
	}
	r, trace := input.TracedReader(c.key, c.engine.State())
	m, err := buildResource(t, r, name)
	if err == nil && m == nil {
		err = fmt.Errorf("the class has no resource %q of type %s", name, url)
	}
	return trace.Origins(), r.Topics(), err
}

// sweep drops the resources whose last subscriber unsubscribed before a time. Engine.sweep calls it.
func (c *Class) sweep(before time.Time) {
	c.engine.updateMu.RLock()
	defer c.engine.updateMu.RUnlock()
	defer c.plan.lock()()
	dropped := false
	for n, since := range c.plan.unsubscribed {
		if !since.Before(before) {
			continue
		}
		if !dropped {
			c.refresh()
			dropped = true
		}
		delete(c.plan.unsubscribed, n)
		c.plan.refreshNode(n)
	}
	if dropped {
		c.plan.dropUnusedAnswers()
		c.publish()
	}
}

// takeUndelivered returns the changes that the watchers have to be notified of, and forgets them.
func (c *Class) takeUndelivered() (changes, arrived Changes) {
	changes, arrived = c.undelivered, c.arrived
	if len(changes) > 0 {
		c.undelivered, c.arrived = Changes{}, Changes{}
	}
	return changes, arrived
}

// notify notifies the watchers of changes.
func (c *Class) notify(changes, arrived Changes) {
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
		w.Changed(changes, arrived)
	}
}

// String describes the class for logs.
func (c *Class) String() string {
	return fmt.Sprintf("%s of namespace %s (%s)", c.key.Type, c.key.Namespace, c.ID())
}
