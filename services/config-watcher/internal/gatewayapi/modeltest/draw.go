package modeltest

import (
	"fmt"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	v1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Authority is a certificate that tests set; it is what ConfigMaps hold.
var Authority string

// Names that objects are drawn from: few, so that they meet.
var (
	namespaces = []string{"a", "b"}
	hosts      = []v1.Hostname{"*.com", "*.example.com", "a.example.com", "*.a.example.com", "b.a.example.com"}
	ports      = []int32{80, 80, 443, 9000}
)

func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// maybe returns a pointer to one of the values, or nil.
func maybe[T any](t *rapid.T, label string, from ...T) *T {
	if i := rapid.IntRange(-1, len(from)-1).Draw(t, label); i >= 0 {
		return &from[i]
	}
	return nil
}

// rarely is maybe, and mostly nil.
func rarely[T any](t *rapid.T, label string, from ...T) *T {
	if rapid.IntRange(0, 3).Draw(t, label) > 0 {
		return nil
	}
	return &from[rapid.IntRange(0, len(from)-1).Draw(t, label)]
}

func some[T any](t *rapid.T, label string, least, most int, draw func(i int) T) []T {
	var out []T
	for i := range rapid.IntRange(least, most).Draw(t, label) {
		out = append(out, draw(i))
	}
	return out
}

// Draw draws a set of objects.
func Draw(t *rapid.T) []*object.Object {
	var out []*object.Object
	for _, ns := range namespaces {
		out = append(out, drawn(t, "", "Namespace", "", ns, &corev1.Namespace{}))
		out[len(out)-1].Labels = map[string]string{"team": pick(t, "team", "x", "y")}
	}
	all, host := v1.NamespacesFromAll, maybe(t, "hostname", hosts...)
	listeners := []v1.Listener{
		{Name: "l0", Port: 80, Protocol: "HTTP", Hostname: host, AllowedRoutes: &v1.AllowedRoutes{Namespaces: &v1.RouteNamespaces{From: &all}}},
		{Name: "l1", Port: 80, Protocol: "HTTP", Hostname: maybe(t, "hostname", hosts...)},
	}
	out = append(out, drawn(t, group, "Gateway", "a", "g", &v1.Gateway{Spec: v1.GatewaySpec{GatewayClassName: "istio", Listeners: listeners}}))
	for i := range rapid.IntRange(6, 25).Draw(t, "objects") {
		out = append(out, One(t))
		if i < 4 {
			out = append(out, of(t, "HTTPRoute"))
		}
	}
	return Last(out)
}

// Last returns of the objects with one key the last.
func Last(objects []*object.Object) []*object.Object {
	at := map[object.Key]int{}
	var out []*object.Object
	for _, o := range objects {
		if i, ok := at[o.Key]; ok {
			out[i] = o
			continue
		}
		at[o.Key] = len(out)
		out = append(out, o)
	}
	return out
}

// One draws an object other than a Namespace.
func One(t *rapid.T) *object.Object {
	return of(t, pick(t, "kind", "Gateway", "Gateway", "Gateway", "ListenerSet", "HTTPRoute", "HTTPRoute", "HTTPRoute", "HTTPRoute",
		"GRPCRoute", "TLSRoute",
		"TCPRoute", "UDPRoute", "ReferenceGrant", "Service", "Service", "CredentialState", "GatewayClass"))
}

const group = "gateway.networking.k8s.io"

func of(t *rapid.T, kind string) *object.Object {
	ns := pick(t, "namespace", namespaces...)
	name := func(names ...string) string { return pick(t, "name", names...) }
	switch kind {
	case "Gateway":
		g := &v1.Gateway{Spec: v1.GatewaySpec{
			GatewayClassName: pick[v1.ObjectName](t, "class", "istio", "istio", "istio", "other"),
			Listeners:        some(t, "listeners", 1, 4, func(i int) v1.Listener { return listener(t, i) }),
		}}
		if from := maybe(t, "allowedListeners", fromNamespaces...); from != nil {
			g.Spec.AllowedListeners = &v1.AllowedListeners{Namespaces: &v1.ListenerNamespaces{From: from, Selector: team(from)}}
		}
		return drawn(t, group, kind, ns, name("g", "h"), g)
	case "ListenerSet":
		return drawn(t, group, kind, ns, name("s", "r", "q"), &v1.ListenerSet{Spec: v1.ListenerSetSpec{
			ParentRef: v1.ParentGatewayReference{
				Name: pick[v1.ObjectName](t, "gateway", "g", "h"), Namespace: maybe[v1.Namespace](t, "of", "a", "b"),
			},
			Listeners: some(t, "listeners", 1, 3, func(i int) v1.ListenerEntry { return v1.ListenerEntry(listener(t, i)) }),
		}})
	case "HTTPRoute":
		return drawn(t, group, kind, ns, name("u", "v", "w"), &v1.HTTPRoute{Spec: v1.HTTPRouteSpec{
			CommonRouteSpec: parents(t), Hostnames: hostnames(t), Rules: some(t, "rules", 1, 3, func(int) v1.HTTPRouteRule {
				return v1.HTTPRouteRule{
					Matches: some(t, "matches", 0, 2, func(int) v1.HTTPRouteMatch { return match(t) }),
					BackendRefs: some(t, "backends", 0, 2, func(int) v1.HTTPBackendRef {
						return v1.HTTPBackendRef{BackendRef: backend(t)}
					}),
				}
			}),
		}})
	case "GRPCRoute":
		return drawn(t, group, kind, ns, name("u", "v"), &v1.GRPCRoute{Spec: v1.GRPCRouteSpec{
			CommonRouteSpec: parents(t), Hostnames: hostnames(t),
			Rules: []v1.GRPCRouteRule{{BackendRefs: some(t, "backends", 0, 2, func(int) v1.GRPCBackendRef {
				return v1.GRPCBackendRef{BackendRef: backend(t)}
			})}},
		}})
	case "TLSRoute":
		return drawn(t, group, kind, ns, name("u", "v"), &v1.TLSRoute{Spec: v1.TLSRouteSpec{
			CommonRouteSpec: parents(t), Hostnames: hostnames(t), Rules: []v1.TLSRouteRule{{BackendRefs: backends(t)}},
		}})
	case "TCPRoute":
		return drawn(t, group, kind, ns, name("u", "v"), &v1.TCPRoute{Spec: v1.TCPRouteSpec{
			CommonRouteSpec: parents(t), Rules: []v1.TCPRouteRule{{BackendRefs: backends(t)}},
		}})
	case "UDPRoute":
		return drawn(t, group, kind, ns, name("u", "v"), &v1.UDPRoute{Spec: v1.UDPRouteSpec{
			CommonRouteSpec: parents(t), Rules: []v1.UDPRouteRule{{BackendRefs: backends(t)}},
		}})
	case "ReferenceGrant":
		return drawn(t, group, kind, ns, name("x", "y"), &v1.ReferenceGrant{Spec: v1.ReferenceGrantSpec{
			From: some(t, "from", 1, 2, func(int) v1.ReferenceGrantFrom {
				return v1.ReferenceGrantFrom{
					Group: group, Kind: pick[v1.Kind](t, "from", "Gateway", "ListenerSet", "HTTPRoute", "TCPRoute"),
					Namespace: pick[v1.Namespace](t, "of", "a", "b"),
				}
			}),
			To: some(t, "to", 1, 2, func(int) v1.ReferenceGrantTo {
				return v1.ReferenceGrantTo{Kind: pick[v1.Kind](t, "to", "Service", "Secret"), Name: maybe[v1.ObjectName](t, "name", "k", "l")}
			}),
		}})
	case "Service":
		ports := some(t, "ports", 1, 2, func(i int) corev1.ServicePort {
			return corev1.ServicePort{
				Name: fmt.Sprint("p", i), Port: pick(t, "port", ports...),
				Protocol: pick(t, "protocol", corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP),
			}
		})
		return drawn(t, "", kind, ns, name("k", "l"), &corev1.Service{Spec: corev1.ServiceSpec{Ports: ports}})
	case "CredentialState":
		return drawn(t, "fairlead.dev", kind, ns, name("k", "l"), &object.CredentialState{Problem: pick(t, "problem", "", "", "bad")})
	default:
		return drawn(t, group, kind, "", name("istio", "other"), &v1.GatewayClass{Spec: v1.GatewayClassSpec{
			ControllerName: pick[v1.GatewayController](t, "controller", "istio.io/gateway-controller", "other.io/controller"),
		}})
	}
}

// Beyond draws an object, or adds to a drawn one, what the model does not know.
func Beyond(t *rapid.T) *object.Object {
	ns := pick(t, "namespace", namespaces...)
	authorities := func() []v1.ObjectReference {
		return some(t, "authorities", 1, 2, func(int) v1.ObjectReference {
			return v1.ObjectReference{
				Kind: pick[v1.Kind](t, "kind", "ConfigMap", "ConfigMap", "Secret"), Name: pick[v1.ObjectName](t, "name", "k", "l"),
				Namespace: rarely[v1.Namespace](t, "of", "a", "b"),
			}
		})
	}
	switch pick(t, "beyond", "BackendTLSPolicy", "ConfigMap", "Gateway", "CredentialState", "ServiceEntry", "HTTPRoute", "Service") {
	case "Service":
		return drawn(t, "", "Service", ns, pick(t, "name", "k", "l"), &corev1.Service{Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": pick(t, "app", "k", "l")}, Ports: []corev1.ServicePort{{Port: pick(t, "port", ports...)}},
		}})
	case "ServiceEntry":
		return drawn(t, "networking.istio.io", "ServiceEntry", ns, pick(t, "name", "k", "l"), &networking.ServiceEntry{
			Hosts: some(t, "hosts", 1, 2, func(int) string { return pick(t, "host", "k.com", "l.com") }),
			Ports: []*networking.ServicePort{{Number: uint32(pick(t, "port", ports...))}}, //nolint:gosec // a port
		})
	case "HTTPRoute":
		istio, kind, port := v1.Group("networking.istio.io"), v1.Kind("Hostname"), pick(t, "port", ports...)
		o := of(t, "HTTPRoute")
		spec := &o.Body.(*v1.HTTPRoute).Spec
		spec.ParentRefs = append(spec.ParentRefs, v1.ParentReference{
			Group: &istio, Kind: new(v1.Kind("ServiceEntry")), Name: pick[v1.ObjectName](t, "entry", "k", "l"),
			Namespace: rarely[v1.Namespace](t, "of", "a", "b"),
		})
		spec.Rules[0].BackendRefs = append(spec.Rules[0].BackendRefs, v1.HTTPBackendRef{BackendRef: v1.BackendRef{
			BackendObjectReference: v1.BackendObjectReference{Group: &istio, Kind: &kind, Name: pick[v1.ObjectName](t, "host", "k.com",
				"l.com"), Port: &port},
		}})
		return o
	case "BackendTLSPolicy":
		return drawn(t, group, "BackendTLSPolicy", ns, pick(t, "name", "x", "y"), &v1.BackendTLSPolicy{Spec: v1.BackendTLSPolicySpec{
			TargetRefs: some(t, "targets", 1, 2, func(int) v1.LocalPolicyTargetReferenceWithSectionName {
				return v1.LocalPolicyTargetReferenceWithSectionName{
					LocalPolicyTargetReference: v1.LocalPolicyTargetReference{Kind: "Service", Name: pick[v1.ObjectName](t, "service", "k", "l")},
					SectionName:                rarely[v1.SectionName](t, "section", "p0", "p1"),
				}
			}),
			Validation: v1.BackendTLSPolicyValidation{Hostname: "a.com", CACertificateRefs: some(t, "authorities", 0, 2,
				func(int) v1.LocalObjectReference {
					return v1.LocalObjectReference{Kind: "ConfigMap", Name: pick[v1.ObjectName](t, "name", "k", "l")}
				})},
		}})
	case "ConfigMap":
		return drawn(t, "", "ConfigMap", ns, pick(t, "name", "k", "l"), &corev1.ConfigMap{Data: map[string]string{"ca.crt": pick(t, "ca", "",
			Authority)}})
	case "CredentialState":
		return drawn(t, "fairlead.dev", "CredentialState", ns, pick(t, "name", "k", "l"), &object.CredentialState{
			NotAfter: time.Unix(int64(rapid.IntRange(0, 10).Draw(t, "expires")), 0),
		})
	}
	o := of(t, "Gateway")
	spec := &o.Body.(*v1.Gateway).Spec
	spec.TLS = &v1.GatewayTLSConfig{
		Backend:  &v1.GatewayBackendTLS{ClientCertificateRef: &v1.SecretObjectReference{Name: pick[v1.ObjectName](t, "secret", "k", "l")}},
		Frontend: &v1.FrontendTLSConfig{Default: v1.TLSConfig{Validation: &v1.FrontendTLSValidation{CACertificateRefs: authorities()}}},
	}
	typ := v1.HostnameAddressType
	spec.Addresses = some(t, "addresses", 0, 1, func(int) v1.GatewaySpecAddress {
		return v1.GatewaySpecAddress{Type: &typ, Value: pick(t, "address", "k", "l.b.svc.cluster.local", "example.com")}
	})
	if rapid.Bool().Draw(t, "parameters") {
		spec.Infrastructure = &v1.GatewayInfrastructure{ParametersRef: &v1.LocalParametersReference{Kind: "ConfigMap", Name: pick(t, "name",
			"k", "l")}}
	}
	return o
}

func drawn(t *rapid.T, group, kind, namespace, name string, body any) *object.Object {
	return &object.Object{
		Key: object.Key{Group: group, Kind: kind, Namespace: namespace, Name: name}, Body: body, Source: "drawn",
		Created: time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0), Generation: int64(rapid.IntRange(1, 3).Draw(t, "generation")),
	}
}

var fromNamespaces = []v1.FromNamespaces{v1.NamespacesFromAll, v1.NamespacesFromAll, v1.NamespacesFromSame, v1.NamespacesFromSelector}

func team(from *v1.FromNamespaces) *metav1.LabelSelector {
	if from == nil || *from != v1.NamespacesFromSelector {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
}

func listener(t *rapid.T, i int) v1.Listener {
	out := v1.Listener{
		Name: v1.SectionName(fmt.Sprint("l", i)), Port: pick(t, "port", ports...),
		Protocol: pick(t, "protocol", v1.HTTPProtocolType, v1.HTTPProtocolType, v1.HTTPProtocolType, v1.HTTPSProtocolType, v1.TLSProtocolType,
			v1.TCPProtocolType, v1.UDPProtocolType, v1.ProtocolType("SCTP")),
	}
	if out.Protocol != v1.TCPProtocolType && out.Protocol != v1.UDPProtocolType {
		out.Hostname = maybe(t, "hostname", hosts...)
	}
	if out.Protocol == v1.HTTPSProtocolType || out.Protocol == v1.TLSProtocolType {
		mode := v1.TLSModeTerminate
		if out.Protocol == v1.TLSProtocolType {
			mode = pick(t, "mode", v1.TLSModeTerminate, v1.TLSModePassthrough)
		}
		out.TLS = &v1.ListenerTLSConfig{Mode: &mode, CertificateRefs: some(t, "certificates", 1, 2, func(int) v1.SecretObjectReference {
			return v1.SecretObjectReference{
				Kind: maybe[v1.Kind](t, "kind", "Secret", "Secret", "Certificate"), Name: pick[v1.ObjectName](t, "secret", "k", "l"),
				Namespace: maybe[v1.Namespace](t, "of", "a", "b"),
			}
		})}
	}
	if from := maybe(t, "from", fromNamespaces...); from != nil {
		out.AllowedRoutes = &v1.AllowedRoutes{
			Namespaces: &v1.RouteNamespaces{From: from, Selector: team(from)},
			Kinds: some(t, "kinds", 0, 1, func(int) v1.RouteGroupKind {
				return v1.RouteGroupKind{Kind: pick[v1.Kind](t, "kind", "HTTPRoute", "TLSRoute", "FooRoute")}
			}),
		}
	}
	return out
}

func parents(t *rapid.T) v1.CommonRouteSpec {
	return v1.CommonRouteSpec{ParentRefs: some(t, "parents", 1, 2, func(int) v1.ParentReference {
		ref := v1.ParentReference{
			Kind: rarely[v1.Kind](t, "kind", "ListenerSet", "Service"), Namespace: maybe[v1.Namespace](t, "of", "a", "b"),
			Port: rarely(t, "port", 80, 443, int32(9000)),
		}
		switch kind := or(ref.Kind, "Gateway"); kind {
		case "Gateway":
			ref.Name = pick[v1.ObjectName](t, "name", "g", "g", "h")
		case "ListenerSet":
			ref.Name = pick[v1.ObjectName](t, "name", "s", "r", "q")
		default:
			group := v1.Group("")
			ref.Group, ref.Name = &group, pick[v1.ObjectName](t, "name", "k", "l")
			return ref
		}
		ref.SectionName = rarely[v1.SectionName](t, "section", "l0", "l1")
		return ref
	})}
}

func hostnames(t *rapid.T) []v1.Hostname {
	return some(t, "hostnames", 0, 3, func(int) v1.Hostname { return pick(t, "hostname", hosts...) })
}

func backends(t *rapid.T) []v1.BackendRef {
	return some(t, "backends", 1, 2, func(int) v1.BackendRef { return backend(t) })
}

func backend(t *rapid.T) v1.BackendRef {
	port := pick(t, "port", ports...)
	return v1.BackendRef{BackendObjectReference: v1.BackendObjectReference{
		Kind: maybe[v1.Kind](t, "kind", "Service", "Service", "Service", "Bucket"), Name: pick[v1.ObjectName](t, "service", "k", "l"),
		Namespace: maybe[v1.Namespace](t, "of", "a", "b"), Port: &port,
	}, Weight: maybe[int32](t, "weight", 0, 1, 5)}
}

func match(t *rapid.T) v1.HTTPRouteMatch {
	out := v1.HTTPRouteMatch{Method: rarely(t, "method", v1.HTTPMethodGet, v1.HTTPMethodPost)}
	if typ := maybe(t, "path", v1.PathMatchExact, v1.PathMatchPathPrefix); typ != nil {
		value := pick(t, "value", "/", "/a", "/a/", "/a/b", "/ab")
		out.Path = &v1.HTTPPathMatch{Type: typ, Value: &value}
	}
	if rapid.IntRange(0, 3).Draw(t, "header") == 0 {
		out.Headers = []v1.HTTPHeaderMatch{{Name: "x-h", Value: pick(t, "value", "1", "2")}}
	}
	if rapid.IntRange(0, 3).Draw(t, "query") == 0 {
		out.QueryParams = []v1.HTTPQueryParamMatch{{Name: "q", Value: pick(t, "value", "1", "2")}}
	}
	return out
}

// DrawRequest draws a request.
func DrawRequest(t *rapid.T) Request {
	return Request{
		Host:   pick(t, "host", "a.example.com", "b.a.example.com", "c.example.com", "d.com", "x.net"),
		Path:   pick(t, "path", "/a/b", "/a", "/", "/a/", "/a/b/c", "/ab", "/c"),
		Method: pick(t, "method", "GET", "POST", "PUT"),
		Headers: map[string]string{"x-h": pick(t, "header", "", "1", "2"),
			"content-type": pick(t, "content", "", "application/json", "application/grpc", "application/grpc+proto")},
		Query: map[string]string{"q": pick(t, "query", "", "1", "2")},
	}
}
