// Package trust is the client of ca's TrustService: it watches the trust bundle of the mesh, verifies that the ca has
// signed it, and hands it on, so that agents get it on their streams. xds-server can hold a bundle back and cannot
// change one: agents verify the signature, too.
package trust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// Config of a Client. All fields but Clock and Rand are required.
type Config struct {
	CA cav1.TrustServiceClient
	// Subscriber names this process; it is unique for each run.
	Subscriber string
	// Identity has the roots that this process verifies with.
	Identity tlsconf.Source
	// CAs are the SPIFFE IDs that the ca may have.
	CAs         []string
	TrustDomain string
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	Clock       clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Client watches the bundle. It keeps the newest, also while the ca is away.
type Client struct {
	cfg        Config
	retries    prometheus.Counter
	generation prometheus.Gauge
	last       *trust.Verified
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
			Name: "fairlead_xds_server_trust_watch_failures_total", Help: "Watches of the trust bundle on ca that have ended.",
		}),
		generation: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_xds_server_trust_bundle_generation", Help: "Generation of the trust bundle that agents are sent; 0 before the first.",
		}),
	}, nil
}

// Run watches, and opens the watch again after an error, until ctx ends. It calls apply with each newer bundle, and
// with the same one when the ca has signed it anew.
func (c *Client) Run(ctx context.Context, apply func(*cav1.SignedBundle)) error {
	rpc.Reopener{Clock: c.cfg.Clock, Rand: c.cfg.Rand}.Run(ctx, func(ctx context.Context) (bool, error) {
		return c.watch(ctx, apply)
	}, func(err error, pause time.Duration) {
		c.retries.Inc()
		c.cfg.Log.Warn("watch of the trust bundle on ca ended, the last one stays in use", "error", err, "retry_in", pause)
	})
	return nil
}

// watch runs one stream; answered is true if a bundle has arrived.
func (c *Client) watch(ctx context.Context, apply func(*cav1.SignedBundle)) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.cfg.CA.WatchBundle(ctx)
	if err != nil {
		return false, fmt.Errorf("open watch: %w", err)
	}
	responses := make(chan *cav1.WatchBundleResponse)
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case responses <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	// What was acknowledged on an earlier stream is stated on the first message of this one.
	acked := c.holds()
	if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: c.cfg.Subscriber, AckedGeneration: acked}); err != nil {
		return false, fmt.Errorf("watch: %w", <-ended)
	}
	for {
		changed := c.cfg.Identity.Changed()
		if now := c.holds(); answered && now > acked {
			acked = now
			if err := stream.Send(&cav1.WatchBundleRequest{AckedGeneration: acked}); err != nil {
				return answered, fmt.Errorf("watch: %w", <-ended)
			}
		}
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case err := <-ended:
			return answered, fmt.Errorf("watch: %w", err)
		case m := <-responses:
			answered = true
			if err := c.take(m.GetSignedBundle(), apply); err != nil {
				return answered, err
			}
		case <-changed:
		}
	}
}

// take verifies a bundle and hands it on. A ca of an earlier version sends none.
func (c *Client) take(signed *cav1.SignedBundle, apply func(*cav1.SignedBundle)) error {
	if signed == nil {
		return nil
	}
	material, err := c.cfg.Identity.Current()
	if err != nil {
		return err
	}
	receiver := trust.Receiver{Roots: material.Roots, CAs: c.cfg.CAs, TrustDomain: c.cfg.TrustDomain, Now: c.cfg.Clock.Now()}
	verified, err := receiver.Verify(signed)
	if err != nil {
		return err
	}
	c.last = verified
	c.generation.Set(float64(verified.GetGeneration()))
	apply(signed)
	return nil
}

// holds is the generation of the newest bundle if this process verifies with all of its roots, else 0.
func (c *Client) holds() uint64 {
	if c.last == nil {
		return 0
	}
	material, err := c.cfg.Identity.Current()
	if err != nil {
		return 0
	}
	own, err := tlsconf.ParseCertificates(material.RootsPEM)
	if err != nil {
		return 0
	}
	for _, root := range c.last.Roots {
		if !slices.ContainsFunc(own, root.Equal) {
			return 0
		}
	}
	return c.last.GetGeneration()
}
