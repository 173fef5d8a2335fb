package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/proto/fairlead/contract"
)

// The request has an unknown field, which decoding and encoding could lose.
func TestForwardsMessagesUnchanged(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	stream := f.open(f.relay(Config{Addresses: []string{server.address}}))
	req := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl:                 "type.googleapis.com/envoy.config.cluster.v3.Cluster",
		InitialResourceVersions: map[string]string{"outbound|80||a": "1", "outbound|80||b": "2"},
	}
	req.ProtoReflect().SetUnknown([]byte{0xfa, 0x7f, 3, 'n', 'e', 'w'}) // field 2047
	answered, err := f.ask(stream, req)
	if err != nil || answered != server.address {
		t.Fatalf("answer of %q, %v", answered, err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.delta) != 1 || !proto.Equal(server.delta[0], req) {
		t.Errorf("arrived %v, sent %v", server.delta, req)
	}
	if id := server.peers[0]; id.Method != "mtls" || id.ID != f.PKI.ID("shop", "web") {
		t.Errorf("xds-server sees %v", id)
	}
}

// Without an AgentResource, Envoy gets the name table that it asks for.
func TestForwardsNameTablesWithoutAnAgentResource(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	const nameTable = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	content := []byte("\n\x05\n\x03web") // "web", without addresses
	server.resources = []*discoveryv3.Resource{{Name: "nametable", Version: "1", Resource: &anypb.Any{TypeUrl: nameTable, Value: content}}}
	stream := f.open(f.relay(Config{Addresses: []string{server.address}}))
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTable, InitialResourceVersions: map[string]string{"nametable": "0"}}
	testkit.NoError(t, stream.Send(req))
	resp := testkit.Must(stream.Recv())(t)
	if resp.GetTypeUrl() != nameTable || len(resp.GetResources()) != 1 || !proto.Equal(resp.GetResources()[0], server.resources[0]) {
		t.Errorf("received %v", resp)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.delta) != 1 || !proto.Equal(server.delta[0], req) {
		t.Errorf("arrived %v, sent %v", server.delta, req)
	}
}

func TestForwardsSotW(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	client := f.relay(Config{Addresses: []string{server.address}})
	stream := testkit.Must(adstest.OpenSotw(t.Context(), client, nil))(t)
	for _, url := range []string{"a", "b", "c"} {
		testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: url}))
		if resp, err := stream.Recv(); err != nil || resp.GetTypeUrl() != url {
			t.Fatalf("asked for %q, got %v, %v", url, resp, err)
		}
	}
}

// The loss of an xds-server ends the stream; the next stream is connected to the other one within a second.
func TestFailsOverToAnotherServer(t *testing.T) {
	testkit.Quick(t, time.Second, func() time.Duration {
		f := newFixture(t)
		servers := map[string]*xdsServer{}
		for range 2 {
			s := f.xds("")
			servers[s.address] = s
		}
		client := f.relay(Config{Addresses: slices.Collect(maps.Keys(servers))})
		stream := f.open(client)
		first, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		lost := time.Now()
		servers[first].stop()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), first) {
			t.Errorf("stream ended with %v, want Unavailable and the address", err)
		}
		second, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{})
		if err != nil || second == first {
			t.Fatalf("answer of %q, %v; lost was %q", second, err, first)
		}
		return time.Since(lost)
	})
}

// The stream ends with the xds-server's reason, and the next one is connected to the other xds-server.
func TestReconnectRequestEndsTheStreamWithoutAWarning(t *testing.T) {
	f := newFixture(t)
	servers := map[string]*xdsServer{}
	for range 2 {
		s := f.xds("")
		s.asks = "more proxies than the others"
		servers[s.address] = s
	}
	var log testkit.Buffer
	client := f.relay(Config{Addresses: slices.Collect(maps.Keys(servers)), Log: slog.New(slog.NewTextHandler(&log, nil))})
	stream := f.open(client)
	first, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	testkit.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "n"}))
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), first+" asks to reconnect: more proxies") {
		t.Errorf("stream ended with %v, want Unavailable with address and reason", err)
	}
	if second, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil || second == first {
		t.Errorf("answer of %q, %v; asked to leave %q", second, err, first)
	}
	if text := log.String(); strings.Contains(text, "level=WARN") || !strings.Contains(text, "asks to reconnect") {
		t.Errorf("logged: %s", text)
	}
}

func TestStreamWaitsForAServer(t *testing.T) {
	f := newFixture(t)
	gone := f.xds("")
	gone.stop()
	stream := f.open(f.relay(Config{Addresses: []string{gone.address}}))
	testkit.NoError(t, stream.Subscribe(""))
	f.xds(gone.address)
	if resp, err := stream.Recv(); err != nil || resp.GetSystemVersionInfo() != gone.address {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestStreamEndsWithTheReasonAfterHoldStream(t *testing.T) {
	f := newFixture(t)
	gone := f.xds("")
	gone.stop()
	clock := testkit.NewClock(time.Now())
	stream := f.open(f.relay(Config{Addresses: []string{gone.address}, Clock: clock}))
	clock.WaitFor(t, 3) // hold, certificate grace, back-off
	clock.Advance(holdStream)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want Unavailable and the reason", err)
	}
}

func TestTokenAuthenticatesBeforeTheFirstCertificate(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	client := f.relay(Config{
		Addresses: []string{server.address},
		Source:    f.PKI.RootsOnly(),
		TokenFile: f.Issuer.TokenFile("shop", "web", contract.TokenAudience),
	})
	if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	if p := server.peers[0]; p.Method != "jwt" || p.ID != f.PKI.ID("shop", "web") {
		t.Errorf("xds-server sees %v", p)
	}
}

func TestWithoutATokenTheStreamWaitsForACertificate(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	source := f.PKI.RootsOnly()
	clock := testkit.NewClock(time.Now())
	stream := f.open(f.relay(Config{Addresses: []string{server.address}, Source: source, Clock: clock}))
	testkit.NoError(t, stream.Subscribe(""))
	clock.WaitFor(t, 2)
	clock.Advance(certificateGrace)
	if n := server.streams(); n != 0 {
		t.Errorf("%d streams without credentials", n)
	}
	m, err := f.PKI.NewSVID("shop", "web").Current()
	if err != nil {
		t.Fatal(err)
	}
	source.Set(m)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if p := server.peers[0]; p.Method != "mtls" {
		t.Errorf("xds-server sees %v", p)
	}
}

func TestServerOfAnotherRootGetsNoStream(t *testing.T) {
	f := newFixture(t)
	other := newFixture(t) // another root
	impostor := other.xds("")
	clock := testkit.NewClock(time.Now())
	stream := f.open(f.relay(Config{Addresses: []string{impostor.address}, Clock: clock}))
	clock.WaitFor(t, 3)
	clock.Advance(holdStream)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
	if n := impostor.streams(); n != 0 {
		t.Errorf("the impostor has %d streams", n)
	}
}

func TestLargeRequestEndsItsStreamOnly(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	client := f.relay(Config{Addresses: []string{server.address}})
	t.Run("size of a request", func(t *testing.T) {
		stream := f.open(client)
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: strings.Repeat("x", MaxRequest+1)})
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
	})
	t.Run("afterwards", func(t *testing.T) {
		if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// staticResolver answers every look-up with the addresses it holds.
type staticResolver struct {
	mu    sync.Mutex
	hosts []string
}

func (r *staticResolver) set(hosts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts = hosts
}

func (r *staticResolver) LookupHost(context.Context, string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.hosts) == 0 {
		return nil, errors.New("no such host")
	}
	return r.hosts, nil
}

func TestNamesAreResolvedForEveryConnection(t *testing.T) {
	f := newFixture(t)
	old := f.xds("")
	before := netip.MustParseAddrPort(old.address)
	after := testkit.Twin(before)
	moved := f.xds(after.String())
	names := &staticResolver{}
	names.set(before.Addr().String())
	_, p, _ := net.SplitHostPort(old.address)
	client := f.relay(Config{Addresses: []string{net.JoinHostPort("xds-server.istio-system.svc", p)}, Resolver: names})
	stream := f.open(client)
	if got, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{}); err != nil || got != old.address {
		t.Fatalf("%q %v", got, err)
	}
	names.set(after.Addr().String())
	old.stop()
	if _, err := stream.Recv(); err == nil {
		t.Fatal("the stream goes on without an xds-server")
	}
	if got, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil || got != moved.address {
		t.Errorf("%q %v, want %q", got, err, moved.address)
	}
}

// The connection swallows everything, like one that a firewall has forgotten.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel() // takes as long as gRPC's shortest keepalive, 10 s
	f := newFixture(t)
	server := f.xds("")
	hole := newHole(t, server.address)
	stream := f.open(f.relay(Config{Addresses: []string{hole.address}, Keepalive: 10 * time.Second}))
	if _, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	hole.close()
	began := time.Now()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 40*time.Second { // never without a keepalive
		t.Errorf("took %s", took)
	}
}

// hole is a TCP proxy that, once closed, drops all bytes and keeps the connections open.
type hole struct {
	address string
	mu      sync.Mutex
	closed  bool
}

func (h *hole) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

func newHole(t *testing.T, to string) *hole {
	lis := testkit.LoopbackListener(t)
	h := &hole{address: lis.Addr().String()}
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			t.Cleanup(func() { in.Close(); out.Close() })
			go h.copy(in, out)
			go h.copy(out, in)
		}
	}()
	return h
}

func (h *hole) copy(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		h.mu.Lock()
		swallow := h.closed
		h.mu.Unlock()
		if swallow {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
