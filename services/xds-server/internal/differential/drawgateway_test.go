package differential_test

import (
	"fmt"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// routedDomains are what the routes of drawGatewayAPI serve.
var routedDomains = []string{"", "*.example.com", "a.example.com", "b.example.com"}

// drawGatewayAPI draws an object of the Gateway API, or the workload of the gateway that serves them.
func drawGatewayAPI(t *rapid.T, ns, name, host string, n int) *configv1.Resource {
	aged := func(c *configv1.GatewayAPIConfig) { c.CreationTime.Nanos = int32(time.Duration(n)) } //nolint:gosec // small
	switch rapid.IntRange(0, 6).Draw(t, "of the Gateway API") {
	case 0:
		return meshtest.Workload("istio-system", "gw", "10.0.1.5", func(w *configv1.Workload) {
			w.Labels = map[string]string{"istio": "ingressgateway"}
		})
	case 1, 2:
		listeners := &configv1.GatewayListeners{Gateway: "istio-system/gw", Selections: []*configv1.WorkloadSelection{
			{Namespace: "istio-system", Labels: map[string]string{"istio": "ingressgateway"}},
		}}
		for i, protocol := range rapid.SliceOfNDistinct(rapid.Int32Range(1, 5), 1, 4, rapid.ID).Draw(t, "protocols") {
			l := &configv1.GatewayListener{Name: fmt.Sprint("l", protocol), Protocol: configv1.ListenerProtocol(protocol),
				Port: []uint32{80, 443, 8443, 9000, 53}[protocol-1], Hostname: routedDomains[(n+i)%3]}
			if protocol == 2 || protocol == 3 {
				l.Tls = meshtest.Any(&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE,
					CredentialNames: []string{"kubernetes-gateway://x/cert"}})
			}
			if protocol == 1 { // one more on the same port
				more := &configv1.GatewayListener{Name: "l0", Protocol: l.GetProtocol(), Port: 80, Hostname: routedDomains[(n+i+1)%3]}
				listeners.Listeners = append(listeners.Listeners, more)
			}
			listeners.Listeners = append(listeners.Listeners, l)
		}
		if rapid.Bool().Draw(t, "of a ListenerSet") {
			listeners.ListenerSet = "x/set"
			return meshtest.GatewayAPI(mesh.KindListenerSet, "x", "set", listeners, aged)
		}
		return meshtest.GatewayAPI(mesh.KindGatewayListeners, "istio-system", "gw", listeners, aged)
	case 3:
		return meshtest.GatewayAPI(mesh.KindBackendTLSPolicy, ns, name, &configv1.BackendTLS{
			Targets:  []*configv1.BackendTLSTarget{{Hostname: host, Port: []uint32{0, 80, 8080}[n-1]}},
			Hostname: "a.example.com", SystemAuthorities: n > 1, Unusable: n == 1,
		}, aged)
	default:
		kind, route := drawAttachedRoute(t, ns, name, host, n)
		return meshtest.GatewayAPI(kind, ns, name, route, aged)
	}
}

func drawAttachedRoute(t *rapid.T, ns, name, host string, n int) (kind string, out *configv1.AttachedRoute) {
	out = &configv1.AttachedRoute{Rank: []byte(name)}
	to := &configv1.AttachedDestination{Hostname: host, Port: 80, Weight: 1}
	protocol := rapid.Int32Range(0, 5).Draw(t, "listener")
	kind = []string{
		mesh.KindHTTPRoute, mesh.KindHTTPRoute, mesh.KindGRPCRoute, mesh.KindTLSRoute, mesh.KindTCPRoute, mesh.KindUDPRoute,
	}[protocol]
	attachment := &configv1.ListenerAttachment{Gateway: "istio-system/gw", Listener: fmt.Sprint("l", protocol)}
	if rapid.Bool().Draw(t, "at a ListenerSet") {
		attachment.ListenerSet = "x/set"
	}
	if protocol < 4 {
		for _, domain := range rapid.SliceOfNDistinct(rapid.SampledFrom(routedDomains), 1, 2, rapid.ID).Draw(t, "domains") {
			attachment.Hosts = append(attachment.Hosts, &configv1.AttachedHost{Domain: domain, Rank: []byte("h")})
		}
	}
	out.Listeners = []*configv1.ListenerAttachment{attachment}
	if kind == mesh.KindHTTPRoute || kind == mesh.KindTCPRoute {
		service := &configv1.ServiceAttachment{Hostname: host, Port: []uint32{0, 80, 8080}[n-1]}
		if ns != "x" {
			service.ClientNamespace = ns
		}
		out.Services = []*configv1.ServiceAttachment{service}
	}
	rule := &configv1.AttachedRule{Destinations: []*configv1.AttachedDestination{to}}
	if protocol < 3 {
		rule.Destinations = nil
		rule.Matches = []*configv1.RuleMatch{{Rank: []byte(name + ns), PathElements: true, Match: meshtest.Any(&networking.HTTPMatchRequest{
			Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprint("/", n)}},
		})}}
		rule.Http = meshtest.Any(&networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{
			Destination: &networking.Destination{Host: host, Port: &networking.PortSelector{Number: 80}},
		}}})
	}
	out.Rules = []*configv1.AttachedRule{rule}
	return kind, out
}
