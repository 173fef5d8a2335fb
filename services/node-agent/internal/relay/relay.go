// Package relay passes ADS streams of Envoy, and of gRPC programs that speak xDS
// themselves, on to an xds-server: from a unix socket, to which only the
// workload has access, to mutual TLS. Messages are forwarded as they are,
// without decoding. When an xds-server is lost the streams to it are ended too,
// so that Envoy opens another, says which versions it holds, and gets only what
// has changed since.
package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
)

const serviceName = "envoy.service.discovery.v3.AggregatedDiscoveryService"

// Methods of the service, as gRPC names them in full.
const (
	SotW  = "/" + serviceName + "/StreamAggregatedResources"
	Delta = "/" + serviceName + "/DeltaAggregatedResources"
)

// Limits. One message at a time is held per direction; flow control makes the
// sender wait, so they bound the relay's memory too.
const (
	// MaxRequest is the largest message from Envoy: the versions of everything
	// it holds.
	MaxRequest  = 16 << 20
	maxResponse = 64 << 20
	// maxStreams bounds the streams that are relayed or wait for an xds-server. Envoy has one, and a gRPC program one
	// per process; each has a connection to an xds-server of its own.
	maxStreams = 128
)

// holdStream is how long a stream of Envoy's is kept waiting for an xds-server
// before it is ended with the reason.
const holdStream = 10 * time.Second

// Config of a Relay. Addresses, Source, TLS, Log and Registerer are required.
type Config struct {
	// Addresses are host:port of the xds-servers; names are resolved for every
	// connection.
	Addresses []string
	// Source tells whether there is a certificate to authenticate with.
	Source tlsconf.Source
	// TLS is the client's, see tlsconf.Client.
	TLS *tls.Config
	// TokenFile authenticates while there is no certificate; optional.
	TokenFile  string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Own is what the agent wants for itself; optional.
	Own *Own
	// Keepalive is how long a silent xds-server is believed to be there; it
	// then has a third of that to answer a ping. Default 30 s, least 10 s.
	Keepalive time.Duration
	// Resolver is net.DefaultResolver unless a test needs another.
	Resolver interface {
		LookupHost(ctx context.Context, host string) ([]string, error)
	}
}

// Relay is the service; it is registered on a gRPC server made with
// ServerOptions. It is safe for concurrent use.
type Relay struct {
	addresses *addresses
	source    tlsconf.Source
	tls       *tls.Config
	tokenFile string
	log       *slog.Logger
	clock     clock.Clock
	metrics   *metrics
	hold      time.Duration
	keepalive time.Duration

	own *Own

	mu sync.Mutex
	// held is the version of Own's resource that was taken last.
	held map[string]string
	// unanswered counts the attempts and streams in a row that ended before
	// the xds-server had sent anything; lost is when an xds-server last ended a
	// stream that worked.
	unanswered int
	lost       time.Time

	active atomic.Int64
	// begun is active and those that are being connected.
	begun atomic.Int64
}

// New makes a Relay. It connects when Envoy does.
func New(c Config) (*Relay, error) {
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	var res resolver = net.DefaultResolver
	if c.Resolver != nil {
		res = c.Resolver
	}
	return &Relay{
		addresses: newAddresses(c.Addresses, res),
		source:    c.Source,
		tls:       c.TLS,
		tokenFile: c.TokenFile,
		log:       c.Log,
		clock:     clock.Or(c.Clock),
		metrics:   m,
		own:       c.Own,
		hold:      holdStream,
		keepalive: cmp.Or(c.Keepalive, 30*time.Second),
	}, nil
}

// ServerOptions are what a gRPC server needs to carry frames.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(newCodec())}
}

// Register adds the two ADS methods to s.
func (r *Relay) Register(s *grpc.Server) {
	handler := func(method string) grpc.StreamHandler {
		return func(_ any, down grpc.ServerStream) error { return r.relay(method, down) }
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "StreamAggregatedResources", Handler: handler(SotW), ServerStreams: true, ClientStreams: true},
			{StreamName: "DeltaAggregatedResources", Handler: handler(Delta), ServerStreams: true, ClientStreams: true},
		},
		Metadata: "envoy/service/discovery/v3/ads.proto",
	}, r)
}

// relay carries one stream of Envoy's from beginning to end.
func (r *Relay) relay(method string, down grpc.ServerStream) error {
	defer r.begun.Add(-1)
	if r.begun.Add(1) > maxStreams {
		return status.Errorf(codes.ResourceExhausted, "more than %d streams: use one for each process", maxStreams)
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := r.connect(ctx, method)
	if err != nil {
		return err
	}
	defer up.close()
	r.metrics.streams.Inc()
	r.active.Add(1)
	defer func() {
		r.metrics.streams.Dec()
		r.active.Add(-1)
	}()

	var server serverStream = up
	if r.own != nil && authority(down.Context()) == r.own.Authority {
		server = &guest{upstream: up, relay: r, delta: method == Delta}
	}
	fromEnvoy := make(chan error, 1)
	go func() {
		_, err := pump(server, down, r.metrics.requests)
		if errors.Is(err, io.EOF) {
			err = up.CloseSend()
		} else {
			cancel() // Envoy is gone, or the xds-server takes nothing more
		}
		fromEnvoy <- err
	}()

	answered, err := pump(down, server, r.metrics.responses)
	address, asked := up.address(), ""
	switch {
	case down.Context().Err() != nil:
		r.metrics.ends.WithLabelValues(endEnvoy).Inc()
		r.ended(true, false)
		return status.FromContextError(down.Context().Err()).Err()
	case status.Code(err) == codes.Canceled && ctx.Err() != nil:
		// What Envoy sent could not be taken, a message too large for one.
		r.metrics.ends.WithLabelValues(endEnvoy).Inc()
		r.ended(true, false)
		return <-fromEnvoy
	case errors.Is(err, io.EOF) && rpc.ReconnectAsked(up.Trailer()) != "":
		asked = rpc.ReconnectAsked(up.Trailer())
		err = status.Errorf(codes.Unavailable, "xds-server %s asks to reconnect: %s", address, asked)
	case errors.Is(err, io.EOF):
		err = status.Errorf(codes.Unavailable, "xds-server %s ended the stream", address)
	default:
		err = status.Errorf(status.Code(err), "xds-server %s: %s", address, status.Convert(err).Message())
	}
	r.metrics.ends.WithLabelValues(endServer).Inc()
	if asked != "" {
		r.log.Info("xds-server asks to reconnect", "address", address, "answered", answered, "reason", asked)
	} else {
		r.log.Warn("xds-server lost", "address", address, "answered", answered, "error", err)
	}
	if address != "" {
		r.addresses.markFailed(address, r.clock.Now())
	}
	r.ended(answered, answered)
	return err
}

// Active is the number of streams that are open now.
func (r *Relay) Active() int { return int(r.active.Load()) }

type receiver interface{ RecvMsg(any) error }
type sender interface{ SendMsg(any) error }
type serverStream interface {
	receiver
	sender
}

// pump forwards messages one by one until either side ends. It reports whether
// there were any; io.EOF means that from ended in order.
func pump(to sender, from receiver, count *counters) (any bool, err error) {
	for {
		f := &frame{}
		if err := from.RecvMsg(f); err != nil {
			return any, err
		}
		any = true
		count.messages.Inc()
		count.bytes.Add(float64(f.data.Len()))
		err := to.SendMsg(f)
		f.free()
		if errors.Is(err, io.EOF) {
			// gRPC's way to say that the receiving side has the error.
			return any, status.Error(codes.Unavailable, "the stream was closed")
		}
		if err != nil {
			return any, err
		}
	}
}

// ended notes how a stream or an attempt ended, for the pause before the next.
func (r *Relay) ended(answered, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answered {
		r.unanswered = 0
	} else {
		r.unanswered++
	}
	if lost {
		r.lost = r.clock.Now()
	}
}

// pause is how long to wait before the next attempt: nothing where no xds-server
// was lost a moment ago, as when a program starts beside others, and otherwise a random part of a time that doubles with every attempt in a row
// that failed, so that the proxies of a lost xds-server do not come at once.
func (r *Relay) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unanswered == 0 && (r.lost.IsZero() || r.clock.Now().Sub(r.lost) > lostPause) {
		return 0
	}
	limit := min(firstPause<<min(r.unanswered, 16), maxPause)
	return time.Duration(rand.Int64N(int64(limit)))
}
