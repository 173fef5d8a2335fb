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

// Changes lists, per type URL, the names whose item may have changed.
type Changes map[string][]string

func (c Changes) add(url, name string) { c[url] = append(c[url], name) }

// Watcher hears of a class's changes. Changed is called after the snapshot that holds them was published, from any goroutine, and must
// not block; it must not change what it is given. arrived are those of the changes that were not there before.
type Watcher interface {
	Changed(changes, arrived Changes)
}

// Failure is a resource that could not be built; its last good version, if there was one, stays in use. With an *Incomplete it was built, but
// not with all that was asked for.
type Failure struct {
	TypeURL string
	// Name of the resource; "" where a list of names failed.
	Name string
	Err  error
	// Revision since which it fails.
	Revision *configv1.Revision
}

// Class is the plan of one class of proxies. It is safe for concurrent use.
type Class struct {
	key    *class.Key
	engine *Engine
	tier   *tier

	snapshot atomic.Pointer[Snapshot]

	watchMu  sync.Mutex
	watchers map[Watcher]struct{}
	idle     time.Time // since when nobody watches

	// undelivered are changes that the watchers have not heard of; the tier's mutex guards it.
	undelivered, arrived Changes
	absent               absences
}

func newClass(e *Engine, key *class.Key, t *tier) *Class {
	c := &Class{key: key, engine: e, tier: t, watchers: map[Watcher]struct{}{}, undelivered: Changes{}, arrived: Changes{}}
	c.snapshot.Store(&Snapshot{Revision: t.own.view.State().Revision()})
	return c
}

// Key returns the class's key.
func (c *Class) Key() *class.Key { return c.key }

// ID returns the class's hash.
func (c *Class) ID() string { return c.tier.hash.String() }

// Snapshot returns what is planned and built now.
func (c *Class) Snapshot() *Snapshot { return c.snapshot.Load() }

// Failures lists what could not be built of one type, or of all for "", sorted by type and name.
func (c *Class) Failures(url string) []Failure {
	defer c.tier.lock()()
	var failures []Failure
	for t := c.tier; t != nil; t = t.below {
		for a, f := range t.own.failed {
			if url != "" && f.TypeURL != url {
				continue
			}
			if a.list && c.tier.lookList(f.TypeURL, a.name) == a || !a.list && c.tier.look(f.TypeURL, a.name).action == a {
				failures = append(failures, f)
			}
		}
	}
	slices.SortFunc(failures, func(a, b Failure) int {
		return strings.Compare(a.TypeURL+"\x00"+a.Name, b.TypeURL+"\x00"+b.Name)
	})
	return failures
}

// Undelivered lists changes that are in the snapshot and that the watchers have yet to hear of.
func (c *Class) Undelivered() Changes {
	c.tier.mu.Lock()
	defer c.tier.mu.Unlock()
	all := Changes{}
	for url, names := range c.undelivered {
		all[url] = slices.Clone(names)
	}
	return all
}

// Plan makes sure that the type's wildcard set (if wildcard) and the resources asked for by name are built. Every name asked for must be
// given back with Release.
func (c *Class) Plan(who Watcher, url string, wildcard bool, names []string) {
	c.engine.step.RLock()
	defer c.engine.step.RUnlock()
	defer c.tier.lock()()
	c.catchUp()
	p := c.tier.plan(url)
	if p == nil {
		return
	}
	if _, ahead := p.translator.(Ahead); wildcard || ahead {
		c.tier.list(url)
	}
	for _, name := range names {
		if !c.absent.join(url, name, who) {
			c.ask(url, name, who)
		}
	}
	c.publish()
}

// Release gives back names that were asked for with Plan. They stay built for a while, in case a stream comes back,
// unless the type's translator is Fleeting.
func (c *Class) Release(who Watcher, url string, names []string) {
	if _, fleeting := c.engine.translators[url].(Fleeting); fleeting {
		c.drop(who, url, names)
		return
	}
	c.tier.mu.Lock()
	defer c.tier.mu.Unlock()
	for _, name := range names {
		c.absent.leave(url, name, who)
		c.tier.unask(url, name, who, true)
	}
}

// drop gives back names for good.
func (c *Class) drop(who Watcher, url string, names []string) {
	c.engine.step.RLock()
	defer c.engine.step.RUnlock()
	defer c.tier.lock()()
	c.catchUp()
	for _, name := range names {
		c.absent.leave(url, name, who)
		c.tier.unask(url, name, who, false)
	}
	c.publish()
}

// catchUp brings the class to the engine's state. The caller holds the engine's step lock, shared, and the tier's.
func (c *Class) catchUp() {
	s := c.engine.current
	if s == nil || s.sequence <= c.tier.sequence {
		return
	}
	before := c.Snapshot()
	c.tier.advance(s)
	defer c.appear(s, before)
	if len(c.tier.done.changed) == 0 {
		return
	}
	c.publish()
	after := c.Snapshot()
	for url, names := range c.tier.done.changed {
		was, is := before.Type(url), after.Type(url)
		for _, name := range names {
			old, _ := was.Get(name)
			now, _ := is.Get(name)
			if old == now {
				continue
			}
			c.undelivered.add(url, name)
			if old.Blob == nil && now.Blob != nil {
				c.arrived.add(url, name)
			}
		}
	}
}

// publish makes what is planned the snapshot, if it is not. The caller holds the tier's locks.
func (c *Class) publish() {
	before := c.Snapshot()
	same := len(before.types) == len(c.tier.own.types)
	types := make(map[string]*TypeSnapshot, len(c.tier.own.types))
	for url := range c.tier.own.types {
		types[url] = c.tier.snapshot(url)
		same = same && types[url] == before.types[url]
	}
	if !same {
		c.snapshot.Store(&Snapshot{Revision: c.tier.own.view.State().Revision(), types: types})
	}
}

// Explain builds one resource anew and tells what it was made from: the objects read and the questions asked. It does not change the plan.
func (c *Class) Explain(url, name string) (origins []input.Origin, topics []mesh.Topic, err error) {
	t, ok := c.engine.translators[url]
	if !ok {
		return nil, nil, fmt.Errorf("nobody makes resources of type %s", url)
	}
	r, trace := input.TracedReader(c.key, c.engine.State())
	m, err := buildResource(t, r, name)
	if err == nil && m == nil {
		err = fmt.Errorf("the class has no resource %q of type %s", name, url)
	}
	return trace.Origins(), r.Topics(), err
}

// sweep drops by-name resources that nobody has asked for since before.
func (c *Class) sweep(before time.Time) {
	c.engine.step.RLock()
	defer c.engine.step.RUnlock()
	defer c.tier.lock()()
	dropped := false
	for a, since := range c.tier.unasked {
		if !since.Before(before) {
			continue
		}
		if !dropped {
			c.catchUp()
			dropped = true
		}
		delete(c.tier.unasked, a)
		c.tier.settle(a)
	}
	if dropped {
		for t := c.tier; t != nil; t = t.below {
			t.own.forget()
		}
		c.publish()
	}
}

// takeUndelivered returns what the watchers have yet to hear of, once.
func (c *Class) takeUndelivered() (changes, arrived Changes) {
	changes, arrived = c.undelivered, c.arrived
	if len(changes) > 0 {
		c.undelivered, c.arrived = Changes{}, Changes{}
	}
	return changes, arrived
}

// notify tells the watchers.
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
