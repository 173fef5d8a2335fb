package translate_test

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/undelivered"
)

// Routes with the default retry policy have that of their virtual host. With a real Envoy, a route's own policy wins,
// and so does one that asks for no retries.
func TestRoutesShareTheRetryPolicyOfTheirVirtualHost(t *testing.T) {
	const host, port = "fails.default.svc.cluster.local", 8080
	var asked atomic.Int32
	listener := testkit.LoopbackListener(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set(undelivered.Header, "true")
		w.WriteHeader(http.StatusServiceUnavailable)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	retried := func(attempts int32) *networking.HTTPRoute {
		out := toHost(host)
		out.Retries = &networking.HTTPRetry{Attempts: attempts, RetryOn: "503"}
		return out
	}
	resources := append(backend(host, listener.Addr().(*net.TCPAddr).Port, configv1.Protocol_PROTOCOL_HTTP),
		attachedRoute(mesh.KindHTTPRoute, "some", []*configv1.ListenerAttachment{attachment("http", "some.example.com")},
			rule("a", "/default*", toHost(host)), rule("a", "/again*", toHost(host)), rule("a", "/none*", retried(0)),
			rule("a", "/four*", retried(4))),
		attachedRoute(mesh.KindHTTPRoute, "never", []*configv1.ListenerAttachment{attachment("http", "never.example.com")},
			rule("a", "/*", retried(0))))
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		{Name: "http", Port: port, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
	}, resources...)
	built := buildAll(t, gateway)
	for _, h := range built.routes[0].(*routev3.RouteConfiguration).GetVirtualHosts() {
		if shared := h.GetDomains()[0] == "some.example.com"; (h.GetRetryPolicy() != nil) != shared {
			t.Errorf("%s has the policy %v", h.GetName(), h.GetRetryPolicy())
		}
		for _, r := range h.GetRoutes() {
			if r.GetName() == "default/some" && r.GetMatch().GetPathSeparatedPrefix() == "/default" && r.GetRoute().GetRetryPolicy() != nil {
				t.Errorf("%v has a policy of its own", r)
			}
		}
	}
	startProxy(t, "gateway", built, testkit.PKI(t).NewSVID("gateways", "shop"))
	a := asker{port: port}
	for target, want := range map[string]int32{"/default": 3, "/again": 3, "/none": 1, "/four": 5} {
		asked.Store(0)
		if a.expect(t, "some.example.com", target, http.StatusServiceUnavailable, ""); asked.Load() != want {
			t.Errorf("%s: the backend was asked %d times, want %d", target, asked.Load(), want)
		}
	}
	asked.Store(0)
	if a.expect(t, "never.example.com", "/", http.StatusServiceUnavailable, ""); asked.Load() != 1 {
		t.Errorf("a route without retries alone in its virtual host: the backend was asked %d times", asked.Load())
	}
}

// Routes of a gateway's listeners have neither metadata nor decorators, which cost Envoy time, unless an EnvoyFilter
// may see them.
func TestRoutesOfListenersAreSlim(t *testing.T) {
	const host = "echo.default.svc.cluster.local"
	filter := func(to networking.EnvoyFilter_ApplyTo) []*configv1.Resource {
		return []*configv1.Resource{meshtest.Config(mesh.KindEnvoyFilter, "gateways", "f", &networking.EnvoyFilter{
			ConfigPatches: []*networking.EnvoyFilter_EnvoyConfigObjectPatch{{
				ApplyTo: to, Match: &networking.EnvoyFilter_EnvoyConfigObjectMatch{Context: networking.EnvoyFilter_GATEWAY},
				Patch: &networking.EnvoyFilter_Patch{Operation: networking.EnvoyFilter_Patch_MERGE, Value: &structpb.Struct{}},
			}},
		})}
	}
	for name, tc := range map[string]struct {
		filters              []*configv1.Resource
		metadata, decorator  bool
		ownPolicy, hasPolicy bool
	}{
		"no filter": {hasPolicy: true},
		"listeners": {filter(networking.EnvoyFilter_NETWORK_FILTER), false, true, false, true},
		"routes":    {filter(networking.EnvoyFilter_HTTP_ROUTE), true, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			resources := append(backend(host, 1, configv1.Protocol_PROTOCOL_HTTP),
				attachedRoute(mesh.KindHTTPRoute, "r", []*configv1.ListenerAttachment{attachment("http", "a.example.com")},
					rule("a", "/*", toHost(host))))
			gateway := gatewayOf(t, []*configv1.GatewayListener{
				{Name: "http", Port: 8080, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
			}, append(resources, tc.filters...)...)
			for _, h := range buildAllRoutes(t, gateway, "http.8080")[0].(*routev3.RouteConfiguration).GetVirtualHosts() {
				for _, r := range h.GetRoutes() {
					if (r.GetMetadata() != nil) != tc.metadata || (r.GetDecorator() != nil) != tc.decorator || r.GetName() != "default/r" ||
						(r.GetRoute().GetRetryPolicy() != nil) != tc.ownPolicy || (h.GetRetryPolicy() != nil) != tc.hasPolicy {
						t.Errorf("got %v", h)
					}
				}
			}
		})
	}
}
