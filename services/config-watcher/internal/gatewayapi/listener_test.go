package gatewayapi_test

import (
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/gatewaydeploy"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
)

// TestConflicts has the listeners of a Gateway, and of each whether it conflicts and why: "" for those that are served.
func TestConflicts(t *testing.T) {
	const (
		protocol = "ProtocolConflict"
		hostname = "HostnameConflict"
		secret   = "tls: {certificateRefs: [{name: cert}]}"
	)
	for name, c := range map[string][][2]string{
		"hostnames": {{"port: 80, protocol: HTTP, hostname: a.com", ""}, {"port: 80, protocol: HTTP, hostname: b.com", ""},
			{"port: 80, protocol: HTTP", ""}},
		"one hostname": {{"port: 80, protocol: HTTP, hostname: a.com", hostname}, {"port: 80, protocol: HTTP, hostname: a.com",
			hostname}, {"port: 80, protocol: HTTP", ""}},
		"case":  {{"port: 80, protocol: HTTP, hostname: A.com", hostname}, {"port: 80, protocol: HTTP, hostname: a.com", hostname}},
		"ports": {{"port: 80, protocol: HTTP", ""}, {"port: 81, protocol: HTTP", ""}},
		"TCP beside HTTP": {{"port: 80, protocol: HTTP, hostname: a.com", protocol}, {"port: 80, protocol: TCP", protocol},
			{"port: 80, protocol: HTTP, hostname: b.com", protocol}},
		"two of TCP":     {{"port: 80, protocol: TCP", protocol}, {"port: 80, protocol: TCP", protocol}},
		"UDP beside TCP": {{"port: 80, protocol: UDP", ""}, {"port: 80, protocol: TCP", ""}},
		"HTTP beside HTTPS": {{"port: 80, protocol: HTTP, hostname: a.com", protocol},
			{"port: 80, protocol: HTTPS, hostname: b.com, " + secret, protocol}},
		"HTTPS beside TLS": {{"port: 443, protocol: TLS, hostname: a.com, tls: {mode: Passthrough}", ""},
			{"port: 443, protocol: HTTPS, hostname: b.com, " + secret, ""}},
		"of one hostname": {{"port: 443, protocol: TLS, hostname: a.com, tls: {mode: Passthrough}", protocol},
			{"port: 443, protocol: HTTPS, hostname: a.com, " + secret, protocol}},
		"with one not known": {{"port: 80, protocol: HTTP, hostname: a.com", ""}, {"port: 80, protocol: SCTP", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var listeners []string
			for i, l := range c {
				listeners = append(listeners, "{name: l"+string(rune('0'+i))+", "+l[0]+"}")
			}
			w := load(t, gatewayOf("web", "", listeners...)+objectOf("Secret", "shop", "cert", "{}"))
			lines := strings.Split(w.status("Gateway", "shop", "web"), "\n")[1:]
			for i, l := range c {
				want := "Conflicted=False/NoConflicts"
				if l[1] != "" {
					want = "served=false Accepted=False/" + l[1] + " Conflicted=True/" + l[1]
				}
				has(t, l[0], lines[i], want)
			}
		})
	}
}

// TestPorts checks that a listener cannot have a port of the proxy's own.
func TestPorts(t *testing.T) {
	w := load(t, gatewayOf("web", "", "{name: status, port: 15021, protocol: HTTP}", "{name: udp, port: 15021, protocol: UDP}",
		"{name: none, port: 0, protocol: TCP}",
		"{name: http, port: 80, protocol: HTTP}"))
	has(t, "status", w.status("Gateway", "shop", "web"), "status: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/PortUnavailable",
		"none: 0 [TCPRoute] served=false Accepted=False/PortUnavailable", "udp: 0 [UDPRoute] served=true",
		"http: 0 [HTTPRoute GRPCRoute] served=true")
}

// TestListenerSetsByAge checks that the older ListenerSet has a port and hostname, and that what conflicts in the
// Gateway is not taken over.
func TestListenerSetsByAge(t *testing.T) {
	const set = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: NAME, namespace: shop, creationTimestamp: "TIME"}
spec: {parentRef: {name: web}, listeners: [{name: x, port: 80, protocol: HTTP, hostname: x.com}, {name: z, port: 80, protocol: HTTP, hostname: z.com}]}
`
	of := func(name, time string) string { return strings.NewReplacer("NAME", name, "TIME", time).Replace(set) }
	w := load(t, gatewayOf("web", "  allowedListeners: {namespaces: {from: Same}}", "{name: z1, port: 80, protocol: HTTP, hostname: z.com}",
		"{name: z2, port: 80, protocol: HTTP, hostname: z.com}", "{name: a, port: 80, protocol: HTTP, hostname: a.com}")+
		of("younger", "2026-01-02T00:00:00Z")+of("older", "2026-01-01T00:00:00Z"))
	has(t, "older", w.status("ListenerSet", "shop", "older"), "Accepted=True/ListenersNotValid", "x: 0 [HTTPRoute GRPCRoute] served=true",
		"z: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/HostnameConflict")
	has(t, "younger", w.status("ListenerSet", "shop", "younger"), "Accepted=False/ListenersNotValid",
		"x: 0 [HTTPRoute GRPCRoute] served=false")
	has(t, "Gateway", w.status("Gateway", "shop", "web"), "Accepted=True/ListenersNotValid", "sets: 1\n")
	w.drop("ListenerSet", "shop", "older")
	has(t, "younger", w.status("ListenerSet", "shop", "younger"), "x: 0 [HTTPRoute GRPCRoute] served=true")
	w.put(t, gatewayOf("web", "", "{name: a, port: 80, protocol: HTTP, hostname: a.com}"))
	has(t, "younger", w.status("ListenerSet", "shop", "younger"), "Accepted=False/NotAllowed\n")
	if r := w.resources[gatewayKey(gatewayapi.ListenerSet, "shop", "younger")]; r != nil {
		t.Errorf("a ListenerSet that is not allowed is served: %v", r)
	}
}

func settings(t *testing.T, l *configv1.GatewayListener) *networking.ServerTLSSettings {
	t.Helper()
	out := &networking.ServerTLSSettings{}
	if err := l.GetTls().UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) listeners(name string) map[string]*configv1.GatewayListener {
	out := map[string]*configv1.GatewayListener{}
	for _, l := range w.resources[gatewayKey("Gateway", "shop", name)].GetListeners().GetListeners() {
		out[l.GetName()] = l
	}
	return out
}

func TestTLSOptions(t *testing.T) {
	const refs = "certificateRefs: [{name: cert}]"
	of := func(name, tls string) string {
		return "{name: " + name + ", port: 443, protocol: HTTPS, hostname: " + name + ".com, tls: {" + tls + "}}"
	}
	w := load(t, gatewayOf("web", "", of("plain", refs), of("mutual", refs+", options: {gateway.istio.io/tls-terminate-mode: MUTUAL}"),
		of("own", "options: {gateway.istio.io/tls-terminate-mode: ISTIO_MUTUAL}"), of("odd",
			refs+", options: {gateway.istio.io/tls-terminate-mode: ODD}"),
		of("ciphers", refs+`, options: {gateway.istio.io/tls-cipher-suites: "ECDHE-RSA-AES128-GCM-SHA256, FOO"}`),
		of("nothing", refs+`, options: {gateway.istio.io/tls-cipher-suites: "FOO"}`), of("two", "certificateRefs: [{name: cert}, {name: gone}]"),
		"{name: none, port: 443, protocol: HTTPS, hostname: none.com}",
		"{name: through, port: 443, protocol: TLS, hostname: through.com, tls: {mode: Passthrough}}")+objectOf("Secret", "shop", "cert", "{}"))
	listeners := w.listeners("web")
	for name, want := range map[string]struct {
		mode        networking.ServerTLSSettings_TLSmode
		credentials string
	}{
		"plain": {networking.ServerTLSSettings_SIMPLE, "kubernetes-gateway://shop/cert"}, "mutual": {networking.ServerTLSSettings_MUTUAL,
			"kubernetes-gateway://shop/cert"},
		"own": {networking.ServerTLSSettings_ISTIO_MUTUAL, ""}, "two": {networking.ServerTLSSettings_SIMPLE, "kubernetes-gateway://shop/cert"},
		"ciphers": {networking.ServerTLSSettings_SIMPLE, "kubernetes-gateway://shop/cert"},
		"through": {networking.ServerTLSSettings_PASSTHROUGH, ""},
	} {
		got := settings(t, listeners[name])
		if got.GetMode() != want.mode || strings.Join(got.GetCredentialNames(), " ") != want.credentials {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := settings(t, listeners["ciphers"]).GetCipherSuites(); len(got) != 1 {
		t.Errorf("cipher suites %v", got)
	}
	status := w.status("Gateway", "shop", "web")
	has(t, "status", status, "odd: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/UnsupportedValue",
		"none: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/UnsupportedValue",
		"nothing: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/UnsupportedValue",
		"two: 0 [HTTPRoute GRPCRoute] served=true Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCertificateRef")
	var wanted []string
	for _, k := range w.Wanted() {
		wanted = append(wanted, k.String())
	}
	if got := strings.Join(wanted, " "); got != "Secret shop/cert Secret shop/cert-cacert Secret shop/gone" {
		t.Errorf("wanted %s", got)
	}
}

// TestExpired checks that an expired certificate is served, and warned of when the time has come.
func TestExpired(t *testing.T) {
	const cert = `
---
apiVersion: v1
kind: Secret
metadata: {name: cert, namespace: shop, annotations: {notAfter: "2026-01-01T00:00:00Z"}}
`
	w := newWorld()
	w.Advance(at(t, "2025-12-31T00:00:00Z"))
	w.put(t, gatewayOf("web", "  tls: {backend: {clientCertificateRef: {name: cert}}}",
		"{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}")+cert)
	message := func() string {
		return w.statuses[gatewayKey("Gateway", "shop", "web")].Gateway.Listeners[0].Conditions[2].Message
	}
	if strings.Contains(message(), "expired") {
		t.Errorf("too early: %s", message())
	}
	w.Advance(at(t, "2026-01-01T00:00:01Z"))
	if r := w.rebuild(); len(r.Resources) > 0 || len(r.Statuses) != 1 {
		t.Errorf("the time has changed %v", r)
	}
	if !strings.Contains(message(), "has expired at 2026-01-01T00:00:00Z") || len(w.listeners("web")) != 1 {
		t.Errorf("%s; %v", message(), w.listeners("web"))
	}
	if got := w.statuses[gatewayKey("Gateway", "shop", "web")].Gateway.Conditions[1]; got.Status != "True" ||
		!strings.Contains(got.Message, "expired") {
		t.Errorf("of the certificate for backends: %v", got)
	}
	w.Advance(at(t, "2026-01-02T00:00:01Z"))
	if r := w.rebuild(); len(r.Statuses) > 0 {
		t.Errorf("warned again: %v", r)
	}
}

func TestClientValidation(t *testing.T) {
	const tls = `  tls:
    frontend:
      default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}
      perPort:
      - {port: 8443, tls: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca, namespace: other}, {group: "", kind: ConfigMap, name: ca}]}}}
      - {port: 9443, tls: {}}
    backend: {clientCertificateRef: {name: cert}}`
	of := func(port string) string {
		return "{name: p" + port + ", port: " + port + ", protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}"
	}
	w := load(t, gatewayOf("web", tls, of("443"), of("8443"), of("9443"),
		"{name: through, port: 444, protocol: TLS, tls: {mode: Passthrough}}")+
		objectOf("Secret", "shop", "cert", "{}")+suiteCA(t, "shop"))
	l := w.listeners("web")
	if got := l["p443"]; settings(t, got).GetMode() != networking.ServerTLSSettings_MUTUAL || got.GetClientAuthorities() == "" ||
		got.GetInsecureFallback() {
		t.Errorf("port 443: %v", got)
	}
	if got := l["p8443"]; settings(t, got).GetMode() != networking.ServerTLSSettings_MUTUAL || got.GetClientAuthorities() == "" ||
		!got.GetInsecureFallback() {
		t.Errorf("port 8443: %v", got)
	}
	for _, name := range []string{"p9443", "through"} {
		if got := l[name]; settings(t, got).GetMode() == networking.ServerTLSSettings_MUTUAL || got.GetClientAuthorities() != "" {
			t.Errorf("%s: %v", name, got)
		}
	}
	has(t, "status", w.status("Gateway", "shop", "web"), "InsecureFrontendValidationMode=True", "p8443: 0 [HTTPRoute GRPCRoute] served=true",
		"ResolvedRefs=False/RefNotPermitted", "ResolvedRefs=False/ListenersNotResolved")
	if got := w.resources[gatewayKey("Gateway", "shop",
		"web")].GetListeners().GetBackendCredential(); got != "kubernetes-gateway://shop/cert" {
		t.Errorf("backend credential %q", got)
	}
}

// TestListenerSetsFollowTheirGateway checks that a ListenerSet that has not changed follows what its Gateway says.
func TestListenerSetsFollowTheirGateway(t *testing.T) {
	const spec = `  allowedListeners: {namespaces: {from: Same}}
  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}}}`
	http := "{name: http, port: 80, protocol: HTTP}"
	w := load(t, gatewayOf("web", spec, http)+suiteCA(t, "shop")+objectOf("Secret", "shop", "cert", "{}")+
		objectOf("Service", "shop", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")+
		objectOf("ListenerSet", "shop", "more", "{parentRef: {name: web}, listeners: "+
			"[{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}"))
	set := func() *configv1.GatewayListeners {
		return w.resources[gatewayKey("ListenerSet", "shop", "more")].GetListeners()
	}
	authorities := set().GetListeners()[0].GetClientAuthorities()
	w.put(t, suiteCA(t, "shop"))
	if got := set().GetListeners()[0].GetClientAuthorities(); got == authorities || got == "" {
		t.Error("the ListenerSet has the old authority")
	}
	w.put(t, gatewayOf("web", spec+"\n  addresses: [{type: Hostname, value: edge}]", http))
	if got := set().GetSelections()[0].GetLabels()["app"]; got != "edge" {
		t.Errorf("the ListenerSet has the selections %v", set().GetSelections())
	}
	w.put(t, gatewayOf("web", strings.Replace(spec, "Same", "None", 1), http))
	has(t, "ListenerSet", w.status("ListenerSet", "shop", "more"), "Accepted=False/NotAllowed")
	if set() != nil {
		t.Error("a ListenerSet that is not allowed any more is served")
	}
}

// TestSelections has which workloads serve a Gateway.
func TestSelections(t *testing.T) {
	const service = `
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: NS}
spec: {selector: {app: edge}, ports: [{port: 80}]}
`
	here, there := strings.ReplaceAll(service, "NS", "shop"), strings.ReplaceAll(service, "NS", "edge")
	long := strings.Repeat("a", 80)
	for name, c := range map[string]struct{ gateway, spec, more, want string }{
		"of its own":      {"web", "", "", "shop gateway.networking.k8s.io/gateway-name=web"},
		"an IP address":   {"web", "  addresses: [{value: 192.0.2.1}]", here, "shop gateway.networking.k8s.io/gateway-name=web"},
		"any address":     {"web", "  addresses: [{}]", here, "shop gateway.networking.k8s.io/gateway-name=web"},
		"a Service":       {"web", "  addresses: [{type: Hostname, value: edge}]", here, "shop app=edge"},
		"a full name":     {"web", "  addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}]", there, "edge app=edge"},
		"no such Service": {"web", "  addresses: [{type: Hostname, value: edge}]", there, ""},
		"another host":    {"web", "  addresses: [{type: Hostname, value: a.example.com}]", there, ""},
		"several": {"web", "  addresses: [{type: Hostname, value: lost}, {type: Hostname, value: a.example.com}, " +
			"{type: Hostname, value: edge}, {type: Hostname, value: edge.edge.svc.cluster.local}]", here + there, "shop app=edgeedge app=edge"},
		"a long name": {long, "", "", "shop gateway.networking.k8s.io/gateway-name=" + long[:54] + "-"},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, gatewayOf(c.gateway, c.spec, "{name: http, port: 80, protocol: HTTP}")+c.more)
			got := ""
			for _, s := range w.resources[gatewayKey("Gateway", "shop", c.gateway)].GetListeners().GetSelections() {
				for k, v := range s.GetLabels() {
					got += s.GetNamespace() + " " + k + "=" + v
				}
			}
			if got != c.want && (c.gateway != long || !strings.HasPrefix(got, c.want)) {
				t.Errorf("selects %q, want %q", got, c.want)
			}
		})
	}
}

// TestUnusableAddresses has what is said of addresses that name no Service.
func TestUnusableAddresses(t *testing.T) {
	w := load(t, objectOf("Service", "shop", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")+gatewayOf("web",
		"  addresses: [{type: Hostname, value: edge}, {type: Hostname, value: a.example.com}, {type: Hostname, value: lost.shop.svc}, "+
			"{type: IPAddress, value: 192.0.2.1}]", "{name: http, port: 80, protocol: HTTP}"))
	got := ""
	for i, u := range w.statuses[gatewayKey("Gateway", "shop", "web")].Gateway.Unusable {
		if got += u.Message + "\n"; u.Missing != (i == 1) {
			t.Errorf("%s: could be a Service: %v", u.Message, u.Missing)
		}
	}
	want := `spec.addresses[1].value: "a.example.com" is no Service of the cluster; write NAME, NAME.NAMESPACE.svc or ` +
		"NAME.NAMESPACE.svc.cluster.local\nspec.addresses[2].value: there is no Service shop/lost; create it, or correct the name\n"
	if got != want {
		t.Errorf("says\n%s\nwant\n%s", got, want)
	}
	w.put(t, objectOf("Service", "shop", "lost", "{selector: {app: lost}, ports: [{port: 80}]}"))
	if got := w.statuses[gatewayKey("Gateway", "shop", "web")].Gateway.Unusable; len(got) != 1 {
		t.Errorf("with the Service: %v", got)
	}
}

// TestParametersOfGatewaysThatNameServices checks that parameters have to be right where nothing is deployed by them.
func TestParametersOfGatewaysThatNameServices(t *testing.T) {
	of := func(ref string) string {
		return gatewayOf("web", "  addresses: [{type: Hostname, value: edge}]\n  infrastructure: {parametersRef: "+ref+"}",
			"{name: http, port: 80, protocol: HTTP}")
	}
	edge := objectOf("Service", "shop", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")
	refused := "Accepted=False/InvalidParameters"
	w := load(t, edge+of("{group: invalid.io, kind: Invalid, name: x}"))
	has(t, "another kind", w.status("Gateway", "shop", "web"), refused)
	w.put(t, of(`{group: "", kind: ConfigMap, name: options}`))
	has(t, "a ConfigMap that is not there", w.status("Gateway", "shop", "web"), refused)
	w.put(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: options, namespace: shop}, data: {deployment: "spec: {replicas: 2}"}}`)
	has(t, "the ConfigMap", w.status("Gateway", "shop", "web"), "Accepted=True/Accepted")
}

// TestTenants checks that in a mesh with tenants a Gateway has no workloads of another namespace.
func TestTenants(t *testing.T) {
	w := newWorld()
	w.State = gatewayapi.New(gatewayapi.Config{Domain: "cluster.local", MeshNamespace: "istio-system", Tenants: true})
	edge := objectOf("Service", "edge", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")
	gateway := gatewayOf("web", "  addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}]",
		"{name: http, port: 80, protocol: HTTP}")
	w.put(t, edge+gateway+strings.ReplaceAll(gateway, "namespace: shop", "namespace: istio-system")+strings.ReplaceAll(gateway,
		"namespace: shop", "namespace: edge"))
	has(t, "status", w.status("Gateway", "shop", "web"), "Accepted=False/UnsupportedAddress")
	for namespace, served := range map[string]bool{"shop": false, "istio-system": true, "edge": true} {
		if got := w.resources[gatewayKey("Gateway", namespace, "web")] != nil; got != served {
			t.Errorf("%s: served by workloads of another namespace: %v", namespace, got)
		}
	}
}

// TestClasses checks which Gateways are ours.
func TestClasses(t *testing.T) {
	const gateway = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: shop}
spec: {gatewayClassName: CLASS, listeners: [{name: http, port: 80, protocol: HTTP}]}
`
	const class = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: CONTROLLER}
`
	w := load(t, strings.ReplaceAll(gateway, "CLASS", "mine"))
	if got := w.status("Gateway", "shop", "web"); got != "" {
		t.Errorf("a class that is not there has the status %s", got)
	}
	w.put(t, strings.ReplaceAll(class, "CONTROLLER", string(gatewaydeploy.FairleadController)))
	has(t, "Gateway", w.status("Gateway", "shop", "web"), "Accepted=True/Accepted")
	has(t, "class", w.status("GatewayClass", "", "mine"), "Accepted=True/Accepted")
	if got := len(w.statuses[gatewayKey("GatewayClass", "", "mine")].Class.SupportedFeatures); got != 48 {
		t.Errorf("%d features", got)
	}
	w.put(t, strings.ReplaceAll(class, "CONTROLLER", "example.com/other"))
	if len(w.statuses)+len(w.resources) != 0 {
		t.Errorf("of another controller: %v %v", w.statuses, w.resources)
	}
	w.put(t, strings.ReplaceAll(gateway, "CLASS", "istio-remote"))
	if w.resources[gatewayKey("Gateway", "shop", "web")] != nil || !w.statuses[gatewayKey("Gateway", "shop", "web")].Gateway.Remote {
		t.Errorf("a Gateway of another cluster has %v", w.resources)
	}
	w.put(t, strings.ReplaceAll(gateway, "CLASS", "fairlead"))
	if w.resources[gatewayKey("Gateway", "shop", "web")] == nil {
		t.Error("class fairlead is not served")
	}
}
