package consul

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

const (
	// maxServices bounds the services of one registry that become objects.
	maxServices = 20_000
	// maxProblems bounds the problems that are told of one registry.
	maxProblems = 1000
)

// reader makes objects of what is read of one registry, and delivers what changes. It is the Handler of its Follower.
type reader struct {
	name    string
	cfg     *Config
	handler source.Handler

	follower atomic.Pointer[Follower]
	stop     context.CancelFunc
	done     chan struct{}
	started  time.Time

	mu   sync.Mutex
	decl *declaration
	// seen is the hash of the newest declaration, refused what is wrong with it.
	seen    [32]byte
	place   string
	refused object.Problems
	// overdue is true once the mesh has stopped waiting for the registry.
	overdue bool
	// names are the wanted services that exist; nil before they are known.
	names map[string]struct{}
	// shadowed are the services whose host another one has. leftOut counts those beyond maxServices: beyond, unless it
	// is "", and those after it by name.
	shadowed map[string]string
	leftOut  int
	beyond   string
	services map[string]*service
	// savedAt is when what the last run has read was saved, if that has been delivered. lastGood is the same once it is
	// served without waiting for Consul any more.
	savedAt, lastGood time.Time
	// syncedAt is when the registry was last known to be followed.
	syncedAt time.Time
	// objects counts those that are delivered.
	objects int
	missed  missed
	// dirty are the shards that have changed since they were saved, of which nextShard is the next one to save; saved
	// is true once any was.
	dirty     map[int]bool
	nextShard int
	saved     bool
}

// service is one that has been read.
type service struct {
	// instances are those in force: those of the newest reading, and those that it lacks and that stay. A reading
	// replaces the slice and never changes one.
	instances []registry.Instance
	// gone are those of them that the newest reading lacks, absent is true if a reading of the names lacks the service.
	gone   map[instance]struct{}
	absent bool
	// last is what they became.
	last registry.Last
	// objects are those that are delivered, the ServiceEntry and the WorkloadEntries.
	objects  map[object.Key]*object.Object
	problems object.Problems
}

func newReader(name string, cfg *Config, handler source.Handler) *reader {
	return &reader{name: name, cfg: cfg, handler: handler, services: map[string]*service{}, dirty: map[int]bool{}, missed: newMissed(),
		started: cfg.Clock.Now()}
}

// end stops following the registry. What has been delivered stays.
func (r *reader) end() {
	r.stop()
	<-r.done
}

func (r *reader) source() string { return registry.SourcePrefix + r.name }

// wanted reports whether a service becomes objects by the declaration in force.
func (r *reader) wanted(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wantedNow(name)
}

// wantedNow is wanted with mu held.
func (r *reader) wantedNow(name string) bool {
	return r.decl != nil && (r.beyond == "" || name < r.beyond) && r.matched(name)
}

// matched reports whether a rule matches a service. It is called with mu held.
func (r *reader) matched(name string) bool {
	return slices.ContainsFunc(r.decl.Rules, func(rule registry.Rule) bool { return rule.Matches(name) })
}

// declare takes over a declaration: what its rules make of what has been read.
func (r *reader) declare(d *declaration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decl, r.seen, r.place, r.refused = d, d.hash, d.place, nil
	if r.names != nil {
		r.takeNames(slices.Collect(maps.Keys(r.names)))
	}
	for _, name := range slices.Sorted(maps.Keys(r.services)) {
		r.update(name, r.services[name])
	}
}

// Names implements Handler.
func (r *reader) Names(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeNames(names)
	for _, name := range sorted(r.services) {
		_, exists := r.names[name]
		r.setAbsent(name, r.services[name], !exists)
	}
}

// takeNames is called with mu held.
func (r *reader) takeNames(names []string) {
	r.leftOut, r.beyond = 0, ""
	wanted := slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(name string) bool { return !r.wantedNow(name) })
	if len(wanted) > maxServices {
		r.leftOut, r.beyond = len(wanted)-maxServices, wanted[maxServices]
		wanted = wanted[:maxServices]
	}
	r.names = make(map[string]struct{}, len(names))
	for _, name := range names {
		r.names[name] = struct{}{}
	}
	before := r.shadowed
	r.shadowed = r.shadowedOf(wanted)
	// Two services of one host have the same objects: those of the one that gives way go first.
	var counts []string
	for _, name := range sorted(r.services) {
		_, shadowed := r.shadowed[name]
		_, exists := r.names[name]
		switch s := r.services[name]; {
		case !r.matched(name) && !exists:
			r.drop(name, s) // the user has changed the rules
		case !r.matched(name):
			r.update(name, s) // the Follower still has it, and will not tell it again if the rules are changed back
		case before[name] == r.shadowed[name]:
		case shadowed:
			r.update(name, s)
		default:
			counts = append(counts, name)
		}
	}
	for _, name := range counts {
		r.update(name, r.services[name])
	}
}

// shadowedOf is registry.Shadowed of services that the names have. One that stays although they lack it gives way to
// these. It is called with mu held.
func (r *reader) shadowedOf(wanted []string) map[string]string {
	out := registry.Shadowed(wanted)
	var absent []string
	for name := range r.services {
		if _, exists := r.names[name]; !exists {
			absent = append(absent, name)
		}
	}
	if len(absent) == 0 {
		return out
	}
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, registry.Shadowed(absent))
	present := make(map[string]string, len(wanted))
	for _, name := range wanted {
		if _, shadowed := out[name]; !shadowed {
			present[strings.ToLower(name)] = name
		}
	}
	for _, name := range absent {
		if counts, taken := present[strings.ToLower(name)]; taken {
			out[name] = counts
		}
	}
	return out
}

// settle notes that everything has been read, once the Follower says so.
func (r *reader) settle(now time.Time) {
	following := r.following() // before mu, which the Follower's goroutines wait for
	r.mu.Lock()
	defer r.mu.Unlock()
	if !following.Synced || r.names == nil {
		return
	}
	if r.syncedAt.IsZero() {
		r.cfg.Log.Info("registry has been read", "registry", r.name, "services", len(r.names))
	}
	r.savedAt, r.lastGood = time.Time{}, time.Time{}
	if following.Degraded == nil {
		r.syncedAt = now
	} else if r.syncedAt.IsZero() {
		r.syncedAt = r.started
	}
}

// Service implements Handler.
func (r *reader) Service(name string, instances []registry.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, exists := r.names[name]; r.names != nil && !exists {
		return // an answer that came late: the service is gone
	}
	s := r.services[name]
	if s == nil {
		if len(r.services) >= 2*maxServices {
			return
		}
		s = &service{}
		r.services[name] = s
		r.missed.fresh.services++
	}
	r.take(name, s, instances)
	r.update(name, s)
}

// made is what the declaration makes of a service now. It is called with mu held.
func (r *reader) made(name string, s *service) map[object.Key]*object.Object {
	s.problems = nil
	out := map[object.Key]*object.Object{}
	if !r.wantedNow(name) {
		return out
	}
	if counts, shadowed := r.shadowed[name]; shadowed {
		s.problems = object.Problems{r.decl.ShadowedProblem(name, counts)}
		return out
	}
	m := r.decl.MapAgain(&s.last, name, s.instances)
	s.problems = m.Problems
	if m.Entry == nil {
		return out
	}
	out[m.Entry.Key] = m.Entry
	for _, o := range m.Workloads {
		out[o.Key] = o
	}
	return out
}

// update delivers what has changed about a service. It is called with mu held.
func (r *reader) update(name string, s *service) {
	now := r.made(name, s)
	var events []source.Event
	for key, o := range now {
		if old := s.objects[key]; old == nil || old.Digest != o.Digest {
			events = append(events, source.Event{Key: key, Object: o})
		}
	}
	for key := range s.objects {
		if now[key] == nil {
			events = append(events, source.Event{Key: key})
		}
	}
	r.objects += len(now) - len(s.objects)
	s.objects = now
	r.deliver(events)
}

// drop removes a service with its objects. It is called with mu held.
func (r *reader) drop(name string, s *service) {
	var events []source.Event
	for key := range s.objects {
		events = append(events, source.Event{Key: key})
	}
	r.objects -= len(s.objects)
	r.missed.forget(name, s)
	r.missed.instances -= len(s.instances)
	delete(r.services, name)
	r.dirty[shardOf(name)] = true
	r.deliver(events)
}

// deliver sends events: new and changed objects before those that are gone, ServiceEntries before WorkloadEntries that
// come and after those that go, so that no reader finds a moment without either. It is called with mu held, so that the
// events of a registry stay in order.
func (r *reader) deliver(events []source.Event) {
	rank := func(e source.Event) int {
		entry := e.Key.Kind == "ServiceEntry"
		switch {
		case e.Object != nil && entry:
			return 0
		case e.Object != nil:
			return 1
		case !entry:
			return 2
		}
		return 3
	}
	slices.SortFunc(events, func(a, b source.Event) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return a.Key.Compare(b.Key)
	})
	for chunk := range slices.Chunk(events, source.MaxTogether) {
		r.handler(context.Background(), r.source(), chunk)
	}
}

// forget removes all objects, because the user has removed the registry.
func (r *reader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []source.Event
	for _, s := range r.services {
		for key := range s.objects {
			events = append(events, source.Event{Key: key})
		}
	}
	r.services, r.objects, r.missed = map[string]*service{}, 0, newMissed()
	r.deliver(events)
}

// start follows the registry until the context ends or stop is called.
func (r *reader) start(ctx context.Context, f Follower, failed chan<- error) {
	r.follower.Store(&f)
	ctx, r.stop = context.WithCancel(ctx)
	done := make(chan struct{})
	r.done = done
	go func() {
		defer close(done)
		if err := f.Run(ctx, r); err != nil && ctx.Err() == nil {
			select {
			case failed <- fmt.Errorf("registry %s: %w", r.name, err):
			default:
			}
		}
	}()
}

// known is what has been read, by service.
func (r *reader) known() map[string][]registry.Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string][]registry.Instance, len(r.services))
	for name, s := range r.services {
		out[name] = s.instances
	}
	return out
}

// connection is what the declaration in force is read with.
func (r *reader) connection(d *declaration) Connection {
	return Connection{Address: d.address, Datacenter: d.Datacenter, Token: d.token, TLS: d.tls, Known: r.known(),
		DialContext: r.cfg.Addresses.Dialer().DialContext, Filter: r.wanted, Log: r.cfg.Log.With("registry", r.name), Clock: r.cfg.Clock}
}
