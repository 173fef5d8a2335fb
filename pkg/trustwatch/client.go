// Package trustwatch is the client of ca's TrustService: it watches the trust bundle of the mesh, verifies that the ca
// has signed it, hands it on, and acknowledges it once the process verifies with it. An xds-server passes it on to
// agents, and tells the ca on the same watch which of them have acknowledged it.
package trustwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

const (
	// reportGap is the least time between two reports of agents: what they acknowledge meanwhile is one report.
	reportGap = 250 * time.Millisecond
	// refusedPause is how long agents are not reported to a ca that refuses the reports.
	refusedPause = 10 * time.Minute
)

// Agents are those of workloads, which acknowledge bundles by way of this process. acks.Ledger implements it.
type Agents interface {
	// Changed is closed when there is something to Take.
	Changed() <-chan struct{}
	// Take returns the acknowledgements since the last call, or with all every agent's, each element for one message.
	Take(all bool) [][]*cav1.AgentAcknowledgement
}

// Config of a Client. All fields but Agents, Clock and Rand are required.
type Config struct {
	CA cav1.TrustServiceClient
	// Subscriber names this process; it is unique for each run.
	Subscriber string
	// Identity has the roots that this process verifies with.
	Identity tlsconf.Source
	// CAs are the SPIFFE IDs that the ca may have.
	CAs         []string
	TrustDomain string
	// Agents are reported to the ca; nil if it takes no reports from this process.
	Agents Agents
	// Metrics begins the names of the metrics.
	Metrics    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Client watches the bundle. It keeps the newest, also while the ca is away.
type Client struct {
	cfg        Config
	retries    prometheus.Counter
	generation prometheus.Gauge
	last       *trust.Verified
	// reportsFrom is when agents may be reported again; zero unless the ca has refused it.
	reportsFrom time.Time
}

// NewClient checks the configuration; Run does the work.
func NewClient(cfg Config) (*Client, error) {
	if cfg.CA == nil || cfg.Subscriber == "" || cfg.Identity == nil || len(cfg.CAs) == 0 || cfg.Log == nil {
		return nil, errors.New("trust: CA, Subscriber, Identity, CAs and Log are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	f := promauto.With(cfg.Registerer)
	return &Client{
		cfg: cfg,
		retries: f.NewCounter(prometheus.CounterOpts{
			Name: cfg.Metrics + "_trust_watch_failures_total", Help: "Watches of the trust bundle on ca that have ended.",
		}),
		generation: f.NewGauge(prometheus.GaugeOpts{
			Name: cfg.Metrics + "_trust_bundle_generation", Help: "Generation of the newest trust bundle of the ca; 0 before the first.",
		}),
	}, nil
}

// Run watches, and opens the watch again after an error, until ctx ends. It calls apply with each newer bundle, and
// with the same one when the ca has signed it anew.
func (c *Client) Run(ctx context.Context, apply func(*trust.Verified, *cav1.SignedBundle)) error {
	rpc.Reopener{Clock: c.cfg.Clock, Rand: c.cfg.Rand}.Run(ctx, func(ctx context.Context) (bool, error) {
		w := &watch{client: c, apply: apply}
		err := w.run(ctx)
		if w.reported && status.Code(err) == codes.PermissionDenied {
			c.reportsFrom = c.cfg.Clock.Now().Add(refusedPause)
			c.cfg.Log.Warn("the ca takes no acknowledgements of agents from this xds-server, so that a rotation of its root waits for each of "+
				"them; --forwarder of the ca must name this server's service account", "error", err, "retry_in", refusedPause)
		}
		return w.answered, err
	}, func(err error, pause time.Duration) {
		c.retries.Inc()
		c.cfg.Log.Warn("watch of the trust bundle on ca ended, the last one stays in use", "error", err, "retry_in", pause)
	})
	return nil
}

// take verifies a bundle and hands it on. A ca of an earlier version sends none.
func (c *Client) take(signed *cav1.SignedBundle, apply func(*trust.Verified, *cav1.SignedBundle)) error {
	if signed == nil {
		return nil
	}
	material, err := c.cfg.Identity.Current()
	if err != nil {
		return err
	}
	receiver := trust.Receiver{Roots: material.Roots, CAs: c.cfg.CAs, TrustDomain: c.cfg.TrustDomain, Now: c.cfg.Clock.Now()}
	if c.last != nil { // a replica of the ca may be a moment behind the one that was asked before
		receiver.Epoch, receiver.Generation = c.last.GetEpoch(), c.last.GetGeneration()
	}
	verified, err := receiver.Verify(signed)
	if err != nil {
		return err
	}
	c.last = verified
	c.generation.Set(float64(verified.GetGeneration()))
	apply(verified, signed)
	return nil
}

// holds is the newest bundle if this process verifies with all of its roots, else nil.
func (c *Client) holds() *trust.Verified {
	if c.last == nil {
		return nil
	}
	material, err := c.cfg.Identity.Current()
	if err != nil {
		return nil
	}
	own, err := tlsconf.ParseCertificates(material.RootsPEM)
	if err != nil {
		return nil
	}
	for _, root := range c.last.Roots {
		if !slices.ContainsFunc(own, root.Equal) {
			return nil
		}
	}
	return c.last
}

// watch is one stream.
type watch struct {
	client *Client
	apply  func(*trust.Verified, *cav1.SignedBundle)
	stream cav1.TrustService_WatchBundleClient
	// responses and ended are what was received, and why no more is.
	responses chan *cav1.WatchBundleResponse
	ended     chan error
	// answered is true once a bundle has arrived, reported once agents were reported.
	answered, reported bool
	// stated is what this process has acknowledged on the stream, since the last bundle came; nil if nothing.
	stated *trust.Verified
	// next is when the next report of agents may go.
	next time.Time
}

// run opens the stream and serves it to its end.
func (w *watch) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.stream, err = w.client.cfg.CA.WatchBundle(ctx); err != nil {
		return fmt.Errorf("open watch: %w", err)
	}
	w.responses, w.ended = make(chan *cav1.WatchBundleResponse), make(chan error, 1)
	go func() {
		for {
			m, err := w.stream.Recv()
			if err != nil {
				w.ended <- err
				return
			}
			select {
			case w.responses <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	// What was acknowledged on an earlier stream is stated on the first message of this one.
	first := acknowledging(w.client.holds())
	first.Subscriber = w.client.cfg.Subscriber
	if err := w.send(ctx, first); err != nil {
		return err
	}
	for {
		roots := w.client.cfg.Identity.Changed()
		if err := w.state(ctx); err != nil {
			return err
		}
		agents, err := w.report(ctx)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.ended:
			return fmt.Errorf("watch: %w", err)
		case m := <-w.responses:
			if err := w.client.take(m.GetSignedBundle(), w.apply); err != nil {
				return err
			}
			w.answered, w.stated = true, nil
		case <-roots:
		case <-agents.changed:
		case <-agents.due:
		}
	}
}

// send sends a message. Its error is why the stream has ended, which comes after responses that nobody has taken yet.
func (w *watch) send(ctx context.Context, m *cav1.WatchBundleRequest) error {
	if w.stream.Send(m) == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.ended:
			return fmt.Errorf("watch: %w", err)
		case <-w.responses:
		}
	}
}

// state acknowledges the newest bundle once this process verifies with it.
func (w *watch) state(ctx context.Context) error {
	now := w.client.holds()
	if !w.answered || now == nil || now == w.stated {
		return nil
	}
	w.stated = now
	return w.send(ctx, acknowledging(now))
}

// acknowledging is a message that acknowledges a bundle; nil stands for none.
func acknowledging(b *trust.Verified) *cav1.WatchBundleRequest {
	if b == nil {
		return &cav1.WatchBundleRequest{}
	}
	return &cav1.WatchBundleRequest{AckedEpoch: b.GetEpoch(), AckedGeneration: b.GetGeneration()}
}

// events say when report must be called again; nil channels never fire.
type events struct {
	changed <-chan struct{}
	due     <-chan time.Time
}

// report tells the ca what agents have acknowledged, once the ca has answered: on each stream first everything, because
// the ca may have started anew, and then what changes.
func (w *watch) report(ctx context.Context) (again events, err error) {
	cfg := &w.client.cfg
	now := cfg.Clock.Now()
	if cfg.Agents == nil || !w.answered {
		return again, nil
	}
	if wait := w.client.reportsFrom.Sub(now); wait > 0 {
		return events{due: cfg.Clock.After(wait)}, nil
	}
	again.changed = cfg.Agents.Changed()
	if wait := w.next.Sub(now); wait > 0 {
		return events{due: cfg.Clock.After(wait)}, nil
	}
	messages := cfg.Agents.Take(!w.reported)
	w.reported = true
	for _, agents := range messages {
		m := acknowledging(w.stated)
		m.Agents = agents
		if err := w.send(ctx, m); err != nil {
			return again, err
		}
	}
	if len(messages) > 0 {
		w.next = now.Add(reportGap)
	}
	return again, nil
}
