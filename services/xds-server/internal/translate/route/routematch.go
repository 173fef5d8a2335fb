package route

import (
	"fmt"
	"maps"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

func anyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// requestMatch converts the parts of a match that Envoy tests for each request. builder.matchesListener has tested the
// port, the gateways and the source.
func requestMatch(in *networking.HTTPMatchRequest) (*routev3.RouteMatch, error) {
	out := anyPath()
	if in == nil {
		return out, nil
	}
	if err := path(out, in); err != nil {
		return nil, fmt.Errorf("uri: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetHeaders())) {
		if claim, ok := matcher.ClaimOf(name); ok {
			match, err := matcher.ClaimMatch(claim, in.GetHeaders()[name], false)
			if err != nil {
				return nil, fmt.Errorf("headers[%q]: %w", name, err)
			}
			out.DynamicMetadata = append(out.DynamicMetadata, match)
			continue
		}
		header, err := matcher.Header(name, in.GetHeaders()[name])
		if err != nil {
			return nil, fmt.Errorf("headers[%q]: %w", name, err)
		}
		out.Headers = append(out.Headers, header)
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetWithoutHeaders())) {
		if claim, ok := matcher.ClaimOf(name); ok {
			match, err := matcher.ClaimMatch(claim, in.GetWithoutHeaders()[name], true)
			if err != nil {
				return nil, fmt.Errorf("withoutHeaders[%q]: %w", name, err)
			}
			out.DynamicMetadata = append(out.DynamicMetadata, match)
			continue
		}
		header, err := matcher.WithoutHeader(name, in.GetWithoutHeaders()[name])
		if err != nil {
			return nil, fmt.Errorf("withoutHeaders[%q]: %w", name, err)
		}
		out.Headers = append(out.Headers, header)
	}
	for _, pseudo := range []struct {
		field, header string
		value         *networking.StringMatch
	}{
		{"method", ":method", in.GetMethod()},
		{"authority", ":authority", in.GetAuthority()},
		{"scheme", ":scheme", in.GetScheme()},
	} {
		if pseudo.value == nil {
			continue
		}
		header, err := matcher.Header(pseudo.header, pseudo.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pseudo.field, err)
		}
		out.Headers = append(out.Headers, header)
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetQueryParams())) {
		query, err := matcher.Query(name, in.GetQueryParams()[name])
		if err != nil {
			return nil, fmt.Errorf("queryParams[%q]: %w", name, err)
		}
		out.QueryParameters = append(out.QueryParameters, query)
	}
	return out, nil
}

// path sets the path specifier. As in Istio, a prefix is a prefix of the text: "/foo" matches "/foobar".
func path(out *routev3.RouteMatch, in *networking.HTTPMatchRequest) error {
	switch m := in.GetUri().GetMatchType().(type) {
	case nil:
		return nil
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: m.Prefix}
	case *networking.StringMatch_Regex:
		if matcher.IsLiteral(m.Regex) {
			out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Regex}
			return nil
		}
		regex, err := matcher.Regex(m.Regex)
		if err != nil {
			return err
		}
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex}
		return nil
	default:
		return fmt.Errorf("match of type %T is not supported", m)
	}
	if in.GetIgnoreUriCase() {
		out.CaseSensitive = wrapperspb.Bool(false)
	}
	return nil
}

// matchesEverything reports whether every request matches.
func matchesEverything(m *routev3.RouteMatch) bool {
	if len(m.GetHeaders()) > 0 || len(m.GetQueryParameters()) > 0 || len(m.GetDynamicMetadata()) > 0 || m.GetRuntimeFraction() != nil ||
		m.GetGrpc() != nil {
		return false
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return p.Prefix == "/" || p.Prefix == ""
	case *routev3.RouteMatch_SafeRegex:
		return p.SafeRegex.GetRegex() == ".*"
	default:
		return false
	}
}
