package gatewayapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	httpListener = "{name: http, port: 80, protocol: HTTP}"
	cart         = `
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]}
`
)

// resource is the route of an object; nil if it has none.
func (w *world) route(kind, namespace, name string) *configv1.AttachedRoute {
	return w.resources[gatewayKey(kind, namespace, name)].GetRoute()
}

// TestBackends has why a backend of a route cannot be resolved.
func TestBackends(t *testing.T) {
	const resolved = "ResolvedRefs=True/ResolvedRefs"
	for name, c := range map[string]struct{ kind, ref, want string }{
		"a Service":          {"HTTPRoute", "{name: cart, port: 8080}", resolved},
		"another group":      {"HTTPRoute", "{group: example.com, kind: Service, name: cart, port: 8080}", "ResolvedRefs=False/InvalidKind"},
		"another kind":       {"HTTPRoute", "{kind: Pod, name: cart, port: 8080}", "ResolvedRefs=False/InvalidKind"},
		"no such Service":    {"HTTPRoute", "{name: gone, port: 8080}", "ResolvedRefs=False/BackendNotFound"},
		"no such port":       {"HTTPRoute", "{name: cart, port: 8081}", "ResolvedRefs=False/BackendNotFound"},
		"no port":            {"HTTPRoute", "{name: cart}", "ResolvedRefs=False/BackendNotFound"},
		"UDP":                {"TCPRoute", "{name: cart, port: 53}", "ResolvedRefs=False/UnsupportedProtocol"},
		"of UDP":             {"UDPRoute", "{name: cart, port: 53}", resolved},
		"TCP":                {"UDPRoute", "{name: cart, port: 8080}", "ResolvedRefs=False/UnsupportedProtocol"},
		"ExternalName":       {"HTTPRoute", "{name: outside, port: 80}", "ResolvedRefs=False/InvalidKind"},
		"of another cluster": {"HTTPRoute", "{name: far, port: 80}", resolved},
		"imported":           {"HTTPRoute", "{group: multicluster.x-k8s.io, kind: ServiceImport, name: exported, port: 9000}", resolved},
		"not imported": {"HTTPRoute", "{group: multicluster.x-k8s.io, kind: ServiceImport, name: cart, port: 8080}",
			"ResolvedRefs=False/BackendNotFound"},
		"another namespace":   {"HTTPRoute", "{name: cart, namespace: other, port: 8080}", "ResolvedRefs=False/RefNotPermitted"},
		"unknown, and of one": {"HTTPRoute", "{kind: Pod, name: cart, namespace: other, port: 8080}", "ResolvedRefs=False/InvalidKind"},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, gatewayOf("web", "", httpListener, "{name: tcp, port: 81, protocol: TCP}", "{name: udp, port: 53, protocol: UDP}")+cart+
				objectOf("Service", "shop", "outside", "{type: ExternalName, externalName: example.com, ports: [{port: 80}]}")+
				objectOf(c.kind, "shop", "r", "{parentRefs: [{name: web}], rules: [{backendRefs: ["+c.ref+"]}]}"))
			far := &object.Object{
				Key:  object.Key{Kind: "Service", Namespace: "shop", Name: "far", Cluster: "east"},
				Body: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
			}
			w.Put(far.Key, far)
			exported := &object.Object{Key: object.Key{Kind: "Service", Namespace: "shop", Name: "exported"}, Body: &corev1.Service{}}
			exported.ClusterSet = &object.ClusterSet{
				Host:    "exported.shop.svc.clusterset.local",
				Service: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9000}}}},
			}
			w.Put(exported.Key, exported)
			w.rebuild()
			has(t, "status", w.status(c.kind, "shop", "r"), "web: Accepted=True/Accepted "+c.want)
			if name == "imported" {
				if got := w.route(c.kind, "shop", "r").String(); !strings.Contains(got, "exported.shop.svc.clusterset.local") {
					t.Errorf("leads to %s", got)
				}
			}
		})
	}
}

// TestGrantsComeAndGo checks that a grant counts as long as it is there, for what it names.
func TestGrantsComeAndGo(t *testing.T) {
	w := load(t, gatewayOf("web", "", "{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: "+
		"other}]}}", httpListener)+
		objectOf("Secret", "other", "cert", "{}")+strings.ReplaceAll(cart, "shop", "other")+
		objectOf("HTTPRoute", "shop", "r", "{parentRefs: [{name: web}], rules: [{backendRefs: [{name: cart, namespace: other, port: 8080}]}]}"))
	grant := func(kind, from, to string) string {
		return objectOf("ReferenceGrant", "other", "g", fmt.Sprintf("{from: [{group: gateway.networking.k8s.io, kind: %s, namespace: %s}], "+
			"to: [%s]}", kind, from, to))
	}
	check := func(what string, listener, route bool) {
		t.Helper()
		if got := w.listeners("web")["https"] != nil; got != listener {
			t.Errorf("%s: the listener is served: %v", what, got)
		}
		revoked := w.resources[gatewayKey("Gateway", "shop", "web")].GetListeners().GetRevoked()
		if got := len(revoked) == 1 && revoked[0].GetName() == "https" && revoked[0].GetTls() == nil; got == listener {
			t.Errorf("%s: revoked are %v", what, revoked)
		}
		if got := strings.Contains(w.route("HTTPRoute", "shop", "r").GetRules()[0].String(), "cart.other.svc"); got != route {
			t.Errorf("%s: the route leads there: %v", what, got)
		}
	}
	wanted := func() int { return len(w.Wanted()) }
	check("no grant", false, false)
	if wanted() != 0 {
		t.Errorf("wanted without a grant: %v", w.Wanted())
	}
	w.put(t, grant("HTTPRoute", "shop", `{group: "", kind: Service}`))
	check("to routes", false, true)
	w.put(t, grant("Gateway", "shop", `{group: "", kind: Secret, name: cert}`))
	check("to Gateways", true, false)
	if wanted() != 1 {
		t.Errorf("wanted with a grant: %v", w.Wanted())
	}
	w.put(t, grant("Gateway", "shop", `{group: "", kind: Secret, name: another}`))
	check("of another name", false, false)
	w.put(t, grant("Gateway", "elsewhere", `{group: "", kind: Secret}`))
	check("to another namespace", false, false)
	w.put(t, grant("Gateway", "shop", `{group: "", kind: Secret}`)+strings.Replace(grant("HTTPRoute", "shop",
		`{group: "", kind: Service}`), "name: g,", "name: h,", 1))
	check("two grants", true, true)
	w.drop("ReferenceGrant", "other", "g")
	check("one of them", false, true)
}

// TestEndedAccess checks that a grant which ends while it is used is told, once for all who use it, and nothing else.
func TestEndedAccess(t *testing.T) {
	route := func(name, backend string) string {
		return objectOf("HTTPRoute", "shop", name, "{parentRefs: [{name: web}], rules: [{backendRefs: [{name: "+backend+
			", namespace: other, port: 8080}]}]}")
	}
	grant := objectOf("ReferenceGrant", "other", "g", "{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], "+
		`to: [{group: "", kind: Service}]}`)
	w := newWorld()
	told := func(what string, r gatewayapi.Result, want ...string) {
		t.Helper()
		var got []string
		for a := range r.Ended {
			got = append(got, fmt.Sprintf("%ss of %s to %s", a.Kind, a.Namespace, a.To.Name))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: told of %v, want %v", what, got, want)
		}
	}
	told("no grant", w.put(t, gatewayOf("web", "", httpListener), strings.ReplaceAll(cart, "shop", "other"), route("a", "cart"),
		route("b", "cart"), route("c", "nowhere")))
	told("a grant", w.put(t, grant))
	told("it ends", w.drop("ReferenceGrant", "other", "g"), "HTTPRoutes of shop to cart", "HTTPRoutes of shop to nowhere")
	told("something else", w.put(t, route("d", "cart")))
	told("it is back", w.put(t, grant))
	told("a route that goes", w.drop("HTTPRoute", "shop", "c"))
	told("a route that leads elsewhere", w.put(t, objectOf("HTTPRoute", "shop", "a", "{parentRefs: [{name: web}], rules: [{}]}")))
	told("it ends again", w.drop("ReferenceGrant", "other", "g"), "HTTPRoutes of shop to cart")
}

// TestNamespaceLabels checks that routes follow the labels of their namespace.
func TestNamespaceLabels(t *testing.T) {
	listener := "{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}}"
	w := load(t, gatewayOf("web", "", listener)+objectOf("HTTPRoute", "other", "r",
		"{parentRefs: [{name: web, namespace: shop}], rules: [{}]}"))
	has(t, "status", w.status("HTTPRoute", "other", "r"), "Accepted=False/NotAllowedByListeners")
	w.put(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: a}}")
	has(t, "status", w.status("HTTPRoute", "other", "r"), "Accepted=True/Accepted")
	has(t, "Gateway", w.status("Gateway", "shop", "web"), "http: 1 ")
	w.drop("Namespace", "", "other")
	has(t, "status", w.status("HTTPRoute", "other", "r"), "Accepted=False/NotAllowedByListeners")
	has(t, "Gateway", w.status("Gateway", "shop", "web"), "http: 0 ")
	w.put(t, gatewayOf("web", "", strings.Replace(listener, "team: a", "kubernetes.io/metadata.name: other", 1)))
	has(t, "status", w.status("HTTPRoute", "other", "r"), "Accepted=True/Accepted")
}

// TestInvalidRules checks that a rule which is not supported answers 500 and harms no other.
func TestInvalidRules(t *testing.T) {
	const good, bad = "{backendRefs: [{name: cart, port: 8080}]}",
		"{matches: [{path: {value: /bad}}], filters: [{type: ExtensionRef, extensionRef: {group: g, kind: k, name: n}}]}"
	of := func(rules ...string) *world {
		return load(t, gatewayOf("web", "", httpListener)+cart+objectOf("HTTPRoute", "shop", "r",
			"{parentRefs: [{name: web}], rules: ["+strings.Join(rules, ", ")+"]}"))
	}
	w := of(good, bad)
	has(t, "partly", w.status("HTTPRoute", "shop", "r"), "Accepted=True/Accepted", "PartiallyInvalid=True/UnsupportedValue")
	conditions := w.statuses[gatewayKey("HTTPRoute", "shop", "r")].Route.Parents[0].Conditions
	if got := conditions[2]; !strings.HasPrefix(got.Message, "Dropped Rule") || got.ObservedGeneration != 7 {
		t.Errorf("condition %v", got)
	}
	if got := w.route("HTTPRoute", "shop", "r").GetRules(); len(got) != 2 || body(t, got[0]).GetDirectResponse() != nil ||
		body(t, got[1]).GetDirectResponse().GetStatus() != 500 {
		t.Errorf("rules %v", got)
	}
	w = of(bad)
	has(t, "all", w.status("HTTPRoute", "shop", "r"), "Accepted=False/UnsupportedValue")
	has(t, "Gateway", w.status("Gateway", "shop", "web"), "http: 0 ")
	if w.route("HTTPRoute", "shop", "r") != nil {
		t.Error("a route without a rule that is supported is served")
	}
	w = of("{filters: [{type: URLRewrite, urlRewrite: {hostname: a}}, {type: RequestRedirect, requestRedirect: {scheme: https}}]}")
	has(t, "incompatible", w.status("HTTPRoute", "shop", "r"), "Accepted=False/IncompatibleFilters")
}

func body(t *testing.T, r *configv1.AttachedRule) *networking.HTTPRoute {
	t.Helper()
	out := &networking.HTTPRoute{}
	if err := r.GetHttp().UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestParents has which listeners a parentRef attaches a route to.
func TestParents(t *testing.T) {
	const set = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: shop}
spec: {parentRef: {name: web}, listeners: [{name: a, port: 82, protocol: HTTP}]}
`
	gateway := gatewayOf("web", "  allowedListeners: {namespaces: {from: Same}}", "{name: a, port: 80, protocol: HTTP}",
		"{name: b, port: 81, protocol: HTTP}",
		"{name: c, port: 80, protocol: HTTP, hostname: c.com}")
	for refs, want := range map[string]string{
		"{name: web}":                                        "a b c",
		"{name: web, sectionName: b}":                        "b",
		"{name: web, port: 80}":                              "a c",
		"{name: web, port: 80, sectionName: c}":              "c",
		"{name: web, sectionName: a}, {name: web, port: 80}": "a c",
		"{name: web, port: 81, sectionName: c}":              "",
		"{name: more, kind: ListenerSet}":                    "more/a",
		"{name: web}, {name: more, kind: ListenerSet}":       "a b c more/a",
		"{name: gone}":                                       "",
		"{name: web, kind: Other}":                           "",
	} {
		w := load(t, gateway+set+objectOf("HTTPRoute", "shop", "r", "{parentRefs: ["+refs+"], rules: [{}]}"))
		var got []string
		for _, l := range w.route("HTTPRoute", "shop", "r").GetListeners() {
			_, set, found := strings.Cut(l.GetListenerSet(), "/")
			if found {
				set += "/"
			}
			got = append(got, set+l.GetListener())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s attaches to %v, want %s", refs, got, want)
		}
		counted := strings.Count(w.status("Gateway", "shop", "web"), ": 1 ") + strings.Count(w.status("ListenerSet", "shop", "more"), ": 1 ")
		if counted != len(got) {
			t.Errorf("%s: %d of %d listeners count it", refs, counted, len(got))
		}
		w.drop("Gateway", "shop", "web")
		if len(w.resources)+len(w.statuses) > 0 {
			t.Errorf("%s: without the Gateway there are %v, %v", refs, w.resources, w.statuses)
		}
	}
}

// TestHosts has the domains that a route with hostnames has at a listener with one.
func TestHosts(t *testing.T) {
	for _, c := range []struct{ listener, route, want string }{
		{"", "", "any"},
		{"", "a.com, '*.b.com'", "*.b.com a.com"},
		{"a.com", "", "a.com"},
		{"'*.com'", "a.com, b.a.com, '*.a.com', a.org", "*.a.com a.com b.a.com"},
		{"a.b.com", "'*.com', '*.b.com'", "a.b.com"},
		{"'*.a.com'", "a.com", ""},
		{"'*.a.com'", "'*.com'", "*.a.com"},
		{"a.com", "A.com", "a.com"},
	} {
		hostname := ""
		if c.listener != "" {
			hostname = ", hostname: " + c.listener
		}
		w := load(t, gatewayOf("web", "", "{name: a, port: 80, protocol: HTTP"+hostname+"}")+
			objectOf("HTTPRoute", "shop", "r", "{parentRefs: [{name: web}], hostnames: ["+c.route+"], rules: [{}]}"))
		var got []string
		for _, l := range w.route("HTTPRoute", "shop", "r").GetListeners() {
			for _, h := range l.GetHosts() {
				if got = append(got, h.GetDomain()); h.GetDomain() == "" {
					got = []string{"any"}
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("listener %s, route %s: %v, want %s", c.listener, c.route, got, c.want)
		}
		if c.want == "" {
			has(t, "status", w.status("HTTPRoute", "shop", "r"), "Accepted=False/NoMatchingListenerHostname")
		}
	}
}

// TestOtherRoutes checks the destinations of a TCPRoute.
func TestOtherRoutes(t *testing.T) {
	w := load(t, gatewayOf("web", "", "{name: tcp, port: 81, protocol: TCP}")+cart+
		objectOf("TCPRoute", "shop", "r", "{parentRefs: [{name: web}], rules: [{name: x, backendRefs: [{name: cart, port: 8080, weight: 2}, "+
			"{name: gone, port: 1}, {name: cart, port: 8080, weight: 0}]}]}")+
		objectOf("TCPRoute", "shop", "s", "{parentRefs: [{name: web}], rules: [{backendRefs: [{name: gone, port: 1}]}]}"))
	r := w.route("TCPRoute", "shop", "r")
	if got := fmt.Sprint(r.GetRules()[0].GetDestinations()); len(r.GetRules()[0].GetDestinations()) != 2 || !strings.Contains(got,
		"unresolved.invalid") ||
		!strings.Contains(got, "cart.shop.svc.cluster.local") || r.GetRules()[0].GetName() != "x" || len(r.GetRank()) == 0 {
		t.Errorf("%v", r)
	}
	if got := w.route("TCPRoute", "shop", "s").GetRules()[0].GetDestinations(); len(got) != 0 {
		t.Errorf("connections that lead nowhere have the destinations %v", got)
	}
	if got := w.route("TCPRoute", "shop", "r").GetListeners()[0].GetHosts(); got != nil {
		t.Errorf("hosts %v", got)
	}
}

// TestMesh has what a route that is attached to a Service counts for.
func TestMesh(t *testing.T) {
	for name, c := range map[string]struct{ kind, namespace, ref, status, want string }{
		"of its namespace": {"HTTPRoute", "shop", "{name: cart}", "Accepted=True/Accepted", "cart.shop.svc.cluster.local 0 "},
		"of another": {"GRPCRoute", "other", "{name: cart, namespace: shop}", "Accepted=True/Accepted",
			"cart.shop.svc.cluster.local 0 other"},
		"a port": {"HTTPRoute", "shop", "{name: cart, port: 8080}", "Accepted=True/Accepted", "cart.shop.svc.cluster.local 8080 "},
		"a port's name": {"TCPRoute", "shop", "{name: cart, sectionName: http}", "Accepted=True/Accepted",
			"cart.shop.svc.cluster.local 8080 "},
		"no such port":      {"HTTPRoute", "shop", "{name: cart, port: 1}", "Accepted=False/NoMatchingParent", ""},
		"of another name":   {"HTTPRoute", "shop", "{name: cart, port: 8080, sectionName: dns}", "Accepted=False/NoMatchingParent", ""},
		"no such Service":   {"HTTPRoute", "shop", "{name: gone}", "Accepted=False/NoMatchingParent", ""},
		"an UDPRoute":       {"UDPRoute", "shop", "{name: cart}", "Accepted=False/UnsupportedValue", ""},
		"of type external":  {"HTTPRoute", "shop", "{name: outside}", "Accepted=False/UnsupportedValue", ""},
		"and its namespace": {"HTTPRoute", "other", "{name: cart}", "Accepted=False/NoMatchingParent", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ref := strings.Replace(c.ref, "{", `{group: "", kind: Service, `, 1)
			w := load(t, cart+objectOf("Service", "shop", "outside", "{type: ExternalName, externalName: example.com}")+
				objectOf(c.kind, c.namespace, "r", "{parentRefs: ["+ref+"], rules: [{backendRefs: [{name: cart, namespace: shop, port: 8080}]}]}"))
			got := ""
			for _, s := range w.route(c.kind, c.namespace, "r").GetServices() {
				got += fmt.Sprintf("%s %d %s", s.GetHostname(), s.GetPort(), s.GetClientNamespace())
			}
			if got != c.want {
				t.Errorf("attached to %q, want %q", got, c.want)
			}
			has(t, "status", w.status(c.kind, c.namespace, "r"), c.status)
			if c.kind != "UDPRoute" {
				has(t, "status", w.status(c.kind, c.namespace, "r"), "ResolvedRefs=True/ResolvedRefs") // needs no grant
			}
		})
	}
}

// TestServerNames checks that an attachment of a TLSRoute to a Service has its hostnames, and of other kinds none.
func TestServerNames(t *testing.T) {
	for kind, want := range map[string]string{"TLSRoute": "[*.example.org a.example.com]", "HTTPRoute": "[]"} {
		w := load(t, cart+objectOf(kind, "shop", "r", `{parentRefs: [{group: "", kind: Service, name: cart}], hostnames: [A.example.com, `+
			`"*.example.org"], rules: [{backendRefs: [{name: cart, port: 8080}]}]}`)+
			objectOf(kind, "shop", "any", `{parentRefs: [{group: "", kind: Service, name: cart}], rules: [{}]}`))
		if got := fmt.Sprint(w.route(kind, "shop", "r").GetServices()[0].GetServerNames()); got != want {
			t.Errorf("%s: got %s, want %s", kind, got, want)
		}
		if got := w.route(kind, "shop", "any").GetServices()[0].GetServerNames(); len(got) != 0 {
			t.Errorf("%s without hostnames: got %s", kind, got)
		}
	}
}

// TestServiceEntries checks that hosts of ServiceEntries are backends and parents, as in Istio.
func TestServiceEntries(t *testing.T) {
	ref := "{group: networking.istio.io, kind: ServiceEntry, name: out"
	w := load(t, gatewayOf("web", "", httpListener)+
		objectOf("HTTPRoute", "shop", "to", "{parentRefs: [{name: web}], rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, "+
			"name: a.com, port: 80}]}]}")+
		objectOf("HTTPRoute", "shop", "of", "{parentRefs: ["+ref+", port: 80}], rules: [{}]}")+
		objectOf("HTTPRoute", "other", "of", "{parentRefs: ["+ref+", namespace: shop}], rules: [{}]}")+
		objectOf("TCPRoute", "shop", "no", "{parentRefs: ["+ref+", port: 81}], rules: [{}]}"))
	has(t, "backend", w.status("HTTPRoute", "shop", "to"), "ResolvedRefs=False/BackendNotFound")
	has(t, "parent", w.status("HTTPRoute", "shop", "of"), "Accepted=False/NoMatchingParent")
	entry := &object.Object{
		Key: object.Key{Group: "networking.istio.io", Kind: "ServiceEntry", Namespace: "shop", Name: "out"},
		Body: &networking.ServiceEntry{
			Hosts: []string{"A.com", "b.com"}, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		},
	}
	w.Put(entry.Key, entry)
	w.rebuild()
	has(t, "backend", w.status("HTTPRoute", "shop", "to"), "ResolvedRefs=True/ResolvedRefs")
	has(t, "parent", w.status("HTTPRoute", "shop", "of"), "Accepted=True/Accepted")
	has(t, "parent", w.status("TCPRoute", "shop", "no"), "Accepted=False/NoMatchingParent")
	services := func(namespace string) string {
		out := ""
		for _, s := range w.route("HTTPRoute", namespace, "of").GetServices() {
			out += fmt.Sprintf("%s %d %s;", s.GetHostname(), s.GetPort(), s.GetClientNamespace())
		}
		return out
	}
	if got, want := services("shop"), "a.com 80 ;b.com 80 ;"; got != want {
		t.Errorf("attached to %s, want %s", got, want)
	}
	if got, want := services("other"), "a.com 0 other;b.com 0 other;"; got != want {
		t.Errorf("attached to %s, want %s", got, want)
	}
	w.Put(entry.Key, nil)
	w.rebuild()
	has(t, "backend", w.status("HTTPRoute", "shop", "to"), "ResolvedRefs=False/BackendNotFound")
	if got := w.route("HTTPRoute", "shop", "of"); got != nil {
		t.Errorf("without its ServiceEntry the route is %v", got)
	}
}

// TestPolicies has which targets a BackendTLSPolicy has, and its status.
func TestPolicies(t *testing.T) {
	const ca = `validation: {hostname: a.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}`
	policy := func(name, created, target, spec string) string {
		return fmt.Sprintf("\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: %s, namespace: shop, "+
			"creationTimestamp: '%s'}\n"+
			"spec: {targetRefs: [%s], %s}\n", name, created, target, spec)
	}
	const whole, http, old, young = `{group: "", kind: Service, name: cart}`, `{group: "", kind: Service, name: cart, sectionName: http}`,
		"2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
	base := gatewayOf("web", "", httpListener, "{name: through, port: 443, protocol: TLS, tls: {mode: Passthrough}}") + cart + suiteCA(t,
		"shop")
	route := objectOf("HTTPRoute", "shop", "r", "{parentRefs: [{name: web}], rules: [{backendRefs: [{name: cart, port: 8080}]}]}")
	w := load(t, base+route+policy("a", old, whole, ca)+policy("b", young, whole, ca)+policy("c", young, http, ca+", options: {a: b}")+
		policy("d", old, `{group: "", kind: Service, name: gone}`, ca)+
		policy("e", old, `{group: "", kind: Service, name: cart, sectionName: dns}`,
			`validation: {hostname: a.com, wellKnownCACertificates: example.com/x}`))
	targets := func(name string) string {
		out := ""
		tls := w.resources[gatewayKey("BackendTLSPolicy", "shop", name)].GetBackendTls()
		for _, target := range tls.GetTargets() {
			out += fmt.Sprintf("%s %d unusable=%v", target.GetHostname(), target.GetPort(), tls.GetUnusable())
		}
		return out
	}
	for name, want := range map[string][2]string{
		"a": {"cart.shop.svc.cluster.local 0 unusable=false", "web: Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs\n"},
		"b": {"", "web: Accepted=False/Conflicted ResolvedRefs=True/ResolvedRefs\n"},
		"c": {"cart.shop.svc.cluster.local 8080 unusable=false", "web: Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs\n"},
		"d": {"", ""},
		"e": {"cart.shop.svc.cluster.local 53 unusable=true", "web: Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs\n"},
	} {
		if got := targets(name); got != want[0] {
			t.Errorf("%s targets %q, want %q", name, got, want[0])
		}
		if got := w.status("BackendTLSPolicy", "shop", name); got != want[1] {
			t.Errorf("%s has the status %q, want %q", name, got, want[1])
		}
	}
	w.drop("BackendTLSPolicy", "shop", "a")
	if got := targets("b"); got != "cart.shop.svc.cluster.local 0 unusable=false" {
		t.Errorf("the younger policy has then %q", got)
	}
	w.drop("ConfigMap", "shop", "ca")
	if got := targets("b"); got != "cart.shop.svc.cluster.local 0 unusable=true" {
		t.Errorf("without the authority it has %q", got)
	}
	has(t, "status", w.status("BackendTLSPolicy", "shop", "b"), "Accepted=False/NoValidCACertificate "+
		"ResolvedRefs=False/InvalidCACertificateRef")
	w.drop("HTTPRoute", "shop", "r")
	if got := w.status("BackendTLSPolicy", "shop", "b"); got != "" {
		t.Errorf("without a route it has the status %s", got)
	}
	w.put(t, objectOf("TLSRoute", "shop", "r", "{parentRefs: [{name: web}], rules: [{backendRefs: [{name: cart, port: 8080}]}]}"))
	if got := w.status("BackendTLSPolicy", "shop", "b"); got != "" {
		t.Errorf("with a route that passes TLS through it has the status %s", got)
	}

	w = load(t, base+route+policy("a", old, whole,
		`validation: {hostname: a.com, wellKnownCACertificates: System, subjectAltNames: [{type: URI, uri: "spiffe://x"}, {type: Hostname, hostname: b.com}]}`))
	tls := w.resources[gatewayKey("BackendTLSPolicy", "shop", "a")].GetBackendTls()
	if !tls.GetSystemAuthorities() || fmt.Sprint(tls.GetSubjectAltNames()) != "[spiffe://x b.com]" || tls.GetHostname() != "a.com" {
		t.Errorf("%v", tls)
	}
	for i := range 20 {
		w.put(t, gatewayOf(fmt.Sprint("more", i), "", httpListener)+
			objectOf("HTTPRoute", "shop", fmt.Sprint("r", i), fmt.Sprintf("{parentRefs: [{name: more%d}], rules: [{backendRefs: [{name: cart, "+
				"port: 8080}]}]}", i)))
	}
	if got := len(w.statuses[gatewayKey("BackendTLSPolicy", "shop", "a")].Policy.Ancestors); got != 16 {
		t.Errorf("%d ancestors", got)
	}
}
