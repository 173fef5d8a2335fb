package contract

import (
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// wellKnownTCP are ports of protocols in which the server speaks first, Istio's list. Without a declared protocol Envoy
// must not sniff them.
var wellKnownTCP = map[int32]bool{25: true, 53: true, 3306: true, 27017: true}

// byName has the protocols by their names in Istio's kinds and in the names of ports, in lower case.
var byName = map[string]configv1.Protocol{
	"http": configv1.Protocol_PROTOCOL_HTTP, "http2": configv1.Protocol_PROTOCOL_HTTP2,
	"grpc": configv1.Protocol_PROTOCOL_GRPC, "grpc-web": configv1.Protocol_PROTOCOL_GRPC_WEB,
	"https": configv1.Protocol_PROTOCOL_HTTPS, "tls": configv1.Protocol_PROTOCOL_TLS,
	"tcp": configv1.Protocol_PROTOCOL_TCP, "udp": configv1.Protocol_PROTOCOL_UDP,
	"mongo": configv1.Protocol_PROTOCOL_MONGO, "redis": configv1.Protocol_PROTOCOL_REDIS,
	"mysql": configv1.Protocol_PROTOCOL_MYSQL, "http_proxy": configv1.Protocol_PROTOCOL_HTTP_PROXY,
}

// byAppProtocol has those that Kubernetes gives a name of its own in appProtocol, with upper and lower case as there.
var byAppProtocol = map[string]configv1.Protocol{
	"kubernetes.io/h2c": configv1.Protocol_PROTOCOL_HTTP2,
	"kubernetes.io/ws":  configv1.Protocol_PROTOCOL_HTTP,
	"kubernetes.io/wss": configv1.Protocol_PROTOCOL_HTTPS,
}

// PortProtocol decides the protocol of a Kubernetes Service port from appProtocol, which may be nil, or the prefix of
// its name (https://istio.io/latest/docs/ops/configuration/traffic-management/protocol-selection/).
func PortProtocol(number int32, name, transport string, appProtocol *string) configv1.Protocol {
	if transport == "UDP" || transport == "SCTP" { // sent to no proxy
		return configv1.Protocol_PROTOCOL_UDP
	}
	if appProtocol != nil && *appProtocol != "" {
		if p, ok := byAppProtocol[*appProtocol]; ok {
			return p
		}
		name = *appProtocol
	}
	name = strings.ToLower(name)
	if strings.HasPrefix(name, "grpc-web") {
		return configv1.Protocol_PROTOCOL_GRPC_WEB
	}
	prefix, _, _ := strings.Cut(name, "-")
	p := ParseProtocol(prefix)
	if p == configv1.Protocol_PROTOCOL_UNSPECIFIED && wellKnownTCP[number] {
		return configv1.Protocol_PROTOCOL_TCP
	}
	return p
}

// ParseProtocol reads a protocol's name as Istio's kinds write it, in any case. Envoy sniffs the protocol of unknown
// and empty names.
func ParseProtocol(s string) configv1.Protocol { return byName[strings.ToLower(s)] }

// ProtocolName is how Istio's kinds write a protocol, such as "GRPC-WEB"; empty if proxies detect it. ParseProtocol
// reads it.
func ProtocolName(p configv1.Protocol) string {
	switch p {
	case configv1.Protocol_PROTOCOL_UNSPECIFIED:
		return ""
	case configv1.Protocol_PROTOCOL_GRPC_WEB:
		return "GRPC-WEB"
	}
	return strings.TrimPrefix(p.String(), "PROTOCOL_")
}

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

// IsTLS reports whether the protocol is TLS, which the proxy routes by SNI without decrypting it.
func IsTLS(p configv1.Protocol) bool {
	return p == configv1.Protocol_PROTOCOL_TLS || p == configv1.Protocol_PROTOCOL_HTTPS
}
