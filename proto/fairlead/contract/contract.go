// Package contract holds what the services agree on besides the messages: the names of resources, gateways, service
// accounts and token audiences, and the default lifetime of certificates.
package contract

import (
	"strconv"
	"strings"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Audiences (`aud`) of tokens.
const (
	// TokenAudience is that of the tokens which prove a workload's identity to ca and xds-server, as in Istio.
	TokenAudience = "istio-ca"
	// AdminAudience is that of administrators' tokens, for config-watcher's API and for /debug.
	AdminAudience = "fairlead"
)

// SystemNamespace is the default namespace of Fairlead's own service accounts.
const SystemNamespace = "istio-system"

// Fairlead's own service accounts. AdminAccount is that of the command line.
const (
	CAAccount            = "ca"
	ConfigWatcherAccount = "config-watcher"
	XDSServerAccount     = "xds-server"
	AdminAccount         = "fairlead-admin"
)

// CertificateTTL is the default lifetime of workloads' and services' certificates, Istio's: with renewal at half of
// it, only new workloads notice that the ca is away for less than 12 h.
const CertificateTTL = 24 * time.Hour

// MeshGateway is the reserved gateway name of VirtualServices that stands for all sidecars.
const MeshGateway = "mesh"

// GatewayName resolves the name of a gateway, as a VirtualService of the namespace writes it, to "<namespace>/<name>"
// or MeshGateway. A resolved name stays as it is.
func GatewayName(name, namespace string) string {
	if name == MeshGateway {
		return name
	}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		if ns == "." {
			ns = namespace
		}
		return ns + "/" + rest
	}
	// The old dotted form: name.namespace.svc.<domain>, or shortened from the right.
	if parts := strings.Split(strings.TrimSuffix(name, "."), "."); len(parts) == 2 || len(parts) > 2 && parts[2] == "svc" {
		return parts[1] + "/" + parts[0]
	}
	return namespace + "/" + name
}

// ServiceName returns the name in the resource key of a Service.
func ServiceName(s *configv1.Service) string { return visibilityName(s.GetHostname(), s.GetAudience()) }

// EndpointSetName returns the name in the resource key of an EndpointSet.
func EndpointSetName(s *configv1.EndpointSet) string {
	return visibilityName(s.GetHostname()+":"+strconv.FormatUint(uint64(s.GetPort()), 10)+"/"+s.GetCluster(), s.GetAudience())
}

// visibilityName adds the visibility of a Service, which is empty unless several Services with one hostname are visible
// to different namespaces: then it is the first of the namespaces that see this one (configv1.Service.audience).
func visibilityName(name, visibility string) string {
	if visibility == "" {
		return name
	}
	return name + "/" + visibility
}
