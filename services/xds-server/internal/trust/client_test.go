package trust

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// service is a ca that sends what the test gives it, and records what is acknowledged.
type service struct {
	cav1.UnimplementedTrustServiceServer
	send chan *cav1.WatchBundleResponse

	mu    sync.Mutex
	acked []uint64
}

func (s *service) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	first, err := stream.Recv()
	if err != nil || first.GetSubscriber() == "" {
		return status.Error(codes.InvalidArgument, "no subscriber")
	}
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
}

// opened waits for the first message of the nth stream.
func (f *fixture) opened(n int) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.acked) < n {
			return errors.New("the stream is not open yet")
		}
		return nil
	})
}

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
}

func start(t *testing.T) *fixture {
	t.Helper()
	ca := testkit.PKI(t)
	f := &fixture{service: &service{send: make(chan *cav1.WatchBundleResponse)}, t: t, ca: ca, identity: ca.NewSVID("istio-system", "xds-server"),
		taken: make(chan *cav1.SignedBundle, 10)}
	own, err := ca.NewSVID("istio-system", "ca").Current()
	if err != nil {
		t.Fatal(err)
	}
	f.own = own
	c, err := NewClient(Config{
		CA:         cav1.NewTrustServiceClient(testkit.ServeInMemory(t, func(s *grpc.Server) { cav1.RegisterTrustServiceServer(s, f.service) })),
		Subscriber: "xds-server-1", Identity: f.identity, CAs: []string{ca.ID("istio-system", "ca").String()}, TrustDomain: testkit.TrustDomain,
		Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, func(ctx context.Context) error {
		return c.Run(ctx, func(b *cav1.SignedBundle) { f.taken <- b })
	})
	return f
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

	f.send <- nil // the ca ends; the next stream states what is acknowledged
	f.send <- f.signed(8, next)
	f.take()
	f.acknowledged(8)
}

func TestABundleThatTheCAHasNotSignedIsNotHandedOn(t *testing.T) {
	f := start(t)
	other := testkit.PKI(t)
	forged := f.signed(7)
	forged.SignedBundle.Bundle = f.signed(7, other).GetSignedBundle().GetBundle()
	f.send <- forged
	f.opened(2)
	f.send <- &cav1.WatchBundleResponse{Generation: 7} // of a ca of an earlier version
	good := f.signed(9)
	f.send <- good
	if got := f.take(); string(got.GetSignature()) != string(good.GetSignedBundle().GetSignature()) {
		t.Error("the forged bundle was handed on")
	}
}
