package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/agenttest"
)

// told are the types and error details of the requests of all delta streams, in order.
func (s *xdsServer) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.delta {
		what := "other"
		if r.GetTypeUrl() == HealthInformation {
			what = "well"
			if d := r.GetErrorDetail(); d != nil {
				what = d.GetMessage()
			}
		}
		out = append(out, what)
	}
	return strings.Join(out, " ")
}

// The xds-server is told the workload's health after Envoy's first request, when it changes, and on every new stream.
func TestHealthIsTold(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	source := f.PKI.NewSVID("shop", "web")
	r := New(Config{
		Addresses: []string{server.address}, Source: source, Registerer: prometheus.NewRegistry(), Log: testkit.Logger(t),
		TLS: tlsconf.Client(source, f.PKI.ID(contract.SystemNamespace, contract.XDSServerAccount)),
	})
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(agenttest.Socket(t, serviceName, r.Register,
		rpc.ServerConfig{MaxRecvBytes: MaxRequest}, ServerOptions()...))
	want := func(text string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if got := server.told(); got != text {
				return fmt.Errorf("the xds-server was told %q, want %q", got, text)
			}
			return nil
		})
	}
	first := f.open(client)
	if _, err := f.ask(first, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType}); err != nil {
		t.Fatal(err)
	}
	want("other") // nothing is known yet
	r.SetHealth(errors.New("refused"))
	want("other refused")
	r.SetHealth(nil)
	want("other refused well")
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType}); err != nil {
		t.Fatal(err)
	}
	want("other refused well other well")

	r.SetHealth(errors.New("gone"))
	stream, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: sotwType}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if !slices.ContainsFunc(server.sotwRequests(), func(r *discoveryv3.DiscoveryRequest) bool {
			return r.GetTypeUrl() == HealthInformation && r.GetErrorDetail().GetMessage() == "gone"
		}) {
			return errors.New("a state-of-the-world stream was not told")
		}
		return nil
	})
}
