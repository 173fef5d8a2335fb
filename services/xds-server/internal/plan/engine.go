package plan

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/replica"
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
}

// Engine keeps the classes in use built while the mesh changes. It is safe for concurrent use.
type Engine struct {
	translators map[string]Translator
	store       *store.Store
	log         *slog.Logger
	clock       clock.Clock
	linger      time.Duration
	workers     int
	metrics     *metrics

	// applying serialises Apply.
	applying sync.Mutex

	mu       sync.Mutex
	state    *replica.State
	sequence uint64
	served   *configv1.Revision
	classes  map[class.Hash]*Class
}

// NewEngine checks the configuration; the state is empty until the first Apply.
func NewEngine(cfg Config) (*Engine, error) {
	if cfg.Store == nil || cfg.Log == nil || cfg.Registerer == nil || len(cfg.Translators) == 0 {
		return nil, errors.New("plan: Translators, Store, Log and Registerer are required")
	}
	e := &Engine{
		translators: map[string]Translator{}, store: cfg.Store, log: cfg.Log, clock: clock.Or(cfg.Clock),
		linger: cfg.Linger, workers: cfg.Workers, state: replica.Empty(), classes: map[class.Hash]*Class{},
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
func (e *Engine) State() *replica.State {
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
// state and before the others are brought there: the moment for proxies to change class without ever seeing their old one at the new state.
func (e *Engine) Apply(state *replica.State, change *replica.Change, regroup func()) int {
	e.applying.Lock()
	defer e.applying.Unlock()
	e.mu.Lock()
	e.state = state
	e.sequence++
	sequence := e.sequence
	e.mu.Unlock()
	if regroup != nil {
		regroup()
	}
	classes := e.Classes()

	var (
		count   int
		countMu sync.Mutex
		group   errgroup.Group
	)
	group.SetLimit(e.workers)
	for _, c := range classes {
		group.Go(func() error {
			changes := c.advance(state, change.Topics, sequence)
			c.notify(changes)
			n := 0
			for _, names := range changes {
				n += len(names)
			}
			countMu.Lock()
			count += n
			countMu.Unlock()
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors

	e.mu.Lock()
	e.served = state.Revision()
	e.mu.Unlock()
	return count
}

// Acquire returns the class of a key, with the watcher registered. Every Acquire needs a Release.
func (e *Engine) Acquire(key *class.Key, w Watcher) *Class {
	e.mu.Lock()
	defer e.mu.Unlock()
	hash := key.Hash()
	c, ok := e.classes[hash]
	if !ok {
		c = newClass(e, key, e.state, e.sequence)
		e.classes[hash] = c
	}
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	c.watchers[w] = struct{}{}
	return c
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

// Run drops what has not been used for the linger time, until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.clock.After(e.linger / 2):
			e.sweep()
		}
	}
}

func (e *Engine) sweep() {
	before := e.clock.Now().Add(-e.linger)
	e.mu.Lock()
	var kept []*Class
	for hash, c := range e.classes {
		c.watchMu.Lock()
		unused := len(c.watchers) == 0 && c.idle.Before(before)
		c.watchMu.Unlock()
		if unused {
			delete(e.classes, hash)
			defer c.close()
		} else {
			kept = append(kept, c)
		}
	}
	e.mu.Unlock()
	for _, c := range kept {
		c.sweep(before)
	}
}
