package translate_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// askedOfGatewayAPI are names that proxies request because of listeners and routes that gatewayAPI draws.
var askedOfGatewayAPI = []string{
	resourcename.ListenerRouteConfig(443, "x/gw/l0"), resourcename.ListenerRouteConfig(8080, "x/gw/y/set/l1"),
	"http.80/shared.example.com:80", "http.8080/*.example.com:8080", "http.8080/*:8080", "a.x.svc.cluster.local:80",
}

var (
	drawnDomains = []string{"", "*.example.com", "shared.example.com", "a.x.svc.cluster.local"}
	drawnKinds   = []string{mesh.KindHTTPRoute, mesh.KindHTTPRoute, mesh.KindHTTPRoute, mesh.KindGRPCRoute, mesh.KindTLSRoute,
		mesh.KindTCPRoute, mesh.KindUDPRoute}
)

// gatewayAPI draws an object of the Gateway API as config-watcher judges it. Several Gateways of one workload may want
// the same port.
func (d objectDrawer) gatewayAPI() *configv1.Resource {
	aged := func(c *configv1.GatewayAPIConfig) { c.CreationTime.Nanos = int32(d.from(3)) } //nolint:gosec // small
	switch d.from(8) {
	case 0:
		listeners := d.listeners()
		return meshtest.GatewayAPI(mesh.KindGatewayListeners, "x", "gw", listeners, aged)
	case 1:
		listeners := d.listeners()
		listeners.ListenerSet = "y/set"
		return meshtest.GatewayAPI(mesh.KindListenerSet, "y", "set", listeners, aged)
	case 2:
		listeners := d.listeners()
		listeners.Gateway = "x/other"
		return meshtest.GatewayAPI(mesh.KindGatewayListeners, "x", "other", listeners, aged)
	case 3:
		return meshtest.GatewayAPI(mesh.KindBackendTLSPolicy, "x", pick(d, "n1", "n2"), &configv1.BackendTLS{
			Targets:  []*configv1.BackendTLSTarget{{Hostname: pick(d, protorand.NormalisedHosts...), Port: pick(d, uint32(0), 80, 8080)}},
			Hostname: "a.example.com", SystemAuthorities: d.from(2) == 0, Unusable: d.from(4) == 0,
			SubjectAltNames: pick(d, nil, []string{"b.example.com", "spiffe://cluster.local/ns/x/sa/a"}),
		}, aged)
	default:
		kind := pick(d, drawnKinds...)
		return meshtest.GatewayAPI(kind, pick(d, "x", "y"), pick(d, "n1", "n2", "n3"), d.attachedRoute(kind), aged)
	}
}

func (d objectDrawer) listeners() *configv1.GatewayListeners {
	out := &configv1.GatewayListeners{Gateway: "x/gw", BackendCredential: pick(d, "", "kubernetes-gateway://x/cred"),
		Selections: []*configv1.WorkloadSelection{{Namespace: "x", Labels: map[string]string{"istio": "ingressgateway"}}}}
	for i := range 1 + d.from(4) {
		l := &configv1.GatewayListener{Name: fmt.Sprint("l", i), Port: pick(d, uint32(80), 80, 8080, 443), Hostname: pick(d, drawnDomains...),
			Protocol: configv1.ListenerProtocol(1 + d.from(5))} //nolint:gosec // small
		settings := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialNames: []string{"kubernetes-gateway://x/cred"}}
		switch l.GetProtocol() {
		case configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
			if d.from(2) == 0 {
				settings = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_PASSTHROUGH}
			}
			l.Tls = meshtest.Any(settings)
		case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS:
			if d.from(3) == 0 {
				settings.Mode = pick(d, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL,
					networking.ServerTLSSettings_ISTIO_MUTUAL)
			}
			l.Tls, l.InsecureFallback = meshtest.Any(settings), d.from(3) == 0
		}
		out.Listeners = append(out.Listeners, l)
	}
	return out
}

func (d objectDrawer) attachedRoute(kind string) *configv1.AttachedRoute {
	out := &configv1.AttachedRoute{Rank: []byte{byte(d.from(3))}}
	for range d.from(3) {
		to := &configv1.ListenerAttachment{Gateway: pick(d, "x/gw", "x/gw", "x/other"), Listener: fmt.Sprint("l", d.from(4)),
			ListenerSet: pick(d, "", "", "y/set")}
		if kind != mesh.KindTCPRoute && kind != mesh.KindUDPRoute {
			to.Hosts = []*configv1.AttachedHost{{Domain: pick(d, drawnDomains...), Rank: []byte{byte(d.from(2))}}}
		}
		out.Listeners = append(out.Listeners, to)
	}
	if kind != mesh.KindUDPRoute && d.from(2) == 0 {
		to := &configv1.ServiceAttachment{Hostname: pick(d, protorand.NormalisedHosts...), Port: pick(d, uint32(0), 80, 8080, 443),
			ClientNamespace: pick(d, "", "", "x", "y")}
		if kind == mesh.KindTLSRoute {
			to.ServerNames = pick(d, nil, []string{"a.example.com"}, []string{"*.example.com", "a.example.com"})
		}
		out.Services = append(out.Services, to)
	}
	for range 1 + d.from(2) {
		rule := &configv1.AttachedRule{Name: pick(d, "", "rule")}
		if kind == mesh.KindHTTPRoute || kind == mesh.KindGRPCRoute {
			d.rule(rule)
		} else {
			for range d.from(3) {
				rule.Destinations = append(rule.Destinations, &configv1.AttachedDestination{
					Hostname: pick(d, append(protorand.NormalisedHosts[:4:4], contract.UnresolvedBackend)...), Port: 80, Weight: 1 + uint32(d.from(9)), //nolint:gosec // small
				})
			}
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// rule draws a rule with a body and matches that VirtualServices have.
func (d objectDrawer) rule(out *configv1.AttachedRule) {
	vs := &networking.VirtualService{}
	d.fill(mesh.KindVirtualService, vs)
	body := &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{
		Destination: &networking.Destination{Host: contract.UnresolvedBackend},
	}}}
	if len(vs.GetHttp()) > 0 && vs.GetHttp()[0].GetDelegate() == nil {
		body = proto.CloneOf(vs.GetHttp()[0])
	}
	matches := append(body.GetMatch(), nil)
	body.Match = nil
	for i, m := range matches[:1+d.from(len(matches))] {
		match := &configv1.RuleMatch{Rank: []byte{byte(d.from(256)), byte(i)}, PathElements: d.from(2) == 0}
		if m != nil {
			match.Match = meshtest.Any(m)
		}
		out.Matches = append(out.Matches, match)
	}
	for _, to := range body.GetRoute() {
		if d.from(4) == 0 {
			to.Destination = &networking.Destination{Host: contract.UnresolvedBackend}
		}
	}
	out.Http = meshtest.Any(body)
	replaced := pick(d, "/", "/b", "")
	if d.from(3) == 0 {
		out.PrefixRewrite, out.PrefixRedirect = &replaced, &replaced
	}
}
