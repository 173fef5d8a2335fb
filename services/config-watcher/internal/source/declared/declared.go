// Package declared runs the sources that the mesh configuration declares in configSources: servers of MCP over xDS
// (package source/mcp) and directories of files (package source/file). Sources follows the mesh configuration in force,
// starts a source for each new address, and removes what one has delivered when its address is gone.
package declared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/mcp"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// Name is the name of Sources as a source. The declared ones have names of their own.
const Name = "config-sources"

// Config of Sources. All fields are required.
type Config struct {
	// Open makes the source of an address of the scheme xds or fs; it does not run it. Its name must be the same for
	// equal addresses, and another one for others.
	Open func(*mesh.ConfigSource) (source.Source, error)
	// Arrange is told the names of the sources in their order before they deliver, and whether Istio's objects of the
	// API server count.
	Arrange func(names []string, kubernetes bool)
	// Timeout is how long the first revision waits for a source of which nothing is known; 0: until it has been read.
	Timeout time.Duration
	Log     *slog.Logger
	Clock   clock.Clock
}

// Sources are the declared sources. It is a source.Source that delivers what they do, under their names.
type Sources struct {
	cfg     Config
	handler source.Handler
	wake    chan struct{}

	mu sync.Mutex
	// wanted is what the mesh configuration in force says, applied whether Run has brought running in line with it.
	wanted  []*mesh.ConfigSource
	applied bool
	root    string
	running []*running
	// failed says why an address has no source.
	failed object.Problems
}

// running is one source that is read.
type running struct {
	settings *mesh.ConfigSource
	source   source.Source
	started  time.Time
	stop     context.CancelFunc
	done     chan struct{}

	// mu is held while changes are delivered, so that none overtakes another.
	mu        sync.Mutex
	delivered map[object.Key]struct{}
	// left is what a source of this name with other settings has delivered, and this one has not: it goes once this one
	// has been read.
	left map[object.Key]struct{}
}

// New returns Sources; Run reads.
func New(cfg Config) *Sources {
	return &Sources{cfg: cfg, wake: make(chan struct{}, 1), applied: true, root: meshdefaults.MeshConfig().GetRootNamespace()}
}

// Take reads the mesh configuration out of changes of the objects in force. It returns at once.
func (s *Sources) Take(changes []normalise.Change) {
	for _, c := range changes {
		if !kinds.IsMeshConfig(c.Key) {
			continue
		}
		text := ""
		if c.Object != nil {
			if m, ok := c.Object.Body.(*corev1.ConfigMap); ok {
				text = m.Data[kinds.MeshKey]
			}
		}
		config, _, problems := meshconfig.Parse("", []byte(text))
		if len(problems) > 0 {
			continue // the mesh goes on with the one before
		}
		wanted := config.GetConfigSources()
		s.mu.Lock()
		s.root = config.GetRootNamespace()
		if !slices.EqualFunc(wanted, s.wanted, func(a, b *mesh.ConfigSource) bool { return proto.Equal(a, b) }) {
			s.wanted, s.applied = wanted, false
			notify.Wake(s.wake)
		}
		s.mu.Unlock()
	}
}

// Root is the root namespace of the mesh configuration in force, which is known before the first revision.
func (s *Sources) Root() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root
}

// Run implements source.Source.
func (s *Sources) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	defer func() {
		for _, r := range s.all() {
			r.stop()
			<-r.done
		}
	}()
	for {
		var check <-chan time.Time
		if s.tidy(ctx) {
			check = s.cfg.Clock.After(checkEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-check:
		case <-s.wake:
			s.apply(ctx, ended)
		}
	}
}

// checkEvery is how often tidy is called while something is left.
const checkEvery = time.Second

// tidy removes what is left of sources whose settings have changed, and reports whether there is more.
func (s *Sources) tidy(ctx context.Context) (more bool) {
	for _, r := range s.all() {
		r.mu.Lock()
		switch {
		case len(r.left) == 0:
		case r.source.HasSynced():
			s.forget(ctx, r.source.Name(), r.left)
			r.left = nil
		default:
			more = true
		}
		r.mu.Unlock()
	}
	return more
}

// apply brings what runs in line with the mesh configuration.
func (s *Sources) apply(ctx context.Context, ended chan<- error) {
	s.mu.Lock()
	wanted, old := s.wanted, s.running
	s.mu.Unlock()
	var next, fresh []*running
	var failed object.Problems
	names, kubernetes := []string{}, len(wanted) == 0
	for i, c := range wanted {
		if meshconfig.SchemeOf(c) == meshconfig.SchemeKubernetes {
			kubernetes = true
			continue
		}
		j := slices.IndexFunc(old, func(r *running) bool { return proto.Equal(r.settings, c) })
		if j >= 0 {
			next = append(next, old[j])
			continue
		}
		src, err := s.cfg.Open(c)
		if err == nil && slices.ContainsFunc(next, func(r *running) bool { return r.source.Name() == src.Name() }) {
			err = errors.New("is declared twice")
		}
		if err != nil {
			p := object.Problem{Object: "MeshConfig", Field: fmt.Sprintf("configSources[%d].address", i), Value: object.Quote(c.GetAddress()),
				Reason: err.Error(), Remedy: "correct it, or remove it"}
			failed = append(failed, p)
			s.cfg.Log.Error("a source of the mesh configuration is not read", "problem", p.Error())
			continue
		}
		r := &running{settings: c, source: src, started: s.cfg.Clock.Now(), done: make(chan struct{}), delivered: map[object.Key]struct{}{}}
		next, fresh = append(next, r), append(fresh, r)
	}
	for _, r := range next {
		names = append(names, r.source.Name())
	}
	gone := slices.DeleteFunc(slices.Clone(old), func(r *running) bool { return slices.Contains(next, r) })
	for _, r := range gone {
		r.stop()
		<-r.done
	}
	for _, r := range fresh {
		// What a source with other settings has delivered stays until the new one knows better.
		if i := slices.IndexFunc(gone, func(g *running) bool { return g.source.Name() == r.source.Name() }); i >= 0 {
			r.left = gone[i].delivered
			maps.Copy(r.left, gone[i].left)
			gone = slices.Delete(gone, i, i+1)
		}
	}
	for _, r := range gone {
		s.cfg.Log.Info("a source is gone from the mesh configuration, and its objects with it", "source", r.source.Name())
		maps.Copy(r.delivered, r.left)
		s.forget(ctx, r.source.Name(), r.delivered)
		if f, ok := r.source.(interface{ Forget() }); ok {
			f.Forget() // or a restart while a server of this name is away would serve it again
		}
	}
	s.cfg.Arrange(names, kubernetes)
	for _, r := range fresh {
		s.start(ctx, r, ended)
	}
	s.mu.Lock()
	s.running, s.failed = next, failed
	same := slices.EqualFunc(wanted, s.wanted, func(a, b *mesh.ConfigSource) bool { return a == b })
	s.applied = same
	s.mu.Unlock()
	if !same {
		notify.Wake(s.wake)
	}
}

// start runs a source. It delivers Istio's kinds alone, as Istio's sources of configuration do.
func (s *Sources) start(ctx context.Context, r *running, ended chan<- error) {
	r.source.Handle(func(ctx context.Context, from string, events []source.Event) {
		events = slices.DeleteFunc(slices.Clone(events), func(e source.Event) bool { return !kinds.OfIstio(e.Key) })
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range events {
			if e.Object == nil {
				delete(r.delivered, e.Key)
			} else {
				r.delivered[e.Key] = struct{}{}
			}
			delete(r.left, e.Key)
		}
		if len(events) > 0 {
			s.handler(ctx, from, events)
		}
	})
	ctx, r.stop = context.WithCancel(ctx)
	s.cfg.Log.Info("a source of the mesh configuration is read", "source", r.source.Name())
	go func() {
		defer close(r.done)
		if err := r.source.Run(ctx); err != nil {
			select {
			case ended <- fmt.Errorf("source %s: %w", r.source.Name(), err):
			default:
			}
		}
	}()
}

// forget removes objects that a source has delivered.
func (s *Sources) forget(ctx context.Context, from string, keys map[object.Key]struct{}) {
	var events []source.Event
	for _, k := range slices.SortedFunc(maps.Keys(keys), object.Key.Compare) {
		events = append(events, source.Event{Key: k})
	}
	for batch := range slices.Chunk(events, source.MaxTogether) {
		s.handler(ctx, from, batch)
	}
}

func (s *Sources) all() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.running)
}

// Sources are those that are read, in the order of configSources.
func (s *Sources) Sources() []source.Source {
	var out []source.Source
	for _, r := range s.all() {
		out = append(out, r.source)
	}
	return out
}

// State of an entry of configSources.
type State string

// States in which an entry can be.
const (
	Synced  State = "synced"
	Reading State = "reading"
	// Restored is one that was not read since the start: its last good state is served.
	Restored State = "restored"
	// Away is one that cannot be read: its last objects stay.
	Away State = "away"
	// Refused is one that has no source.
	Refused State = "refused"
)

// States are all of them.
var States = []State{Synced, Reading, Restored, Away, Refused}

// Counts counts the entries, those of the API server apart, by state.
func (s *Sources) Counts() map[State]int {
	s.mu.Lock()
	out := map[State]int{Refused: len(s.failed)}
	s.mu.Unlock()
	for _, src := range s.Sources() {
		switch st := src.Status(); {
		case st.Degraded != nil:
			out[Away]++
		case st.Synced:
			out[Synced]++
		case st.Settled():
			out[Restored]++
		default:
			out[Reading]++
		}
	}
	return out
}

// Name implements source.Source.
func (s *Sources) Name() string { return Name }

// Handle implements source.Source.
func (s *Sources) Handle(h source.Handler) { s.handler = h }

// HasSynced implements source.Source.
func (s *Sources) HasSynced() bool { return s.Status().Synced }

// Status implements source.Source. It is synced once every declared source is, or has taken longer than Config.Timeout.
// Its own problems are about addresses.
func (s *Sources) Status() source.Status {
	s.mu.Lock()
	running := slices.Clone(s.running)
	st := source.Status{Synced: s.applied, Problems: slices.Clone(s.failed)}
	s.mu.Unlock()
	restored, now := st.Synced, s.cfg.Clock.Now()
	var newest time.Time
	var degraded []error
	for _, r := range running {
		of := r.source.Status()
		st.Objects += of.Objects
		overdue := s.cfg.Timeout > 0 && !of.Settled() && now.Sub(r.started) >= s.cfg.Timeout
		if overdue {
			degraded = append(degraded, fmt.Errorf("source %s was not read within %s (--config-source-timeout), the mesh is served without it",
				r.source.Name(), s.cfg.Timeout))
		}
		restored = restored && (of.Settled() || overdue)
		st.Synced = st.Synced && (of.Synced || overdue)
		if of.LastGood.After(newest) {
			newest = of.LastGood
		}
		degraded = append(degraded, of.Degraded)
	}
	if restored && !st.Synced {
		st.LastGood = newest
	}
	st.Degraded = errors.Join(degraded...)
	return st
}

// Foreign reports whether a source of this name is another control plane, or an adapter that speaks as one.
func Foreign(name string) bool { return strings.HasPrefix(name, mcp.NamePrefix) }
