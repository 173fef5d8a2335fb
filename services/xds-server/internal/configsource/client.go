// Package configsource receives the mesh from config-watcher, revision by revision, and keeps the last whole snapshot
// while config-watcher is away.
//
// Revisions wait in a queue (queue.go) until they are applied (apply.go): those of configuration until the proxies have
// answered the ones before, those of endpoints hardly at all. That there are no keys of tokens may wait for days
// (keptkeys.go).
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
	"fairlead.dev/pkg/lanes"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// maxHeldKeys bounds the keys in one Held message: about 1 MiB of names and hashes.
const maxHeldKeys = 8192

// Watcher opens a Watch; configv1.ConfigServiceClient does.
type Watcher interface {
	Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse], error)
}

// Config of a Client. Watcher, Subscriber, Apply, Log and Registerer are required.
type Config struct {
	Watcher    Watcher
	Subscriber *configv1.Subscriber
	// Apply takes a newer snapshot. One goroutine calls it and ApplyEndpoints; revisions that arrive meanwhile are
	// merged into its next calls.
	Apply func(*mesh.Snapshot, *mesh.Change)
	// ApplyEndpoints takes a snapshot that differs from the last one in endpoints and Workloads alone; nil means Apply.
	// Its revision may be that of the last one, see queue.
	ApplyEndpoints func(*mesh.Snapshot, *mesh.Change)
	// Busy, if not nil, returns a channel that is closed when enough proxies have acknowledged what Apply was called
	// with last, nil if they have, and a number that grows with each acknowledgement. Newer revisions of configuration
	// wait meanwhile, for a bounded time, so that each proxy receives their changes at once.
	Busy func() (answered <-chan struct{}, progress uint64)
	// Bans, if not nil, is called at once after bans of identities have changed, with a snapshot of all bans alone. It
	// must not block.
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

	ready chan struct{} // one token after something has come into the queue

	// stateMu is taken before mu. It is held while the next snapshot is made, so that only one goroutine makes one.
	stateMu sync.Mutex
	// state is the newest snapshot that was applied, or is being applied.
	state *mesh.Snapshot

	mu      sync.Mutex
	queue   queue
	applied bool // at least once
	trouble error
	// bans has all IdentityBans that were received and nothing else. The goroutine of watch uses it.
	bans *mesh.Snapshot
}

type metrics struct {
	connected, queued, resources            prometheus.Gauge
	revisions, overtaken, rejected, retries prometheus.Counter
}

// New checks the configuration; Run does the work.
func New(cfg Config) (*Client, error) {
	if cfg.Watcher == nil || cfg.Subscriber == nil || cfg.Apply == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("configsource: Watcher, Subscriber, Apply, Log and Registerer are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	if cfg.ApplyEndpoints == nil {
		cfg.ApplyEndpoints = cfg.Apply
	}
	f := promauto.With(cfg.Registerer)
	name := func(n string) string { return prometheus.BuildFQName("fairlead", "xds_server", n) }
	return &Client{
		cfg: cfg, state: mesh.Empty(), bans: mesh.Empty(), queue: newQueue(), ready: make(chan struct{}, 1),
		trouble: errors.New("not connected yet"),
		metrics: metrics{
			connected: f.NewGauge(prometheus.GaugeOpts{Name: name("config_watcher_connected"),
				Help: "1 while a watch on config-watcher is open and has delivered, else 0."}),
			queued:    f.NewGauge(prometheus.GaugeOpts{Name: name("queued_revisions"), Help: "Revisions received and not yet served from."}),
			resources: f.NewGauge(prometheus.GaugeOpts{Name: name("mesh_resources"), Help: "Resources of the mesh held."}),
			revisions: f.NewCounter(prometheus.CounterOpts{Name: name("revisions_received_total"), Help: "Revisions received from config-watcher."}),
			overtaken: f.NewCounter(prometheus.CounterOpts{Name: name("overtaking_updates_total"),
				Help: "Times that endpoints were updated before configuration that had come earlier."}),
			rejected: f.NewCounter(prometheus.CounterOpts{Name: name("undecodable_resources_total"),
				Help: "Resources received that could not be decoded; their last good version stays."}),
			retries: f.NewCounter(prometheus.CounterOpts{Name: name("config_watcher_retries_total"),
				Help: "Times the watch on config-watcher had to be opened again."}),
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

// Newest returns the newest revision that was received whole; nil before the first.
func (c *Client) Newest() *configv1.Revision {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.newest.revision
}

// held lists what was received, in the form of Snapshot.Held: what was applied and what is in the queue.
func (c *Client) held() []*configv1.Held {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	c.mu.Lock()
	queued := c.queue.all()
	c.mu.Unlock()
	state := c.state
	for _, r := range queued {
		state, _ = state.Apply(nil, r.upserts(), r.removals())
	}
	return state.Held(maxHeldKeys)
}

// Run watches, and opens the watch again after an error, until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace := lanes.Pace{Short: batchTime, Long: longBatch, Min: 16, Cost: 500 * time.Microsecond, Memory: 3}
		(&applier{Client: c, pace: pace, withheld: map[mesh.Key]withheldKeys{}}).run(ctx)
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
	next := &revision{}
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return delivered, fmt.Errorf("watch: %w", err)
		}
		next.receive(chunk)
		if !chunk.GetCommit() {
			continue
		}
		next.at = position{chunk.GetRevision(), stream}
		c.commit(next)
		next = &revision{}
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
	for _, part := range c.held() {
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

// commit queues a whole revision. Bans take effect before: the queue may have to wait.
func (c *Client) commit(r *revision) {
	if c.cfg.Bans != nil && r.has(mesh.KindIdentityBan) {
		bans := r.only(mesh.KindIdentityBan)
		c.bans, _ = c.bans.Apply(nil, bans.upserts(), bans.removals())
		c.cfg.Bans(c.bans)
	}
	c.mu.Lock()
	c.queue.add(r)
	c.metrics.queued.Set(float64(c.queue.revisions))
	c.mu.Unlock()
	c.metrics.revisions.Inc()
	notify.Wake(c.ready)
}
