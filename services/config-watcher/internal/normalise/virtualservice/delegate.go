// Package virtualservice has what normalising a VirtualService needs beside names: the routes of delegates, and
// gateways of single matches. Package normalise calls it, and package running MergeDelegate.
package virtualservice

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/lists"
)

// MergeDelegate combines a delegating route with the routes of its delegate
// (https://istio.io/latest/docs/reference/config/networking/virtual-service/#Delegate). The root's matches narrow each
// route of the delegate, and the route takes the root's policies that it lacks. A route with a match that lies within
// none of the root's matches is dropped as a whole. MergeDelegate may change routes and returns some of them.
func MergeDelegate(root *networking.HTTPRoute, routes []*networking.HTTPRoute) []*networking.HTTPRoute {
	var out []*networking.HTTPRoute
	for _, r := range routes {
		match, fits := mergeMatches(root.Match, r.Match)
		if !fits {
			continue
		}
		r.Match = match
		r.Delegate = nil
		r.Name = joinNames(root.Name, r.Name)
		inherit(root, r)
		out = append(out, r)
	}
	return out
}

// inherit gives r the policies of root that it lacks. A direct response of root replaces destinations. A redirect or a
// direct response takes no rewrite, fault or mirror.
func inherit(root, r *networking.HTTPRoute) {
	if root.DirectResponse != nil && len(r.Route) > 0 {
		r.DirectResponse, r.Route = root.DirectResponse, nil
		r.Rewrite, r.Fault, r.Mirror, r.Mirrors = nil, nil, nil, nil
	}
	if len(r.Route) > 0 {
		r.Rewrite, r.Fault = cmp.Or(r.Rewrite, root.Rewrite), cmp.Or(r.Fault, root.Fault)
		if r.Mirror == nil && len(r.Mirrors) == 0 {
			r.Mirror, r.Mirrors, r.MirrorPercentage = root.Mirror, root.Mirrors, root.MirrorPercentage
			//nolint:staticcheck // deprecated in Istio, still served
			r.MirrorPercent = root.MirrorPercent
		}
	}
	r.Timeout, r.Retries = cmp.Or(r.Timeout, root.Timeout), cmp.Or(r.Retries, root.Retries)
	r.CorsPolicy, r.Headers = cmp.Or(r.CorsPolicy, root.CorsPolicy), cmp.Or(r.Headers, root.Headers)
}

// mergeMatches combines each of the delegate's alternatives with every one of the root's that it lies within. fits is
// false if an alternative lies within none.
func mergeMatches(root, own []*networking.HTTPMatchRequest) (out []*networking.HTTPMatchRequest, fits bool) {
	if len(root) == 0 {
		return own, true
	}
	if len(own) == 0 {
		return lists.Map(root, proto.CloneOf[*networking.HTTPMatchRequest]), true
	}
	for _, b := range own {
		found := false
		for _, a := range root {
			if m := mergeMatch(a, b); m != nil {
				out = append(out, m)
				found = true
			}
		}
		if !found {
			return nil, false
		}
	}
	return out, true
}

// mergeMatch is the match that holds where both do; nil if they contradict each other.
func mergeMatch(root, own *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	if root.Uri != nil && own.Uri != nil && root.IgnoreUriCase != own.IgnoreUriCase {
		return nil
	}
	out := proto.CloneOf(own)
	for _, f := range []struct {
		root *networking.StringMatch
		own  **networking.StringMatch
	}{{root.Uri, &out.Uri}, {root.Scheme, &out.Scheme}, {root.Method, &out.Method}, {root.Authority, &out.Authority}} {
		if !narrow(f.root, f.own) {
			return nil
		}
	}
	if !narrowAll(root.Headers, &out.Headers) || !narrowAll(root.QueryParams, &out.QueryParams) ||
		!excludeAll(root.WithoutHeaders, &out.WithoutHeaders) {
		return nil
	}
	for k, v := range root.SourceLabels {
		if got, ok := out.SourceLabels[k]; ok && got != v {
			return nil
		}
		set(&out.SourceLabels, k, v)
	}
	if root.Port != 0 {
		if out.Port != 0 && out.Port != root.Port {
			return nil
		}
		out.Port = root.Port
	}
	if !narrowSource(root, out) {
		return nil
	}
	if root.Uri != nil {
		out.IgnoreUriCase = root.IgnoreUriCase
	}
	out.Name, out.StatPrefix = joinNames(root.Name, out.Name), cmp.Or(out.StatPrefix, root.StatPrefix)
	return out
}

// set sets an entry of a map that may be nil.
func set[V any](in *map[string]V, k string, v V) {
	if *in == nil {
		*in = map[string]V{}
	}
	(*in)[k] = v
}

func joinNames(root, own string) string {
	if root == "" || own == "" {
		return root + own
	}
	return root + "-" + own
}

// narrowSource leaves in own the gateways and the namespace for which both matches hold; false if there is none.
func narrowSource(root, own *networking.HTTPMatchRequest) bool {
	switch {
	case len(own.Gateways) == 0:
		own.Gateways = root.Gateways
	case len(root.Gateways) > 0 && slices.ContainsFunc(own.Gateways, func(g string) bool { return !slices.Contains(root.Gateways, g) }):
		return false
	}
	own.SourceNamespace = cmp.Or(own.SourceNamespace, root.SourceNamespace)
	return root.SourceNamespace == "" || own.SourceNamespace == root.SourceNamespace
}

func narrowAll(root map[string]*networking.StringMatch, own *map[string]*networking.StringMatch) bool {
	for k, v := range root {
		got := (*own)[k]
		if !narrow(v, &got) {
			return false
		}
		set(own, k, got)
	}
	return true
}

// excludeAll joins withoutHeaders; false if both match one header differently, because one condition cannot say that.
func excludeAll(root map[string]*networking.StringMatch, own *map[string]*networking.StringMatch) bool {
	for k, v := range root {
		if got, ok := (*own)[k]; ok && !proto.Equal(got, v) {
			return false
		}
		set(own, k, v)
	}
	return true
}

// narrow leaves in own the condition that holds where both do. As in Istio it is false unless own lies within root.
func narrow(root *networking.StringMatch, own **networking.StringMatch) bool {
	if root.GetMatchType() == nil {
		return true
	}
	o := *own
	if o.GetMatchType() == nil {
		*own = root
		return true
	}
	if r, ok := root.MatchType.(*networking.StringMatch_Prefix); ok {
		switch t := o.MatchType.(type) {
		case *networking.StringMatch_Exact:
			return strings.HasPrefix(t.Exact, r.Prefix)
		case *networking.StringMatch_Prefix:
			return strings.HasPrefix(t.Prefix, r.Prefix)
		}
	}
	return proto.Equal(root, o)
}
