package contract

import (
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// wellKnownTCP are ports of protocols in which the server speaks first. Without a declared protocol Envoy must not
// sniff them.
var wellKnownTCP = map[int32]bool{25: true, 53: true, 3306: true, 27017: true}

// PortProtocol decides the protocol of a Kubernetes Service port from appProtocol or the prefix of its name
// (https://istio.io/latest/docs/ops/configuration/traffic-management/protocol-selection/).
func PortProtocol(number int32, name, transport, appProtocol string) configv1.Protocol {
	if transport == "UDP" || transport == "SCTP" { // sent to no proxy
		return configv1.Protocol_PROTOCOL_UDP
	}
	switch appProtocol {
	case "kubernetes.io/h2c":
		return configv1.Protocol_PROTOCOL_HTTP2
	case "kubernetes.io/ws":
		return configv1.Protocol_PROTOCOL_HTTP
	case "kubernetes.io/wss":
		return configv1.Protocol_PROTOCOL_HTTPS
	case "":
	default:
		name = appProtocol
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

// ParseProtocol reads a protocol's name as Istio's kinds write it. Envoy sniffs the protocol of unknown and empty
// names.
func ParseProtocol(s string) configv1.Protocol {
	switch strings.ToLower(s) {
	case "tcp":
		return configv1.Protocol_PROTOCOL_TCP
	case "udp":
		return configv1.Protocol_PROTOCOL_UDP
	case "http":
		return configv1.Protocol_PROTOCOL_HTTP
	case "http2":
		return configv1.Protocol_PROTOCOL_HTTP2
	case "grpc":
		return configv1.Protocol_PROTOCOL_GRPC
	case "grpc-web":
		return configv1.Protocol_PROTOCOL_GRPC_WEB
	case "https":
		return configv1.Protocol_PROTOCOL_HTTPS
	case "tls":
		return configv1.Protocol_PROTOCOL_TLS
	case "mongo":
		return configv1.Protocol_PROTOCOL_MONGO
	case "redis":
		return configv1.Protocol_PROTOCOL_REDIS
	case "mysql":
		return configv1.Protocol_PROTOCOL_MYSQL
	case "http_proxy":
		return configv1.Protocol_PROTOCOL_HTTP_PROXY
	}
	return configv1.Protocol_PROTOCOL_UNSPECIFIED
}

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
