package relay

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/proto/fairlead/contract"
)

// callers are the names of those that opened streams, in order, as "method/service account".
func (s *xdsServer) callers() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		all = append(all, p.Method+p.ID.Path()[strings.LastIndex(p.ID.Path(), "/"):])
	}
	return all
}

// A new certificate or token ends no stream; the next one uses it. The new credentials of this test are another
// account's, by which the xds-server tells them apart.
func TestRotationEndsNoStream(t *testing.T) {
	for _, token := range []bool{false, true} {
		t.Run(fmt.Sprintf("token %v", token), func(t *testing.T) {
			f := newFixture(t)
			server := f.xds("")
			c := Config{Addresses: []string{server.address}, Source: f.PKI.NewSVID("shop", "old")}
			want := []string{"mtls/old", "mtls/new"}
			rotate := func() {
				m, err := f.PKI.NewSVID("shop", "new").Current()
				if err != nil {
					t.Fatal(err)
				}
				c.Source.(*testkit.Static).Set(m)
			}
			if token {
				want = []string{"jwt/old", "jwt/new"}
				c.Source, c.TokenFile = f.PKI.RootsOnly(), f.Issuer.TokenFile("shop", "old", contract.TokenAudience)
				rotate = func() {
					content, err := os.ReadFile(f.Issuer.TokenFile("shop", "new", contract.TokenAudience))
					if err != nil {
						t.Fatal(err)
					}
					testkit.WriteFile(t, c.TokenFile, content)
				}
			}
			client := f.relay(c)
			stream := f.open(client)
			for i := range 6 {
				if i == 3 {
					rotate()
				}
				if _, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
			}
			if n := server.streams(); n != 1 {
				t.Errorf("%d streams after the rotation, want the first alone", n)
			}
			if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
				t.Fatal(err)
			}
			if got := server.callers(); !slices.Equal(got, want) {
				t.Errorf("streams of %v, want %v", got, want)
			}
		})
	}
}

// An xds-server that takes connections and never answers is passed by, at the cost of one attempt at most.
func TestServerThatNeverAnswersIsPassedBy(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	dead := testkit.LoopbackListener(t) // the kernel completes handshakes of TCP, and nobody reads
	client := f.relay(Config{Addresses: []string{dead.Addr().String(), server.address}})
	began := time.Now()
	for range 3 {
		if got, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil || got != server.address {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if took := time.Since(began); took > testkit.Patience {
		t.Errorf("took %s", took)
	}
}

// A request for a debug type, as istioctl sends it, passes unchanged on a stream of its own. That it is refused is no
// reason to avoid the xds-server: the next stream connects to it at once.
func TestDebugTypesPassAndTheirRefusalIsNoLoss(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.refuse = "istio.io/debug/config_dump"
	clock := testkit.NewClock(time.Now()) // stands still, so a stream that waits for a back-off waits for ever
	client := f.relay(Config{Addresses: []string{server.address}, Clock: clock})
	ask := func(url string) (*discoveryv3.DiscoveryResponse, error) {
		stream := testkit.Must(adstest.OpenSotw(t.Context(), client, nil))(t)
		testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: []string{"x"}}))
		return stream.Recv()
	}
	if resp, err := ask("istio.io/debug/syncz"); err != nil || resp.GetTypeUrl() != "istio.io/debug/syncz" {
		t.Errorf("%v, %v", resp, err)
	}
	for range 3 {
		if _, err := ask(server.refuse); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "for administrators") {
			t.Errorf("%v, want the xds-server's refusal", err)
		}
	}
	if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Error(err)
	}
}
