// Package pipeline is the single worker between sources and subscribers. The aggregate submits changed objects;
// Pipeline.Run applies them to normalise.Mesh and commits each result as a revision.
package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// Observer is called after every commit, for metrics.
type Observer interface {
	Committed(snapshot *revision.Snapshot, delta normalise.Delta, took time.Duration)
	Failed(err error)
}

// Config of a pipeline. Tracer, Observe and Discovered are optional.
type Config struct {
	Mesh *normalise.Mesh
	Log  *slog.Logger
	Out  *revision.Log
	// Settled reports whether every source has synced or is served from its last good state. It is called until it has
	// returned true once.
	Settled func() bool
	Clock   clock.Clock
	Tracer  trace.Tracer
	Observe Observer
	// Discovered receives the changed objects of discovered namespaces, and the mesh configuration, after the commit of
	// their revision. It may be nil.
	Discovered func(changes []normalise.Change, settings *mesh.MeshConfig)
}

// Pipeline turns changes into revisions. It applies a first change at once. Changes that arrive while it builds a
// revision go into the next one; there is no timer.
type Pipeline struct {
	cfg Config

	mu      sync.Mutex
	changes []normalise.Change
	ctx     context.Context // trace of the first pending change
	taken   uint64          // number of submissions so far
	wake    chan struct{}

	// applied is the number of submissions that revision sequence contains. mu guards both.
	applied  uint64
	sequence uint64
	advanced chan struct{}
}

// New makes a pipeline; Run does the work.
func New(cfg Config) *Pipeline {
	return &Pipeline{cfg: cfg, wake: make(chan struct{}, 1), advanced: make(chan struct{})}
}

// Submit queues changes. The ban table calls it with changes of the aggregate.
func (p *Pipeline) Submit(ctx context.Context, changes []normalise.Change) {
	p.mu.Lock()
	if len(p.changes) == 0 {
		p.ctx = trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx))
	}
	p.changes = append(p.changes, changes...)
	p.taken++
	p.mu.Unlock()
	p.Poke()
}

// Poke makes the pipeline call Settled again.
func (p *Pipeline) Poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pollSettled is the interval of calling Settled before the first revision; sources also call Poke.
const pollSettled = 50 * time.Millisecond

// Run applies changes until ctx ends.
func (p *Pipeline) Run(ctx context.Context) error {
	settled := false
	for {
		var poll <-chan time.Time
		if !settled {
			if settled = p.cfg.Settled(); settled {
				p.build(ctx, true)
			} else {
				poll = p.cfg.Clock.After(pollSettled)
			}
		} else {
			p.build(ctx, false)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-poll:
		}
	}
}

// build commits one revision with everything pending. The first revision is committed even if it is empty.
func (p *Pipeline) build(ctx context.Context, first bool) {
	p.mu.Lock()
	changes, parent, taken := p.changes, p.ctx, p.taken
	p.changes, p.ctx = nil, nil
	p.mu.Unlock()
	if len(changes) == 0 && !first {
		return
	}
	if parent == nil {
		parent = ctx
	}
	start := p.cfg.Clock.Now()
	spanCtx, span := p.start(parent, len(changes))
	delta := p.cfg.Mesh.Apply(changes)
	for _, err := range delta.Errors {
		p.cfg.Log.Error("object could not be normalised, its last resources stay", "error", err)
		p.observeFailure(err)
	}
	sequence := p.sequenceNow()
	if !delta.Empty() || first {
		snapshot := p.cfg.Out.Commit(delta.Upserts, delta.Removed, traceParent(spanCtx))
		sequence = snapshot.Sequence()
		span.SetAttributes(attribute.Int64("fairlead.revision", int64(sequence)))
		took := p.cfg.Clock.Now().Sub(start)
		level := slog.LevelDebug
		if first {
			level = slog.LevelInfo
		}
		p.cfg.Log.Log(parent, level, "revision committed", "sequence", sequence, "upserts", len(delta.Upserts), "removed", len(delta.Removed), "resources", snapshot.Len(), "took", took)
		if p.cfg.Observe != nil {
			p.cfg.Observe.Committed(snapshot, delta, took)
		}
	}
	span.End()
	if p.cfg.Discovered != nil {
		p.cfg.Discovered(delta.Discovered, p.cfg.Mesh.Settings())
	}
	p.mu.Lock()
	p.applied, p.sequence = taken, sequence
	close(p.advanced)
	p.advanced = make(chan struct{})
	p.mu.Unlock()
}

func (p *Pipeline) observeFailure(err error) {
	if p.cfg.Observe != nil {
		p.cfg.Observe.Failed(err)
	}
}

func (p *Pipeline) sequenceNow() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sequence
}

func (p *Pipeline) start(parent context.Context, changes int) (context.Context, trace.Span) {
	if p.cfg.Tracer == nil {
		return parent, trace.SpanFromContext(context.Background())
	}
	return p.cfg.Tracer.Start(parent, "config change", trace.WithAttributes(attribute.Int("fairlead.changes", changes)))
}

// traceParent is the W3C trace context of the span; empty if there is none.
func traceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// Wait blocks until everything submitted before the call is in a revision and returns that revision's sequence.
func (p *Pipeline) Wait(ctx context.Context) (uint64, error) {
	p.mu.Lock()
	want := p.taken
	p.mu.Unlock()
	for {
		p.mu.Lock()
		applied, sequence, advanced := p.applied, p.sequence, p.advanced
		p.mu.Unlock()
		if applied >= want && sequence > 0 {
			return sequence, nil
		}
		select {
		case <-advanced:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Pending is the number of changes that no revision contains yet.
func (p *Pipeline) Pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.changes)
}
