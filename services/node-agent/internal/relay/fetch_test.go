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
	"fairlead.dev/proto/fairlead/contract"
)

// fetcher is a Relay without a socket.
func (f *fixture) fetcher(address string) *Relay {
	f.t.Helper()
	source := f.PKI.NewSVID("shop", "web")
	return New(Config{
		Addresses: []string{address}, Source: source, TLS: tlsconf.Client(source, f.PKI.ID(contract.SystemNamespace, contract.XDSServerAccount)),
		Log: testkit.Logger(f.t), Registerer: prometheus.NewRegistry(),
	})
}

var fetching = &corev3.Node{Id: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local"}

// The xds-server has the ACK or NACK before Fetch returns.
func TestFetch(t *testing.T) {
	for name, rejection := range map[string]error{"accepted": nil, "rejected": errors.New("no good")} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			server := f.xds("")
			var got string
			err := f.fetcher(server.address).Fetch(t.Context(), fetching, sotwType, func(a *anypb.Any) error {
				got = string(a.GetValue())
				return rejection
			})
			if !errors.Is(err, rejection) || got != "sotw" {
				t.Errorf("got %q, error %v, want sotw, %v", got, err, rejection)
			}
			asked := server.sotwRequests()
			if len(asked) != 2 || asked[0].GetNode().GetId() != fetching.GetId() || asked[1].GetResponseNonce() != "n" ||
				strings.Contains(asked[1].GetErrorDetail().GetMessage(), "no good") != (rejection != nil) {
				t.Errorf("the xds-server was told %v", asked)
			}
		})
	}
}

func TestFetchWaitsForAServerUntilItsContextEnds(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := f.fetcher(server.address)
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
	f.xds(server.address)
	if err := <-done; err != nil {
		t.Error(err)
	}

	server = f.xds("")
	server.stop()
	r = f.fetcher(server.address)
	go func() {
		done <- r.Fetch(ctx, fetching, sotwType, func(*anypb.Any) error { return nil })
	}()
	cancel()
	if err := <-done; err == nil {
		t.Error("no error, and no xds-server")
	}
}
