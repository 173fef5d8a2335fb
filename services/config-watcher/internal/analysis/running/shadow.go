package running

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/normalise/virtualservice"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxBindings bounds the gateway and host pairs of a VirtualService that are analyzed; more pairs get no findings.
const maxBindings = 4096

// bindings lists the gateways and hosts that a VirtualService is bound to, each pair once and at most maxBindings. A
// delegate has none.
func bindings(o *object.Object, vs *networking.VirtualService, domain string) []binding {
	if len(vs.GetHosts()) == 0 {
		return nil
	}
	var out []binding
	known := map[binding]bool{}
	for _, gateway := range gatewaysOf(vs, o.Key.Namespace) {
		for _, host := range vs.GetHosts() {
			if len(out) == maxBindings {
				return out
			}
			if b := (binding{gateway, normalise.Host(host, o.Key.Namespace, domain)}); !known[b] {
				known[b] = true
				out = append(out, b)
			}
		}
	}
	return out
}

// maxOlder bounds how many older VirtualServices of one host and gateway a VirtualService is compared with.
const maxOlder = 64

// maxEffort bounds the comparisons for one object, some tens of milliseconds, so that no object delays the findings
// about others; what is beyond gets no findings. maxScanned bounds how many objects of one host or port are compared.
const maxEffort, maxScanned = 1 << 21, 512

// checkRoutesShadowed finds routes that have no effect because of older VirtualServices for the same host and gateway.
// For one port and source sidecars take the HTTP routes of the oldest VirtualService that has any. Gateways join the
// routes of all, and of several routes that match everything only the oldest has an effect; the same holds for TCP on
// sidecars. For TLS the oldest route for an SNI host has an effect.
func checkRoutesShadowed(r *reader) {
	vs := r.object.Body.(*networking.VirtualService)
	exported := r.exported(r.object)
	covers := map[*object.Object]bool{} // whether every namespace that sees the object sees the older one
	for _, b := range bindings(r.object, vs, r.mesh.domain) {
		var older []*object.Object
		for _, o := range r.routes(b.gateway, b.host) {
			if o.Key == r.object.Key || len(older) == maxOlder || r.effort > maxEffort {
				break
			}
			covered, known := covers[o]
			if !known {
				to := r.exported(o)
				r.effort += len(exported) + len(to)
				covered = within(exported, to)
				covers[o] = covered
			}
			if covered {
				older = append(older, o)
			}
			r.effort++
		}
		if len(older) > 0 {
			r.shadowedBy(b, vs, older)
		}
	}
}

// shadowedBy reports the routes for one gateway and host that have no effect because of older VirtualServices.
func (r *reader) shadowedBy(b binding, vs *networking.VirtualService, older []*object.Object) {
	own := r.claims(r.object, b.gateway)
	if len(own) == 0 {
		return
	}
	earlier := make([][]claim, len(older))
	for i, o := range older {
		earlier[i] = r.claims(o, b.gateway)
		r.effort += len(own) * len(earlier[i])
		if r.effort > maxEffort {
			return
		}
	}
	lost := map[string]*object.Object{} // path of a route -> older VirtualService that takes its traffic
	kept := map[string]bool{}
	for _, c := range own {
		if i := slices.IndexFunc(earlier, func(before []claim) bool { return c.coveredBy(before, b.gateway) }); i >= 0 {
			lost[c.route] = older[i]
		} else {
			kept[c.route] = true
		}
	}
	who := "sidecars take the oldest VirtualService for a host"
	if b.gateway != contract.MeshGateway {
		who = "at gateway " + b.gateway + " one route of a host can match everything, the oldest"
	}
	remedy := "join the routes in one VirtualService, or take the host out of one of them"
	if len(kept) == 0 {
		i := slices.IndexFunc(vs.GetHosts(), func(h string) bool { return r.host(h) == b.host })
		o := lost[own[0].route]
		r.report(finding.VirtualServiceShadowed, fmt.Sprintf("spec.hosts[%d]", i), vs.GetHosts()[i],
			fmt.Sprintf("has no effect: %s, and VirtualService %s/%s %s", who, o.Key.Namespace, o.Key.Name, object.Precedence(o, r.object)), remedy)
		return
	}
	for _, c := range own {
		if o := lost[c.route]; o != nil && !kept[c.route] {
			delete(lost, c.route)
			r.report(finding.VirtualServiceShadowed, c.route, nil,
				fmt.Sprintf("has no effect for host %s: %s, and VirtualService %s/%s %s", b.host, who, o.Key.Namespace, o.Key.Name,
					object.Precedence(o, r.object)), remedy)
		}
	}
}

// claim is the traffic that one match of a route takes.
type claim struct {
	// route is the path of the route, "spec.http[0]", and protocol its kind.
	route, protocol string
	port            uint32
	labels          map[string]string
	namespace       string
	// everything is true if the route takes all requests or connections of its port and source.
	everything bool
	// names are the SNI hosts of a TLS route.
	names []string
}

// coveredBy reports whether the claims of an older VirtualService take all of the claim's traffic.
func (c claim) coveredBy(older []claim, gateway string) bool {
	if c.protocol == "tls" {
		return !slices.ContainsFunc(c.names, func(name string) bool {
			return !slices.ContainsFunc(older, func(o claim) bool { return o.reaches(c) && o.everything && slices.Contains(o.names, name) })
		})
	}
	return slices.ContainsFunc(older, func(o claim) bool {
		switch {
		case !o.reaches(c):
			return false
		case c.protocol == "http" && gateway == contract.MeshGateway:
			return true
		case c.protocol == "http":
			return o.everything && c.everything
		default:
			return o.everything
		}
	})
}

// reaches reports whether the claim covers the ports and sources of another claim.
func (c claim) reaches(o claim) bool {
	return c.protocol == o.protocol && (c.port == 0 || c.port == o.port) && (c.namespace == "" || c.namespace == o.namespace) &&
		object.HasLabels(o.labels, c.labels)
}

// sourceMatch is what HTTP, TLS and TCP matches have in common about port and source.
type sourceMatch interface {
	GetPort() uint32
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}

// claims lists the traffic that a VirtualService takes at a gateway.
func (r *reader) claims(o *object.Object, gateway string) []claim {
	vs := o.Body.(*networking.VirtualService)
	var out []claim
	add := func(route, protocol string, m sourceMatch, everything bool, names []string) {
		r.effort += 1 + len(m.GetGateways())
		if len(m.GetGateways()) == 0 {
			r.effort += len(vs.GetGateways())
		}
		if r.effort > maxEffort || !r.applies(o, vs, m, gateway) {
			return
		}
		c := claim{route: route, protocol: protocol, everything: everything, names: names, port: m.GetPort()}
		if gateway == contract.MeshGateway {
			c.labels, c.namespace = m.GetSourceLabels(), m.GetSourceNamespace()
		}
		out = append(out, c)
	}
	for i, in := range vs.GetHttp() {
		route := fmt.Sprintf("spec.http[%d]", i)
		for _, m := range r.httpMatches(o, in) {
			add(route, "http", m, matchesEverything(m), nil)
		}
	}
	for i, in := range vs.GetTls() {
		for _, m := range in.GetMatch() {
			add(fmt.Sprintf("spec.tls[%d]", i), "tls", m, len(m.GetDestinationSubnets()) == 0, m.GetSniHosts())
		}
	}
	for i, in := range vs.GetTcp() {
		matches := in.GetMatch()
		if len(matches) == 0 {
			matches = []*networking.L4MatchAttributes{{}}
		}
		for _, m := range matches {
			add(fmt.Sprintf("spec.tcp[%d]", i), "tcp", m, len(m.GetDestinationSubnets()) == 0 && m.GetSourceSubnet() == "", nil)
		}
	}
	return out
}

// httpMatches lists the matches of a route; for a delegating route, the merged matches of its delegate's routes.
func (r *reader) httpMatches(o *object.Object, in *networking.HTTPRoute) []*networking.HTTPMatchRequest {
	routes := []*networking.HTTPRoute{in}
	if in.GetDelegate() != nil {
		d := r.delegate(in, o)
		if d == nil {
			return nil
		}
		routes = virtualservice.MergeDelegate(in, proto.CloneOf(d).GetHttp())
	}
	var out []*networking.HTTPMatchRequest
	for _, route := range routes {
		if len(route.GetMatch()) == 0 {
			out = append(out, &networking.HTTPMatchRequest{})
		}
		out = append(out, route.GetMatch()...)
	}
	return out
}

// applies reports whether a match holds at a gateway. Its own gateways replace those of its VirtualService. Without own
// gateways, a match by source holds for sidecars alone if the VirtualService names "mesh".
func (r *reader) applies(o *object.Object, vs *networking.VirtualService, m sourceMatch, gateway string) bool {
	names := m.GetGateways()
	if len(names) == 0 {
		names = vs.GetGateways()
		if gateway != contract.MeshGateway && (len(m.GetSourceLabels()) > 0 || m.GetSourceNamespace() != "") &&
			slices.Contains(names, contract.MeshGateway) {
			return false
		}
	}
	if len(names) == 0 {
		return gateway == contract.MeshGateway
	}
	return slices.ContainsFunc(names, func(name string) bool { return contract.GatewayName(name, o.Key.Namespace) == gateway })
}

// matchesEverything reports whether a match takes every request of its port and source.
func matchesEverything(m *networking.HTTPMatchRequest) bool {
	if m.GetScheme() != nil || m.GetMethod() != nil || m.GetAuthority() != nil ||
		len(m.GetHeaders())+len(m.GetWithoutHeaders())+len(m.GetQueryParams()) > 0 {
		return false
	}
	switch t := m.GetUri().GetMatchType().(type) {
	case nil:
		return true
	case *networking.StringMatch_Prefix:
		return t.Prefix == "/" || t.Prefix == ""
	case *networking.StringMatch_Regex:
		return t.Regex == ".*"
	default:
		return false
	}
}
