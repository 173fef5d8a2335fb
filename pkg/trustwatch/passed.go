package trustwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/proto/fairlead/contract"
)

// PassedConfig is that of Passed. All fields but Registerer, Clock and Rand are required.
type PassedConfig struct {
	XDS discovery.AggregatedDiscoveryServiceClient
	// Node is the id by which the process is known to an xds-server, such as sidecar~~NAME.NAMESPACE~DOMAIN.
	Node string
	// Take adopts a fairlead.ca.v1.SignedBundle, which it verifies: an xds-server is believed nothing. InUse returns
	// once all that the process does with its roots is done with those of now; ctx ends when a newer bundle has come.
	Take  func(ctx context.Context, bundle *anypb.Any) error
	InUse func(ctx context.Context) error
	// Metrics begins the names of the metrics.
	Metrics    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Passed follows the trust bundle that an xds-server passes on, where the ca itself cannot be reached, and acknowledges
// it once it is in use, as an agent does.
type Passed struct {
	cfg     PassedConfig
	retries prometheus.Counter
}

// NewPassed checks the configuration; Run does the work.
func NewPassed(cfg PassedConfig) (*Passed, error) {
	if cfg.XDS == nil || cfg.Node == "" || cfg.Take == nil || cfg.InUse == nil || cfg.Log == nil {
		return nil, errors.New("trust: XDS, Node, Take, InUse and Log are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	return &Passed{cfg: cfg, retries: promauto.With(cfg.Registerer).NewCounter(prometheus.CounterOpts{
		Name: cfg.Metrics + "_trust_watch_failures_total", Help: "Watches of the trust bundle on xds-servers that have ended.",
	})}, nil
}

// Run follows, and opens the stream again after an error, until ctx ends.
func (p *Passed) Run(ctx context.Context) error {
	rpc.Reopener{Clock: p.cfg.Clock, Rand: p.cfg.Rand}.Run(ctx, p.follow, func(err error, pause time.Duration) {
		p.retries.Inc()
		p.cfg.Log.Warn("watch of the trust bundle on xds-server ended, the last one stays in use", "error", err, "retry_in", pause)
	})
	return nil
}

// follow serves one stream to its end.
func (p *Passed) follow(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.cfg.XDS.DeltaAggregatedResources(ctx)
	if err != nil {
		return false, fmt.Errorf("open watch: %w", err)
	}
	responses, ended := make(chan *discovery.DeltaDiscoveryResponse), make(chan error, 1)
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
	send := func(m *discovery.DeltaDiscoveryRequest) {
		m.TypeUrl = contract.SignedBundleType
		_ = stream.Send(m) // ended has the reason
	}
	send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: p.cfg.Node}})
	var used chan error // nil while no answer is outstanding
	nonce, stop := "", context.CancelFunc(func() {})
	answer := func(err error) {
		m := &discovery.DeltaDiscoveryRequest{ResponseNonce: nonce}
		if err != nil {
			m.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		}
		send(m)
	}
	for {
		select {
		case <-ctx.Done():
			stop()
			return answered, ctx.Err()
		case err := <-ended:
			stop()
			return answered, fmt.Errorf("watch: %w", err)
		case m := <-responses:
			if m.GetTypeUrl() != contract.SignedBundleType {
				continue // nobody asked for it
			}
			stop()
			answered, nonce, used = true, m.GetNonce(), nil
			if err := p.take(ctx, m); err != nil {
				answer(err)
				continue
			}
			var waiting context.Context
			waiting, stop = context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- p.cfg.InUse(waiting) }()
			used = done
		case err := <-used:
			used = nil
			answer(err)
		}
	}
}

// take adopts what a response has: one bundle, or none before the ca has sent one.
func (p *Passed) take(ctx context.Context, m *discovery.DeltaDiscoveryResponse) error {
	if n := len(m.GetResources()); n > 1 {
		return fmt.Errorf("%d trust bundles, want one", n)
	}
	for _, r := range m.GetResources() {
		if err := p.cfg.Take(ctx, r.GetResource()); err != nil {
			return err
		}
	}
	return nil
}
