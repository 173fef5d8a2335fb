package route

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
)

// httpKinds are the kinds of routes of the Gateway API that become routes of HTTP.
var httpKinds = []string{mesh.KindHTTPRoute, mesh.KindGRPCRoute}

// attachedMatch is one match of a rule of a route of the Gateway API.
type attachedMatch struct {
	rank  []byte
	from  *mesh.AttachedRoute
	rule  *mesh.AttachedRule
	index int
	// upTo limits the match to a part of the requests, those with the least random numbers; nil for all.
	upTo *corev3.RuntimeFractionalPercent
}

// attached returns the routes of a virtual host with routes of the Gateway API: the matches of all rules, by rank, up
// to the first that matches everything. A rule that cannot be built answers 500, or to gRPC UNAVAILABLE; the error, a
// *plan.Incomplete, names it.
func (b *builder) attached(hosts []*mesh.HostRoute) ([]*routev3.Route, error) {
	var matches []attachedMatch
	for _, host := range hosts {
		if !slices.Contains(httpKinds, host.Key.Kind) {
			continue
		}
		for i := range host.Rules {
			rule := &host.Rules[i]
			for j, m := range rule.GetMatches() {
				whole := attachedMatch{rank: slices.Concat(host.Rank, m.GetRank()), from: host.AttachedRoute, rule: rule, index: j}
				matches = append(matches, b.parts(whole)...)
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b attachedMatch) int { return bytes.Compare(a.rank, b.rank) })
	var out []*routev3.Route
	var failures []error
	for _, m := range matches {
		route, err := b.attachedRoute(m)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s %s/%s: rule %q: %w", objectKind(m.from), m.from.Key.Namespace, m.from.Key.Name,
				m.rule.GetName(), err))
		}
		if route == nil {
			continue
		}
		route.Match.RuntimeFraction = m.upTo
		for _, before := range []*routev3.Route{deadlineRoute(route), b.hostPortRoute(route)} {
			if before != nil {
				out = append(out, before)
			}
		}
		if out = append(out, route); matchesEverything(route.GetMatch()) {
			break
		}
	}
	if len(failures) > 0 {
		return out, &plan.Incomplete{Err: errors.Join(failures...)}
	}
	return out, nil
}

// parts divides a match of a rule whose destinations have rewrites of their own, which Envoy has for routes alone: each
// destination gets a route, which takes requests up to its share. Envoy draws one random number for a request, whatever
// routes it compares, so that a route gets what is between the share of the one before and its own.
func (b *builder) parts(m attachedMatch) []attachedMatch {
	if len(m.rule.Rewrites) == 0 || b.withoutRewrites {
		return []attachedMatch{m}
	}
	var all, sum uint64
	for _, to := range m.rule.HTTP.GetRoute() {
		all += uint64(to.GetWeight()) //nolint:gosec // not negative
	}
	var out []attachedMatch
	for i, to := range m.rule.HTTP.GetRoute() {
		http := proto.CloneOf(m.rule.HTTP)
		http.Route = []*networking.HTTPRouteDestination{to}
		rule := &configv1.AttachedRule{Name: m.rule.GetName(), Matches: m.rule.GetMatches()}
		for j, own := range m.rule.GetBackendRewrites() {
			if int(own.GetDestination()) == i {
				http.Rewrite, rule.PrefixRewrite = m.rule.Rewrites[j], own.PrefixRewrite //nolint:protogetter // nil is none
			}
		}
		part := m
		part.rule = &mesh.AttachedRule{AttachedRule: rule, HTTP: http, Requests: m.rule.Requests}
		if sum += uint64(to.GetWeight()); sum < all { //nolint:gosec // not negative
			part.upTo = runtimeFraction(&typev3.FractionalPercent{
				Numerator: uint32(sum * million / all), Denominator: typev3.FractionalPercent_MILLION, //nolint:gosec // less than a million
			})
		}
		out = append(out, part)
	}
	return out
}

const million = 1_000_000

// objectKind is the kind of a route without its API group.
func objectKind(route *mesh.AttachedRoute) string {
	kind, _, _ := strings.Cut(route.Key.Kind, ".")
	return kind
}

// failure is the status of requests that cannot be sent anywhere. gRPC's clients read 503, which Envoy also answers
// where there is no cluster, as UNAVAILABLE.
func failure(route *mesh.AttachedRoute) uint32 {
	if route.Key.Kind == mesh.KindGRPCRoute {
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func (b *builder) attachedRoute(m attachedMatch) (*routev3.Route, error) {
	from := origin{m.from.Key.Name,
		originMetadata(contract.GroupGatewayAPI, strings.ToLower(objectKind(m.from)), m.from.Key.Namespace, m.from.Key.Name)}
	request := m.rule.Requests[m.index]
	out, err := b.route(from, literal(m.rule.HTTP), request)
	if err == nil {
		err = b.completeAttached(out, m)
	}
	if err == nil {
		err = validate(out)
	}
	if err != nil {
		failed := &networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: failure(m.from)}}
		var unmatched error
		if out, unmatched = b.route(from, failed, request); unmatched != nil {
			return nil, unmatched
		}
		setElements(out.GetMatch(), m)
	}
	out.Name = attachedName(m)
	return out, err
}

// attachedName names a route by its content, so that it keeps its name when other rules come and go.
func attachedName(m attachedMatch) string {
	name := m.from.Key.Namespace + "/" + m.from.Key.Name
	for _, part := range []string{m.rule.GetName(), m.rule.Requests[m.index].GetName()} {
		if part != "" {
			name += "/" + part
		}
	}
	return name
}

// completeAttached adds to a route what Istio's API lacks.
func (b *builder) completeAttached(out *routev3.Route, m attachedMatch) error {
	setElements(out.GetMatch(), m)
	prefix := strings.TrimRight(m.rule.Requests[m.index].GetUri().GetPrefix(), "/")
	if redirect := out.GetRedirect(); redirect != nil {
		b.completeRedirect(redirect, m.rule.HTTP.GetRedirect())
		if to := m.rule.PrefixRedirect; to != nil {
			literal, regex := replacePrefix(prefix, *to)
			switch {
			case regex != nil:
				redirect.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: regex}
			case literal != "":
				redirect.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: literal}
			}
		}
	}
	action := out.GetRoute()
	if action == nil {
		return nil
	}
	if to := m.rule.PrefixRewrite; to != nil {
		action.PrefixRewrite, action.RegexRewrite = replacePrefix(prefix, *to)
	}
	for _, to := range m.rule.HTTP.GetRoute() {
		if to.GetDestination().GetHost() == contract.UnresolvedBackend && failure(m.from) == http.StatusInternalServerError {
			action.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
		}
	}
	return nil
}

// setElements makes a prefix match whole elements of the path: "/a" and "/a/" match "/a" and "/a/b", "/" everything.
func setElements(out *routev3.RouteMatch, m attachedMatch) {
	if _, ok := out.GetPathSpecifier().(*routev3.RouteMatch_Prefix); !ok || !m.rule.GetMatches()[m.index].GetPathElements() {
		return
	}
	if elements := strings.TrimRight(out.GetPrefix(), "/"); elements != "" {
		out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: elements}
	} else {
		out.PathSpecifier = anyPath().GetPathSpecifier()
	}
}

// replacePrefix returns Envoy's rewrite that replaces whole elements of the path. prefix is "", or has no slash at its
// end. "/a" is replaced by "/b" in "/a", "/a/" and "/a/x"; by "/" it becomes "/", "/" and "/x".
func replacePrefix(prefix, by string) (rewrite string, regex *matcherv3.RegexMatchAndSubstitute) {
	by = strings.TrimRight(by, "/")
	switch {
	case prefix == "" && by == "":
		return "", nil // the path stays
	case prefix == "":
		return by + "/", nil // Envoy replaces the first "/", which all paths have
	case by == "":
		return "", &matcherv3.RegexMatchAndSubstitute{
			Pattern: &matcherv3.RegexMatcher{Regex: "^" + regexp.QuoteMeta(prefix) + "/?"}, Substitution: "/",
		}
	default:
		return by, nil
	}
}

// literal returns the body of a rule with the values of its headers escaped: in the Gateway API a percent sign has no
// meaning, in Istio's API it begins a command operator of Envoy.
func literal(in *networking.HTTPRoute) *networking.HTTPRoute {
	out := proto.CloneOf(in)
	all := []*networking.Headers{out.GetHeaders()}
	for _, to := range out.GetRoute() {
		all = append(all, to.GetHeaders())
	}
	for _, h := range all {
		for _, values := range []map[string]string{
			h.GetRequest().GetSet(), h.GetRequest().GetAdd(), h.GetResponse().GetSet(), h.GetResponse().GetAdd(),
		} {
			for name, value := range values {
				values[name] = strings.ReplaceAll(value, "%", "%%")
			}
		}
	}
	return out
}
