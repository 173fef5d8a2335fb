// Package relay is the agent's xDS proxy: it forwards the ADS streams of Envoy and of proxyless gRPC clients from a
// unix socket, which only the workload may open, to an xds-server by mutual TLS. Messages are forwarded as bytes,
// without decoding. When an xds-server ends a stream, the relay ends Envoy's stream too. Envoy then opens another one,
// states the versions that it holds, and receives only what has changed; the relay takes the next xds-server for it,
// after a back-off.
//
// Package app calls New, and Register for the gRPC server of the socket. On Envoy's stream the relay also asks for one
// resource of its own (AgentResource), the name table of the DNS proxy. Fetch asks for one before Envoy runs.
package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
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

// Full names of the two ADS methods.
const (
	SotW  = "/" + serviceName + "/StreamAggregatedResources"
	Delta = "/" + serviceName + "/DeltaAggregatedResources"
)

// Limits. The relay holds one message per direction and stream, and flow control makes the sender wait, so these limits
// bound its memory too.
const (
	// MaxRequest is the largest message from Envoy. The largest ones have the versions of all resources that Envoy
	// holds.
	MaxRequest  = 16 << 20
	maxResponse = 64 << 20
	// maxStreams bounds the streams that are forwarded or wait for an xds-server. Envoy has one, a proxyless gRPC
	// client one per process. Each has its own connection to an xds-server.
	maxStreams = 128
)

// holdStream is how long a stream of Envoy waits for an xds-server before the relay ends it with the reason.
const holdStream = 10 * time.Second

// Config of a Relay. Addresses, Source, TLS, Log and Registerer are required.
type Config struct {
	// Addresses are host:port of the xds-servers. Names are resolved anew for every connection.
	Addresses []string
	// Source holds the workload's certificate, if it has one already.
	Source tlsconf.Source
	// TLS is the client's configuration of the same Source, see tlsconf.Client.
	TLS *tls.Config
	// TokenFile authenticates while there is no certificate; optional.
	TokenFile  string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// AgentResource is what the agent asks for on Envoy's stream; optional.
	AgentResource *AgentResource
	// LastGood answers Envoy while no xds-server does; optional.
	LastGood *LastGood
	// MoreResources are of further types.
	MoreResources []*AgentResource
	// Keepalive is how long a connection may be silent before the relay pings the xds-server, which then has a third of
	// that to answer. Default 30 s, least 10 s.
	Keepalive time.Duration
	// Resolver is net.DefaultResolver unless a test needs another.
	Resolver interface {
		LookupHost(ctx context.Context, host string) ([]string, error)
	}
}

// Relay is the xDS proxy. Its gRPC server must be made with ServerOptions. It is safe for concurrent use.
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

	agentResource *AgentResource
	lastGood      *LastGood
	health        health
	moreResources []*AgentResource

	mu sync.Mutex
	// held are the versions of AgentResource, and of MoreResources, that were taken last, by type and name.
	held map[string]map[string]string
	// unanswered counts the attempts and streams in a row that ended before the xds-server had sent a message; lost is
	// when an xds-server last ended a stream on which it had.
	unanswered int
	lost       time.Time

	// silent says that Envoy, which holds nothing, had a stream to an xds-server that did not answer.
	silent atomic.Bool
	active atomic.Int64
	// begun counts the active streams and those that are being connected.
	begun atomic.Int64
}

// New makes a Relay. It connects to an xds-server when Envoy opens a stream.
func New(c Config) *Relay {
	return &Relay{
		addresses:     newAddresses(c.Addresses, cmp.Or[resolver](c.Resolver, net.DefaultResolver)),
		source:        c.Source,
		tls:           c.TLS,
		tokenFile:     c.TokenFile,
		log:           c.Log,
		clock:         clock.Or(c.Clock),
		metrics:       newMetrics(c.Registerer),
		agentResource: c.AgentResource,
		lastGood:      c.LastGood,
		moreResources: c.MoreResources,
		hold:          holdStream,
		keepalive:     cmp.Or(c.Keepalive, 30*time.Second),
	}
}

// writeBuffer is how much is written to Envoy's socket at a time; gRPC's own 32 KiB cost more system calls. Connections
// share the buffers, so idle ones have none.
const writeBuffer = 128 << 10

// ServerOptions are the options of a gRPC server that forwards messages as bytes.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(newCodec()), grpc.WriteBufferSize(writeBuffer)}
}

// Register adds the two ADS methods to s.
func (r *Relay) Register(s *grpc.Server) {
	handler := func(method string) grpc.StreamHandler {
		return func(_ any, down grpc.ServerStream) error { return r.forward(method, down) }
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

// forward serves one stream: it connects to an xds-server and copies messages both ways until one side ends.
func (r *Relay) forward(method string, down grpc.ServerStream) error {
	defer r.begun.Add(-1)
	if r.begun.Add(1) > maxStreams {
		return status.Errorf(codes.ResourceExhausted, "more than %d streams: use one for each process", maxStreams)
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	if r.follows(down) {
		e, err := r.follow(method, down)
		if err != nil {
			return err
		}
		if e.holdsNothing() {
			return r.forwardOrStandIn(ctx, cancel, method, e)
		}
		down = e
	}
	up, err := r.connect(ctx, method, r.hold)
	if err != nil {
		return err
	}
	return r.copy(ctx, cancel, method, down, up)
}

// copy copies messages both ways between a client and an xds-server until one side ends. cancel ends ctx.
func (r *Relay) copy(ctx context.Context, cancel func(), method string, down grpc.ServerStream, up *xdsStream) error {
	defer up.close()
	r.metrics.streams.Inc()
	r.active.Add(1)
	defer func() {
		r.metrics.streams.Dec()
		r.active.Add(-1)
	}()

	if _, ok := down.(*envoyStream); ok {
		defer r.lastGood.Live()()
	}
	var server messageStream = up
	if method == Delta {
		server = extensionKeeper{server}
	}
	for _, a := range r.agentResources() {
		if a.on(authority(down.Context())) {
			server = &agentStream{messageStream: server, relay: r, resource: a, delta: method == Delta, ctx: ctx}
		}
	}
	told := r.withHealth(ctx, server, method == Delta)
	server = told
	fromEnvoy := make(chan error, 1)
	requests := &debugWatch{receiver: down}
	go func() {
		_, err := pump(server, requests, r.metrics.requests)
		if errors.Is(err, io.EOF) {
			err = told.closeSend(up)
		} else {
			cancel() // Envoy is gone, or the xds-server reads no more
		}
		fromEnvoy <- err
	}()

	answered, err := pump(down, server, r.metrics.responses)
	address, asked := up.address(), ""
	switch {
	case down.Context().Err() != nil:
		r.metrics.ends.WithLabelValues(endEnvoy).Inc()
		r.noteClientEnd()
		return status.FromContextError(down.Context().Err()).Err()
	case status.Code(err) == codes.Canceled && ctx.Err() != nil:
		// The relay rejected what Envoy sent, for example a message that is too large.
		r.metrics.ends.WithLabelValues(endEnvoy).Inc()
		r.noteClientEnd()
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
	if requests.debug.Load() {
		// Its end says nothing about the xds-server, so other streams go on as before.
		r.log.Info("debug stream ended", "address", address, "reason", err)
		r.noteClientEnd()
		return err
	}
	if asked != "" {
		r.log.Info("xds-server asks to reconnect", "address", address, "answered", answered, "reason", asked)
	} else {
		r.log.Warn("xds-server lost", "address", address, "answered", answered, "error", err)
	}
	if address != "" {
		r.addresses.markFailed(address, r.clock.Now())
	}
	if answered {
		r.noteServerLoss()
	} else {
		r.noteFailedAttempt()
	}
	return err
}

// Active is the number of streams that are connected to an xds-server now. The drain of an agent without Envoy polls
// it.
func (r *Relay) Active() int { return int(r.active.Load()) }

type receiver interface{ RecvMsg(any) error }
type sender interface{ SendMsg(any) error }
type messageStream interface {
	receiver
	sender
}

// debugType begins the types by which istioctl asks about other proxies. A stream either asks for these or is a
// proxy's.
const debugType = "istio.io/debug"

// debugWatch looks whether a stream's first request is for a debug type.
type debugWatch struct {
	receiver
	looked bool
	debug  atomic.Bool
}

func (w *debugWatch) RecvMsg(m any) error {
	err := w.receiver.RecvMsg(m)
	if err == nil && !w.looked {
		w.looked = true
		w.debug.Store(isDebug(m))
	}
	return err
}

// isDebug reports whether a client's message is a request for a debug type.
func isDebug(m any) bool {
	f, ok := m.(*frame)
	return ok && strings.HasPrefix(typeURL(f.data), debugType) // the field's number is that of responses
}

// pump copies messages one by one until either side ends. It reports whether there were any; the error io.EOF means
// that from ended without an error.
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
			// After io.EOF from SendMsg, RecvMsg of the other direction returns the error itself.
			return any, status.Error(codes.Unavailable, "the stream was closed")
		}
		if err != nil {
			return any, err
		}
	}
}
