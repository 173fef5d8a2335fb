package modeltest

import (
	"fmt"
	"slices"
	"strings"

	v1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Request is an HTTP request.
type Request struct {
	Host, Path, Method string
	Headers, Query     map[string]string
}

// specific orders hostnames: exact ones before wildcards, longer ones before shorter ones.
func specific(hostname string) int {
	if hostname == "" || strings.HasPrefix(hostname, "*") {
		return len(hostname)
	}
	return 1000 + len(hostname)
}

// Answer names the rule that answers a request to a port of a Gateway, such as "HTTPRoute a/b 0", or nothing. Of the
// domains that routes have at the most specific listener, the most specific one decides alone.
func (m *Model) Answer(g *object.Object, port int32, r Request) string {
	var listener *section
	for _, s := range m.sections(g) {
		if s.served() && s.Port == port && strings.HasPrefix(string(s.Protocol), "HTTP") && matches(s.host(), r.Host) &&
			(listener == nil || specific(s.host()) > specific(listener.host())) {
			listener = s
		}
	}
	type candidate struct {
		order []int
		rule  string
	}
	var best []candidate
	domain := -1
	for age, o := range m.all {
		of := m.routes[o]
		if of == nil || listener == nil || !m.takes(o, listener) {
			continue
		}
		for _, own := range of.Spec.Hostnames {
			d, some := common(own, listener.host())
			if !some || !matches(d, r.Host) || specific(d) < domain {
				continue
			} else if specific(d) > domain {
				best, domain = nil, specific(d)
			}
			for i, rule := range of.Spec.Rules {
				for j, match := range append(rule.Matches, make([]v1.HTTPRouteMatch, max(0, 1-len(rule.Matches)))...) {
					if order, ok := r.matches(o.Key.Kind, match); ok {
						order = append(append([]int{-specific(own)}, order...), age, i, j)
						best = append(best, candidate{order, fmt.Sprintf("%s %s/%s %d", o.Key.Kind, o.Key.Namespace, o.Key.Name, i)})
					}
				}
			}
		}
	}
	if len(best) == 0 {
		return ""
	}
	return slices.MinFunc(best, func(a, b candidate) int { return slices.Compare(a.order, b.order) }).rule
}

// matches reports whether a match is met, and its place: exact path, longest prefix, method, headers, query parameters.
// A GRPCRoute requires one header more, the content type.
func (r Request) matches(kind string, m v1.HTTPRouteMatch) ([]int, bool) {
	path := or(m.Path, v1.HTTPPathMatch{})
	value, exact := strings.TrimSuffix(or(path.Value, "/"), "/"), or(path.Type, v1.PathMatchPathPrefix) == v1.PathMatchExact
	ok := r.Path == value || strings.HasPrefix(r.Path, value+"/")
	order := []int{1, -len(value), 1, -len(m.Headers), -len(m.QueryParams)}
	if exact {
		ok, order[0], order[1] = r.Path == *path.Value, 0, 0
	}
	if m.Method != nil {
		ok, order[2] = ok && string(*m.Method) == r.Method, 0
	}
	if kind == "GRPCRoute" {
		ok, order[3] = ok && strings.HasPrefix(r.Headers["content-type"], "application/grpc"), order[3]-1
	}
	for _, h := range m.Headers {
		ok = ok && r.Headers[string(h.Name)] == h.Value
	}
	for _, q := range m.QueryParams {
		ok = ok && r.Query[string(q.Name)] == q.Value
	}
	return order, ok
}
