package routerank_test

import (
	"bytes"
	"testing"
	"time"

	"fairlead.dev/proto/fairlead/routerank"
)

// match is a match of a route with its host.
type match struct {
	host  string
	route routerank.Route
	routerank.Match
}

func (m *match) ranks() (host, rank []byte) { return routerank.Host(m.host), m.route.Of(&m.Match) }

// TestOrder has matches in the order in which they are tried, and why each comes before the next.
func TestOrder(t *testing.T) {
	old, young := time.Unix(100, 0), time.Unix(100, 1)
	route := func(created time.Time, name, kind string) routerank.Route {
		return routerank.Route{Created: created, Namespace: "a", Name: name, Kind: kind}
	}
	first := route(time.Time{}, "x", "HTTPRoute")
	order := []struct {
		match
		why string
	}{
		{match{"a.example.com", first, routerank.Match{Path: routerank.Any}}, "has the longer hostname"},
		{match{"b.com", first, routerank.Match{Path: routerank.Any}}, "has an exact hostname"},
		{match{"*.b.example.com", first, routerank.Match{Path: routerank.Any}}, "has the longer hostname"},
		{match{"*.example.com", first, routerank.Match{Path: routerank.Any}}, "has a hostname"},
		{match{"", first, routerank.Match{Path: routerank.Exact}}, "has an exact path"},
		{match{"", first, routerank.Match{Path: routerank.Prefix, Value: "/a/b"}}, "has the longer path prefix"},
		{match{"", first, routerank.Match{Path: routerank.Prefix, Value: "/a/"}}, "has a path prefix"},
		{match{"", first, routerank.Match{Path: routerank.Regex, Value: "/a.*"}}, "has the longer regular expression"},
		{match{"", first, routerank.Match{Path: routerank.Regex, Value: "/.*"}}, "has a path"},
		{match{"", first, routerank.Match{Path: routerank.Any, Method: true}}, "requires a method"},
		{match{"", first, routerank.Match{Path: routerank.Any, Headers: 2}}, "requires more headers"},
		{match{"", first, routerank.Match{Path: routerank.Any, Headers: 1, Params: 1}}, "requires more query parameters"},
		{match{"", first, routerank.Match{Path: routerank.Any, Headers: 1}}, "requires more headers"},
		{match{"", first, routerank.Match{Path: routerank.Any}}, "is of the older route"},
		{match{"", route(old, "z", "HTTPRoute"), routerank.Match{Path: routerank.Any}}, "is of the older route"},
		{match{"", route(young, "a", "HTTPRoute"), routerank.Match{Path: routerank.Any}},
			"is of the route that comes first by namespace and name"},
		{match{"", route(young, "ab", "HTTPRoute"), routerank.Match{Path: routerank.Any, Rule: 300}}, "is of an HTTPRoute"},
		{match{"", route(young, "ab", "GRPCRoute"), routerank.Match{Path: routerank.Any}}, "is the earlier match of the rule"},
		{match{"", route(young, "ab", "GRPCRoute"), routerank.Match{Path: routerank.Any, Index: 1}}, "is of an earlier rule"},
		{match{"", route(young, "ab", "GRPCRoute"), routerank.Match{Path: routerank.Any, Rule: 256}}, ""},
	}
	for i := 1; i < len(order); i++ {
		host, rank := order[i-1].ranks()
		otherHost, other := order[i].ranks()
		if got := routerank.Explain(host, rank, otherHost, other); got != order[i-1].why {
			t.Errorf("%+v %q before %+v; want %q", order[i-1].match, got, order[i].match, order[i-1].why)
		}
		if got := routerank.Explain(otherHost, other, host, rank); got != "" {
			t.Errorf("%+v before %+v: %q", order[i].match, order[i-1].match, got)
		}
		if rule, index := routerank.Place(rank); rule != order[i-1].Rule || index != order[i-1].Index {
			t.Errorf("%+v is at %d, %d", order[i-1].match, rule, index)
		}
		if a, b := append(host, rank...), append(otherHost, other...); bytes.Compare(a, b) >= 0 {
			t.Errorf("%+v has not the lesser rank than %+v", order[i-1].match, order[i].match)
		}
	}
}

// TestNames checks that names order routes as "<namespace>/<name>" does, and are told apart.
func TestNames(t *testing.T) {
	rank := func(namespace, name string) []byte {
		r := routerank.Route{Namespace: namespace, Name: name, Kind: "TCPRoute"}
		return r.Whole()
	}
	names := [][2]string{{"a", "b"}, {"a", "b.c"}, {"a", "bc"}, {"aa", "a"}, {"b", "a"}}
	for i := 1; i < len(names); i++ {
		if a, b := names[i-1], names[i]; bytes.Compare(rank(a[0], a[1]), rank(b[0], b[1])) >= 0 {
			t.Errorf("%v does not come before %v", a, b)
		}
	}
}

// TestExplainReadsAnything checks that what is no rank does no harm.
func TestExplainReadsAnything(t *testing.T) {
	r := routerank.Route{Namespace: "a", Name: "b", Kind: "HTTPRoute"}
	whole := r.Of(&routerank.Match{})
	for n := range whole {
		routerank.Place(whole[:n])
		for _, other := range [][]byte{whole, {0xff}, nil} {
			routerank.Explain(nil, whole[:n], nil, other)
			routerank.Explain(whole[:n], other, other, whole[:n])
		}
	}
}
