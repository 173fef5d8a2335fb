package debug

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/routematch"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
)

// maxMatches bounds the matches that each list of an answer has, and maxComparisons how often two are compared to find
// those that no request reaches.
const maxMatches, maxComparisons = 50, 1 << 20

// request answers which rule of the Gateway API answers a request.
func (d *pages) request(r *http.Request) (any, error) {
	q := r.URL.Query()
	asked, err := readRequest(q)
	if err != nil {
		return nil, err
	}
	namespace, name, _ := strings.Cut(q.Get("gateway"), "/")
	at := &gatewayAt{state: d.engine.State(), name: namespace + "/" + name}
	own := at.state.ListenersOf(namespace, name)
	if own == nil {
		return nil, &ops.StatusError{Code: http.StatusNotFound,
			Err: fmt.Errorf("no Gateway %q of the Gateway API has listeners that are served; see its status, and name it "+
				"?gateway=<namespace>/<name>", q.Get("gateway"))}
	}
	if selections := own.Spec.GetSelections(); len(selections) > 0 {
		at.namespace, at.labels = selections[0].GetNamespace(), selections[0].GetLabels()
	}
	return at.answer(own, asked)
}

// asked is a request to a gateway.
type asked struct {
	routematch.Request
	// scheme is "http", "https", or "" if it was not given; port is 0 if it was not given.
	scheme, host string
	port         uint32
}

func readRequest(q url.Values) (*asked, error) {
	text := q.Get("url")
	if !strings.Contains(text, "://") {
		text = "//" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if u.Hostname() == "" || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("url %q: name a host: ?url=[http[s]://]<host>[:port][/path]", q.Get("url"))
	}
	out := &asked{scheme: u.Scheme, host: strings.ToLower(u.Hostname())}
	out.Request = routematch.Request{Method: cmp.Or(q.Get("method"), http.MethodGet), Path: cmp.Or(u.EscapedPath(), "/"), Query: u.RawQuery,
		Header: http.Header{}}
	if u.Port() != "" {
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("url %q: %q is no port", q.Get("url"), u.Port())
		}
		out.port = uint32(n)
	}
	for _, line := range q["header"] {
		name, value, found := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !found || name == "" {
			return nil, fmt.Errorf("header %q: write <name>: <value>", line)
		}
		out.Header.Add(name, strings.TrimSpace(value))
	}
	return out, nil
}

// gatewayAt is a Gateway of the Gateway API, where it is served.
type gatewayAt struct {
	state *mesh.Snapshot
	name  string
	// namespace and labels are those of its workloads.
	namespace string
	labels    map[string]string
}

func (g *gatewayAt) answer(own *mesh.GatewayListeners, r *asked) (*contract.RequestAnswer, error) {
	port, err := g.port(own, r)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if port.Kind == gateway.TLS {
		scheme = "https"
	}
	query := ""
	if r.Query != "" {
		query = "?" + r.Query
	}
	a := &contract.RequestAnswer{Gateway: g.name, Port: port.Number,
		Request: fmt.Sprintf("%s %s://%s:%d%s%s", r.Method, scheme, r.host, port.Number, r.Path, query)}
	l, served := port.ListenerFor(r.host)
	for domain := range mesh.Covering(r.host) {
		if by := g.claimedBy(port, domain); by != "" {
			a.Because = fmt.Sprintf("VirtualService %s, bound to a Gateway of networking.istio.io, routes %s on this port, and wins", by, domain)
			return a, nil
		}
		if served && (domain == l.Host() || slices.Contains(g.state.AttachedDomains(l.Reference()), domain)) {
			a.Domain = domain
			break
		}
	}
	if !served {
		a.Status, a.Because = http.StatusNotFound, "no listener of the port has a hostname that covers the host"
		if port.Kind == gateway.TLS {
			a.Status, a.Because = 0, "no listener of the port has a hostname that covers the host: the gateway closes the connection"
		}
		return a, nil
	}
	a.Listener, a.ListenerHost = strings.TrimPrefix(l.Reference(), g.name+"/"), l.Host()
	return a, g.rules(a, l, r)
}

// port returns the port that the request comes to, with its listeners of HTTP, also those of ListenerSets and of other
// Gateways of the workloads.
func (g *gatewayAt) port(own *mesh.GatewayListeners, r *asked) (*gateway.Port, error) {
	owners := []*mesh.GatewayListeners{own}
	if len(g.labels) > 0 {
		owners = g.state.GatewayListeners(g.namespace, g.labels)
	}
	var ports []*gateway.Port
	for _, owner := range owners {
		for i, spec := range owner.Spec.GetListeners() {
			kind := gateway.HTTP
			switch spec.GetProtocol() {
			case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP:
			case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS:
				kind = gateway.TLS
			default:
				continue
			}
			if r.port > 0 && r.port != spec.GetPort() || r.scheme == "http" && kind != gateway.HTTP || r.scheme == "https" && kind != gateway.TLS {
				continue
			}
			at := slices.IndexFunc(ports, func(p *gateway.Port) bool { return p.Number == spec.GetPort() })
			if at < 0 {
				at, ports = len(ports), append(ports, &gateway.Port{Number: spec.GetPort(), Kind: kind})
			}
			ports[at].Listeners = append(ports[at].Listeners, gateway.Listener{Owner: owner, Spec: spec, TLS: owner.TLS[i]})
		}
	}
	// A port with a listener that takes the host comes before those without.
	taken := slices.DeleteFunc(slices.Clone(ports), func(p *gateway.Port) bool {
		_, takes := p.ListenerFor(r.host)
		return !takes
	})
	if len(taken) > 0 {
		ports = taken
	}
	for _, usual := range []uint32{80, 443} {
		if at := slices.IndexFunc(ports, func(p *gateway.Port) bool { return p.Number == usual }); at >= 0 {
			return ports[at], nil
		}
	}
	numbers := lists.Map(ports, func(p *gateway.Port) string { return fmt.Sprint(p.Number) })
	switch len(ports) {
	case 0:
		return nil, fmt.Errorf("gateway %s serves no HTTP on such a port; name another port or scheme", g.name)
	case 1:
		return ports[0], nil
	default:
		return nil, fmt.Errorf("gateway %s serves HTTP on ports %s; name one: %s:%s", g.name, strings.Join(numbers, ", "), r.host, numbers[0])
	}
}

// claimedBy names a VirtualService that a Gateway of Istio's API serves on the port for exactly a domain; "" if there
// is none.
func (g *gatewayAt) claimedBy(port *gateway.Port, domain string) string {
	if len(g.labels) == 0 {
		return ""
	}
	for _, istio := range g.state.Gateways(g.namespace, g.labels) {
		for _, spec := range istio.Spec.GetServers() {
			server := gateway.Server{Gateway: istio, Spec: spec}
			if server.Number() != port.Number {
				continue
			}
			for _, vs := range g.state.VirtualServices(g.namespace, server.Name()) {
				for _, host := range vs.Spec.GetHosts() {
					if len(vs.Spec.GetHttp()) > 0 && slices.Contains(server.ServedHosts(vs.Key.Namespace, host), domain) {
						return vs.Key.Namespace + "/" + vs.Key.Name
					}
				}
			}
		}
	}
	return ""
}

// ruleMatch is one match of a rule at a domain.
type ruleMatch struct {
	host, rank  []byte
	route       *mesh.AttachedRoute
	rule, index int // in the object
	does        *mesh.AttachedRule
	*routematch.Match
}

func (m *ruleMatch) compare(o *ruleMatch) int {
	return cmp.Or(bytes.Compare(m.host, o.host), bytes.Compare(m.rank, o.rank))
}

// rules says which of the rules for the domain answers.
func (g *gatewayAt) rules(a *contract.RequestAnswer, l gateway.Listener, r *asked) error {
	var all []*ruleMatch
	domain := a.Domain
	if domain == gateway.AnyHost {
		domain = ""
	}
	for _, route := range g.state.AttachedRoutes(l.Reference(), domain) {
		if route.Key.Kind != mesh.KindHTTPRoute && route.Key.Kind != mesh.KindGRPCRoute {
			continue
		}
		for i, rule := range route.Rules {
			for j, m := range rule.GetMatches() {
				read, err := routematch.New(rule.Requests[j], m.GetPathElements())
				if err != nil {
					return fmt.Errorf("%s: rule %d, match %d: %w", route.Key, i+1, j+1, err)
				}
				inObject, index := routerank.Place(m.GetRank())
				all = append(all, &ruleMatch{route.Rank, m.GetRank(), route.AttachedRoute, inObject, index, &route.Rules[i], read})
			}
		}
	}
	slices.SortFunc(all, (*ruleMatch).compare)
	var winner *ruleMatch
	for _, m := range all {
		if !m.Matches(r.Request) {
			continue
		}
		if winner == nil {
			winner, a.Answers = m, new(m.shown(""))
			continue
		}
		if len(a.Lost) == maxMatches {
			a.MoreLost++
			continue
		}
		a.Lost = append(a.Lost, m.shown("the one that answers "+routerank.Explain(winner.host, winner.rank, m.host, m.rank)))
	}
	if winner == nil {
		a.Status = http.StatusNotFound
		a.Because = fmt.Sprintf("none of the %s for %s that the listener has taken matches", countOf(len(all)), a.Domain)
		if len(all) == 0 {
			a.Because = fmt.Sprintf("the listener has taken no route for %s", a.Domain)
		}
	}
	unreached(a, all)
	return nil
}

// unreached adds the matches that no request reaches, because one that comes before takes all that they would take.
func unreached(a *contract.RequestAnswer, all []*ruleMatch) {
	left := maxComparisons
	for i, m := range all {
		if left -= i; left < 0 {
			a.NotCompared = len(all) - i
			return
		}
		at := slices.IndexFunc(all[:i], func(before *ruleMatch) bool { return before.Covers(m.Match) })
		if at < 0 {
			continue
		}
		if len(a.Never) == maxMatches {
			a.MoreNever++
			continue
		}
		before := all[at]
		a.Never = append(a.Never, m.shown(fmt.Sprintf("%s takes all of it, and %s", before.place(),
			routerank.Explain(before.host, before.rank, m.host, m.rank))))
	}
}

// place names the match in a sentence.
func (m *ruleMatch) place() string {
	kind, _, _ := strings.Cut(m.route.Key.Kind, ".")
	return fmt.Sprintf("%s %s/%s rule %d (%s)", kind, m.route.Key.Namespace, m.route.Key.Name, m.rule+1, m.Match)
}

func (m *ruleMatch) shown(because string) contract.RouteMatch {
	route := describeOrigin(input.Origin{Key: m.route.Key, Source: m.route.Source})
	route.Kind, _, _ = strings.Cut(route.Kind, ".")
	return contract.RouteMatch{Route: route, Rule: m.rule + 1, Match: m.index + 1, RuleName: m.does.GetName(), Conditions: m.String(),
		To: sendsTo(m.does), Because: because}
}

// sendsTo says what a rule does with a request.
func sendsTo(rule *mesh.AttachedRule) string {
	if direct := rule.HTTP.GetDirectResponse(); direct != nil {
		return fmt.Sprintf("status %d", direct.GetStatus())
	}
	if redirect := rule.HTTP.GetRedirect(); redirect != nil {
		return fmt.Sprintf("redirect, status %d", cmp.Or(redirect.GetRedirectCode(), http.StatusMovedPermanently))
	}
	var to []string
	for _, d := range rule.HTTP.GetRoute() {
		host := d.GetDestination().GetHost()
		if host == contract.UnresolvedBackend {
			host = "a backend that cannot be resolved (status 500)"
		} else if port := d.GetDestination().GetPort().GetNumber(); port > 0 {
			host = fmt.Sprintf("%s:%d", host, port)
		}
		if len(rule.HTTP.GetRoute()) > 1 {
			host = fmt.Sprintf("%s (weight %d)", host, d.GetWeight())
		}
		to = append(to, host)
	}
	return strings.Join(to, ", ")
}

func countOf(matches int) string {
	if matches == 1 {
		return "1 match"
	}
	return fmt.Sprintf("%d matches", matches)
}
