package app_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/agenttest"
	"fairlead.dev/services/node-agent/internal/config"
)

// mesh is a small real control plane: a CA that signs for whoever proves who
// they are, and xds-servers that serve one snapshot.
type mesh struct {
	agenttest.ControlPlane
	t     *testing.T
	cache cache.SnapshotCache
	// pushed are the ProxyConfigs that xds-servers send agents.
	pushed *cache.LinearCache
	// bundles has the signed trust bundle that they send agents.
	bundles *cache.LinearCache
	// old says that xds-servers do not know this type.
	old bool
	// configure changes the configuration of the agents that start from then on; nil leaves it.
	configure func(*config.Config)
}

// everyNode gives all proxies the same snapshot.
type everyNode struct{}

func (everyNode) ID(*corev3.Node) string { return "all" }

func newMesh(t *testing.T) *mesh {
	return &mesh{
		ControlPlane: agenttest.NewControlPlane(t),
		t:            t,
		cache:        cache.NewSnapshotCache(true, everyNode{}, nil),
		pushed:       cache.NewLinearCache(contract.ProxyConfigType),
		bundles:      cache.NewLinearCache(contract.SignedBundleType),
	}
}

// set makes the snapshot of all proxies.
func (m *mesh) set(version string, clusters, listeners []types.Resource) {
	m.t.Helper()
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.ClusterType:  clusters,
		resource.ListenerType: listeners,
	})
	if err == nil {
		err = m.cache.SetSnapshot(context.Background(), "all", snapshot)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// serve starts a gRPC server with the identity of a service account of
// istio-system, on addr or a free port. stop kills it like a crash would.
func (m *mesh) serve(account, addr string, service string, register func(*grpc.Server)) (string, func()) {
	m.t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		m.t.Fatal(err)
	}
	return lis.Addr().String(), m.Serve(m.t, lis, account, service, register)
}

// ca starts the certificate authority; ttl is what it grants.
func (m *mesh) ca(addr string, ttl time.Duration) (string, func()) {
	return m.serve("ca", addr, "istio.v1.auth.IstioCertificateService", func(s *grpc.Server) {
		securityv1alpha1.RegisterIstioCertificateServiceServer(s, &signer{pki: m.PKI, ttl: ttl})
	})
}

// xds starts an xds-server and returns its address and a count of streams.
func (m *mesh) xds(addr string) (string, *streams, func()) {
	seen := &streams{}
	all := &cache.MuxCache{
		Classify:      func(r *cache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{contract.ProxyConfigType: m.pushed, contract.SignedBundleType: m.bundles, resource.ClusterType: m.cache,
			resource.ListenerType: m.cache},
	}
	if m.old {
		all.Caches[contract.SignedBundleType] = silence{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	at, stop := m.serve("xds-server", addr, "envoy.service.discovery.v3.AggregatedDiscoveryService", func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, serverv3.NewServer(ctx, all, seen.callbacks()))
	})
	return at, seen, stop
}

type signer struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	pki *testkit.CA
	ttl time.Duration
}

func (s *signer) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (
	*securityv1alpha1.IstioCertificateResponse, error) {
	peer, ok := auth.PeerFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "who are you?")
	}
	block, _ := pem.Decode([]byte(req.GetCsr()))
	if block == nil {
		return nil, status.Error(codes.InvalidArgument, "no CSR")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	now := time.Now()
	leaf := s.pki.Sign(peer.ID, csr.PublicKey, testkit.Valid(now.Add(-time.Minute), now.Add(s.ttl)))
	return &securityv1alpha1.IstioCertificateResponse{CertChain: []string{string(leaf), string(s.pki.RootPEM)}}, nil
}

// streams records what reached an xds-server.
type streams struct {
	mu     sync.Mutex
	opened int
	// held counts the versions that the first requests of delta streams named.
	held  int
	nodes []string
	nacks []string
	// asked and acked count the requests for each type, and those of them that acknowledge.
	asked, acked map[string]int
}

// ofType are the counts for a type.
func (s *streams) ofType(typeURL string) (asked, acked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[typeURL], s.acked[typeURL]
}

func (s *streams) count(typeURL string, acknowledges bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked, s.acked = map[string]int{}, map[string]int{}
	}
	s.asked[typeURL]++
	if acknowledges {
		s.acked[typeURL]++
	}
}

func (s *streams) get() (opened, held int, nacks []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, s.held, append([]string(nil), s.nacks...)
}

func (s *streams) callbacks() serverv3.Callbacks {
	open := func(context.Context, int64, string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.opened++
		return nil
	}
	return serverv3.CallbackFuncs{
		StreamOpenFunc:      open,
		DeltaStreamOpenFunc: open,
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			s.note(r.GetNode(), 0, r.GetErrorDetail().GetMessage())
			s.count(r.GetTypeUrl(), r.GetResponseNonce() != "" && r.GetErrorDetail() == nil)
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			s.note(r.GetNode(), len(r.GetInitialResourceVersions()), r.GetErrorDetail().GetMessage())
			s.count(r.GetTypeUrl(), r.GetResponseNonce() != "" && r.GetErrorDetail() == nil)
			return nil
		},
	}
}

func (s *streams) note(n *corev3.Node, held int, nack string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += held
	if n.GetId() != "" {
		s.nodes = append(s.nodes, n.GetId())
	}
	if nack != "" {
		s.nacks = append(s.nacks, nack)
	}
}
