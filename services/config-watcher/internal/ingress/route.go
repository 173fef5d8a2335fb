package ingress

import (
	"cmp"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// unavailable is the status of requests for a backend whose port is not known.
const unavailable = 503

// route is a route with what decides its place among those of the host.
type route struct {
	exact bool
	// length of the path without '/' at the end; of matches that every path meets anyPath or defaultBackend.
	length int
	http   *networking.HTTPRoute
}

// Lengths behind that of the prefix "/", which is 0.
const (
	anyPath        = -1
	defaultBackend = -2
)

// before orders exact paths before others, and longer ones before shorter ones.
func (a route) before(b route) int {
	if a.exact != b.exact {
		if a.exact {
			return -1
		}
		return 1
	}
	return cmp.Compare(b.length, a.length)
}

// routes converts the rules of an Ingress for a host. The default backend takes requests for the Ingress's hosts that
// no path matches, and for hosts without any rule.
func routes(host string, o *object.Object, ports Ports, domain string) []route {
	spec := o.Body.(*networkingv1.Ingress).Spec
	var out []route
	add := func(r route, b networkingv1.IngressBackend, matches []*networking.HTTPMatchRequest) {
		r.http = destination(o.Key.Namespace, b.Service, ports, domain)
		r.http.Name, r.http.Match = o.Key.String(), matches
		out = append(out, r)
	}
	for _, rule := range spec.Rules {
		if cmp.Or(rule.Host, AnyHost) != host || rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			r, matches := match(p)
			add(r, p.Backend, matches)
		}
	}
	if b := spec.DefaultBackend; b != nil {
		add(route{length: defaultBackend}, *b, nil)
	}
	return out
}

// match converts a path. An ImplementationSpecific path is read as Istio reads it: "*" and ".*" at its end make it a
// prefix, and anything else is exact.
func match(p networkingv1.HTTPIngressPath) (route, []*networking.HTTPMatchRequest) {
	path := p.Path
	if p.PathType != nil {
		switch *p.PathType {
		case networkingv1.PathTypeExact:
			return exact(path)
		case networkingv1.PathTypePrefix:
			return prefix(path)
		}
	}
	switch path {
	case "", "*", "/*", ".*":
		return route{length: anyPath}, nil
	}
	for _, end := range []string{".*", "/*"} {
		if start, ok := strings.CutSuffix(path, end); ok {
			return prefix(start)
		}
	}
	return exact(path)
}

func exact(path string) (route, []*networking.HTTPMatchRequest) {
	return route{exact: true, length: len(path)},
		[]*networking.HTTPMatchRequest{uri(&networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: path}})}
}

// prefix compares whole elements of paths: "/a" and "/a/" stand for /a and everything below /a/.
func prefix(path string) (route, []*networking.HTTPMatchRequest) {
	path = strings.TrimRight(path, "/")
	below := uri(&networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: path + "/"}})
	if path == "" {
		return route{}, []*networking.HTTPMatchRequest{below}
	}
	_, matches := exact(path)
	return route{length: len(path)}, append(matches, below)
}

func uri(m *networking.StringMatch) *networking.HTTPMatchRequest {
	return &networking.HTTPMatchRequest{Uri: m}
}

// destination leads to a backend. Requests for a port whose name the Service does not have are answered 503: without
// the route they would go to a shorter path's backend.
func destination(namespace string, b *networkingv1.IngressServiceBackend, ports Ports, domain string) *networking.HTTPRoute {
	var number uint32
	switch {
	case b == nil:
	case b.Port.Name != "":
		number = ports(namespace, b.Name, b.Port.Name)
	default:
		number = uint32(b.Port.Number) //nolint:gosec // a port
	}
	if number == 0 {
		return &networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: unavailable}}
	}
	return &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{
		Host: b.Name + "." + namespace + ".svc." + domain, Port: &networking.PortSelector{Number: number},
	}}}}
}
