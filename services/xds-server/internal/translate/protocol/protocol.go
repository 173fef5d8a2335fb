// Package protocol groups the protocols of ports by how listeners and clusters treat them: HTTP, TLS routed by SNI,
// opaque TCP, or detected for each connection ("sniffed").
package protocol

import (
	"maps"
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

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
func MayBeHTTP(p configv1.Protocol) bool { return contract.IsHTTP(p) || IsSniffed(p) }

// IsProxied reports whether the protocol has listeners and clusters; UDP has none.
func IsProxied(p configv1.Protocol) bool { return p != configv1.Protocol_PROTOCOL_UDP }

// Lists of protocols by how listeners treat them.
var (
	// HTTP lists the protocols of contract.IsHTTP.
	HTTP = list(contract.IsHTTP)
	// TLS lists the protocols of contract.IsTLS.
	TLS = list(contract.IsTLS)
	// WithRoutes lists the protocols of MayBeHTTP.
	WithRoutes = list(MayBeHTTP)
	// Opaque lists the proxied protocols that may carry something other than HTTP; Bytes those of them that are not
	// routed by SNI.
	Opaque = list(func(p configv1.Protocol) bool { return IsProxied(p) && !contract.IsHTTP(p) })
	Bytes  = list(func(p configv1.Protocol) bool { return IsProxied(p) && !contract.IsHTTP(p) && !contract.IsTLS(p) })
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
