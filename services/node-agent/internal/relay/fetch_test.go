package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// fetcher is a Relay that nobody asks for streams.
func (w *world) fetcher(address string) *Relay {
	w.t.Helper()
	source := w.pki.NewSVID("shop", "web")
	r, err := New(Config{
		Addresses: []string{address}, Source: source, TLS: tlsconf.Client(source, w.pki.ID("istio-system", "xds-server")),
		Log: testkit.Logger(w.t), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

var fetching = &corev3.Node{Id: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local"}

// TestFetch: the one resource comes, and the xds-server has the answer to it before Fetch returns.
func TestFetch(t *testing.T) {
	for name, refusal := range map[string]error{"accepted": nil, "refused": errors.New("no good")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			server := w.xds("")
			var got string
			err := w.fetcher(server.address).Fetch(t.Context(), fetching, sotwType, func(a *anypb.Any) error {
				got = string(a.GetValue())
				return refusal
			})
			if !errors.Is(err, refusal) || got != "sotw" {
				t.Errorf("got %q, error %v, want sotw, %v", got, err, refusal)
			}
			asked := server.worldRequests()
			if len(asked) != 2 || asked[0].GetNode().GetId() != fetching.GetId() || asked[1].GetResponseNonce() != "n" ||
				strings.Contains(asked[1].GetErrorDetail().GetMessage(), "no good") != (refusal != nil) {
				t.Errorf("the xds-server was told %v", asked)
			}
		})
	}
}

// TestFetchWaits: nothing starts before there is an xds-server, unless the agent is to end.
func TestFetchWaits(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	server.stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := w.fetcher(server.address)
	r.hold = time.Millisecond // several times over
	go func() {
		done <- r.Fetch(ctx, fetching, sotwType, func(*anypb.Any) error { return nil })
	}()
	testkit.Eventually(t, 10*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.unanswered < 2 {
			return errors.New("not tried twice")
		}
		return nil
	})
	w.xds(server.address)
	if err := <-done; err != nil {
		t.Error(err)
	}

	server = w.xds("")
	server.stop()
	r = w.fetcher(server.address)
	go func() {
		done <- r.Fetch(ctx, fetching, sotwType, func(*anypb.Any) error { return nil })
	}()
	cancel()
	if err := <-done; err == nil {
		t.Error("no error, and no xds-server")
	}
}
