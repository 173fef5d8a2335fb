package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
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
	r, client := f.newRelay(Config{Addresses: []string{server.address}})
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
	testkit.NoError(t, first.CloseSend())
	if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType}); err != nil {
		t.Fatal(err)
	}
	want("other refused well other well")

	r.SetHealth(errors.New("gone"))
	stream := testkit.Must(adstest.OpenSotw(t.Context(), client, nil))(t)
	testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: sotwType}))
	testkit.Eventually(t, testkit.Patience, func() error {
		if !slices.ContainsFunc(server.sotwRequests(), func(r *discoveryv3.DiscoveryRequest) bool {
			return r.GetTypeUrl() == HealthInformation && r.GetErrorDetail().GetMessage() == "gone"
		}) {
			return errors.New("a state-of-the-world stream was not told")
		}
		return nil
	})
}
