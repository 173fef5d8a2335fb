package rule

import (
	"regexp"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/proto/fairlead/routerank"
)

// ranked is a match with what decides its place.
type ranked struct {
	routerank.Match
	request *networking.HTTPMatchRequest
	// elements is RuleMatch.path_elements.
	elements bool
}

func exact(value string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: value}}
}

func prefix(value string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: value}}
}

func regex(field, value string) (*networking.StringMatch, *Problem) {
	if err := proxytext.Regex(value); err != nil {
		return nil, unsupported("%s: %v; write a regular expression of RE2", field, err)
	}
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: value}}, nil
}

func httpMatch(in *gatewayv1.HTTPRouteMatch) (*ranked, *Problem) {
	out := &ranked{request: &networking.HTTPMatchRequest{}}
	if p := out.path(in.Path); p != nil {
		return nil, p
	}
	if in.Method != nil {
		out.Method, out.request.Method = true, exact(string(*in.Method))
	}
	for _, h := range in.Headers {
		typ := gatewayv1.HeaderMatchExact
		if h.Type != nil {
			typ = *h.Type
		}
		if p := value(&out.request.Headers, "headers", strings.ToLower(string(h.Name)), string(typ), h.Value); p != nil {
			return nil, p
		}
	}
	for _, q := range in.QueryParams {
		typ := gatewayv1.QueryParamMatchExact
		if q.Type != nil {
			typ = *q.Type
		}
		if p := value(&out.request.QueryParams, "queryParams", string(q.Name), string(typ), q.Value); p != nil {
			return nil, p
		}
	}
	out.Headers, out.Params = len(out.request.Headers), len(out.request.QueryParams)
	return out, nil
}

// value adds the match of a header or query parameter. Of several with one name the first counts, as the specification
// says.
func value(to *map[string]*networking.StringMatch, field, name, typ, want string) *Problem {
	if (*to)[name] != nil {
		return nil
	}
	var m *networking.StringMatch
	switch typ {
	case string(gatewayv1.HeaderMatchExact):
		m = exact(want)
	case string(gatewayv1.HeaderMatchRegularExpression):
		var p *Problem
		if m, p = regex(field+"["+name+"]", want); p != nil {
			return p
		}
	default:
		return unsupported("%s[%s].type: %q is not supported; use Exact or RegularExpression", field, name, typ)
	}
	if *to == nil {
		*to = map[string]*networking.StringMatch{}
	}
	(*to)[name] = m
	return nil
}

func (m *ranked) path(in *gatewayv1.HTTPPathMatch) *Problem {
	typ, path := gatewayv1.PathMatchPathPrefix, "/"
	if in != nil && in.Type != nil {
		typ = *in.Type
	}
	if in != nil && in.Value != nil {
		path = *in.Value
	}
	switch typ {
	case gatewayv1.PathMatchExact:
		m.Path, m.request.Uri = routerank.Exact, exact(path)
	case gatewayv1.PathMatchPathPrefix:
		if path = strings.TrimSuffix(path, "/"); path == "" {
			m.Path = routerank.Any
			return nil
		}
		m.Path, m.Value, m.elements, m.request.Uri = routerank.Prefix, path, true, prefix(path)
	case gatewayv1.PathMatchRegularExpression:
		var p *Problem
		if m.request.Uri, p = regex("path", path); p != nil {
			return p
		}
		m.Path, m.Value = routerank.Regex, path
	default:
		return unsupported("path.type: %q is not supported; use Exact, PathPrefix or RegularExpression", typ)
	}
	return nil
}

func grpcMatch(in *gatewayv1.GRPCRouteMatch) (*ranked, *Problem) {
	out := &ranked{Match: routerank.Match{Path: routerank.Any}, request: &networking.HTTPMatchRequest{}}
	if in.Method != nil {
		if p := out.method(in.Method); p != nil {
			return nil, p
		}
	}
	for _, h := range in.Headers {
		typ := gatewayv1.GRPCHeaderMatchExact
		if h.Type != nil {
			typ = *h.Type
		}
		if p := value(&out.request.Headers, "headers", strings.ToLower(string(h.Name)), string(typ), h.Value); p != nil {
			return nil, p
		}
	}
	// A gRPC request has this content type, so a GRPCRoute leaves other requests of its hosts to HTTPRoutes. The type
	// counts as one header more than the match has: of gRPC requests a GRPCRoute has precedence over an HTTPRoute with
	// the same path.
	out.Headers = len(out.request.Headers) + 1
	if out.request.Headers[contentType] == nil {
		if out.request.Headers == nil {
			out.request.Headers = map[string]*networking.StringMatch{}
		}
		out.request.Headers[contentType] = prefix(grpcContent)
	}
	return out, nil
}

// contentType is the header that tells gRPC requests from others: its value begins with grpcContent, also that of
// gRPC-Web.
const contentType, grpcContent = "content-type", "application/grpc"

// method matches the path of a gRPC request, "/<service>/<method>".
func (m *ranked) method(in *gatewayv1.GRPCMethodMatch) *Problem {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	service, method := text(in.Service), text(in.Method)
	typ := gatewayv1.GRPCMethodMatchExact
	if in.Type != nil {
		typ = *in.Type
	}
	const any = "[^/]+"
	switch {
	case typ != gatewayv1.GRPCMethodMatchExact && typ != gatewayv1.GRPCMethodMatchRegularExpression:
		return unsupported("method.type: %q is not supported; use Exact or RegularExpression", typ)
	case service == "" && method == "":
		return unsupported("method: neither service nor method is given")
	case typ == gatewayv1.GRPCMethodMatchRegularExpression:
		if service == "" {
			service = any
		}
		if method == "" {
			method = any
		}
		m.Value = "/" + service + "/" + method
	case method == "":
		m.Path, m.Value, m.request.Uri = routerank.Prefix, "/"+service+"/", prefix("/"+service+"/")
		return nil
	case service == "":
		m.Value = "/" + any + "/" + regexp.QuoteMeta(method)
	default:
		m.Path, m.request.Uri = routerank.Exact, exact("/"+service+"/"+method)
		return nil
	}
	m.Path = routerank.Regex
	var p *Problem
	m.request.Uri, p = regex("method", m.Value)
	return p
}
