package translate_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/servetest"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

// shopListeners makes the Gateway of these tests with listeners for HTTP on one port, by name and hostname.
func shopListeners(port uint32, hostnames map[string]string) *configv1.Resource {
	out := &configv1.GatewayListeners{Gateway: "gateways/shop", Selections: []*configv1.WorkloadSelection{
		{Namespace: "gateways", Labels: map[string]string{contract.GatewayNameLabel: "shop"}},
	}}
	for name, hostname := range hostnames {
		out.Listeners = append(out.Listeners, &configv1.GatewayListener{
			Name: name, Port: port, Hostname: hostname, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP,
		})
	}
	slices.SortFunc(out.GetListeners(), func(a, b *configv1.GatewayListener) int { return len(a.GetHostname()) - len(b.GetHostname()) })
	return meshtest.GatewayAPI(mesh.KindGatewayListeners, "gateways", "shop", out)
}

// The virtual hosts that a gateway lists for VHDS are those of its route configuration without VHDS, with the same
// routes. Names that it does not list have none. A server of Istio's Gateways on the port ends the use of VHDS.
func TestGatewayVirtualHostsAreThoseOfTheRouteConfiguration(t *testing.T) {
	w := load(t, "testdata/in/gateway-api.yaml")
	whole, split := *w.key, *w.key
	split.VirtualHosts = true
	byHost := fixture{key: &split, state: w.state}
	names, err := plan.List(route.VirtualHosts{}, &split, w.state)
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	found := map[string]bool{}
	for _, config := range []string{"http.8080", "https.443.gateways~shop~https", "https.443.gateways~shop~https-a"} {
		inline := buildAllRoutes(t, fixture{key: &whole, state: w.state}, config)[0].(*routev3.RouteConfiguration)
		outside := buildAllRoutes(t, byHost, config)[0].(*routev3.RouteConfiguration)
		if config == "http.8080" { // which one of Istio's Gateways shares
			if outside.GetVhds() != nil || len(outside.GetVirtualHosts()) != len(inline.GetVirtualHosts()) {
				t.Errorf("%s uses VHDS", config)
			}
			continue
		}
		if outside.GetVhds() == nil || len(outside.GetVirtualHosts()) > 0 {
			t.Errorf("%s does not use VHDS", config)
		}
		for _, host := range inline.GetVirtualHosts() {
			name := config + "/" + host.GetName()
			found[name] = true
			m, err := route.VirtualHosts{}.Build(byHost.reader(), name)
			if err != nil || m == nil || !slices.Contains(names, name) {
				t.Errorf("%s: %v, listed in %v", name, err, names)
				continue
			}
			host.Name = name
			if got, want := render(t, []proto.Message{m}), render(t, []proto.Message{host}); string(got) != string(want) {
				t.Errorf("%s: by VHDS\n%s\nin the route configuration\n%s", name, got, want)
			}
		}
	}
	if len(found) != len(names) {
		t.Errorf("listed %v, in the route configurations %v", names, found)
	}
	for _, name := range []string{"https.443.gateways~shop~https/nobody:443", "https.443.gateways~shop~https/*.example.com:80", "x/y",
		"http.8080/*:8080"} {
		if m, err := (route.VirtualHosts{}).Build(byHost.reader(), name); m != nil || err != nil {
			t.Errorf("%s: got %v, %v", name, m, err)
		}
	}
}

// With a real Envoy behind the whole server: hosts that move between listeners and routes that change are answered all
// the time, and a new host gets its answer.
func TestGatewayHostsMoveWithoutAnError(t *testing.T) {
	const port, hosts = 8090, 20
	host := func(i int) string { return fmt.Sprintf("h%02d.example.com", i) }
	routed := func(i int, listener string, header string) *configv1.Resource {
		to := toHost("echo.default.svc.cluster.local")
		to.Headers = &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x-set": header}}}
		return attachedRoute(mesh.KindHTTPRoute, fmt.Sprint("r", i), []*configv1.ListenerAttachment{attachment(listener, host(i))},
			rule("a", "/*", to))
	}
	all := func(listener, header string) (out []*configv1.Resource) {
		for i := range hosts {
			out = append(out, routed(i, listener, header))
		}
		return out
	}
	s := servetest.Start(t, servetest.Config{Translators: translate.All()})
	defer s.Stop()
	s.Apply(slices.Concat(all("any", "1"), backend("echo.default.svc.cluster.local", pathEcho(t), configv1.Protocol_PROTOCOL_HTTP),
		[]*configv1.Resource{
			shopListeners(port, map[string]string{"any": ""}),
			meshtest.Workload("gateways", "shop", gatewayAddress, func(w *configv1.Workload) {
				w.Labels = map[string]string{contract.GatewayNameLabel: "shop"}
			}),
		}), nil)
	metadata, err := structpb.NewStruct(map[string]any{"INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "router~" + gatewayAddress + "~shop.gateways~gateways.svc.cluster.local", Metadata: metadata}
	p := envoytest.Start(t, envoytest.Bootstrap(t, node, corev3.ApiConfigSource_DELTA_GRPC, envoytest.Secrets(t, testkit.PKI(t), "gateways", "shop"),
		s.Conn.Target()), nil)
	p.Ready()
	a := asker{port: port}
	answers := func(host, want string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			if response, body, err := a.ask(host, "/"); err != nil || response.StatusCode != http.StatusOK || body != want {
				return fmt.Errorf("%s answers %q (%w), want %q", host, body, err, want)
			}
			return nil
		})
	}
	answers(host(0), "/1")

	var failed atomic.Pointer[string]
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if response, body, err := a.ask(host(i%hosts), "/"); err != nil || response.StatusCode != http.StatusOK {
				text := fmt.Sprintf("%s: %v, %v, %s", host(i%hosts), response, err, body)
				failed.CompareAndSwap(nil, &text)
			}
		}
	}()
	s.Apply([]*configv1.Resource{routed(3, "any", "2")}, nil)
	answers(host(3), "/2")
	for round := range 4 {
		listener, hostnames := "wild", map[string]string{"any": "", "wild": "*.example.com"}
		if round%2 == 1 {
			listener, hostnames = "any", map[string]string{"any": ""}
		}
		text := fmt.Sprint("move", round)
		s.Apply(append(all(listener, text), shopListeners(port, hostnames)), nil)
		answers(host(hosts-1), "/"+text)
		answers(host(0), "/"+text)
	}
	s.Apply([]*configv1.Resource{routed(hosts, "any", "new")}, nil)
	answers(host(hosts), "/new")
	close(stop)
	<-done
	if text := failed.Load(); text != nil {
		t.Error(*text)
	}
	p.Accepted()
}

// benchmarkRoutes measures how long it takes until one of many routes that changes is a new virtual host.
func benchmarkRoutes(b *testing.B, routes int) {
	const port = 8080
	attached := func(i int, header string) *configv1.Resource {
		to := toHost("echo.default.svc.cluster.local")
		to.Headers = &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x-set": header}}}
		return attachedRoute(mesh.KindHTTPRoute, fmt.Sprintf("r%05d", i),
			[]*configv1.ListenerAttachment{attachment("any", fmt.Sprintf("h%05d.example.com", i))}, rule("a", "/*", to))
	}
	resources := append(backend("echo.default.svc.cluster.local", 1, configv1.Protocol_PROTOCOL_HTTP),
		shopListeners(port, map[string]string{"any": ""}))
	for i := range routes {
		resources = append(resources, attached(i, "1"))
	}
	c := newEngine(b)
	c.edit(resources...)
	c.plan(b, shopKey())
	b.Run("change", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			c.edit(attached(i%routes, fmt.Sprint(i)))
		}
	})
	b.Run("new", func(b *testing.B) {
		for i := routes; b.Loop(); i++ {
			c.edit(attached(i, "1"))
		}
	})
}

// shopKey is the class of the proxies of shopListeners.
func shopKey() *class.Key {
	return &class.Key{Type: class.Router, Namespace: "gateways", Labels: map[string]string{contract.GatewayNameLabel: "shop"},
		TrustDomain: "cluster.local", DNSDomain: "gateways.svc.cluster.local", VirtualHosts: true}
}

func BenchmarkRoutes3000(b *testing.B) { benchmarkRoutes(b, 3000) }
func BenchmarkRoutes5000(b *testing.B) { benchmarkRoutes(b, 5000) }
