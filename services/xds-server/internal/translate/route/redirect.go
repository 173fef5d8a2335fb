package route

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
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

// attachedRedirectPort is redirectPort by the rules of the Gateway API: the port that is given, else that of the scheme
// that is given, else the listener's.
func (b *builder) attachedRedirectPort(in *networking.HTTPRedirect) uint32 {
	usual, own := defaultPortOf(in.GetScheme() == "https" || in.GetScheme() == "" && b.secure), defaultPortOf(b.secure)
	port := in.GetPort()
	switch {
	case port != 0:
	case in.GetScheme() != "":
		port = usual
	default:
		port = b.port
	}
	// Without a port of its own, the redirect keeps the port in the request's host: a client writes one if the
	// listener's is not the default port.
	if port == usual && (in.GetAuthority() != "" || b.port == own) {
		return 0
	}
	return port
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
	usual := defaultPortOf(in.GetScheme() == "https" || in.GetScheme() == "" && b.secure)
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
