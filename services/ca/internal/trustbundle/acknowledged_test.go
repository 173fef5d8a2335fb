package trustbundle

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// acknowledged records what Acknowledgements is told.
type acknowledged struct {
	mu  sync.Mutex
	got []string
}

func (a *acknowledged) Acked(epoch, generation uint64, fingerprints [][16]byte, podUIDs []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range fingerprints {
		a.got = append(a.got, fmt.Sprintf("%d/%d %x", epoch, generation, f[:2]))
	}
	for _, uid := range podUIDs {
		a.got = append(a.got, fmt.Sprintf("%d/%d %s", epoch, generation, uid))
	}
}

func (a *acknowledged) want(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !slices.Equal(a.got, want) {
			return fmt.Errorf("told %q, want %q", a.got, want)
		}
		return nil
	})
}

// authenticated serves with a caller.
type authenticated struct {
	cav1.TrustServiceServer
	caller func(context.Context) context.Context
}

func (a authenticated) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	return a.TrustServiceServer.WatchBundle(contextual{stream, a.caller(stream.Context())})
}

type contextual struct {
	cav1.TrustService_WatchBundleServer
	ctx context.Context //nolint:containedctx // that of the stream
}

func (c contextual) Context() context.Context { return c.ctx }

// byToken is a caller with a token that is bound to a Pod.
func byToken(account, uid string) func(context.Context) context.Context {
	return func(ctx context.Context) context.Context {
		id, err := auth.WorkloadID(spiffeid.RequireTrustDomainFromString(testkit.TrustDomain), "istio-system", account)
		if err != nil {
			panic(err) // the test's own text
		}
		return auth.NewContext(ctx, auth.Peer{ID: id, Method: auth.MethodJWT, Token: &auth.Token{PodUID: uid}})
	}
}

// reporting is a server in generation 3 of epoch 1.
type reporting struct {
	acknowledged
	t         *testing.T
	publisher *Publisher
	watches   *Watches
	clock     *testkit.Clock
	server    *Server
}

const forwarder = "spiffe://cluster.local/ns/istio-system/sa/xds-server"

func newReporting(t *testing.T) *reporting {
	t.Helper()
	pki := testkit.PKI(t)
	r := &reporting{t: t, publisher: NewPublisher("cluster.local", counter()), watches: NewWatches(10), clock: testkit.NewClock(time.Now())}
	r.publisher.current = &Bundle{TrustDomain: "cluster.local", Epoch: 1, Generation: 3, Roots: []string{string(pki.RootPEM)}}
	r.server = NewServer(ServerConfig{
		Publisher: r.publisher, Signed: NewSignatures(pki.NewSVID("istio-system", "ca"), r.clock), Watches: r.watches, Forwarder: forwarder,
		Acknowledgements: r, Clock: r.clock, Random: func() float64 { return 0 },
	})
	return r
}

// open opens a stream, sends the first message and receives the bundle.
func (r *reporting) open(caller func(context.Context) context.Context, first *cav1.WatchBundleRequest) cav1.TrustService_WatchBundleClient {
	r.t.Helper()
	client := cav1.NewTrustServiceClient(testkit.ServeInMemory(r.t, func(s *grpc.Server) {
		cav1.RegisterTrustServiceServer(s, authenticated{r.server, caller})
	}))
	stream, err := client.WatchBundle(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Send(&cav1.WatchBundleRequest{
		Subscriber: "a", AckedEpoch: first.GetAckedEpoch(), AckedGeneration: first.GetAckedGeneration(),
	}); err != nil {
		r.t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	if m.GetEpoch() != 1 || m.GetGeneration() != 3 {
		r.t.Fatalf("generation %d of epoch %d, want 3 of 1", m.GetGeneration(), m.GetEpoch())
	}
	return stream
}

func (r *reporting) send(stream cav1.TrustService_WatchBundleClient, m *cav1.WatchBundleRequest) {
	r.t.Helper()
	if err := stream.Send(m); err != nil {
		r.t.Fatal(err)
	}
}

func print(first, second byte) []byte { return append([]byte{first, second}, make([]byte, 14)...) }

func TestAgentsAreRecorded(t *testing.T) {
	r := newReporting(t)
	stream := r.open(byToken("xds-server", "uid-x"), &cav1.WatchBundleRequest{})
	r.send(stream, &cav1.WatchBundleRequest{AckedEpoch: 1, AckedGeneration: 3, Agents: []*cav1.AgentAcknowledgement{
		{Epoch: 1, Generation: 3, Certificates: [][]byte{print(0xa, 1), print(0xb, 2)}, PodUids: []string{"uid-1"}},
		{Epoch: 1, Generation: 2, PodUids: []string{"uid-2"}},
	}})
	want := []string{"1/3 0a01", "1/3 0b02", "1/3 uid-1", "1/2 uid-2", "1/3 uid-x"}
	r.want(t, want...)

	// The next message is read when the time of the first is over.
	r.send(stream, &cav1.WatchBundleRequest{Agents: []*cav1.AgentAcknowledgement{{Epoch: 1, Generation: 3, PodUids: []string{"uid-3"}}}})
	r.clock.WaitFor(t, 1)
	r.clock.Advance(4*perAgent - 1)
	r.want(t, want...)
	r.clock.Advance(1)
	r.want(t, append(want, "1/3 uid-3")...)
}

func TestReportsAreRefused(t *testing.T) {
	many := func(n int) (all [][]byte) {
		for range n {
			all = append(all, print(1, 1))
		}
		return all
	}
	certificates := func(of ...[]byte) *cav1.AgentAcknowledgement {
		return &cav1.AgentAcknowledgement{Epoch: 1, Generation: 3, Certificates: of}
	}
	pod := func(epoch, generation uint64, uid string) *cav1.AgentAcknowledgement {
		return &cav1.AgentAcknowledgement{Epoch: epoch, Generation: generation, PodUids: []string{uid}}
	}
	type agents = []*cav1.AgentAcknowledgement
	for name, tc := range map[string]struct {
		account string
		agents  agents
		code    codes.Code
		want    string
	}{
		"another caller":      {"config-watcher", agents{pod(1, 3, "uid")}, codes.PermissionDenied, "--forwarder"},
		"short fingerprint":   {"xds-server", agents{certificates([]byte{1})}, 0, "agents[0].certificates[0] has 1 bytes"},
		"long fingerprint":    {"xds-server", agents{certificates(), certificates(make([]byte, 32))}, 0, "agents[1].certificates[0] has 32 bytes"},
		"empty UID":           {"xds-server", agents{pod(1, 3, "")}, 0, "pod_uids[0] has 0 bytes"},
		"long UID":            {"xds-server", agents{pod(1, 3, strings.Repeat("x", 65))}, 0, "has 65 bytes"},
		"no generation":       {"xds-server", agents{pod(1, 0, "uid")}, 0, "generation 0 of epoch 1"},
		"a later generation":  {"xds-server", agents{pod(1, 4, "uid")}, 0, "the newest is 3 of epoch 1"},
		"a later epoch":       {"xds-server", agents{pod(2, 1, "uid")}, 0, "the newest is 3 of epoch 1"},
		"too many agents":     {"xds-server", agents{certificates(many(501)...)}, 0, "more than 500"},
		"too many altogether": {"xds-server", agents{certificates(many(300)...), certificates(many(201)...)}, 0, "more than 500"},
		"too many elements":   {"xds-server", slices.Repeat(agents{certificates()}, 501), 0, "501 elements"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReporting(t)
			stream := r.open(byToken(tc.account, ""), &cav1.WatchBundleRequest{})
			r.send(stream, &cav1.WatchBundleRequest{Agents: tc.agents})
			_, err := stream.Recv()
			if tc.code == 0 {
				tc.code = codes.InvalidArgument
			}
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
				t.Errorf("got %v, want %v with %q", err, tc.code, tc.want)
			}
			r.want(t)
		})
	}
}

func TestTheFirstMessageHasNoAgents(t *testing.T) {
	r := newReporting(t)
	client := cav1.NewTrustServiceClient(testkit.ServeInMemory(t, func(s *grpc.Server) {
		cav1.RegisterTrustServiceServer(s, authenticated{r.server, byToken("xds-server", "uid")})
	}))
	stream, err := client.WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.send(stream, &cav1.WatchBundleRequest{Subscriber: "a", Agents: []*cav1.AgentAcknowledgement{{Epoch: 1, Generation: 3}}})
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want INVALID_ARGUMENT", err)
	}
}

// A caller's own acknowledgement is recorded by how he has shown who he is, each once.
func TestCallersAreRecorded(t *testing.T) {
	leaf := &x509.Certificate{Raw: []byte("leaf")}
	sum := sha256.Sum256(leaf.Raw)
	byCertificate := func(ctx context.Context) context.Context {
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}},
		}}})
		return auth.NewContext(ctx, auth.Peer{Method: auth.MethodMTLS})
	}
	anonymous := func(ctx context.Context) context.Context { return ctx }
	pod := byToken("injector", "uid")
	acks := func(epoch, generation uint64) *cav1.WatchBundleRequest {
		return &cav1.WatchBundleRequest{AckedEpoch: epoch, AckedGeneration: generation}
	}
	none := acks(0, 0)
	for name, tc := range map[string]struct {
		caller      func(context.Context) context.Context
		first, then *cav1.WatchBundleRequest
		want        []string
		behind      bool
	}{
		"certificate":         {byCertificate, none, acks(1, 3), []string{fmt.Sprintf("1/3 %x", sum[:2])}, false},
		"Pod":                 {pod, none, acks(1, 3), []string{"1/3 uid"}, false},
		"without an epoch":    {pod, none, acks(0, 3), []string{"1/3 uid"}, false},
		"first message":       {pod, acks(1, 3), nil, []string{"1/3 uid"}, false},
		"first and again":     {pod, acks(1, 2), acks(1, 3), []string{"1/2 uid", "1/3 uid"}, false},
		"of a later ca":       {pod, acks(2, 1), nil, nil, true},
		"of an older bundle":  {pod, none, acks(1, 1), []string{"1/1 uid"}, true},
		"token without a Pod": {byToken("injector", ""), none, acks(1, 3), nil, false},
		"nobody":              {anonymous, none, acks(1, 3), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReporting(t)
			stream := r.open(tc.caller, tc.first)
			for range 2 { // the second has no effect
				if tc.then != nil {
					r.send(stream, tc.then)
				}
			}
			r.want(t, tc.want...)
			bundle, _ := r.publisher.Current()
			testkit.Eventually(t, testkit.Patience, func() error {
				if _, behind := r.watches.Behind(bundle); len(behind) > 0 != tc.behind {
					return fmt.Errorf("behind are %v, want some: %t", behind, tc.behind)
				}
				return nil
			})
		})
	}
}

func TestAnAcknowledgementOfWhatWasNotSentEndsTheStream(t *testing.T) {
	r := newReporting(t)
	stream := r.open(byToken("injector", "uid"), &cav1.WatchBundleRequest{})
	r.send(stream, &cav1.WatchBundleRequest{AckedEpoch: 2, AckedGeneration: 1})
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want INVALID_ARGUMENT", err)
	}
	r.want(t)
}
