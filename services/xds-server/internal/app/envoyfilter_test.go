package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.opentelemetry.io/otel/trace/noop"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// luaHeader is the configuration of a filter that answers with a header.
func luaHeader(name, value string) string {
	return fmt.Sprintf(`{"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_response(h) h:headers():add('%s', '%s') end"}}`, name, value)
}

// beforeRouter inserts an HTTP filter into inbound listeners.
func beforeRouter(operation, value string) string {
	return `
- applyTo: HTTP_FILTER
  match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
  patch: {operation: ` + operation + `, value: ` + value + `}`
}

// TestEnvoyFiltersOnEnvoy: a Lua filter works, one whose configuration comes by ECDS too, and follows changes; a filter
// that would break the listener is left out and leaves the others working.
func TestEnvoyFiltersOnEnvoy(t *testing.T) {
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(application.Close)
	for _, apiType := range []core.ApiConfigSource_ApiType{core.ApiConfigSource_DELTA_GRPC, core.ApiConfigSource_GRPC} {
		t.Run(apiType.String(), func(t *testing.T) {
			envoytest.Binary(t)
			pki := testkit.PKI(t)
			place := testkit.FreeAddress(t)
			ingress := meshtest.Config(mesh.KindSidecar, "default", "ingress", &networking.Sidecar{
				Ingress: []*networking.IstioIngressListener{{
					Port: &networking.SidecarPort{Number: uint32(place.Port()), Protocol: "HTTP", Name: "http"}, Bind: place.Addr().String(),
					DefaultEndpoint: strings.TrimPrefix(application.URL, "http://"),
				}},
				Egress: []*networking.IstioEgressListener{{Hosts: []string{"~/*"}}},
			})
			filter := func(name, patches string) *configv1.Resource {
				return meshtest.EnvoyFilter("default", name, "configPatches:"+patches)
			}
			discovered := func(value string) *configv1.Resource {
				return filter("discovered", beforeRouter("INSERT_BEFORE",
					`{name: mine, config_discovery: {config_source: {ads: {}, resource_api_version: V3}, type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]}}`)+`
- applyTo: EXTENSION_CONFIG
  patch: {operation: ADD, value: {name: mine, typed_config: `+luaHeader("x-discovered", value)+`}}`)
			}
			inline := filter("inline", beforeRouter("INSERT_BEFORE", `{name: lua, typed_config: `+luaHeader("x-inline", "yes")+`}`))
			watcher := startWatcher(t, pki, ingress, meshtest.PeerAuthentication("default", "off", "DISABLE"), inline, discovered("one"))
			server := startServer(t, pki, watcher.address, noop.NewTracerProvider(), func(o *app.Options) { o.PlaintextAddress = "127.0.0.1:0" })
			server.WaitReady()
			e := envoytest.Start(t, envoytest.Bootstrap(t, productpage(t), apiType, envoytest.Secrets(t, pki, "default", "default"),
				server.plaintext), nil)
			e.Ready()
			answers := func(inline, discovered string) {
				t.Helper()
				testkit.Eventually(t, patience, func() error {
					res, err := http.Get("http://" + place.String())
					if err != nil {
						return err
					}
					_ = res.Body.Close() // empty
					got := res.Header.Get("x-inline") + "," + res.Header.Get("x-discovered")
					if want := inline + "," + discovered; res.StatusCode != http.StatusNoContent || got != want {
						return fmt.Errorf("status %d, headers %q, want %q", res.StatusCode, got, want)
					}
					return nil
				})
				e.Accepted()
			}
			answers("yes", "one")
			watcher.acked(t, "productpage", watcher.current())

			before := e.Stats("lds.update_success$")["listener_manager.lds.update_success"]
			watcher.acked(t, "productpage", watcher.edit(discovered("two")))
			answers("yes", "two")
			if after := e.Stats("lds.update_success$")["listener_manager.lds.update_success"]; after != before {
				t.Errorf("%d updates of listeners for an extension's configuration", after-before)
			}

			broken := filter("broken", beforeRouter("INSERT_AFTER", `{name: late, typed_config: `+luaHeader("x-late", "yes")+`}`))
			watcher.edit(broken, filter("a-good-one", beforeRouter("INSERT_BEFORE", `{name: good, typed_config: `+luaHeader("x-inline", "too")+`}`)))
			testkit.Eventually(t, patience, func() error {
				res, err := http.Get("http://" + place.String())
				if err != nil {
					return err
				}
				_ = res.Body.Close() // empty
				if got := len(res.Header.Values("x-inline")); got != 2 || res.Header.Get("x-late") != "" {
					return fmt.Errorf("%d headers: %v", got, res.Header)
				}
				return nil
			})
			e.Accepted()
			if _, metrics := server.get(t, "/metrics", ""); !strings.Contains(metrics, "fairlead_xds_server_failing_resources 1\n") {
				t.Error("nothing says that a filter was left out")
			}
			watcher.acked(t, "productpage", watcher.remove(inline, broken))
			answers("too", "two")
		})
	}
}
