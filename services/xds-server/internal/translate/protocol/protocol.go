// Package protocol groups the protocols of ports by how listeners and clusters treat them: HTTP, TLS routed by SNI,
// opaque TCP, or detected for each connection ("sniffed").
package protocol

import (
	"maps"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// IsHTTP reports whether the protocol is HTTP of any version.
func IsHTTP(p configv1.Protocol) bool {
	switch p {
	case configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_HTTP2, configv1.Protocol_PROTOCOL_GRPC,
		configv1.Protocol_PROTOCOL_GRPC_WEB:
		return true
	default:
		return false
	}
}

// IsHTTP2 reports whether servers of the protocol accept HTTP/2 without negotiation.
func IsHTTP2(p configv1.Protocol) bool {
	switch p {
	case configv1.Protocol_PROTOCOL_HTTP2, configv1.Protocol_PROTOCOL_GRPC, configv1.Protocol_PROTOCOL_GRPC_WEB:
		return true
	default:
		return false
	}
}

// IsSniffed reports whether the protocol is undeclared: the proxy detects HTTP in each connection's first bytes.
func IsSniffed(p configv1.Protocol) bool { return p == configv1.Protocol_PROTOCOL_UNSPECIFIED }

// MayBeHTTP reports whether a port needs HTTP routes.
func MayBeHTTP(p configv1.Protocol) bool { return IsHTTP(p) || IsSniffed(p) }

// IsTLS reports whether the protocol is TLS that the proxy routes by SNI without decrypting it.
func IsTLS(p configv1.Protocol) bool {
	return p == configv1.Protocol_PROTOCOL_TLS || p == configv1.Protocol_PROTOCOL_HTTPS
}

// IsProxied reports whether the protocol has listeners and clusters; UDP has none.
func IsProxied(p configv1.Protocol) bool { return p != configv1.Protocol_PROTOCOL_UDP }

// Lists of protocols by how listeners treat them.
var (
	// HTTP lists the protocols of IsHTTP.
	HTTP = list(IsHTTP)
	// TLS lists the protocols of IsTLS.
	TLS = list(IsTLS)
	// WithRoutes lists the protocols of MayBeHTTP.
	WithRoutes = list(MayBeHTTP)
	// Opaque lists the proxied protocols that may carry something other than HTTP; Bytes those of them that are not
	// routed by SNI.
	Opaque = list(func(p configv1.Protocol) bool { return IsProxied(p) && !IsHTTP(p) })
	Bytes  = list(func(p configv1.Protocol) bool { return IsProxied(p) && !IsHTTP(p) && !IsTLS(p) })
)

func list(is func(configv1.Protocol) bool) []configv1.Protocol {
	var out []configv1.Protocol
	for _, number := range slices.Sorted(maps.Keys(configv1.Protocol_name)) {
		if p := configv1.Protocol(number); is(p) {
			out = append(out, p)
		}
	}
	return out
}

var byName = map[string]configv1.Protocol{
	"http": configv1.Protocol_PROTOCOL_HTTP, "http2": configv1.Protocol_PROTOCOL_HTTP2,
	"grpc": configv1.Protocol_PROTOCOL_GRPC, "grpc-web": configv1.Protocol_PROTOCOL_GRPC_WEB,
	"https": configv1.Protocol_PROTOCOL_HTTPS, "tls": configv1.Protocol_PROTOCOL_TLS,
	"tcp": configv1.Protocol_PROTOCOL_TCP, "udp": configv1.Protocol_PROTOCOL_UDP,
	"mongo": configv1.Protocol_PROTOCOL_MONGO, "redis": configv1.Protocol_PROTOCOL_REDIS,
	"mysql": configv1.Protocol_PROTOCOL_MYSQL, "http_proxy": configv1.Protocol_PROTOCOL_HTTP_PROXY,
}

// Parse reads the protocol of a Gateway's or a Sidecar's port, in any case. Unknown names count as undeclared.
func Parse(name string) configv1.Protocol {
	return byName[strings.ToLower(name)]
}
