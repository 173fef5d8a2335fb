// Package configsource receives the mesh from config-watcher, revision by revision, and keeps the last whole snapshot
// while config-watcher is away.
package configsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// maxHeldKeys bounds the keys in one Held message: about 1 MiB of names and hashes.
const maxHeldKeys = 8192

// A revision waits while proxies have to acknowledge the one before: for maxHold at most, and only as long as an
// acknowledgement arrives within each holdStep.
const (
	maxHold  = time.Second
	holdStep = 50 * time.Millisecond
)

// Watcher opens a Watch; configv1.ConfigServiceClient does.
type Watcher interface {
	Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse], error)
}

// Config of a Client. Watcher, Subscriber, Apply, Log and Registerer are required.
type Config struct {
	Watcher    Watcher
	Subscriber *configv1.Subscriber
	// Apply takes a newer snapshot. One goroutine calls it; revisions that arrive meanwhile are merged into its next
	// call.
	Apply func(*mesh.Snapshot, *mesh.Change)
	// Busy, if not nil, returns a channel that is closed when enough proxies have acknowledged what was applied last,
	// nil if they have, and a number that grows with each acknowledgement. Newer revisions wait meanwhile, for a
	// bounded time, so that each proxy receives their changes at once.
	Busy func() (settled <-chan struct{}, progress uint64)
	// Bans, if not nil, is called at once with a snapshot whose bans of identities have changed. It must not block.
	Bans       func(*mesh.Snapshot)
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Client keeps the snapshot of the mesh up to date.
type Client struct {
	cfg     Config
	metrics metrics

	mu      sync.Mutex
	state   *mesh.Snapshot
	pending *mesh.Change
	// queued counts the revisions merged in pending.
	queued int
	// from is the stream of the newest of them, which is acknowledged.
	from    watchStream
	applied bool
	trouble error
	ready   chan struct{} // one token while something is pending
}

type metrics struct {
	connected, queued, resources prometheus.Gauge
	revisions, rejected, retries prometheus.Counter
}

// New checks the configuration; Run does the work.
func New(cfg Config) (*Client, error) {
	if cfg.Watcher == nil || cfg.Subscriber == nil || cfg.Apply == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("configsource: Watcher, Subscriber, Apply, Log and Registerer are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	f := promauto.With(cfg.Registerer)
	name := func(n string) string { return prometheus.BuildFQName("fairlead", "xds_server", n) }
	return &Client{
		cfg: cfg, state: mesh.Empty(), ready: make(chan struct{}, 1), trouble: errors.New("not connected yet"),
		metrics: metrics{
			connected: f.NewGauge(prometheus.GaugeOpts{Name: name("config_watcher_connected"), Help: "1 while a watch on config-watcher is open and has delivered, else 0."}),
			queued:    f.NewGauge(prometheus.GaugeOpts{Name: name("queued_revisions"), Help: "Revisions received and not yet served from."}),
			resources: f.NewGauge(prometheus.GaugeOpts{Name: name("mesh_resources"), Help: "Resources of the mesh held."}),
			revisions: f.NewCounter(prometheus.CounterOpts{Name: name("revisions_received_total"), Help: "Revisions received from config-watcher."}),
			rejected:  f.NewCounter(prometheus.CounterOpts{Name: name("undecodable_resources_total"), Help: "Resources received that could not be decoded; their last good version stays."}),
			retries:   f.NewCounter(prometheus.CounterOpts{Name: name("config_watcher_retries_total"), Help: "Times the watch on config-watcher had to be opened again."}),
		},
	}, nil
}

// Ready returns nil once a whole revision has been applied, also while config-watcher is away.
func (c *Client) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.applied {
		return nil
	}
	return fmt.Errorf("no configuration received from config-watcher yet: %w", c.trouble)
}

// State returns the newest whole snapshot.
func (c *Client) State() *mesh.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Run watches, and opens the watch again after an error, until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.apply(ctx)
	}()
	defer func() { <-done }()
	watch := func(ctx context.Context) (bool, error) {
		delivered, err := c.watch(ctx)
		c.metrics.connected.Set(0)
		return delivered, err
	}
	rpc.Reopener{Clock: c.cfg.Clock, Rand: c.cfg.Rand}.Run(ctx, watch, func(err error, pause time.Duration) {
		c.setTrouble(err)
		c.metrics.retries.Inc()
		c.cfg.Log.Warn("watch on config-watcher ended, the last state stays in use", "error", err, "retry_in", pause)
	})
	return nil
}

func (c *Client) setTrouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = err
}

// watchStream is one open Watch.
type watchStream = grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse]

// watch runs one stream; delivered is true if a whole revision has arrived.
func (c *Client) watch(ctx context.Context) (delivered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.cfg.Watcher.Watch(ctx)
	if err != nil {
		return false, fmt.Errorf("open watch: %w", err)
	}
	if err := c.introduce(stream); err != nil {
		return false, err
	}
	var upserts []*configv1.Resource
	var removed []*configv1.ResourceKey
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return delivered, fmt.Errorf("watch: %w", err)
		}
		upserts, removed = append(upserts, chunk.GetUpserts()...), append(removed, chunk.GetRemoved()...)
		if !chunk.GetCommit() {
			continue
		}
		c.commit(stream, chunk.GetRevision(), upserts, removed)
		upserts, removed = nil, nil
		if !delivered {
			c.metrics.connected.Set(1)
			c.cfg.Log.Info("following config-watcher", "server", chunk.GetServer().GetInstance(), "epoch", chunk.GetRevision().GetEpoch(),
				"sequence", chunk.GetRevision().GetSequence())
			delivered = true
		}
	}
}

// introduce sends the keys and hashes of what is held, so that config-watcher sends only the difference.
func (c *Client) introduce(stream watchStream) error {
	for _, part := range c.State().Held(maxHeldKeys) {
		if err := stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Held{Held: part}}); err != nil {
			return c.sendError(stream, err)
		}
	}
	hello := &configv1.WatchRequest{Message: &configv1.WatchRequest_Hello{Hello: &configv1.WatchHello{Subscriber: c.cfg.Subscriber}}}
	if err := stream.Send(hello); err != nil {
		return c.sendError(stream, err)
	}
	return nil
}

// sendError returns the server's reason for a failed send, which only Recv returns.
func (c *Client) sendError(stream watchStream, err error) error {
	if errors.Is(err, io.EOF) {
		if _, reason := stream.Recv(); reason != nil {
			err = reason
		}
	}
	return fmt.Errorf("introduce to config-watcher: %w", err)
}

// commit makes a whole revision the snapshot.
func (c *Client) commit(from watchStream, rev *configv1.Revision, upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	next, change := c.State().Apply(rev, upserts, removed)
	for _, err := range change.Rejected {
		c.cfg.Log.Error("resource not understood, its last good version stays", "error", err)
	}
	if c.cfg.Bans != nil && change.HasBans() {
		c.cfg.Bans(next)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = next
	if c.pending == nil {
		c.pending = change
	} else {
		c.pending.Merge(change)
	}
	c.from = from
	c.queued++
	c.metrics.queued.Set(float64(c.queued))
	c.metrics.resources.Set(float64(next.Len()))
	c.metrics.revisions.Inc()
	c.metrics.rejected.Add(float64(len(change.Rejected)))
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// apply calls Apply with the newest snapshot after each revision, and acknowledges it.
func (c *Client) apply(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.ready:
		}
		if !c.hold(ctx) {
			return
		}
		c.mu.Lock()
		state, change, from := c.state, c.pending, c.from
		c.pending, c.queued, c.from = nil, 0, nil
		c.metrics.queued.Set(0)
		c.mu.Unlock()
		if change == nil {
			continue
		}
		c.cfg.Apply(state, change)
		c.mu.Lock()
		c.applied = true
		c.mu.Unlock()
		ack := &configv1.WatchAck{Sequence: state.Revision().GetSequence()}
		// If the stream has broken meanwhile, watch gets the error from Recv.
		_ = from.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Ack{Ack: ack}})
	}
}

// hold waits while Busy says so; false if ctx has ended.
func (c *Client) hold(ctx context.Context) bool {
	if c.cfg.Busy == nil {
		return true
	}
	settled, progress := c.cfg.Busy()
	if settled == nil {
		return true
	}
	step := c.cfg.Clock.NewTimer(holdStep)
	defer step.Stop()
	for begun := c.cfg.Clock.Now(); ; step.Reset(holdStep) {
		select {
		case <-ctx.Done():
			return false
		case <-settled:
			return true
		case <-step.C():
		}
		_, reached := c.cfg.Busy()
		if reached == progress || c.cfg.Clock.Now().Sub(begun) >= maxHold {
			return true
		}
		progress = reached
	}
}
