package debug_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// routed is a route of namespace shop that the listeners of Gateway shop/edge have taken.
type routed struct {
	kind, name, hostname string
	age                  int
	// listeners is the listener, and at the domains that it and the route have in common.
	listener string
	at       []string
	// rules are matches of one each; nil matches everything.
	rules []*networking.HTTPMatchRequest
}

func (r routed) resource() *configv1.Resource {
	attached := &configv1.ListenerAttachment{Gateway: "shop/edge", Listener: r.listener}
	for _, domain := range r.at {
		attached.Hosts = append(attached.Hosts, &configv1.AttachedHost{Domain: domain, Rank: routerank.Host(r.hostname)})
	}
	spec := &configv1.AttachedRoute{Listeners: []*configv1.ListenerAttachment{attached}}
	route := routerank.Route{Created: time.Unix(int64(-r.age), 0), Namespace: "shop", Name: r.name, Kind: r.kind}
	for i, m := range r.rules {
		rank := routerank.Match{Path: routerank.Any, Method: m.GetMethod() != nil, Headers: len(m.GetHeaders()), Rule: i}
		switch uri := m.GetUri().GetMatchType().(type) {
		case *networking.StringMatch_Exact:
			rank.Path = routerank.Exact
		case *networking.StringMatch_Prefix:
			rank.Path, rank.Value = routerank.Prefix, uri.Prefix
		}
		match := &configv1.RuleMatch{Rank: route.Of(&rank), PathElements: true}
		if m != nil {
			match.Match = meshtest.Any(m)
		}
		spec.Rules = append(spec.Rules, &configv1.AttachedRule{Name: fmt.Sprintf("r%d", i+1), Matches: []*configv1.RuleMatch{match},
			Http: meshtest.Any(&networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{
				Destination: &networking.Destination{Host: r.name, Port: &networking.PortSelector{Number: 80}}}}})})
	}
	return meshtest.GatewayAPI(r.kind+"."+contract.GroupGatewayAPI, "shop", r.name, spec)
}

func uri(text string) *networking.HTTPMatchRequest {
	m := &networking.HTTPMatchRequest{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: text}}}
	if prefix, ok := strings.CutSuffix(text, "*"); ok {
		m.Uri.MatchType = &networking.StringMatch_Prefix{Prefix: prefix}
	}
	return m
}

func header(m *networking.HTTPMatchRequest, name string) *networking.HTTPMatchRequest {
	m.Headers = map[string]*networking.StringMatch{name: {MatchType: &networking.StringMatch_Exact{Exact: "1"}}}
	return m
}

// TestRequest asks a Gateway who answers.
func TestRequest(t *testing.T) {
	labels := map[string]string{contract.GatewayNameLabel: "edge"}
	selections := []*configv1.WorkloadSelection{{Namespace: "shop", Labels: labels}}
	http := configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP
	resources := []*configv1.Resource{
		meshtest.GatewayAPI(mesh.KindGatewayListeners, "shop", "edge", &configv1.GatewayListeners{Gateway: "shop/edge", Selections: selections,
			Listeners: []*configv1.GatewayListener{
				{Name: "all", Port: 80, Protocol: http},
				{Name: "web", Port: 80, Protocol: http, Hostname: "*.web.com"},
				{Name: "tls", Port: 443, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, Hostname: "a.web.com"},
				{Name: "other", Port: 8080, Protocol: http},
			}}),
		meshtest.GatewayAPI(mesh.KindGatewayListeners, "shop", "two", &configv1.GatewayListeners{Gateway: "shop/two",
			Selections: []*configv1.WorkloadSelection{{Namespace: "shop", Labels: map[string]string{contract.GatewayNameLabel: "two"}}},
			Listeners: []*configv1.GatewayListener{
				{Name: "a", Port: 8080, Protocol: http, Hostname: "a.org"}, {Name: "b", Port: 8081, Protocol: http, Hostname: "b.org"},
			}}),
		routed{"HTTPRoute", "old", "", 2, "web", []string{"*.web.com"}, []*networking.HTTPMatchRequest{uri("/a*"), nil}}.resource(),
		routed{"HTTPRoute", "young", "*.web.com", 1, "web", []string{"*.web.com"}, []*networking.HTTPMatchRequest{
			uri("/a/b*"), uri("/a/b"), header(uri("/a/b*"), "x"),
		}}.resource(),
		routed{"HTTPRoute", "any", "", 1, "all", []string{""}, []*networking.HTTPMatchRequest{uri("/x")}}.resource(),
		routed{"HTTPRoute", "narrow", "b.web.com", 1, "all", []string{"b.web.com"}, []*networking.HTTPMatchRequest{nil}}.resource(),
		routed{"GRPCRoute", "twin", "*.web.com", 0, "web", []string{"*.web.com"}, []*networking.HTTPMatchRequest{uri("/a/b*")}}.resource(),
		meshtest.Config(mesh.KindGateway, "shop", "istio", &networking.Gateway{Selector: labels, Servers: []*networking.Server{{
			Hosts: []string{"*.istio.com"}, Port: &networking.Port{Number: 80, Protocol: "HTTP"},
		}}}),
		meshtest.Config(mesh.KindVirtualService, "shop", "vs", &networking.VirtualService{
			Hosts: []string{"c.istio.com"}, Gateways: []string{"shop/istio"},
			Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "x"}}}}},
		}),
	}
	p := newPages(t, nil, resources...)
	for text, c := range map[string]struct {
		headers []string
		// want is "listener domain: answer", or the status; lost and never are the others with their reasons.
		want        string
		lost, never []string
		because     string
	}{
		"a.web.com/a/b/c": {want: "web *.web.com: young 1", lost: []string{
			"GRPCRoute twin 1: the one that answers is of the older route", "old 1: the one that answers has a hostname",
			"old 2: the one that answers has a hostname"},
			never: []string{"GRPCRoute twin 1: HTTPRoute shop/young rule 1 (path /a/b/*) takes all of it, and is of the older route"}},
		"a.web.com/a/b":           {headers: []string{"X: 1"}, want: "web *.web.com: young 2"},
		"http://A.web.com/a/b/?q": {headers: []string{"x:1"}, want: "web *.web.com: young 3"},
		"a.web.com/ab":            {want: "web *.web.com: old 2"},
		"a.web.com:8080/":         {want: "other *: 404", because: "has taken no route for *"},
		"https://a.web.com/":      {want: "tls a.web.com: 404"},
		"https://b.web.com/":      {want: " : 0", because: "closes the connection"},
		"b.web.com/a":             {want: "web *.web.com: old 1"}, // narrow is of a listener that is less specific
		"web.com/x":               {want: "all *: any 1"},
		"web.com/y":               {want: "all *: 404", because: "none of the 1 match "},
		"c.istio.com/x":           {want: " : 0", because: "VirtualService shop/vs"},
		"d.istio.com/x":           {want: "all *: any 1"},
	} {
		var a contract.RequestAnswer
		if failure := p.get("/debug/request", url.Values{"gateway": {"shop/edge"}, "url": {text}, "header": c.headers}, &a); failure != "" {
			t.Errorf("%s: %s", text, failure)
			continue
		}
		got := fmt.Sprintf("%s %s: %d", a.Listener, a.Domain, a.Status)
		if a.Answers != nil {
			got = fmt.Sprintf("%s %s: %s %d", a.Listener, a.Domain, a.Answers.Route.Name, a.Answers.Rule)
			if a.Answers.To != a.Answers.Route.Name+":80" || a.Answers.RuleName != fmt.Sprintf("r%d", a.Answers.Rule) {
				t.Errorf("%s: %+v", text, a.Answers)
			}
		}
		if got != c.want || !strings.Contains(a.Because, c.because) {
			t.Errorf("%s: %s (%s), want %s (%s)", text, got, a.Because, c.want, c.because)
		}
		for _, list := range []struct {
			got  []contract.RouteMatch
			want []string
		}{{a.Lost, c.lost}, {a.Never, c.never}} {
			var shown []string
			for _, m := range list.got {
				shown = append(shown, strings.TrimPrefix(fmt.Sprintf("%s %s %d: %s", m.Route.Kind, m.Route.Name, m.Rule, m.Because), "HTTPRoute "))
			}
			if list.want != nil && strings.Join(shown, "\n") != strings.Join(list.want, "\n") {
				t.Errorf("%s:\n%s\nwant\n%s", text, strings.Join(shown, "\n"), strings.Join(list.want, "\n"))
			}
		}
	}
	var a contract.RequestAnswer
	if failure := p.get("/debug/request", url.Values{"gateway": {"shop/two"}, "url": {"b.org"}}, &a); failure != "" || a.Listener != "b" {
		t.Errorf("the port whose listener takes the host: %s, %+v", failure, a)
	}
	for query, want := range map[string]string{
		"gateway=shop/two&url=c.org":          "serves HTTP on ports 8080, 8081",
		"gateway=shop/none&url=a":             "no Gateway \"shop/none\"",
		"gateway=shop/edge":                   "name a host",
		"gateway=shop/edge&url=ftp://a":       "name a host",
		"gateway=shop/edge&url=a:99":          "serves no HTTP on such a port",
		"gateway=shop/edge&url=a:0":           "is no port",
		"gateway=shop/edge&url=a&header=name": "write <name>: <value>",
		"gateway=shop/edge&url=a%25zz":        "url:",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if failure := p.get("/debug/request", q, &contract.RequestAnswer{}); !strings.Contains(failure, want) {
			t.Errorf("%s: %q", query, failure)
		}
	}
}
