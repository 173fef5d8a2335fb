// Package findings keeps what package analyze finds in the running mesh: up to date behind the revisions, for the
// configuration API, for people who look, and for the log.
package findings

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/analyze"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// chunk is how many objects are judged before others get at the mesh.
	chunk = 256
	// mostRest bounds the rest between two looks at the mesh. A rest is as long as the look was: the analysis takes
	// half a core at most.
	mostRest = time.Second
	// mostRecent is how many findings are remembered, at least, by when they appeared.
	mostRecent = 1 << 12
	// mostLogged is how many findings of one look are logged one by one.
	mostLogged = 20
)

// Config of a Keeper. All fields are required.
type Config struct {
	// Domain is the DNS suffix of service names.
	Domain string
	Log    *slog.Logger
	Clock  clock.Clock
}

// appearance is a finding and when it appeared.
type appearance struct {
	at      uint64
	finding analyze.Finding
}

// Keeper analyses the mesh in the background. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	wake   chan struct{}
	urgent chan struct{}

	// working is held while mesh is used.
	working sync.Mutex
	mesh    *analyze.Mesh

	mu       sync.Mutex
	changes  []normalise.Change
	settings *mesh.MeshConfig
	started  bool   // the pipeline has built something
	taken    uint64 // submissions so far
	done     uint64 // those that the findings take into account
	advanced chan struct{}
	found    map[object.Key][]analyze.Finding
	looks    uint64
	recent   []appearance
}

// New returns a keeper; Run does the work.
func New(cfg Config) *Keeper {
	return &Keeper{
		cfg: cfg, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), mesh: analyze.New(cfg.Domain), advanced: make(chan struct{}),
		found: map[object.Key][]analyze.Finding{},
	}
}

// Submit queues what the mesh has come to see with a revision, and the settings in force. The pipeline calls it when
// the revision is out.
func (k *Keeper) Submit(changes []normalise.Change, settings *mesh.MeshConfig) {
	k.mu.Lock()
	k.started, k.settings = true, settings
	k.queue(changes)
	k.mu.Unlock()
}

// SubmitCredentials queues those of the changes that are about Secrets and ConfigMaps, which no revision holds.
func (k *Keeper) SubmitCredentials(changes []normalise.Change) {
	var own []normalise.Change
	for _, c := range changes {
		if analyze.IsCredential(c.Key) {
			own = append(own, c)
		}
	}
	if len(own) == 0 {
		return
	}
	k.mu.Lock()
	k.queue(own)
	k.mu.Unlock()
}

func (k *Keeper) queue(changes []normalise.Change) {
	for _, c := range changes {
		if analyze.Concerns(c.Key) {
			k.changes = append(k.changes, c)
		}
	}
	k.taken++
	signal(k.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run analyses until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
		began := k.cfg.Clock.Now()
		for !k.work(chunk) {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end of ctx is no failure of this task
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.urgent:
		case <-k.cfg.Clock.After(min(k.cfg.Clock.Now().Sub(began), mostRest)):
		}
	}
}

// work takes over what is queued and judges some of what it has touched; once that is all, the findings are those of
// the mesh as it is, which it reports.
func (k *Keeper) work(n int) bool {
	k.working.Lock()
	defer k.working.Unlock()
	k.mu.Lock()
	changes, settings, taken := k.changes, k.settings, k.taken
	k.changes = nil
	k.mu.Unlock()
	k.mesh.Configure(settings)
	k.mesh.Take(changes)
	if !k.mesh.Judge(n) {
		return false
	}
	k.publish(k.mesh.Changes(), taken)
	return true
}

// publish shows a change of the findings.
func (k *Keeper) publish(d analyze.Delta, taken uint64) {
	k.mu.Lock()
	k.looks++
	for _, f := range slices.Concat(d.Vanished, d.Appeared) {
		if now := k.mesh.Of(f.Key); len(now) > 0 {
			k.found[f.Key] = now
		} else {
			delete(k.found, f.Key)
		}
	}
	for _, f := range d.Appeared {
		k.recent = append(k.recent, appearance{k.looks, f})
	}
	if len(k.recent) > 2*mostRecent {
		k.recent = slices.Clone(k.recent[len(k.recent)-mostRecent:])
	}
	k.done = taken
	close(k.advanced)
	k.advanced = make(chan struct{})
	k.mu.Unlock()
	for i, f := range d.Appeared {
		if i == mostLogged {
			k.cfg.Log.Warn("more findings about the mesh, see /debug/sources", "count", len(d.Appeared)-mostLogged)
			break
		}
		k.cfg.Log.Warn("object accepted, but not all that it says can take effect", "source", f.Source, "finding", f.Error())
	}
}

// Wait blocks until everything submitted before the call has been analysed.
func (k *Keeper) Wait(ctx context.Context) error {
	k.mu.Lock()
	want := k.taken
	k.mu.Unlock()
	for {
		k.mu.Lock()
		done, advanced := k.done, k.advanced
		k.mu.Unlock()
		if done >= want {
			return nil
		}
		signal(k.urgent)
		select {
		case <-advanced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Of lists the findings about an object.
func (k *Keeper) Of(key object.Key) []analyze.Finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.found[key]
}

// All lists all findings, sorted.
func (k *Keeper) All() []analyze.Finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []analyze.Finding
	for _, list := range k.found {
		out = append(out, list...)
	}
	slices.SortFunc(out, analyze.Finding.Compare)
	return out
}

// About lists the findings about the VirtualServices and DestinationRules that name exactly a host.
func (k *Keeper) About(host string) []analyze.Finding {
	k.working.Lock()
	keys := k.mesh.About(host)
	k.working.Unlock()
	var out []analyze.Finding
	for _, key := range keys {
		out = append(out, k.Of(key)...)
	}
	return out
}

// Mark stands for now, see Since.
func (k *Keeper) Mark() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.looks
}

// Since lists the findings that have appeared since a mark, are still there and are about none of the objects.
func (k *Keeper) Since(mark uint64, but []object.Key) []analyze.Finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []analyze.Finding
	for _, a := range slices.Backward(k.recent) {
		if a.at <= mark {
			break
		}
		if !slices.Contains(but, a.finding.Key) && slices.Contains(k.found[a.finding.Key], a.finding) && !slices.Contains(out, a.finding) {
			out = append(out, a.finding)
		}
	}
	slices.SortFunc(out, analyze.Finding.Compare)
	return out
}

// Try tells what would be found with changes: about the changed objects, and newly about others. Before there is a
// first revision nothing is known that could be missing.
func (k *Keeper) Try(ctx context.Context, changes []normalise.Change) (own, others []analyze.Finding, err error) {
	k.mu.Lock()
	started := k.started
	k.mu.Unlock()
	if !started {
		return nil, nil, nil
	}
	for {
		if err := k.Wait(ctx); err != nil {
			return nil, nil, err
		}
		k.working.Lock()
		k.mu.Lock()
		idle := k.done == k.taken
		k.mu.Unlock()
		if idle {
			break
		}
		k.working.Unlock()
	}
	defer k.working.Unlock()
	own, others = k.mesh.Try(changes)
	return own, others, nil
}
