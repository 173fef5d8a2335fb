package trustwatch

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// service is a ca that sends what the test gives it, and records what is acknowledged.
type service struct {
	cav1.UnimplementedTrustServiceServer
	send chan *cav1.WatchBundleResponse

	mu      sync.Mutex
	streams int
	acked   []uint64
	// reports are the messages with agents.
	reports []*cav1.WatchBundleRequest
}

func (s *service) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	first, err := stream.Recv()
	if err != nil || first.GetSubscriber() == "" {
		return status.Error(codes.InvalidArgument, "no subscriber")
	}
	s.mu.Lock()
	s.streams++
	s.mu.Unlock()
	s.note(first)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			s.note(m)
		}
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case m := <-s.send:
			if m == nil {
				return status.Error(codes.Unavailable, "the ca ends")
			}
			if m.GetTrustDomain() == refusal {
				return status.Error(codes.PermissionDenied, "not the forwarder")
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

func (s *service) note(m *cav1.WatchBundleRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = append(s.acked, m.GetAckedGeneration())
	if len(m.GetAgents()) > 0 {
		s.reports = append(s.reports, m)
	}
}

// refusal is the trust domain of a message that ends the stream as a ca does that takes no reports.
const refusal = "refusal"

func (s *service) lastAck() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.acked) == 0 {
		return 0
	}
	return s.acked[len(s.acked)-1]
}

// fixture is a running Client.
type fixture struct {
	*service
	t        *testing.T
	ca       *testkit.CA
	own      *tlsconf.Material
	identity *testkit.Static
	taken    chan *cav1.SignedBundle
	clock    *testkit.Clock
}

func start(t *testing.T) *fixture {
	t.Helper()
	return startReporting(t, nil)
}

// startReporting is start with agents.
func startReporting(t *testing.T, agents Agents) *fixture {
	t.Helper()
	ca := testkit.PKI(t)
	f := &fixture{service: &service{send: make(chan *cav1.WatchBundleResponse)}, t: t, ca: ca, identity: ca.NewSVID("istio-system", "xds-server"),
		taken: make(chan *cav1.SignedBundle, 10), clock: testkit.NewClock(time.Now())}
	own, err := ca.NewSVID("istio-system", "ca").Current()
	if err != nil {
		t.Fatal(err)
	}
	f.own = own
	c, err := NewClient(Config{
		Metrics:    "test",
		CA:         cav1.NewTrustServiceClient(testkit.ServeInMemory(t, func(s *grpc.Server) { cav1.RegisterTrustServiceServer(s, f.service) })),
		Subscriber: "xds-server-1", Identity: f.identity, CAs: []string{ca.ID("istio-system", "ca").String()}, TrustDomain: testkit.TrustDomain,
		Agents: agents, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Clock: f.clock, Rand: func() float64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, func(ctx context.Context) error {
		return c.Run(ctx, func(_ *trust.Verified, b *cav1.SignedBundle) { f.taken <- b })
	})
	return f
}

// endStream has the ca end the stream, and waits for the next one.
func (f *fixture) endStream() {
	f.t.Helper()
	f.end(nil)
}

// end sends what ends the stream, and waits for the next one.
func (f *fixture) end(with *cav1.WatchBundleResponse) {
	f.t.Helper()
	f.send <- with
	f.mu.Lock()
	before := f.streams
	f.mu.Unlock()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.clock.Advance(time.Second) // the client pauses before the next stream
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams == before {
			return errors.New("no other stream is opened")
		}
		return nil
	})
}

// signed is a generation with the mesh's root and others.
func (f *fixture) signed(generation uint64, others ...*testkit.CA) *cav1.WatchBundleResponse {
	f.t.Helper()
	b := &cav1.TrustBundle{TrustDomain: testkit.TrustDomain, Generation: generation, RootCertificates: [][]byte{f.ca.Cert.Raw}}
	for _, o := range others {
		b.RootCertificates = append(b.RootCertificates, o.Cert.Raw)
	}
	s, err := trust.Sign(b, f.own.Certificate)
	if err != nil {
		f.t.Fatal(err)
	}
	return &cav1.WatchBundleResponse{Generation: generation, SignedBundle: s}
}

func (f *fixture) take() *cav1.SignedBundle {
	f.t.Helper()
	select {
	case b := <-f.taken:
		return b
	case <-time.After(testkit.Patience):
		f.t.Fatal("no bundle was handed on")
		return nil
	}
}

func (f *fixture) acknowledged(want uint64) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		if got := f.lastAck(); got != want {
			return errors.New("not acknowledged")
		}
		return nil
	})
}

func TestABundleIsHandedOnAndAcknowledgedOnceItsRootsAreThere(t *testing.T) {
	f := start(t)
	first := f.signed(7)
	f.send <- first
	if got := f.take(); string(got.GetSignature()) != string(first.GetSignedBundle().GetSignature()) {
		t.Error("another bundle than the ca's")
	}
	f.acknowledged(7)

	next := testkit.PKI(t)
	f.send <- f.signed(8, next)
	f.take() // agents get it at once, whatever this process verifies with
	f.send <- f.signed(8, next)
	f.take() // the client has come around once more
	if got := f.lastAck(); got != 7 {
		t.Errorf("generation %d is acknowledged, and its root is not here yet", got)
	}
	material, err := f.identity.Current()
	if err != nil {
		t.Fatal(err)
	}
	both := *material
	both.RootsPEM = append(append([]byte{}, material.RootsPEM...), next.RootPEM...)
	if both.Roots, err = tlsconf.ParseRoots(both.RootsPEM); err != nil {
		t.Fatal(err)
	}
	f.identity.Set(&both)
	f.acknowledged(8)

	f.endStream() // the next stream states what is acknowledged
	f.send <- f.signed(8, next)
	f.take()
	f.acknowledged(8)
}

func TestABundleThatTheCAHasNotSignedIsNotHandedOn(t *testing.T) {
	f := start(t)
	other := testkit.PKI(t)
	forged := f.signed(7)
	forged.SignedBundle.Bundle = f.signed(7, other).GetSignedBundle().GetBundle()
	f.end(forged)
	f.send <- &cav1.WatchBundleResponse{Generation: 7} // of a ca of an earlier version
	good := f.signed(9)
	f.send <- good
	if got := f.take(); string(got.GetSignature()) != string(good.GetSignedBundle().GetSignature()) {
		t.Error("the forged bundle was handed on")
	}
}

// A replica of the ca may be behind the one that was asked before; what is older is not handed on, and the next stream
// is tried.
func TestAnOlderBundleIsNotHandedOn(t *testing.T) {
	f := start(t)
	f.send <- f.signed(7)
	f.take()
	f.acknowledged(7)
	f.end(f.signed(6))
	f.send <- f.signed(7)
	f.take()
	f.send <- f.signed(8)
	if b := f.take(); generationOf(t, b) != 8 {
		t.Errorf("generation %d is handed on, want 8", generationOf(t, b))
	}
}

func generationOf(t *testing.T, b *cav1.SignedBundle) uint64 {
	t.Helper()
	text := &cav1.TrustBundle{}
	if err := proto.Unmarshal(b.GetBundle(), text); err != nil {
		t.Fatal(err)
	}
	return text.GetGeneration()
}

// lost is a stream that has ended after a response which nobody has taken.
type lost struct {
	cav1.TrustService_WatchBundleClient

	received int
}

func (*lost) Send(*cav1.WatchBundleRequest) error { return io.EOF }

func (s *lost) Recv() (*cav1.WatchBundleResponse, error) {
	if s.received++; s.received == 1 {
		return &cav1.WatchBundleResponse{}, nil
	}
	return nil, status.Error(codes.Unavailable, "the ca was killed")
}

// lostCA is a ca whose stream is lost at once.
type lostCA struct{ cav1.TrustServiceClient }

func (lostCA) WatchBundle(context.Context, ...grpc.CallOption) (cav1.TrustService_WatchBundleClient, error) {
	return &lost{}, nil
}

func TestAStreamThatEndsBehindAResponseIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{cfg: Config{CA: lostCA{}, Subscriber: "test"}}
		w := &watch{client: c}
		if err := w.run(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}
