// Package pipeline is the single worker between sources and subscribers. The aggregate submits changed objects;
// Pipeline.Run applies them to normalise.Mesh and commits each result as a revision. Changes of endpoints overtake
// queued configuration (queue.go).
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
	"fairlead.dev/pkg/lanes"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// Observer is called after every commit, for metrics.
type Observer interface {
	// Committed receives the time that the build took, and that since the first of its changes was submitted;
	// of the first revision, which waits for the sources, the latter is 0.
	Committed(snapshot *revision.Snapshot, delta normalise.Delta, took, delay time.Duration)
	Failed(err error)
}

// Config of a pipeline. Tracer and Observe are optional.
type Config struct {
	Mesh    *normalise.Mesh
	Log     *slog.Logger
	Out     *revision.Log
	Clock   clock.Clock
	Tracer  trace.Tracer
	Observe Observer
}

// Ends are what is at both ends of a running pipeline: the sources before it, and who judges objects behind it.
type Ends struct {
	// Settled reports whether every source has synced or is served from its last good state. It is called until it has
	// returned true once.
	Settled func() bool
	// Discovered receives the changed objects of discovered namespaces, the mesh configuration, and what has changed of
	// the Gateway API, after the commit of their revision. It may be nil.
	Discovered func(changes []normalise.Change, settings *mesh.MeshConfig, judged normalise.Judged)
	// Wanted receives the Secrets and ConfigMaps that objects of the Gateway API refer to, sorted, when that has
	// changed. It may be nil.
	Wanted func([]object.Key)
	// Complete reports whether it is known of all that is wanted whether it is there: the first revision waits for
	// that, so that no gateway loses a listener because its Secret is not read yet. It may be nil.
	Complete func() bool
}

// Pipeline turns changes into revisions. It applies a first change at once. Changes that arrive while it builds a
// revision gather in the queue; there is no timer. The changes of one submission take effect in one revision, except
// endpoint states that are newer.
//
// Each round makes a revision of all endpoint changes, and then one of a batch of configuration. So an endpoint change
// waits for one batch at most, and configuration gets at least half of the time while endpoints never rest: a batch may
// take as long as the endpoints before it.
type Pipeline struct {
	cfg Config

	mu    sync.Mutex
	queue queue
	wake  chan struct{}
	// urgent has a token while endpoint changes are in the queue.
	urgent chan struct{}

	// applied is the number of the last submission up to which revision sequence contains all. mu guards both.
	applied  uint64
	sequence uint64
	advanced notify.Notifier

	// Used by Run's goroutine only.
	ends Ends
	pace lanes.Pace // of configuration
	// early is the effect of changes that were applied before the first revision.
	early normalise.Delta
}

const (
	// While endpoints change, a batch of configuration takes about shortBatch, and batchPause is between two: each
	// change of an endpoint finds the processor free, or nearly so. Otherwise a batch takes about longBatch.
	shortBatch = 150 * time.Microsecond
	batchPause = 200 * time.Microsecond
	longBatch  = 5 * time.Millisecond
	maxBatch   = 256
)

// New makes a pipeline; Run does the work.
func New(cfg Config) *Pipeline {
	pace := lanes.Pace{Short: shortBatch, Long: longBatch, Min: 2, Max: maxBatch, Cost: 50 * time.Microsecond, Memory: 7}
	return &Pipeline{cfg: cfg, queue: newQueue(), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), pace: pace}
}

// Submit queues changes that take effect together. The ban table calls it with changes of the aggregate. The caller
// must not change them any more.
func (p *Pipeline) Submit(ctx context.Context, changes []normalise.Change) {
	trace := trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx))
	p.mu.Lock()
	urgent := p.queue.add(trace, p.cfg.Clock.Now(), changes)
	p.mu.Unlock()
	if urgent {
		notify.Wake(p.urgent)
	}
	p.Poke()
}

// Poke makes the pipeline call Settled again.
func (p *Pipeline) Poke() { notify.Wake(p.wake) }

// pollSettled is the interval of calling Settled before the first revision; sources also call Poke.
const pollSettled = 50 * time.Millisecond

// Run applies changes until ctx ends.
func (p *Pipeline) Run(ctx context.Context, ends Ends) error {
	p.ends = ends
	settled := false
	for {
		wake, pause := p.wake, time.Duration(0)
		switch {
		case settled:
			if p.round(ctx); p.Pending() > 0 {
				// Configuration that is added meanwhile waits too.
				wake, pause = p.urgent, p.pause()
			}
		case p.ends.Settled() && p.complete():
			settled = true
			// Subscribers start with everything, so the first revision is not cut into batches.
			p.build(ctx, (*queue).takeAll, true)
		default:
			pause = pollSettled
		}
		var timer <-chan time.Time
		if pause > 0 {
			timer = p.cfg.Clock.After(pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer:
		}
	}
}

// apply applies changes and tells what is wrong with them.
func (p *Pipeline) apply(changes []normalise.Change) normalise.Delta {
	delta := p.cfg.Mesh.Apply(changes)
	for _, err := range delta.Errors {
		p.cfg.Log.Error("object could not be normalised, its last resources stay", "error", err)
		p.observeFailure(err)
	}
	return delta
}

// round makes a revision of the endpoint changes and one of a batch of configuration.
func (p *Pipeline) round(ctx context.Context) {
	select {
	case <-p.urgent: // for what is taken now
	default:
	}
	endpoints, spent := p.build(ctx, (*queue).takeEndpoints, false)
	now := p.cfg.Clock.Now()
	if endpoints > 0 {
		p.pace.Endpoints(now)
	}
	limit := p.pace.Limit(now, spent)
	p.pace.Took(p.build(ctx, func(q *queue) batch { return q.takeOrdered(limit) }, false))
}

// pause is the time between two batches. It is never 0, so that goroutines which wait for the processor or the network
// get their turn.
func (p *Pipeline) pause() time.Duration {
	if p.pace.Active(p.cfg.Clock.Now()) {
		return batchPause
	}
	return time.Microsecond
}

// build commits one revision with what take takes from the queue. The first revision is committed even if it is empty.
// It returns the number of changes and the time that they took.
func (p *Pipeline) build(ctx context.Context, take func(*queue) batch, first bool) (int, time.Duration) {
	p.mu.Lock()
	taken := take(&p.queue)
	p.mu.Unlock()
	changes, parent := taken.changes, taken.trace
	if len(changes) == 0 && !first {
		p.advance(p.sequenceNow()) // all that was taken has been overtaken
		return 0, 0
	}
	if parent == nil {
		parent = ctx
	}
	start := p.cfg.Clock.Now()
	spanCtx, span := p.start(parent, len(changes))
	delta := p.apply(changes)
	if first && p.ends.Complete != nil {
		delta, p.early = joined(p.early, delta), normalise.Delta{}
	}
	sequence := p.sequenceNow()
	if !delta.Empty() || first {
		snapshot := p.cfg.Out.Commit(delta.Upserts, delta.Removed, traceParent(spanCtx))
		sequence = snapshot.Sequence()
		span.SetAttributes(attribute.Int64("fairlead.revision", int64(sequence)))
		took, delay := p.cfg.Clock.Now().Sub(start), time.Duration(0)
		if !first && !taken.since.IsZero() { // the first revision waits for the sources
			delay = p.cfg.Clock.Now().Sub(taken.since)
		}
		level := slog.LevelDebug
		if first {
			level = slog.LevelInfo
		}
		p.cfg.Log.Log(parent, level, "revision committed", "sequence", sequence, "upserts", len(delta.Upserts), "removed", len(delta.Removed),
			"resources", snapshot.Len(), "took", took)
		if p.cfg.Observe != nil {
			p.cfg.Observe.Committed(snapshot, delta, took, delay)
		}
	}
	span.End()
	if p.ends.Discovered != nil {
		p.ends.Discovered(delta.Discovered, p.cfg.Mesh.Settings(), delta.Judged)
	}
	if p.ends.Wanted != nil && delta.Judged.Rewanted {
		p.ends.Wanted(delta.Judged.Wanted)
	}
	p.advance(sequence)
	return len(changes), p.cfg.Clock.Now().Sub(start)
}

// advance tells Wait that everything that is not in the queue any more is in revision sequence.
func (p *Pipeline) advance(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done := p.queue.done(); done != p.applied || sequence != p.sequence {
		p.applied, p.sequence = done, sequence
		p.advanced.Notify()
	}
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
	want := p.queue.submitted
	p.mu.Unlock()
	for {
		advanced := p.advanced.Changed()
		p.mu.Lock()
		applied, sequence := p.applied, p.sequence
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
	return p.queue.len()
}
