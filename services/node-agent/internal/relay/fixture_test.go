package relay

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/agenttest"
)

// sotwType is a type for which a state-of-the-world stream sends one resource, once.
const sotwType = "type.googleapis.com/once"

// xdsServer is an xds-server that answers every request and records requests and callers.
type xdsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string
	stop    func()
	// resources are those of every delta response.
	resources []*discoveryv3.Resource
	// once is a type for which only the first request of a delta stream is answered.
	once string
	// asks is the reason given when a stream is asked to reconnect at its second request; "" asks none.
	asks string
	// refuse is a type that ends a state-of-the-world stream with PERMISSION_DENIED.
	refuse string
	// acks says that an ACK on a delta stream gets no response.
	acks atomic.Bool
	// mute answers nothing.
	mute atomic.Bool

	mu    sync.Mutex
	peers []auth.Peer
	delta []*discoveryv3.DeltaDiscoveryRequest
	sotw  []*discoveryv3.DiscoveryRequest
}

// sotwRequests are the requests of state-of-the-world streams.
func (s *xdsServer) sotwRequests() []*discoveryv3.DiscoveryRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sotw)
}

func (s *xdsServer) streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.peers)
}

func (s *xdsServer) opened(ctx context.Context) {
	p, _ := auth.PeerFrom(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = append(s.peers, p)
}

func (s *xdsServer) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s.opened(stream.Context())
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.sotw = append(s.sotw, req)
		s.mu.Unlock()
		if s.refuse != "" && req.GetTypeUrl() == s.refuse {
			return status.Error(codes.PermissionDenied, "debug types are for administrators")
		}
		if req.GetTypeUrl() == sotwType {
			if req.GetResponseNonce() == "" {
				err = stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: sotwType, Nonce: "n", Resources: []*anypb.Any{{Value: []byte("sotw")}}})
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: s.address}); err != nil {
			return err
		}
	}
}

func (s *xdsServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s.opened(stream.Context())
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.delta = append(s.delta, req)
		s.mu.Unlock()
		if s.mute.Load() || s.acks.Load() && req.GetResponseNonce() != "" {
			continue
		}
		if s.asks != "" && req.GetResponseNonce() != "" {
			return rpc.AskToReconnect(stream.Context(), s.asks)
		}
		if req.GetTypeUrl() == s.once && req.GetResponseNonce() != "" {
			continue
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: req.GetTypeUrl(), SystemVersionInfo: s.address, Resources: s.resources, Nonce: "n",
		}); err != nil {
			return err
		}
	}
}

// fixture is a CA and an issuer of tokens, from which a test starts xds-servers and relays.
type fixture struct {
	agenttest.ControlPlane
	t *testing.T
}

func newFixture(t *testing.T) *fixture {
	return &fixture{ControlPlane: agenttest.NewControlPlane(t), t: t}
}

// xds starts an xds-server at addr, or at a free address of loopback that nobody else uses after the server has
// stopped.
func (f *fixture) xds(addr string) *xdsServer {
	f.t.Helper()
	at := testkit.FreeAddress(f.t)
	if addr != "" {
		at = netip.MustParseAddrPort(addr)
	}
	lis := testkit.Listen(f.t, at)
	s := &xdsServer{address: lis.Addr().String()}
	s.stop = f.Serve(f.t, lis, "xds-server", serviceName, func(gs *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(gs, s)
	})
	return s
}

// relay starts a Relay, by default with the certificate of shop/web, and returns a connection to its socket.
func (f *fixture) relay(c Config) *grpc.ClientConn {
	f.t.Helper()
	_, conn := f.newRelay(c)
	return conn
}

func (f *fixture) newRelay(c Config) (*Relay, *grpc.ClientConn) {
	f.t.Helper()
	if c.Source == nil {
		c.Source = f.PKI.NewSVID("shop", "web")
	}
	c.TLS = tlsconf.Client(c.Source, f.PKI.ID(contract.SystemNamespace, contract.XDSServerAccount))
	c.Registerer = prometheus.NewRegistry()
	if c.Log == nil {
		c.Log = testkit.Logger(f.t)
	}
	r := New(c)
	return r, agenttest.Socket(f.t, serviceName, r.Register, rpc.ServerConfig{MaxRecvBytes: MaxRequest}, ServerOptions()...)
}

// open opens a delta stream that ends with the test, or after two minutes.
func (f *fixture) open(conn *grpc.ClientConn) *adstest.Delta {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	f.t.Cleanup(cancel)
	return testkit.Must(adstest.OpenDelta(ctx, conn, nil))(f.t)
}

// ask sends one request and returns the address of the server that answers.
func (f *fixture) ask(s *adstest.Delta, req *discoveryv3.DeltaDiscoveryRequest) (string, error) {
	f.t.Helper()
	if err := s.Send(req); err != nil {
		return "", err
	}
	resp, err := s.Recv()
	return resp.GetSystemVersionInfo(), err
}
