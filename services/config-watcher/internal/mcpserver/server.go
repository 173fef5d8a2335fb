package mcpserver

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// pace is the shortest time between two lists of a kind on one stream. What changes meanwhile is in the next.
	pace = 100 * time.Millisecond
	// maxTypes bounds the types that a stream may ask for, maxTypeBytes the name of one.
	maxTypes     = 128
	maxTypeBytes = 256
)

// Config of a Server. All fields are required.
type Config struct {
	Table *Table
	// Ready reports whether there is a revision: before that, what is missing may not have been read yet.
	Ready func() bool
	// Stop ends all streams, so that clients move to another replica before this one stops.
	Stop <-chan struct{}
	// Registerer gets the metrics.
	Registerer prometheus.Registerer
	Log        *slog.Logger
	Clock      clock.Clock
}

// Server implements Envoy's AggregatedDiscoveryService for Istio's objects.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	cfg     Config
	metrics metrics
}

// NewServer makes a server.
func NewServer(cfg Config) *Server { return &Server{cfg: cfg, metrics: newMetrics(cfg.Registerer)} }

// stream is what both protocols have of one stream.
type stream struct {
	*Server
	log            *slog.Logger
	protocol, node string
	nonce          uint64
}

// begin refuses a stream for which it is too early, and logs it otherwise.
func (s *Server) begin(ctx context.Context, protocol string) (*stream, error) {
	if !s.cfg.Ready() {
		s.metrics.early.Inc()
		return nil, status.Error(codes.Unavailable, "not every source has synced yet")
	}
	caller, _ := auth.PeerFrom(ctx)
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	log := s.cfg.Log.With("client", caller.ID.String(), "address", address, "protocol", protocol)
	log.Info("client of MCP has joined")
	s.metrics.clients.WithLabelValues(protocol).Inc()
	return &stream{Server: s, log: log, protocol: protocol}, nil
}

// leave counts the end of a stream.
func (st *stream) leave() { st.metrics.clients.WithLabelValues(st.protocol).Dec() }

// kindOf is the label of a type in metrics.
func kindOf(k *kinds.Kind) string {
	if k == nil {
		return unknownKind
	}
	return k.Name
}

// named takes over what the client says of itself, for the log alone.
func (st *stream) named(n *core.Node) {
	if n != nil && st.node == "" {
		st.node = object.Cut(n.GetId(), maxTypeBytes)
	}
}

func (st *stream) nextNonce() string {
	st.nonce++
	return strconv.FormatUint(st.nonce, 10)
}

// admit refuses a request for one type too many.
func admit(url string, types int) error {
	switch {
	case url == "" || len(url) > maxTypeBytes:
		return status.Errorf(codes.InvalidArgument, "type_url has %d bytes; ask for a type such as networking.istio.io/v1/ServiceEntry", len(url))
	case types > maxTypes:
		return status.Errorf(codes.ResourceExhausted, "more than %d types on one stream", maxTypes)
	}
	return nil
}

// rejected logs that a client has refused a list.
func (st *stream) rejected(url, reason string) {
	st.metrics.rejected.WithLabelValues(kindOf(mcp.ParseURL(url))).Inc()
	st.log.Warn("client of MCP rejects a list", "node", st.node, "type", object.Cut(url, maxTypeBytes), "reason", object.Cut(reason, 1024))
}

// due is when the next list may be sent; zero if all are up to date.
type due struct{ at time.Time }

// later takes one more time into account.
func (d *due) later(at time.Time) {
	if d.at.IsZero() || at.Before(d.at) {
		d.at = at
	}
}

// follow sends and takes requests until the stream ends. flush sends what has changed, and tells when there is more.
func follow[Request any](ctx context.Context, st *stream, requests <-chan rpc.Received[Request], flush func() (due, error),
	take func(*Request) error) error {
	timer := st.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := st.cfg.Table.Changed()
		next, err := flush()
		if err != nil {
			return err
		}
		timer.Stop()
		if !next.at.IsZero() {
			timer.Reset(max(next.at.Sub(st.cfg.Clock.Now()), 0))
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-st.cfg.Stop:
			st.metrics.stopped.Inc()
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-changed:
		case <-timer.C():
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			if err := take(r.Message); err != nil {
				st.metrics.hostile.Inc()
				return err
			}
		}
	}
}
