package whole

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/hostpattern"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// checkDestinationPorts finds destinations that leave open which port of a Service they mean.
func checkDestinationPorts(r *run) {
	hosts := r.hosts()
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		running.EachDestination(vs, func(field string, d *networking.Destination) {
			if d.GetPort().GetNumber() != 0 {
				return
			}
			owners := hosts[normalise.Host(d.GetHost(), o.Key.Namespace, r.cfg.Domain)]
			if len(owners) == 0 {
				return
			}
			var numbers []string
			for _, p := range normalise.PortsOf(owners[0].Valid) {
				numbers = append(numbers, fmt.Sprint(p.Number))
			}
			if len(numbers) > 1 {
				r.report(o, finding.PortRequired, field, d.GetHost(),
					fmt.Sprintf("%s %s/%s has several ports and none is named", owners[0].Key.Kind, owners[0].Key.Namespace, owners[0].Key.Name),
					"set port.number to one of "+sentence(numbers))
			}
		})
	}
}

// hosts maps hosts to the Services and ServiceEntries that have them, Services first.
func (r *run) hosts() map[string][]*Object {
	out := map[string][]*Object{}
	for _, kind := range []string{"Service", "ServiceEntry"} {
		for _, o := range r.kind(kind) {
			for _, host := range normalise.HostsOf(o.Valid, r.cfg.Domain) {
				out[host] = append(out[host], o)
			}
		}
	}
	return out
}

// maxRouteComparisons bounds how many pairs of matches of one VirtualService are compared.
const maxRouteComparisons = 1 << 18

// checkRouteOrder finds routes, and matches of routes, that come after one which takes all of their requests.
func checkRouteOrder(r *run) {
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		var http, tls, tcp []matcher
		for i, in := range vs.GetHttp() {
			for j, m := range in.GetMatch() {
				http = append(http, httpMatcher(i, j, m))
			}
			if len(in.GetMatch()) == 0 {
				http = append(http, httpMatcher(i, -1, &networking.HTTPMatchRequest{}))
			}
		}
		for i, in := range vs.GetTls() {
			for j, m := range in.GetMatch() {
				tls = append(tls, matcher{i, j, m, func(o proto.Message) bool { return proto.Equal(m, o) }})
			}
		}
		for i, in := range vs.GetTcp() {
			for j, m := range in.GetMatch() {
				tcp = append(tcp, matcher{i, j, m, func(o proto.Message) bool { return proto.Equal(m, o) }})
			}
			if len(in.GetMatch()) == 0 {
				tcp = append(tcp, matcher{i, -1, &networking.L4MatchAttributes{}, func(proto.Message) bool { return true }})
			}
		}
		r.order(o, "spec.http", http)
		r.order(o, "spec.tls", tls)
		r.order(o, "spec.tcp", tcp)
	}
}

// matcher is one match of a route; match is -1 for a route without matches.
type matcher struct {
	route, match int
	message      proto.Message
	// covers reports whether the match takes everything that another one of its kind takes.
	covers func(proto.Message) bool
}

func (r *run) order(o *Object, path string, list []matcher) {
	lost, all := map[int]int{}, map[int]int{}
	budget := maxRouteComparisons
	for i, m := range list {
		all[m.route]++
		for _, before := range list[:i] {
			if budget--; budget < 0 {
				return
			}
			if !before.covers(m.message) {
				continue
			}
			if before.route != m.route {
				lost[m.route]++
			}
			if m.match >= 0 && before.match >= 0 {
				by := fmt.Sprintf("%s[%d].match[%d]", path, before.route, before.match)
				r.report(o, finding.MatchUnused, fmt.Sprintf("%s[%d].match[%d]", path, m.route, m.match), nil, by+" takes all that it matches",
					"remove it, or write it before that one")
			}
			break
		}
	}
	for route, n := range lost {
		if n == all[route] {
			r.report(o, finding.RouteUnreachable, fmt.Sprintf("%s[%d]", path, route), nil,
				"is never used: routes before it take all that it matches",
				"remove it, or write it before them: the first route that matches counts")
		}
	}
}

// httpMatcher makes the matcher of an HTTP match. A match covers another one that asks for the same and more, and one
// whose path begins with its prefix.
func httpMatcher(route, match int, m *networking.HTTPMatchRequest) matcher {
	return matcher{route, match, m, func(o proto.Message) bool { return httpCovers(m, o.(*networking.HTTPMatchRequest)) }}
}

func httpCovers(m, o *networking.HTTPMatchRequest) bool {
	if !uriCovers(m, o) {
		return false
	}
	same := func(a, b *networking.StringMatch) bool { return a == nil || proto.Equal(a, b) }
	each := func(a, b map[string]*networking.StringMatch) bool {
		for k, v := range a {
			if other, ok := b[k]; !ok || !proto.Equal(v, other) {
				return false
			}
		}
		return true
	}
	labels := func(a, b map[string]string) bool {
		for k, v := range a {
			if b[k] != v {
				return false
			}
		}
		return true
	}
	return same(m.GetScheme(), o.GetScheme()) && same(m.GetMethod(), o.GetMethod()) && same(m.GetAuthority(), o.GetAuthority()) &&
		each(m.GetHeaders(), o.GetHeaders()) && each(m.GetWithoutHeaders(), o.GetWithoutHeaders()) &&
		each(m.GetQueryParams(), o.GetQueryParams()) &&
		(m.GetPort() == 0 || m.GetPort() == o.GetPort()) && labels(m.GetSourceLabels(), o.GetSourceLabels()) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == o.GetSourceNamespace()) &&
		(len(m.GetGateways()) == 0 || len(o.GetGateways()) > 0 &&
			!slices.ContainsFunc(o.GetGateways(), func(g string) bool { return !slices.Contains(m.GetGateways(), g) }))
}

// uriCovers reports whether the path that m asks for takes every path that o asks for.
func uriCovers(m, o *networking.HTTPMatchRequest) bool {
	if m.GetUri() == nil {
		return true
	}
	if o.GetUri() == nil {
		prefix, isPrefix := m.GetUri().GetMatchType().(*networking.StringMatch_Prefix)
		return isPrefix && prefix.Prefix == "/"
	}
	if m.GetIgnoreUriCase() != o.GetIgnoreUriCase() {
		return false
	}
	prefix, isPrefix := m.GetUri().GetMatchType().(*networking.StringMatch_Prefix)
	if !isPrefix {
		return proto.Equal(m.GetUri(), o.GetUri())
	}
	switch of := o.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		return strings.HasPrefix(of.Prefix, prefix.Prefix)
	case *networking.StringMatch_Exact:
		return strings.HasPrefix(of.Exact, prefix.Prefix)
	}
	return false
}

// gatewayFor returns a Gateway that a VirtualService names, and its object; nil if it names "mesh" or is not there.
func (r *run) gatewayFor(o *Object, name string) (*Object, *networking.Gateway) {
	full := contract.GatewayName(name, o.Key.Namespace)
	ns, rest, _ := strings.Cut(full, "/")
	g := r.get("networking.istio.io", "Gateway", ns, rest)
	if g == nil {
		return nil, nil
	}
	body, _ := g.Body.(*networking.Gateway)
	return g, body
}

// internalGateway is in the names of Gateways that Istio makes from those of the Gateway API.
const internalGateway = "-istio-autogenerated-k8s-gateway"

// checkGatewayHosts finds hosts of VirtualServices that no server of their Gateway has, and names of Gateways that are
// none of the user's.
func checkGatewayHosts(r *run) {
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		for i, name := range vs.GetGateways() {
			field := fmt.Sprintf("spec.gateways[%d]", i)
			if strings.Contains(name, internalGateway) {
				r.report(o, finding.InternalGateway, field, name, "is a Gateway that Istio makes from one of the Gateway API",
					"bind an HTTPRoute to that one, or write a Gateway of "+"networking.istio.io")
				continue
			}
			g, body := r.gatewayFor(o, name)
			if body == nil {
				continue
			}
			var missing []string
			for _, host := range vs.GetHosts() {
				if !servesHost(g, body, o.Key.Namespace, strings.ToLower(host)) {
					missing = append(missing, host)
				}
			}
			if len(missing) > 0 {
				r.report(o, finding.HostNotInGateway, field, name,
					fmt.Sprintf("no server of Gateway %s/%s has the host %s for namespace %s", g.Key.Namespace,
						g.Key.Name, sentence(missing), o.Key.Namespace),
					"add the host to a server of the Gateway, or correct it")
			}
		}
	}
}

// servesHost reports whether a server of a Gateway takes a host of a VirtualService of a namespace: either may be a
// wildcard.
func servesHost(g *Object, body *networking.Gateway, namespace, host string) bool {
	for _, s := range body.GetServers() {
		for _, entry := range s.GetHosts() {
			ns, of, scoped := strings.Cut(strings.ToLower(entry), "/")
			if !scoped {
				ns, of = "*", ns
			}
			if ns == "." {
				ns = g.Key.Namespace
			}
			if _, common := hostpattern.Narrower(of, host); common && (ns == "*" || ns == namespace) {
				return true
			}
		}
	}
	return false
}

// checkGatewaySubsets finds routes of gateways that lead to a host without a subset, although the host's VirtualService
// for sidecars chooses subsets: requests from outside pass them by.
func checkGatewaySubsets(r *run) {
	chosen := map[string]*Object{} // host -> VirtualService of sidecars with subsets of it
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		if len(vs.GetGateways()) > 0 && !slices.Contains(vs.GetGateways(), contract.MeshGateway) {
			continue
		}
		for _, in := range vs.GetHttp() {
			for _, to := range in.GetRoute() {
				if d := to.GetDestination(); d.GetSubset() != "" {
					chosen[normalise.Host(d.GetHost(), o.Key.Namespace, r.cfg.Domain)] = o
				}
			}
		}
	}
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		if len(vs.GetGateways()) == 0 || !slices.ContainsFunc(vs.GetGateways(), func(g string) bool { return g != contract.MeshGateway }) {
			continue
		}
		for i, in := range vs.GetHttp() {
			for j, to := range in.GetRoute() {
				d := to.GetDestination()
				by := chosen[normalise.Host(d.GetHost(), o.Key.Namespace, r.cfg.Domain)]
				if d.GetSubset() == "" && by != nil && by != o {
					r.report(o, finding.SubsetNotAtGateway, fmt.Sprintf("spec.http[%d].route[%d].destination", i, j), d.GetHost(),
						fmt.Sprintf("names no subset, although VirtualService %s/%s chooses subsets of the host: it holds for sidecars, and requests from "+
							"the gateway pass it by", by.Key.Namespace, by.Key.Name),
						"name the subset here too, or the gateway there")
				}
			}
		}
	}
}

// checkRegularExpressions finds regular expressions that match something else than they look like. Envoy matches the
// whole text.
func checkRegularExpressions(r *run) {
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		for i, in := range vs.GetHttp() {
			for j, m := range in.GetMatch() {
				at := fmt.Sprintf("spec.http[%d].match[%d]", i, j)
				look := func(field string, s *networking.StringMatch) {
					if reason, remedy := regexTrap(s.GetRegex()); reason != "" {
						r.report(o, finding.RegexTrap, field+".regex", s.GetRegex(), reason, remedy)
					}
				}
				look(at+".uri", m.GetUri())
				look(at+".authority", m.GetAuthority())
				for name, s := range m.GetHeaders() {
					look(at+".headers["+fmt.Sprintf("%q", name)+"]", s)
				}
				for name, s := range m.GetQueryParams() {
					look(at+".queryParams["+fmt.Sprintf("%q", name)+"]", s)
				}
			}
		}
	}
}

func regexTrap(s string) (reason, remedy string) {
	switch {
	case s == "":
	case !strings.ContainsAny(s, `\.+*?()|[]{}^$`):
		return "matches this text alone: an expression must match the whole text", "use exact, or prefix, or add .*"
	case strings.HasSuffix(s, "/*"):
		return `"/*" at the end means any number of slashes, as in no file pattern`, "write /.* or use prefix"
	case strings.HasPrefix(s, "*"):
		return "begins with a repetition of nothing", "write .* for any text"
	}
	return "", ""
}
