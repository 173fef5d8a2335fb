package route

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
)

var redirectCodes = map[uint32]routev3.RedirectAction_RedirectResponseCode{
	0:   routev3.RedirectAction_MOVED_PERMANENTLY,
	301: routev3.RedirectAction_MOVED_PERMANENTLY,
	302: routev3.RedirectAction_FOUND,
	303: routev3.RedirectAction_SEE_OTHER,
	307: routev3.RedirectAction_TEMPORARY_REDIRECT,
	308: routev3.RedirectAction_PERMANENT_REDIRECT,
}

func (b *builder) redirect(in *networking.HTTPRedirect) (*routev3.RedirectAction, error) {
	code, ok := redirectCodes[in.GetRedirectCode()]
	if !ok {
		return nil, fmt.Errorf("redirectCode: %d is not supported, use 301, 302, 303, 307 or 308", in.GetRedirectCode())
	}
	out := &routev3.RedirectAction{ResponseCode: code, HostRedirect: in.GetAuthority()}
	switch {
	case in.GetUri() != "" && in.GetPrefixRewrite() != "":
		return nil, fmt.Errorf("prefixRewrite: cannot be combined with uri")
	case in.GetUri() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	case in.GetPrefixRewrite() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	}
	if in.GetScheme() != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: in.GetScheme()}
	}
	out.PortRedirect = b.redirectPort(in)
	return out, nil
}

// completeRedirect completes a redirect by the rules of the Gateway API: it leads to the port that is given, else to
// that of the scheme that is given, else to the listener's, and the port that a scheme has anyway is left out. Envoy
// leaves out the port of the request with its host, so where the virtual host has but one domain, the redirect names
// it.
func (b *builder) completeRedirect(out *routev3.RedirectAction, in *networking.HTTPRedirect) {
	if out.GetHostRedirect() == "" {
		out.HostRedirect = b.domain
	}
	usual := b.schemePort(in.GetScheme())
	out.PortRedirect = in.GetPort()
	switch {
	case in.GetPort() != 0:
	case in.GetScheme() != "":
		out.PortRedirect = usual
	default:
		out.PortRedirect = b.port
	}
	// The client of a sidecar has written the port in the host, unless it is the scheme's.
	if out.GetPortRedirect() == usual && (out.GetHostRedirect() != "" || !b.gateways[contract.MeshGateway] || b.port == b.schemePort("")) {
		out.PortRedirect = 0
	}
}

// hostPortRoute returns the route for requests whose host has a port, to be inserted before a gateway's redirect of
// completeRedirect that keeps the request's host and has no port: Envoy would keep that of the request, which may be
// any. It is nil if none is needed.
func (b *builder) hostPortRoute(beside *routev3.Route) *routev3.Route {
	redirect := beside.GetRedirect()
	if redirect == nil || redirect.GetHostRedirect() != "" || redirect.GetPortRedirect() != 0 || b.gateways[contract.MeshGateway] {
		return nil
	}
	out := proto.CloneOf(beside)
	out.GetRedirect().PortRedirect = b.schemePort(redirect.GetSchemeRedirect())
	out.Match.Headers = append(out.Match.Headers, &routev3.HeaderMatcher{
		Name: ":authority", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: ".*:[0-9]+"}},
		}},
	})
	return out
}

// schemePort is the port that a scheme has anyway; "" is the listener's scheme.
func (b *builder) schemePort(scheme string) uint32 {
	return defaultPortOf(scheme == "https" || scheme == "" && b.secure)
}

func defaultPortOf(secure bool) uint32 {
	if secure {
		return 443
	}
	return defaultHTTPPort
}

// redirectPort returns the port of a redirect. 0 keeps the port of the request, unless that is the default port of the
// old scheme.
func (b *builder) redirectPort(in *networking.HTTPRedirect) uint32 {
	usual := b.schemePort(in.GetScheme())
	var port uint32
	switch p := in.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_Port:
		port = p.Port
	case *networking.HTTPRedirect_DerivePort:
		if p.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			// Envoy cannot take the port from the request, but each route belongs to one port of a listener.
			port = b.port
		} else if in.GetAuthority() == "" && b.gateways[contract.MeshGateway] && b.port != 80 && b.port != 443 {
			// The client of a sidecar has written its non-default port. A gateway's clients may have written any.
			return usual
		}
	}
	if port == usual {
		return 0
	}
	return port
}

func directResponse(in *networking.HTTPDirectResponse) *routev3.DirectResponseAction {
	out := &routev3.DirectResponseAction{Status: in.GetStatus()}
	switch body := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: body.String_}}
	case *networking.HTTPBody_Bytes:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: body.Bytes}}
	}
	return out
}
