package relay

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/services/node-agent/internal/lastgood"
)

const (
	clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// keeper makes a LastGood on a file; stop ends it, which writes the file.
func (f *fixture) keeper(path string, source *testkit.Static) (last *LastGood, stop func()) {
	f.t.Helper()
	k := lastgood.New(lastgood.Config{
		Path: path, Source: source, Identity: "spiffe://cluster.local/ns/shop/sa/web", Node: "node", MaxAge: time.Hour,
		Log: testkit.Logger(f.t), Registerer: prometheus.NewRegistry(),
	})
	stop = testkit.Background(f.t, func(ctx context.Context) error { return k.Run(ctx) })
	return &LastGood{Keeper: k, Authority: "localhost", After: 100 * time.Millisecond}, stop
}

// accept asks for a type and acknowledges the response, from the xds-server or from what was kept, which it returns.
func accept(t *testing.T, s *adstest.Delta, url string, held map[string]string) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, InitialResourceVersions: held}); err != nil {
		t.Fatal(err)
	}
	resp, err := s.Recv()
	if err != nil || resp.GetTypeUrl() != url {
		t.Fatalf("asked for %s, got %v, %v", url, resp, err)
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: resp.GetNonce()}); err != nil {
		t.Fatal(err)
	}
	return resp
}

// kept is a fixture in which Envoy has accepted clusters and listeners from an xds-server, which has gone.
type kept struct {
	*fixture
	source  *testkit.Static
	path    string
	address string
}

// acceptAll accepts a whole configuration, and waits until the agent's keeper has it.
func acceptAll(t *testing.T, stream *adstest.Delta, last *LastGood) {
	t.Helper()
	accept(t, stream, clusters, nil)
	accept(t, stream, listeners, nil)
	testkit.Eventually(t, testkit.Patience, func() error {
		if !last.Complete() {
			return errors.New("not accepted yet")
		}
		return nil
	})
}

func keptConfiguration(t *testing.T) kept {
	f := newFixture(t)
	k := kept{fixture: f, source: f.PKI.NewSVID("shop", "web"), path: filepath.Join(t.TempDir(), "last-good")}
	server := f.xds("")
	k.address = server.address
	server.resources = []*discoveryv3.Resource{{Name: "a", Version: "7", Resource: &anypb.Any{Value: []byte("one")}}}
	server.acks.Store(true)
	last, stop := f.keeper(k.path, k.source)
	client := f.relay(Config{Addresses: []string{server.address}, Source: k.source, LastGood: last})
	stream := f.open(client)
	acceptAll(t, stream, last)
	server.stop()
	stop()
	return k
}

// restart starts another relay, as the agent does that follows.
func (k kept) restart(c Config) *grpc.ClientConn {
	c.LastGood, _ = k.keeper(k.path, k.source)
	c.Addresses, c.Source = []string{k.address}, k.source
	return k.relay(c)
}

func TestEnvoyIsAnsweredFromWhatItAcceptedUntilAServerIsBack(t *testing.T) {
	k := keptConfiguration(t)
	client := k.restart(Config{})
	stream := k.open(client)
	got := accept(t, stream, clusters, nil)
	if r := got.GetResources(); len(r) != 1 || r[0].GetName() != "a" || r[0].GetVersion() != "7" ||
		string(r[0].GetResource().GetValue()) != "one" {
		t.Errorf("clusters: %v", got)
	}
	accept(t, stream, listeners, nil)

	server := k.xds(k.address)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "answers again") {
		t.Errorf("the stream ends with %v", err)
	}
	// Envoy connects again and says what it holds.
	held := map[string]string{"a": "7"}
	stream = k.open(client)
	if got, err := k.ask(stream, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusters, InitialResourceVersions: held}); err != nil ||
		got != server.address {
		t.Errorf("%q, %v", got, err)
	}
	requests := server.requestsOf(clusters)
	if last := requests[len(requests)-1]; !maps.Equal(last.GetInitialResourceVersions(), held) {
		t.Errorf("the xds-server is told %v", last.GetInitialResourceVersions())
	}
}

// An Envoy that holds configuration needs no other: it waits, as it does without a kept one.
func TestEnvoyThatHoldsConfigurationIsNotAnswered(t *testing.T) {
	k := keptConfiguration(t)
	client := k.restart(Config{})
	stream := k.open(client)
	accept(t, stream, clusters, nil)
	accept(t, stream, listeners, nil)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	stream = k.open(client)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusters,
		InitialResourceVersions: map[string]string{"a": "7"}}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no xds-server reached") {
		t.Errorf("got %v, %v, want the end of the wait", resp, err)
	}
}

// An xds-server that takes the stream and does not answer is no server. That it answers is what counts.
func TestServerThatIsSilentIsStoodInFor(t *testing.T) {
	k := keptConfiguration(t)
	server := k.xds(k.address)
	server.mute.Store(true)
	client := k.restart(Config{})
	stream := k.open(client)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusters}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("a silent server answered")
	}
	stream = k.open(client)
	if got := accept(t, stream, clusters, nil); len(got.GetResources()) != 1 {
		t.Errorf("clusters: %v", got)
	}
}

func TestOtherClientsGetNothingThatEnvoyAccepted(t *testing.T) {
	k := keptConfiguration(t)
	last, _ := k.keeper(k.path, k.source)
	last.Authority = "xds-grpc"
	stream := k.open(k.relay(Config{Addresses: []string{k.address}, Source: k.source, LastGood: last}))
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusters}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, %v", resp, err)
	}
}

// What the agent asks for itself is taken from what was kept, too.
func TestAgentResourceIsKept(t *testing.T) {
	for name, set := range map[string]func(*Config, *AgentResource){
		"the first type": func(c *Config, a *AgentResource) { c.AgentResource = a },
		"a further type": func(c *Config, a *AgentResource) { c.MoreResources = []*AgentResource{a} },
	} {
		t.Run(name, func(t *testing.T) { testAgentResourceIsKept(t, set) })
	}
}

func testAgentResourceIsKept(t *testing.T, set func(*Config, *AgentResource)) {
	f := newFixture(t)
	source, path := f.PKI.NewSVID("shop", "web"), filepath.Join(t.TempDir(), "last-good")
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "a", Version: "7", Resource: &anypb.Any{TypeUrl: agentType, Value: []byte("one")}}}
	server.acks.Store(true)
	var first, second taken
	last, stop := f.keeper(path, source)
	c := Config{Addresses: []string{server.address}, Source: source, LastGood: last}
	set(&c, &AgentResource{TypeURL: agentType, Authority: "localhost", Take: first.take})
	stream := f.open(f.relay(c))
	accept(t, stream, clusters, nil)
	accept(t, stream, listeners, nil)
	testkit.Eventually(t, testkit.Patience, func() error {
		if len(first.all()) == 0 || !last.Complete() {
			return errors.New("not accepted yet")
		}
		return nil
	})
	server.stop()
	stop()

	c.LastGood, _ = f.keeper(path, source)
	set(&c, &AgentResource{TypeURL: agentType, Authority: "localhost", Take: second.take})
	client := f.relay(c)
	stream = f.open(client)
	accept(t, stream, clusters, nil)
	if got := second.all(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("took %q", got)
	}
	server = f.xds(server.address)
	server.acks.Store(true)
	if _, err := stream.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
	accept(t, f.open(client), clusters, map[string]string{"a": "7"})
	testkit.Eventually(t, testkit.Patience, func() error {
		requests := server.requestsOf(agentType)
		if len(requests) == 0 {
			return errors.New("not asked")
		}
		if held := requests[0].GetInitialResourceVersions(); held["a"] != "7" {
			t.Errorf("the xds-server is told %v", held)
		}
		return nil
	})
}

func TestFetchTakesWhatWasKept(t *testing.T) {
	f := newFixture(t)
	source, path := f.PKI.NewSVID("shop", "web"), filepath.Join(t.TempDir(), "last-good")
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "a", Version: "7", Resource: &anypb.Any{Value: []byte("one")}}}
	server.acks.Store(true)
	last, stop := f.keeper(path, source)
	var first, second taken
	r, client := f.newRelay(Config{Addresses: []string{server.address}, Source: source, LastGood: last})
	if err := r.Fetch(t.Context(), nil, sotwType, first.take); err != nil {
		t.Fatal(err)
	}
	stream := f.open(client)
	acceptAll(t, stream, last)
	server.stop()
	stop()
	last, _ = f.keeper(path, source)
	r, _ = f.newRelay(Config{Addresses: []string{server.address}, Source: source, LastGood: last})
	if err := r.Fetch(t.Context(), nil, sotwType, second.take); err != nil || !slices.Equal(second.all(), first.all()) ||
		len(first.all()) != 1 {
		t.Errorf("took %q and %q, %v", first.all(), second.all(), err)
	}
}
