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
)

// Messages arrive as they were sent, fields that nobody here knows included.
func TestForwardsUntouched(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	stream := w.open(w.relay(Config{Addresses: []string{server.address}}))
	req := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
		// As on a reconnection: what the client already holds.
		InitialResourceVersions: map[string]string{"outbound|80||a": "1", "outbound|80||b": "2"},
	}
	req.ProtoReflect().SetUnknown([]byte{0xfa, 0x7f, 3, 'n', 'e', 'w'}) // field 2047
	answered, err := w.ask(stream, req)
	if err != nil || answered != server.address {
		t.Fatalf("answer of %q, %v", answered, err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.delta) != 1 || !proto.Equal(server.delta[0], req) {
		t.Errorf("arrived %v, sent %v", server.delta, req)
	}
	if id := server.peers[0]; id.Method != "mtls" || id.ID != w.pki.ID("shop", "web") {
		t.Errorf("xds-server sees %v", id)
	}
}

// Name tables, which are for the agent's side of the stream and not for Envoy, go both ways like all else.
func TestForwardsNameTables(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	const nameTable = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	content := []byte("\n\x05\n\x03web") // "web", without addresses
	server.resources = []*discoveryv3.Resource{{Name: "nametable", Version: "1", Resource: &anypb.Any{TypeUrl: nameTable, Value: content}}}
	stream := w.open(w.relay(Config{Addresses: []string{server.address}}))
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTable, InitialResourceVersions: map[string]string{"nametable": "0"}}
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetTypeUrl() != nameTable || len(resp.GetResources()) != 1 || !proto.Equal(resp.GetResources()[0], server.resources[0]) {
		t.Errorf("received %v", resp)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.delta) != 1 || !proto.Equal(server.delta[0], req) {
		t.Errorf("arrived %v, sent %v", server.delta, req)
	}
}

func TestStateOfTheWorld(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	client := w.relay(Config{Addresses: []string{server.address}})
	stream, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"a", "b", "c"} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: url}); err != nil {
			t.Fatal(err)
		}
		if resp, err := stream.Recv(); err != nil || resp.GetTypeUrl() != url {
			t.Fatalf("asked for %q, got %v, %v", url, resp, err)
		}
	}
}

// A lost xds-server ends the stream, and the next stream is with the other one
// within a second.
func TestFailsOver(t *testing.T) {
	testkit.Quick(t, time.Second, func() time.Duration {
		w := newWorld(t)
		servers := map[string]*xdsServer{}
		for range 2 {
			s := w.xds("")
			servers[s.address] = s
		}
		client := w.relay(Config{Addresses: slices.Collect(maps.Keys(servers))})
		stream := w.open(client)
		first, err := w.ask(stream, &discoveryv3.DeltaDiscoveryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		lost := time.Now()
		servers[first].stop()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), first) {
			t.Errorf("stream ended with %v, want Unavailable and the address", err)
		}
		second, err := w.ask(w.open(client), &discoveryv3.DeltaDiscoveryRequest{})
		if err != nil || second == first {
			t.Fatalf("answer of %q, %v; lost was %q", second, err, first)
		}
		return time.Since(lost)
	})
}

// A stream that is asked to reconnect ends with the reason, the next one is with the other xds-server, and nothing of
// it is a warning.
func TestAskedToReconnect(t *testing.T) {
	w := newWorld(t)
	servers := map[string]*xdsServer{}
	for range 2 {
		s := w.xds("")
		s.asks = "more proxies than the others"
		servers[s.address] = s
	}
	var log lockedBuffer
	client := w.relay(Config{Addresses: slices.Collect(maps.Keys(servers)), Log: slog.New(slog.NewTextHandler(&log, nil))})
	stream := w.open(client)
	first, err := w.ask(stream, &discoveryv3.DeltaDiscoveryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "n"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), first+" asks to reconnect: more proxies") {
		t.Errorf("stream ended with %v, want Unavailable with address and reason", err)
	}
	if second, err := w.ask(w.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil || second == first {
		t.Errorf("answer of %q, %v; asked to leave %q", second, err, first)
	}
	if text := log.String(); strings.Contains(text, "level=WARN") || !strings.Contains(text, "asks to reconnect") {
		t.Errorf("logged: %s", text)
	}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A stream that is opened while no xds-server is there waits for one.
func TestWaitsForServer(t *testing.T) {
	w := newWorld(t)
	gone := w.xds("")
	gone.stop()
	stream := w.open(w.relay(Config{Addresses: []string{gone.address}}))
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	w.xds(gone.address)
	if resp, err := stream.Recv(); err != nil || resp.GetSystemVersionInfo() != gone.address {
		t.Errorf("got %v, %v", resp, err)
	}
}

// It does not wait for ever: the end of the stream says what is wrong.
func TestHoldsStreamForLimitedTime(t *testing.T) {
	w := newWorld(t)
	gone := w.xds("")
	gone.stop()
	clock := testkit.NewClock(time.Now())
	stream := w.open(w.relay(Config{Addresses: []string{gone.address}, Clock: clock}))
	clock.WaitFor(t, 3) // hold, certificate grace, pause
	clock.Advance(holdStream)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want Unavailable and the reason", err)
	}
}

// Before there is a certificate the token serves, if there is one.
func TestAuthenticatesByToken(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	client := w.relay(Config{
		Addresses: []string{server.address},
		Source:    w.pki.RootsOnly(),
		TokenFile: w.issuer.TokenFile("shop", "web", "istio-ca"),
	})
	if _, err := w.ask(w.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	if p := server.peers[0]; p.Method != "jwt" || p.ID != w.pki.ID("shop", "web") {
		t.Errorf("xds-server sees %v", p)
	}
}

// Without either it waits for the certificate, and never goes without.
func TestWaitsForCertificate(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	source := w.pki.RootsOnly()
	clock := testkit.NewClock(time.Now())
	stream := w.open(w.relay(Config{Addresses: []string{server.address}, Source: source, Clock: clock}))
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	clock.WaitFor(t, 2)
	clock.Advance(certificateGrace)
	if n := server.streams(); n != 0 {
		t.Errorf("%d streams without credentials", n)
	}
	m, err := w.pki.NewSVID("shop", "web").Current()
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

// A server that cannot prove to be an xds-server is not told anything.
func TestRefusesImpostor(t *testing.T) {
	w := newWorld(t)
	other := newWorld(t) // another root
	impostor := other.xds("")
	clock := testkit.NewClock(time.Now())
	stream := w.open(w.relay(Config{Addresses: []string{impostor.address}, Clock: clock}))
	clock.WaitFor(t, 3)
	clock.Advance(holdStream)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
	if n := impostor.streams(); n != 0 {
		t.Errorf("the impostor has %d streams", n)
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	server := w.xds("")
	client := w.relay(Config{Addresses: []string{server.address}})
	t.Run("size of a request", func(t *testing.T) {
		stream := w.open(client)
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: strings.Repeat("x", MaxRequest+1)})
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
	})
	t.Run("afterwards", func(t *testing.T) {
		if _, err := w.ask(w.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
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

// A name is resolved for every connection.
func TestResolvesAnew(t *testing.T) {
	w := newWorld(t)
	old := w.xds("")
	before := netip.MustParseAddrPort(old.address)
	after := testkit.Twin(before)
	moved := w.xds(after.String())
	names := &staticResolver{}
	names.set(before.Addr().String())
	_, p, _ := net.SplitHostPort(old.address)
	client := w.relay(Config{Addresses: []string{net.JoinHostPort("xds-server.istio-system.svc", p)}, Resolver: names})
	stream := w.open(client)
	if got, err := w.ask(stream, &discoveryv3.DeltaDiscoveryRequest{}); err != nil || got != old.address {
		t.Fatalf("%q %v", got, err)
	}
	names.set(after.Addr().String())
	old.stop()
	if _, err := stream.Recv(); err == nil {
		t.Fatal("the stream goes on without a server")
	}
	if got, err := w.ask(w.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil || got != moved.address {
		t.Errorf("%q %v, want %q", got, err, moved.address)
	}
}

// An xds-server that is still connected but answers nothing, as behind a
// firewall that forgot the connection, is given up.
func TestNoticesBlackHole(t *testing.T) {
	t.Parallel() // takes as long as gRPC's shortest keepalive, 10 s
	w := newWorld(t)
	server := w.xds("")
	hole := newHole(t, server.address)
	stream := w.open(w.relay(Config{Addresses: []string{hole.address}, Keepalive: 10 * time.Second}))
	if _, err := w.ask(stream, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	hole.close()
	began := time.Now()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 40*time.Second { // for ever without a keepalive
		t.Errorf("took %s", took)
	}
}

// hole is a TCP relay that can swallow everything without closing.
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
