// Package protocol classifies what ports speak.
package protocol

import (
	"maps"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// IsHTTP tells declared HTTP of any version.
func IsHTTP(p configv1.Protocol) bool {
	switch p {
	case configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_HTTP2, configv1.Protocol_PROTOCOL_GRPC, configv1.Protocol_PROTOCOL_GRPC_WEB:
		return true
	default:
		return false
	}
}

// IsHTTP2 tells protocols whose servers speak HTTP/2 without being asked.
func IsHTTP2(p configv1.Protocol) bool {
	switch p {
	case configv1.Protocol_PROTOCOL_HTTP2, configv1.Protocol_PROTOCOL_GRPC, configv1.Protocol_PROTOCOL_GRPC_WEB:
		return true
	default:
		return false
	}
}

// IsSniffed tells ports without a declared protocol: HTTP is told from other bytes by looking at them.
func IsSniffed(p configv1.Protocol) bool { return p == configv1.Protocol_PROTOCOL_UNSPECIFIED }

// MayBeHTTP tells ports that need HTTP routes.
func MayBeHTTP(p configv1.Protocol) bool { return IsHTTP(p) || IsSniffed(p) }

// IsTLS tells opaque TLS that is routed by SNI.
func IsTLS(p configv1.Protocol) bool {
	return p == configv1.Protocol_PROTOCOL_TLS || p == configv1.Protocol_PROTOCOL_HTTPS
}

// IsProxied tells protocols that have listeners at all.
func IsProxied(p configv1.Protocol) bool { return p != configv1.Protocol_PROTOCOL_UDP }

// Protocols by what listeners do with them.
var (
	// HTTP lists the protocols of IsHTTP.
	HTTP = list(IsHTTP)
	// TLS lists the protocols of IsTLS.
	TLS = list(IsTLS)
	// WithRoutes lists the protocols of MayBeHTTP.
	WithRoutes = list(MayBeHTTP)
	// Opaque lists the proxied protocols whose bytes may be something other than HTTP, Bytes those of them that are not told by SNI.
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

// Parse reads the protocol of a Gateway's or a Sidecar's port, in any case; what it does not know is sniffed.
func Parse(name string) configv1.Protocol {
	return byName[strings.ToLower(name)]
}
