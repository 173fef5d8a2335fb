package translate_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// A real Envoy rewrites host and path of the requests to single backends of a rule, and keeps the backends' shares.
func TestRewritesOfBackendsByEnvoy(t *testing.T) {
	const port, requests = 8080, 800
	listener := testkit.LoopbackListener(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host+r.RequestURI) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	host := func(name string) string { return name + ".default.svc.cluster.local" }
	var resources []*configv1.Resource
	to := toHost(host("plain"), host("prefix"), host("full"), contract.UnresolvedBackend)
	for i, weight := range []int32{4, 2, 1, 1} {
		to.Route[i].Weight = weight
	}
	for _, name := range []string{"plain", "prefix", "full"} {
		resources = append(resources, backend(host(name), listener.Addr().(*net.TCPAddr).Port, configv1.Protocol_PROTOCOL_HTTP)...)
	}
	prefix := "/p"
	rewritten := func(r *configv1.AttachedRule) {
		r.BackendRewrites = []*configv1.BackendRewrite{
			{Destination: 1, Rewrite: meshtest.Any(&networking.HTTPRewrite{Authority: "rewritten"}), PrefixRewrite: &prefix},
			{Destination: 2, Rewrite: meshtest.Any(&networking.HTTPRewrite{
				UriRegexRewrite: &networking.RegexRewrite{Match: "/.*", Rewrite: "/full"}})},
		}
	}
	resources = append(resources, attachedRoute(mesh.KindHTTPRoute, "r", []*configv1.ListenerAttachment{attachment("http", "a.example.com")},
		rule("a", "/a*", to, rewritten), rule("b", "/*", answer(418))))
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		{Name: "http", Port: port, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
	}, resources...)
	startProxy(t, "gateway", buildAll(t, gateway), testkit.PKI(t).NewSVID("gateways", "shop"))
	seen := map[string]int{}
	for range requests {
		response, body, err := asker{port: port}.ask("a.example.com", "/a/x")
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			body = response.Status
		}
		seen[body]++
	}
	// 5 standard deviations of the share of an eighth are 47 requests, those of a half 71.
	for text, want := range map[string]int{
		"a.example.com/a/x": requests / 2, "rewritten/p/x": requests / 4, "a.example.com/full": requests / 8,
		"500 Internal Server Error": requests / 8,
	} {
		if n := seen[text]; n < want-71 || n > want+71 {
			t.Errorf("%q %d times of %d, want about %d", text, n, requests, want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("got %v", seen)
	}
	asker{port: port}.expect(t, "a.example.com", "/b", http.StatusTeapot, "")
}
