// Package background runs package running behind the revisions. The pipeline submits each revision's changes to
// Analyzer, which analyzes them in the background and keeps the findings for the config API (Of, Since, DryRun), for
// /debug/sources (All) and for the log.
package background

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// chunk is the number of objects that are analyzed before other callers get the mesh.
	chunk = 32
	// maxPause bounds the pause after a chunk. A pause is as long as the work before it, so that the analysis takes at
	// most half a core, and never keeps one from a change on its way to subscribers for long.
	maxPause = time.Second
	// maxRecent is the number of newest findings that Since remembers at least.
	maxRecent = 1 << 12
	// maxLogged is the number of findings of one round that are logged one by one.
	maxLogged = 20
)

// Config of an Analyzer. All fields but Lookup are required.
type Config struct {
	// Domain is the DNS suffix of service names.
	Domain string
	// MultiTenant has the mesh judged as one with tenants.
	MultiTenant bool
	// Lookup is a source that reads Secrets one by one; nil if all are known with the first revision.
	Lookup credential.Lookup
	Log    *slog.Logger
	Clock  clock.Clock
}

// appearance is a finding and the round in which it appeared.
type appearance struct {
	round   uint64
	finding finding.Finding
}

// Analyzer analyzes the mesh in the background. It is safe for concurrent use.
type Analyzer struct {
	cfg    Config
	wake   chan struct{}
	urgent chan struct{}

	// working is held while mesh is used.
	working sync.Mutex
	mesh    *running.Mesh

	mu        sync.Mutex
	changes   []normalise.Change
	settings  *mesh.MeshConfig
	started   bool            // the first revision has been built
	submitted uint64          // number of submissions so far
	done      uint64          // number of submissions that the findings cover
	advanced  notify.Notifier // done has grown
	found     map[object.Key][]finding.Finding
	changed   map[object.Key]struct{} // those whose findings have changed since TakeChanged
	rounds    uint64
	recent    []appearance
}

// New returns an analyzer; Run does the work.
func New(cfg Config) *Analyzer {
	a := &Analyzer{
		cfg: cfg, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), mesh: running.New(cfg.Domain),
		found: map[object.Key][]finding.Finding{}, changed: map[object.Key]struct{}{},
	}
	a.mesh.Separate(cfg.MultiTenant)
	if cfg.Lookup != nil {
		a.mesh.Lookup(func(k object.Key) bool {
			asked, reading := cfg.Lookup.Reading(k)
			return !asked || reading
		})
	}
	return a
}

// Submit queues the changes that a revision has made to the discovered objects, and the mesh configuration in force.
// The pipeline calls it after the revision's commit.
func (a *Analyzer) Submit(changes []normalise.Change, settings *mesh.MeshConfig) {
	a.mu.Lock()
	a.started, a.settings = true, settings
	a.queue(changes)
	a.mu.Unlock()
}

// SubmitCredentials queues the changes of Secrets and ConfigMaps, which no revision holds.
func (a *Analyzer) SubmitCredentials(changes []normalise.Change) {
	own := lists.Filter(changes, func(c normalise.Change) bool { return kinds.IsCredential(c.Key) })
	if len(own) == 0 {
		return
	}
	a.mu.Lock()
	a.queue(own)
	a.mu.Unlock()
}

func (a *Analyzer) queue(changes []normalise.Change) {
	for _, c := range changes {
		if running.Concerns(c.Key) {
			a.changes = append(a.changes, c)
		}
	}
	a.submitted++
	notify.Wake(a.wake)
}

// Run analyzes until ctx ends.
func (a *Analyzer) Run(ctx context.Context) error {
	for {
		var looked <-chan struct{}
		if a.cfg.Lookup != nil {
			looked = a.cfg.Lookup.Looked()
			a.answered()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-looked:
			continue
		}
		for done := false; !done; {
			began := a.cfg.Clock.Now()
			done = a.work(chunk)
			select {
			case <-ctx.Done():
				return nil
			case <-a.urgent:
			case <-a.cfg.Clock.After(min(a.cfg.Clock.Now().Sub(began), maxPause)):
			}
		}
	}
}

// answered takes over what the Lookup knows now. What a Secret's answer brought has been submitted before.
func (a *Analyzer) answered() {
	a.working.Lock()
	defer a.working.Unlock()
	if a.mesh.Answered() {
		notify.Wake(a.wake)
	}
}

// work takes over the queued changes and analyzes up to n objects. When none is left it publishes the findings and
// returns true.
func (a *Analyzer) work(n int) bool {
	a.working.Lock()
	defer a.working.Unlock()
	a.mu.Lock()
	changes, settings, submitted := a.changes, a.settings, a.submitted
	a.changes = nil
	a.mu.Unlock()
	a.mesh.Configure(settings)
	a.mesh.Apply(changes)
	if !a.mesh.Analyze(n) {
		return false
	}
	a.publish(a.mesh.Changes(), submitted)
	return true
}

// publish records and logs a change of the findings.
func (a *Analyzer) publish(d running.Delta, submitted uint64) {
	a.mu.Lock()
	a.rounds++
	for _, f := range slices.Concat(d.Vanished, d.Appeared) {
		a.changed[f.Key] = struct{}{}
		if now := a.mesh.Of(f.Key); len(now) > 0 {
			a.found[f.Key] = now
		} else {
			delete(a.found, f.Key)
		}
	}
	for _, f := range d.Appeared {
		a.recent = append(a.recent, appearance{a.rounds, f})
	}
	if len(a.recent) > 2*maxRecent {
		a.recent = slices.Clone(a.recent[len(a.recent)-maxRecent:])
	}
	a.done = submitted
	a.advanced.Notify()
	a.mu.Unlock()
	for i, f := range d.Appeared {
		if i == maxLogged {
			a.cfg.Log.Warn("more findings about the mesh, see /debug/sources", "count", len(d.Appeared)-maxLogged)
			break
		}
		a.cfg.Log.Warn("object accepted, but a part of it has no effect", "source", f.Source, "finding", f.Error())
	}
}

// Wait blocks until everything submitted before the call has been analyzed.
func (a *Analyzer) Wait(ctx context.Context) error {
	a.mu.Lock()
	want := a.submitted
	a.mu.Unlock()
	for {
		a.mu.Lock()
		done, advanced := a.done, a.advanced.Changed()
		a.mu.Unlock()
		if done >= want {
			return nil
		}
		notify.Wake(a.urgent)
		select {
		case <-advanced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Of lists the findings about an object.
func (a *Analyzer) Of(key object.Key) []finding.Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.found[key]
}

// TakeChanged lists the objects whose findings have changed since the call before. It is for one caller, the tracker of
// statuses.
func (a *Analyzer) TakeChanged() []object.Key {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Collect(maps.Keys(a.changed))
	a.changed = map[object.Key]struct{}{}
	return out
}

// All lists all findings, sorted.
func (a *Analyzer) All() []finding.Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []finding.Finding
	for _, list := range a.found {
		out = append(out, list...)
	}
	slices.SortFunc(out, finding.Finding.Compare)
	return out
}

// About lists the findings about the VirtualServices and DestinationRules for exactly a host.
func (a *Analyzer) About(host string) []finding.Finding {
	a.working.Lock()
	keys := a.mesh.About(host)
	a.working.Unlock()
	var out []finding.Finding
	for _, key := range keys {
		out = append(out, a.Of(key)...)
	}
	return out
}

// Mark returns a mark of the present, see Since.
func (a *Analyzer) Mark() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rounds
}

// Since lists the findings that appeared after a mark and are still there, except those about some objects.
func (a *Analyzer) Since(mark uint64, but []object.Key) []finding.Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []finding.Finding
	for _, r := range slices.Backward(a.recent) {
		if r.round <= mark {
			break
		}
		if f := r.finding; !slices.Contains(but, f.Key) && slices.Contains(a.found[f.Key], f) && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, finding.Finding.Compare)
	return out
}

// DryRun returns the findings that changes would cause: about the changed objects, and new ones about others. Before
// the first revision it returns none, because references could not be resolved.
func (a *Analyzer) DryRun(ctx context.Context, changes []normalise.Change) (own, others []finding.Finding, err error) {
	a.mu.Lock()
	started := a.started
	a.mu.Unlock()
	if !started {
		return nil, nil, nil
	}
	for {
		if err := a.Wait(ctx); err != nil {
			return nil, nil, err
		}
		a.working.Lock()
		a.mu.Lock()
		idle := a.done == a.submitted
		a.mu.Unlock()
		if idle {
			break
		}
		a.working.Unlock()
	}
	defer a.working.Unlock()
	own, others = a.mesh.DryRun(changes)
	return own, others, nil
}
