package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/testkit/protorand"
	"fairlead.dev/services/config-watcher/internal/kinds"
	wire "fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/mcp"
)

const entries = "networking.istio.io/v1/ServiceEntry"

// fixture is a server of the test.
type fixture struct {
	t       testing.TB
	table   *Table
	ready   atomic.Bool
	stop    chan struct{}
	address string
	conn    *grpc.ClientConn
	server  *grpc.Server
	metrics *prometheus.Registry
}

func serve(t testing.TB, change ...func(*TableConfig)) *fixture {
	t.Helper()
	cfg := TableConfig{Root: func() string { return "istio-system" }, Log: testkit.Logger(t)}
	for _, edit := range change {
		edit(&cfg)
	}
	f := &fixture{t: t, table: NewTable(cfg), stop: make(chan struct{}), metrics: prometheus.NewPedanticRegistry()}
	f.ready.Store(true)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = lis.Addr().String()
	f.server = grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	server := f.server
	discovery.RegisterAggregatedDiscoveryServiceServer(server, NewServer(Config{Table: f.table, Ready: f.ready.Load, Stop: f.stop,
		Registerer: f.metrics, Log: cfg.Log, Clock: clock.Real()}))
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	f.conn = f.dial()
	return f
}

func (f *fixture) dial() *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(f.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mcp.MaxMessageBytes)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// entry makes a ServiceEntry of a source.
func entry(name, source string, port uint32) *object.Object {
	namespace, name, _ := strings.Cut(name, "/")
	return &object.Object{
		Key: object.Key{Group: kinds.GroupNetworking, Kind: "ServiceEntry", Namespace: namespace, Name: name}, Source: source,
		Body: &networking.ServiceEntry{Hosts: []string{name + ".example.com"}, Resolution: networking.ServiceEntry_DNS,
			Ports: []*networking.ServicePort{{Number: port, Name: "http", Protocol: "HTTP"}}},
	}
}

func (f *fixture) put(objects ...*object.Object) {
	var changes []normalise.Change
	for _, o := range objects {
		changes = append(changes, normalise.Change{Key: o.Key, Object: o})
	}
	f.table.Take(changes)
}

func (f *fixture) remove(keys ...object.Key) {
	var changes []normalise.Change
	for _, k := range keys {
		changes = append(changes, normalise.Change{Key: k})
	}
	f.table.Take(changes)
}

func (f *fixture) sotw() *adstest.Sotw {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	f.t.Cleanup(cancel)
	s, err := adstest.OpenSotw(ctx, f.conn, adstest.Node("sidecar~127.0.0.1~istiod.istio-system~cluster.local", nil))
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// ask asks for a type as istiod does: with an invented nonce.
func ask(t testing.TB, s *adstest.Sotw, url string) *discovery.DiscoveryResponse {
	t.Helper()
	if err := s.Send(&discovery.DiscoveryRequest{TypeUrl: url, ResponseNonce: time.Now().String()}); err != nil {
		t.Fatal(s.Drain())
	}
	return receive(t, s, url)
}

func receive(t testing.TB, s *adstest.Sotw, url string) *discovery.DiscoveryResponse {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if m.TypeUrl != url {
		t.Fatalf("received %s, want %s", m.TypeUrl, url)
	}
	if err := s.Answer(m, m.VersionInfo, nil); err != nil {
		t.Fatal(err)
	}
	return m
}

// names are those of a list's entries.
func names(t testing.TB, m *discovery.DiscoveryResponse) string {
	t.Helper()
	var out []string
	for _, r := range m.Resources {
		d := wire.Decode(wire.ParseURL(m.TypeUrl), r)
		if d.Object == nil {
			t.Errorf("entry cannot be used: %v", d.Problems)
		}
		out = append(out, d.Key.Namespace+"/"+d.Key.Name)
	}
	return strings.Join(out, " ")
}

// TestAKindIsSentWhenItHasChanged: to a client like istiod, whole, and no other kind.
func TestAKindIsSentWhenItHasChanged(t *testing.T) {
	f := serve(t)
	f.put(entry("a/one", "memory", 80), entry("a/two", "kubernetes/x", 80))
	s := f.sotw()
	// Whatever it asks for is answered, or it would never be ready.
	for _, url := range []string{"core/v1alpha1/MeshConfig", "networking.istio.io/v9/ServiceEntry", "gateway.networking.k8s.io/v1/HTTPRoute",
		"/v1/Secret", "networking.istio.io/v1/Gateway"} {
		if m := ask(t, s, url); len(m.Resources) != 0 {
			t.Errorf("%s: %v", url, m.Resources)
		}
	}
	for _, url := range []string{entries, "networking.istio.io/v1beta1/ServiceEntry", "networking.istio.io/v1alpha3/ServiceEntry"} {
		if got := names(t, ask(t, s, url)); got != "a/one a/two" {
			t.Errorf("%s: %s", url, got)
		}
	}
	s = f.sotw()
	ask(t, s, "networking.istio.io/v1/Gateway")
	first := ask(t, s, entries)
	f.put(entry("a/one", "memory", 80)) // as it was
	f.put(entry("a/three", "memory", 80))
	f.remove(entry("a/two", "", 0).Key)
	second := receive(t, s, entries)
	for names(t, second) != "a/one a/three" {
		second = receive(t, s, entries)
	}
	if first.VersionInfo == second.VersionInfo || first.Nonce == second.Nonce {
		t.Errorf("versions %s and %s, nonces %s and %s", first.VersionInfo, second.VersionInfo, first.Nonce, second.Nonce)
	}
	// A NACK is no request, and neither is an answer with an old nonce.
	for _, nonce := range []string{second.Nonce, first.Nonce} {
		second.Nonce = nonce
		if err := s.Answer(second, "", errors.New("no")); err != nil {
			t.Fatal(err)
		}
	}
	f.put(entry("b/four", "memory", 80))
	if got := names(t, receive(t, s, entries)); got != "a/one a/three b/four" {
		t.Errorf("after a NACK: %s", got)
	}
}

// TestWhatIsServed: chosen kinds and namespaces, nothing of another control plane, and no Secret.
func TestWhatIsServed(t *testing.T) {
	f := serve(t, func(c *TableConfig) { c.Namespaces, c.Kinds = []string{"a", "istio-system"}, []string{"ServiceEntry"} })
	secret := &object.Object{Key: object.Key{Kind: "Secret", Namespace: "a", Name: "s"}, Source: "memory"}
	gateway := &object.Object{Body: &networking.Gateway{},
		Key: object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: "a", Name: "g"}}
	f.put(entry("a/one", "memory", 80), entry("a/two", "mcp/127.0.0.1:1", 80), entry("b/three", "memory", 80), secret, gateway)
	s := f.sotw()
	if got := names(t, ask(t, s, entries)); got != "a/one" {
		t.Errorf("served is %q", got)
	}
	if m := ask(t, s, "networking.istio.io/v1/Gateway"); len(m.Resources) != 0 {
		t.Errorf("a kind that was not chosen: %v", m.Resources)
	}
	// What another control plane overrides goes.
	f.put(entry("a/one", "mcp/127.0.0.1:1", 80))
	if got := names(t, receive(t, s, entries)); got != "" {
		t.Errorf("served is %q", got)
	}
	if got := CheckKinds([]string{"ServiceEntry", "Secret", "Service"}); strings.Join(got, " ") != "Secret Service" {
		t.Errorf("unknown kinds: %v", got)
	}
}

// TestBeforeTheFirstRevision: an empty list would delete everything.
func TestBeforeTheFirstRevision(t *testing.T) {
	f := serve(t)
	f.ready.Store(false)
	for _, err := range []error{f.sotw().Drain(), f.delta().Drain()} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	}
	f.ready.Store(true)
	s := f.sotw()
	ask(t, s, entries)
	close(f.stop)
	if err := s.Drain(); status.Code(err) != codes.Unavailable {
		t.Errorf("at the end: %v", err)
	}
}

func (f *fixture) delta() *adstest.Delta {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	f.t.Cleanup(cancel)
	d, err := adstest.OpenDelta(ctx, f.conn, adstest.Node("x", nil))
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// TestDelta: after the first message, the difference; a client says what it has.
func TestDelta(t *testing.T) {
	f := serve(t)
	f.put(entry("a/one", "memory", 80), entry("a/two", "memory", 80))
	has := map[string]string{}
	next := func(d *adstest.Delta, want string) {
		t.Helper()
		m, err := d.Next(entries)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range m.Resources {
			got = append(got, r.Name)
			has[r.Name] = r.Version
		}
		for _, r := range m.RemovedResources {
			got = append(got, "-"+r)
			delete(has, r)
		}
		if text := strings.Join(got, " "); text != want {
			t.Fatalf("got %q, want %q", text, want)
		}
		if err := d.Answer(m, nil); err != nil {
			t.Fatal(err)
		}
	}
	d := f.delta()
	if err := d.Subscribe(entries, "*"); err != nil {
		t.Fatal(err)
	}
	next(d, "a/one a/two")
	f.table.Take([]normalise.Change{{Key: entry("a/one", "", 0).Key}, {Key: entry("a/two", "", 0).Key, Object: entry("a/two", "memory", 81)}})
	next(d, "a/two -a/one")
	// Another stream says what it has.
	f.put(entry("a/three", "memory", 80))
	next(d, "a/three")
	f.remove(entry("a/two", "", 0).Key)
	d = f.delta()
	if err := d.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: entries, InitialResourceVersions: maps.Clone(has)}); err != nil {
		t.Fatal(err)
	}
	next(d, "-a/two")
	// One type that nobody knows is answered as well.
	if err := d.Subscribe("gateway.networking.k8s.io/v1/HTTPRoute"); err != nil {
		t.Fatal(err)
	}
	if m, err := d.Next("gateway.networking.k8s.io/v1/HTTPRoute"); err != nil || len(m.Resources) > 0 {
		t.Errorf("%v, %v", m, err)
	}
}

// TestLargeDifferencesAreDivided: one message has 2 MiB at most.
func TestLargeDifferencesAreDivided(t *testing.T) {
	f := serve(t)
	var all []*object.Object
	for i := range 50 {
		o := entry(fmt.Sprintf("a/e%02d", i), "memory", 80)
		o.Annotations = map[string]string{"a": strings.Repeat("x", 100<<10)}
		all = append(all, o)
	}
	f.put(all...)
	d := f.delta()
	if err := d.Subscribe(entries); err != nil {
		t.Fatal(err)
	}
	got, messages := 0, 0
	for got < len(all) {
		m, err := d.Next(entries)
		if err != nil {
			t.Fatal(err)
		}
		got += len(m.Resources)
		messages++
	}
	if messages < 3 || got != len(all) {
		t.Errorf("%d objects in %d messages", got, messages)
	}
}

// TestHostileClients: what one stream may ask for is bounded.
func TestHostileClients(t *testing.T) {
	f := serve(t)
	for name, c := range map[string]struct {
		send func(*adstest.Sotw)
		want codes.Code
	}{
		"no type": {func(s *adstest.Sotw) { _ = s.Send(&discovery.DiscoveryRequest{}) }, codes.InvalidArgument},
		"a long type": {func(s *adstest.Sotw) { _ = s.Send(&discovery.DiscoveryRequest{TypeUrl: strings.Repeat("x", 300)}) },
			codes.InvalidArgument},
		"many types": {func(s *adstest.Sotw) {
			for i := range 200 {
				_ = s.Send(&discovery.DiscoveryRequest{TypeUrl: fmt.Sprint("a/b/", i)}) // the server ends the stream meanwhile
			}
		}, codes.ResourceExhausted},
		"large": {func(s *adstest.Sotw) {
			_ = s.Send(&discovery.DiscoveryRequest{VersionInfo: strings.Repeat("x", 5<<20)})
		},
			codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			s := f.sotw()
			c.send(s)
			if err := s.Drain(); status.Code(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestByAddress: only who shows no certificate, and from an address of the list; the identity is no workload's.
func TestByAddress(t *testing.T) {
	a := ByAddress(spiffeid.RequireTrustDomainFromString("cluster.local"), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	for address, want := range map[string]bool{"10.0.0.7:1": true, "10.0.1.7:1": false, "[::ffff:10.0.0.7]:1": true, "[::1]:1": false} {
		tcp := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		p, err := a.Authenticate(peer.NewContext(context.Background(), &peer.Peer{Addr: tcp}))
		if (err == nil) != want || want && (!Rule().Allowed(p) || p.ID.String() != "spiffe://cluster.local/mcp/address/0a000007") {
			t.Errorf("%s: %v, %v", address, p, err)
		}
	}
	if _, err := a.Authenticate(context.Background()); err == nil {
		t.Error("no address was let in")
	}
}

// follower is a client of this module's, and what it has of the server.
type follower struct {
	*mcp.Source
	stop    func()
	mu      sync.Mutex
	objects map[object.Key]*object.Object
}

func client(t testing.TB, f *fixture) *follower {
	t.Helper()
	c := &follower{objects: map[object.Key]*object.Object{}}
	c.Source = mcp.New(mcp.Config{Host: f.address, Dial: func(context.Context) (*grpc.ClientConn, error) { return f.dial(), nil },
		Node: mcp.Node{Name: "x", Namespace: "y", Domain: "z"}, Log: testkit.Logger(t), Clock: clock.Real()})
	c.Handle(func(_ context.Context, _ string, events []source.Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range events {
			if e.Object == nil {
				delete(c.objects, e.Key)
			} else {
				c.objects[e.Key] = e.Object
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// equals compares what the client has with objects.
func (c *follower) equals(want map[object.Key]*object.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, o := range want {
		if got := c.objects[k]; got == nil || !wire.Equal(got, o) {
			return fmt.Errorf("%s: got %v\nwant %v", k, got, o)
		}
	}
	for k := range c.objects {
		if want[k] == nil {
			return fmt.Errorf("%s is there, and should not be", k)
		}
	}
	return nil
}

// accepted makes a random object of a kind that validation accepts; nil if the seed makes none.
func accepted(k *kinds.Kind, name string, seed uint64) *object.Object {
	spec := k.NewSpec()
	protorand.Istio.FillSeeded(seed, spec)
	raw, _, err := wire.Encode(&object.Object{Key: object.Key{Group: k.Group, Kind: k.Name, Namespace: "apps", Name: name}, Body: spec}, "")
	if err != nil {
		return nil
	}
	return wire.Decode(k, anyOf(raw)).Object
}

// TestAClientHasWhatTheServerHas: after random changes of random objects of all kinds, the client has equal objects: no
// field is lost, and nothing stays.
func TestAClientHasWhatTheServerHas(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := serve(t)
		defer f.server.Stop()
		c := client(t, f)
		defer c.stop()
		have := map[object.Key]*object.Object{}
		for range rapid.IntRange(1, 8).Draw(r, "rounds") {
			var changes []normalise.Change
			for range rapid.IntRange(1, 6).Draw(r, "changes") {
				k := rapid.SampledFrom(wire.Kinds()).Draw(r, "kind")
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "name")
				key := object.Key{Group: k.Group, Kind: k.Name, Namespace: "apps", Name: name}
				if rapid.IntRange(0, 3).Draw(r, "removes") == 0 {
					delete(have, key)
					changes = append(changes, normalise.Change{Key: key})
				} else if o := accepted(k, name, rapid.Uint64Range(0, 500).Draw(r, "seed")); o != nil {
					have[key] = o
					changes = append(changes, normalise.Change{Key: key, Object: o})
				}
			}
			f.table.Take(changes)
			if rapid.Bool().Draw(r, "waits") {
				testkit.Eventually(t, testkit.Patience, func() error { return c.equals(have) })
			}
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			if !c.HasSynced() {
				return errors.New("not synced")
			}
			return c.equals(have)
		})
		if found := c.Status().Problems; len(found) > 0 {
			r.Fatalf("problems %v", found)
		}
	})
}

func anyOf(raw []byte) *anypb.Any { return &anypb.Any{TypeUrl: wire.ResourceType, Value: raw} }
