// Package rule translates rules of HTTPRoutes and GRPCRoutes: HTTP and GRPC make an AttachedRule of one, whose body is
// an HTTPRoute of Istio's API.
package rule

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// Backends finds the host and port of a backend; ok is false if it cannot be resolved. It reports by itself why not.
type Backends func(ref *gatewayv1.BackendObjectReference) (host string, port uint32, ok bool)

// Problem says what is wrong with a rule.
type Problem struct {
	// Incompatible is true if filters exclude each other; else a value is not supported.
	Incompatible bool
	Message      string
}

func unsupported(format string, args ...any) *Problem {
	return &Problem{Message: fmt.Sprintf(format, args...)}
}

// Statuses that answer requests which a rule matches and cannot send anywhere. A client of gRPC reads the second as
// UNAVAILABLE.
const (
	httpFailure = 500
	grpcFailure = 503
)

// HTTP translates a rule of an HTTPRoute, which has the index given. If there is a problem, the rule answers 500 in so
// far as its matches can be understood: requests must not pass by a filter that is not supported. The rule is nil if
// none of its matches can.
func HTTP(route *routerank.Route, index int, in *gatewayv1.HTTPRouteRule, backends Backends) (*configv1.AttachedRule, *Problem) {
	b := newBody(in.Name, backends, httpFailure)
	matches := in.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.HTTPRouteMatch{{}}
	}
	for i := range matches {
		m, problem := httpMatch(&matches[i])
		b.match(route, index, i, m, problem)
	}
	for i := range in.Filters {
		b.found(b.filter(&in.Filters[i]))
	}
	b.found(b.exclusive())
	b.found(b.timeouts(in.Timeouts, in.Retry))
	b.destinations(in.BackendRefs)
	return b.finish()
}

// GRPC is HTTP for a rule of a GRPCRoute.
func GRPC(route *routerank.Route, index int, in *gatewayv1.GRPCRouteRule, backends Backends) (*configv1.AttachedRule, *Problem) {
	b := newBody(in.Name, backends, grpcFailure)
	matches := in.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.GRPCRouteMatch{{}}
	}
	for i := range matches {
		m, problem := grpcMatch(&matches[i])
		b.match(route, index, i, m, problem)
	}
	for _, f := range filtersOfHTTP(in.Filters) {
		b.found(b.filter(&f))
	}
	refs := make([]gatewayv1.HTTPBackendRef, len(in.BackendRefs))
	for i, ref := range in.BackendRefs {
		refs[i] = gatewayv1.HTTPBackendRef{BackendRef: ref.BackendRef, Filters: filtersOfHTTP(ref.Filters)}
	}
	b.destinations(refs)
	return b.finish()
}

// filtersOfHTTP writes filters of a GRPCRoute, which are some of those of an HTTPRoute, as such.
func filtersOfHTTP(in []gatewayv1.GRPCRouteFilter) []gatewayv1.HTTPRouteFilter {
	out := make([]gatewayv1.HTTPRouteFilter, len(in))
	for i, f := range in {
		out[i] = gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		}
	}
	return out
}

// body is a rule while it is translated.
type body struct {
	*networking.HTTPRoute
	rule     *configv1.AttachedRule
	backends Backends
	failure  uint32
	problem  *Problem
}

func newBody(name *gatewayv1.SectionName, backends Backends, failure uint32) *body {
	out := &configv1.AttachedRule{}
	if name != nil {
		out.Name = string(*name)
	}
	return &body{HTTPRoute: &networking.HTTPRoute{Name: out.Name}, rule: out, backends: backends, failure: failure}
}

// found keeps the first problem.
func (b *body) found(p *Problem) {
	if b.problem == nil {
		b.problem = p
	}
}

func (b *body) match(route *routerank.Route, rule, index int, m *ranked, problem *Problem) {
	if problem != nil {
		b.found(problem)
		return
	}
	m.Rule, m.Index = rule, index
	out := &configv1.RuleMatch{Rank: route.Of(&m.Match), PathElements: m.elements}
	if r := m.request; r.Uri != nil || r.Method != nil || len(r.Headers) > 0 || len(r.QueryParams) > 0 {
		var err error
		if out.Match, err = resource.Any(r); err != nil {
			b.found(unsupported("matches[%d] cannot be encoded: %v", index, err))
			return
		}
	}
	b.rule.Matches = append(b.rule.Matches, out)
}

// finish packs the rule. One with a problem answers with a failure.
func (b *body) finish() (*configv1.AttachedRule, *Problem) {
	if len(b.rule.Matches) == 0 {
		return nil, b.problem
	}
	if b.problem != nil {
		b.rule.PrefixRedirect, b.rule.PrefixRewrite, b.rule.BackendRewrites = nil, nil, nil
		b.HTTPRoute = &networking.HTTPRoute{Name: b.Name, DirectResponse: &networking.HTTPDirectResponse{Status: b.failure}}
	}
	packed, err := resource.Any(b.HTTPRoute)
	if err != nil {
		return nil, unsupported("the rule cannot be encoded: %v", err)
	}
	b.rule.Http = packed
	return b.rule, b.problem
}

// destinations sets where requests are sent to. The share of an unresolved backend remains, so that it gets errors.
func (b *body) destinations(refs []gatewayv1.HTTPBackendRef) {
	reachable := false
	for i := range refs {
		ref := &refs[i]
		host, port, ok := b.backends(&ref.BackendObjectReference)
		d := &networking.HTTPRouteDestination{Weight: Weight(&ref.BackendRef)}
		own := &configv1.BackendRewrite{}
		for j := range ref.Filters {
			b.found(b.backendFilter(d, own, &ref.Filters[j], len(refs) == 1))
		}
		if d.Weight == 0 {
			continue
		}
		if ok {
			reachable = true
			d.Destination = &networking.Destination{Host: host, Port: &networking.PortSelector{Number: port}}
		} else {
			d.Destination = &networking.Destination{Host: contract.UnresolvedBackend}
		}
		if own.GetRewrite() != nil {
			own.Destination = uint32(len(b.Route)) //nolint:gosec // few
			b.rule.BackendRewrites = append(b.rule.BackendRewrites, own)
		}
		b.Route = append(b.Route, d)
	}
	switch {
	case b.Redirect != nil:
		b.Route, b.rule.BackendRewrites = nil, nil
	case !reachable:
		b.DirectResponse = &networking.HTTPDirectResponse{Status: b.failure}
		b.Route, b.Rewrite, b.Mirrors, b.Timeout, b.Retries = nil, nil, nil, nil, nil
		b.rule.PrefixRewrite, b.rule.BackendRewrites = nil, nil
	}
}

// Weight is the weight of a backend.
func Weight(ref *gatewayv1.BackendRef) int32 {
	if ref.Weight == nil {
		return 1
	}
	return max(*ref.Weight, 0)
}
