package sds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// envoy is a client's side of a stream of either variant: it asks for names, and answers what it received last.
type envoy struct {
	ask     func(names ...string)
	receive func() string
	answer  func(problem string)
	stop    context.CancelFunc
}

func problemOf(text string) *statuspb.Status {
	if text == "" {
		return nil
	}
	return &statuspb.Status{Message: text}
}

func (f *fixture) sotw(t *testing.T) envoy {
	ctx, stop := context.WithCancel(f.ctx(t))
	stream := testkit.Must(f.client.StreamSecrets(ctx))(t)
	last, asked := &discoveryv3.DiscoveryResponse{}, []string(nil)
	return envoy{
		ask: func(names ...string) {
			asked = names
			testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: names, ResponseNonce: last.GetNonce()}))
		},
		receive: func() string { last = testkit.Must(stream.Recv())(t); return last.GetNonce() },
		answer: func(problem string) {
			testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: asked, ResponseNonce: last.GetNonce(),
				ErrorDetail: problemOf(problem)}))
		},
		stop: stop,
	}
}

func (f *fixture) delta(t *testing.T) envoy {
	ctx, stop := context.WithCancel(f.ctx(t))
	stream := testkit.Must(f.client.DeltaSecrets(ctx))(t)
	last := &discoveryv3.DeltaDiscoveryResponse{}
	return envoy{
		ask: func(names ...string) {
			testkit.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names}))
		},
		receive: func() string { last = testkit.Must(stream.Recv())(t); return last.GetNonce() },
		answer: func(problem string) {
			testkit.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: last.GetNonce(), ErrorDetail: problemOf(problem)}))
		},
		stop: stop,
	}
}

// inUse is RootsInUse while it is called; wait returns what it returned.
func (f *fixture) inUse(t *testing.T) (wait func() error, waits func()) {
	ended := make(chan error, 1)
	go func() { ended <- f.server.RootsInUse(f.ctx(t)) }()
	return func() error {
			select {
			case err := <-ended:
				return err
			case <-time.After(testkit.Patience):
				return errors.New("still waits")
			}
		}, func() {
			t.Helper()
			time.Sleep(50 * time.Millisecond)
			if len(ended) > 0 {
				t.Fatalf("waits no more: %v", <-ended)
			}
		}
}

// subscribed waits until the server has seen n streams ask for ROOTCA.
func (f *fixture) subscribed(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		f.server.roots.mu.Lock()
		defer f.server.roots.mu.Unlock()
		have := 0
		for s := range f.server.roots.streams {
			if s.subscribed {
				have++
			}
		}
		if have != n {
			return fmt.Errorf("%d streams", have)
		}
		return nil
	})
}

func TestRootsAreInUseWhenEnvoyHasAcknowledgedThem(t *testing.T) {
	for name, open := range map[string]func(*fixture, *testing.T) envoy{"state of the world": (*fixture).sotw, "delta": (*fixture).delta} {
		t.Run(name, func(t *testing.T) {
			ca, next, third := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
			f := newFixture(t, current(t, ca.NewSVID("shop", "web")), ca)
			if err := f.server.RootsInUse(f.ctx(t)); err != nil {
				t.Fatalf("nobody has asked for them: %v", err)
			}
			keys := open(f, t) // Envoy has a stream for each secret
			keys.ask(Default)
			keys.receive()
			if err := f.server.RootsInUse(f.ctx(t)); err != nil {
				t.Fatalf("nobody has asked for roots: %v", err)
			}
			e := open(f, t)
			e.ask(RootCA)
			f.subscribed(t, 1)
			wait, waits := f.inUse(t)
			e.receive()
			waits()
			e.answer("")
			testkit.NoError(t, wait())
			testkit.NoError(t, f.server.RootsInUse(f.ctx(t)))

			second := open(f, t) // another cluster of Envoy's
			second.ask(RootCA)
			f.subscribed(t, 2)
			second.receive()
			second.answer("")
			f.source.Set(rooted(t, current(t, f.source), next))
			wait, waits = f.inUse(t)
			e.receive()
			second.receive()
			e.answer("")
			waits()
			second.answer("no")
			if err := wait(); err == nil || !strings.Contains(err.Error(), "refuses the roots: no") {
				t.Errorf("got %v, want Envoy's reason", err)
			}
			f.source.Set(rooted(t, current(t, f.source), third))
			wait, waits = f.inUse(t)
			e.receive()
			second.receive()
			second.answer("")
			waits()
			e.stop() // its Envoy is gone
			testkit.NoError(t, wait())
		})
	}
}

// An answer to a response before the last one acknowledges nothing, and a client that has stated what it holds need
// not.
func TestOldAnswersAcknowledgeNothing(t *testing.T) {
	s := (&rootStreams{}).begin()
	s.ask(true)
	s.push("1", "a")
	s.push("2", "b")
	s.answer("1", nil)
	if used, err := s.of.use("b"); used || err != nil {
		t.Errorf("%v %v after an old answer", used, err)
	}
	s.answer("2", nil)
	for version, want := range map[string]bool{"a": false, "b": true} {
		if used, err := s.of.use(version); used != want || err != nil {
			t.Errorf("%s: %v %v", version, used, err)
		}
	}
	other := s.of.begin()
	other.ask(true)
	other.holds("b")
	if used, err := s.of.use("b"); !used || err != nil {
		t.Errorf("%v %v with what is held", used, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server := New(Config{Source: testkit.PKI(t).RootsOnly(), Log: testkit.Logger(t)})
	server.roots.begin().ask(true)
	if err := server.RootsInUse(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// rooted is m with the roots of another authority.
func rooted(t *testing.T, m *tlsconf.Material, ca *testkit.CA) *tlsconf.Material {
	t.Helper()
	return testkit.Must(tlsconf.NewMaterial(m.CertPEM, m.KeyPEM, ca.RootPEM))(t)
}
