package analyze

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// mostBindings bounds the pairs of a gateway and a host that a VirtualService is judged by. Those beyond are not looked
// at: a hundred hosts at forty gateways are more than anybody reads findings about.
const mostBindings = 4096

// bindings lists the gateways and hosts that a VirtualService is bound to, each pair once and at most mostBindings. A
// delegate has none.
func bindings(o *object.Object, vs *networking.VirtualService, domain string) []binding {
	if len(vs.GetHosts()) == 0 {
		return nil
	}
	var out []binding
	known := map[binding]bool{}
	for _, gateway := range gatewaysOf(vs, o.Key.Namespace) {
		for _, host := range vs.GetHosts() {
			if len(out) == mostBindings {
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

// mostOlder bounds how many older VirtualServices of one host and gateway a VirtualService is compared with.
const mostOlder = 64

// mostEffort bounds the comparisons that the judgement of one object may take, some tens of milliseconds. What is
// beyond it is not looked at: findings are advice, and no object may keep all others from theirs. mostScanned bounds
// how many objects of one host or port are looked through.
const mostEffort, mostScanned = 1 << 21, 512

// checkRoutesShadowed finds routes that older VirtualServices for the same host and gateway leave without an effect.
// Sidecars take, for a port and a source, the HTTP routes of the oldest that has any; gateways join the routes of all,
// of which only the first that matches everything counts, as sidecars do with TCP. Of TLS routes the oldest for a
// server name counts.
func checkRoutesShadowed(r *reader) {
	vs := r.object.Body.(*networking.VirtualService)
	exported := r.exported(r.object)
	covers := map[*object.Object]bool{} // whether those who see the object see an older one as well
	for _, b := range bindings(r.object, vs, r.mesh.domain) {
		var older []*object.Object
		for _, o := range r.routes(b.gateway, b.host) {
			if o.Key == r.object.Key || len(older) == mostOlder || r.effort > mostEffort {
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

// shadowedBy reports what older VirtualServices leave without an effect of the routes of one gateway and host.
func (r *reader) shadowedBy(b binding, vs *networking.VirtualService, older []*object.Object) {
	own := r.claims(r.object, b.gateway)
	if len(own) == 0 {
		return
	}
	earlier := make([][]claim, len(older))
	for i, o := range older {
		earlier[i] = r.claims(o, b.gateway)
		r.effort += len(own) * len(earlier[i])
		if r.effort > mostEffort {
			return
		}
	}
	lost := map[string]*object.Object{} // the route's path -> who has what it wants
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
		r.report(VirtualServiceShadowed, fmt.Sprintf("spec.hosts[%d]", i), vs.GetHosts()[i],
			fmt.Sprintf("has no effect: %s, and VirtualService %s/%s is older", who, o.Key.Namespace, o.Key.Name), remedy)
		return
	}
	for _, c := range own {
		if o := lost[c.route]; o != nil && !kept[c.route] {
			delete(lost, c.route)
			r.report(VirtualServiceShadowed, c.route, nil,
				fmt.Sprintf("has no effect for host %s: %s, and VirtualService %s/%s is older", b.host, who, o.Key.Namespace, o.Key.Name), remedy)
		}
	}
}

// claim is what one match of a route takes.
type claim struct {
	// route is the path of the route, "spec.http[0]", and protocol its kind.
	route, protocol string
	port            uint32
	labels          map[string]string
	namespace       string
	// everything is true if the route takes all requests or connections of its port and source.
	everything bool
	// names are the server names of a TLS route.
	names []string
}

// coveredBy reports whether the claims of an older VirtualService leave nothing of the claim.
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

// reaches reports whether the claim is about every port and source that another one is about.
func (c claim) reaches(o claim) bool {
	if c.protocol != o.protocol || c.port != 0 && c.port != o.port || c.namespace != "" && c.namespace != o.namespace {
		return false
	}
	for k, v := range c.labels {
		if got, ok := o.labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// sourced is what matches of all protocols say of port and source.
type sourced interface {
	GetPort() uint32
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}

// claims lists what a VirtualService takes at a gateway.
func (r *reader) claims(o *object.Object, gateway string) []claim {
	vs := o.Body.(*networking.VirtualService)
	var out []claim
	add := func(route, protocol string, m sourced, everything bool, names []string) {
		r.effort += 1 + len(m.GetGateways())
		if len(m.GetGateways()) == 0 {
			r.effort += len(vs.GetGateways())
		}
		if r.effort > mostEffort || !r.applies(o, vs, m, gateway) {
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

// httpMatches lists the matches of a route; of one that delegates, those of its delegate's routes within its own.
func (r *reader) httpMatches(o *object.Object, in *networking.HTTPRoute) []*networking.HTTPMatchRequest {
	routes := []*networking.HTTPRoute{in}
	if in.GetDelegate() != nil {
		d := r.delegate(in, o)
		if d == nil {
			return nil
		}
		routes = normalise.MergeDelegate(in, proto.CloneOf(d).GetHttp())
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

// applies reports whether a match holds at a gateway. Its own gateways go before those of its VirtualService; without
// any, one with a source is about sidecars where the VirtualService is.
func (r *reader) applies(o *object.Object, vs *networking.VirtualService, m sourced, gateway string) bool {
	names := m.GetGateways()
	if len(names) == 0 {
		names = vs.GetGateways()
		if gateway != contract.MeshGateway && (len(m.GetSourceLabels()) > 0 || m.GetSourceNamespace() != "") && slices.Contains(names, contract.MeshGateway) {
			return false
		}
	}
	if len(names) == 0 {
		return gateway == contract.MeshGateway
	}
	return slices.ContainsFunc(names, func(name string) bool { return contract.GatewayName(name, o.Key.Namespace) == gateway })
}

// matchesEverything tells whether no request of a port and source gets past a match.
func matchesEverything(m *networking.HTTPMatchRequest) bool {
	if m.GetScheme() != nil || m.GetMethod() != nil || m.GetAuthority() != nil || len(m.GetHeaders())+len(m.GetWithoutHeaders())+len(m.GetQueryParams()) > 0 {
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
