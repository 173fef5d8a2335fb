package normalise

import (
	"net/netip"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Host turns a short name into an FQDN. As in Istio only a name without a dot is short: "reviews.apps" stays. The
// result is in lower case, without a dot at the end, and IP addresses are in their shortest form, so that hostnames can
// be compared as text.
func Host(name, namespace, domain string) string {
	name = strings.ToLower(name)
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.String()
	}
	if name == "" || name == "*" || strings.Contains(name, ".") {
		return strings.TrimSuffix(name, ".")
	}
	return name + "." + namespace + ".svc." + domain
}

// entryHost is Host for the hosts of a ServiceEntry, which are complete names even without a dot.
func entryHost(name string) string {
	if !strings.Contains(name, ".") {
		name += "."
	}
	return Host(name, "", "")
}

// exportedToNone is the exportedTo of an object that no namespace sees. No namespace has this name.
const exportedToNone = "~"

// ExportedTo resolves exportTo, or fallback if it is empty, to sorted namespaces; ["*"] means all of them.
func ExportedTo(exportTo, fallback []string, namespace string) []string {
	if len(exportTo) == 0 {
		exportTo = fallback
	}
	if len(exportTo) == 0 {
		return []string{exportedToAll}
	}
	var out []string
	for _, e := range exportTo {
		switch e = strings.TrimSpace(e); e {
		case "*":
			return []string{exportedToAll}
		case ".":
			out = append(out, namespace)
		case "~", "":
		default:
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return []string{exportedToNone}
	}
	return sortedUnique(out)
}

// VisibleTo reports whether a namespace is among those that ExportedTo has returned.
func VisibleTo(exported []string, namespace string) bool {
	return slices.Contains(exported, exportedToAll) || slices.Contains(exported, namespace)
}

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

// MeshAnnotations keeps the annotations of Istio and Fairlead. It drops the injector's status, which is large.
func MeshAnnotations(annotations map[string]string) map[string]string {
	var out map[string]string
	for k, v := range annotations {
		domain, _, _ := strings.Cut(k, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") && domain != "fairlead.dev" || k == "sidecar.istio.io/status" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

func sourceRef(o *object.Object) *configv1.SourceRef {
	if o.Origin != nil {
		o = o.Origin
	}
	return &configv1.SourceRef{
		Source: o.Source, ApiVersion: o.APIVersion, Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Generation: o.Generation, Location: o.Location,
	}
}
