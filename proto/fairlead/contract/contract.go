// Package contract holds what the services agree on besides the messages: the names of resources, gateways, service
// accounts and token audiences, the protocol of a port, the default lifetime of certificates, and the answers of /debug
// that another program reads.
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
	InjectorAccount      = "injector"
	AdminAccount         = "fairlead-admin"
)

// ManagedByLabel says on a ConfigMap of the ca's that the ca has made it. `fairlead uninstall --purge` removes these.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedByCA    = "fairlead-ca"
)

// AdviceWebhook is the webhook, of config-watcher's ValidatingWebhookConfiguration, for objects of the Gateway API.
// They may be for other controllers, so its failurePolicy stays Ignore.
const AdviceWebhook = "advice.fairlead.dev"

// RootConfigMap is the default name of the ConfigMap in every namespace from which workloads take the roots of the
// mesh. Istio's sidecars mount it by this name.
const RootConfigMap = "istio-ca-root-cert"

// CertificateTTL is the default lifetime of workloads' and services' certificates, Istio's: with renewal at half of
// it, only new workloads notice that the ca is away for less than 12 h.
const CertificateTTL = 24 * time.Hour

// ProxyConfigType is the xDS type by which agents are sent a ProxyConfig, of which only caCertificatesPem,
// RootsMetadata and OwnRootsMetadata count.
const ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"

// SignedBundleType is the xDS type by which agents are sent the mesh's trust bundle, a fairlead.ca.v1.SignedBundle.
// They acknowledge it when their proxies verify with it. Envoy does not ask for it.
const SignedBundleType = "type.googleapis.com/fairlead.ca.v1.SignedBundle"

// RootsMetadata is the key in proxyMetadata of such a ProxyConfig that has further roots: a MeshConfig in JSON, of
// which caCertificates and trustDomainAliases count. They are the entries that caCertificatesPem cannot express, those
// for single trust domains and those at a URL. Istio's agent, which would trust them for any trust domain, does not
// read the key.
const RootsMetadata = "FAIRLEAD_CA_CERTIFICATES"

// OwnRootsMetadata is the key in proxyMetadata of such a ProxyConfig that says how many entries at the end of
// caCertificatesPem are the mesh's own roots, those of the ca's signed bundle. They are there for Istio's agents, which
// do not ask for SignedBundleType and trust the mesh's roots for any trust domain in any case. Fairlead's agents leave
// them out.
const OwnRootsMetadata = "FAIRLEAD_OWN_ROOTS"

// Bounds of MeshConfig's caCertificates: entries, and bytes of PEM in all of them.
const (
	MaxMeshRoots      = 64
	MaxMeshRootsBytes = 256 << 10
)

// GroupGatewayAPI is the API group of the Kubernetes Gateway API.
const GroupGatewayAPI = "gateway.networking.k8s.io"

// GatewayAPIKind is the kind, in resource keys, of an object of the Gateway API.
func GatewayAPIKind(kind string) string { return kind + "." + GroupGatewayAPI }

// GatewayNameLabel is on the workloads of a Gateway of the Gateway API that was made for it, with its name.
const GatewayNameLabel = GroupGatewayAPI + "/gateway-name"

// UnresolvedBackend is the host of a destination, in routes of the Gateway API, that cannot be resolved.
const UnresolvedBackend = "unresolved.invalid"

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

// ClusterSetSuffix ends the hosts that Services have in all clusters together, by KEP-1645. It is not configurable.
const ClusterSetSuffix = ".svc.clusterset.local"

// ClusterSetHost is the hostname that the Services of one name have in all clusters together.
func ClusterSetHost(name, namespace string) string { return name + "." + namespace + ClusterSetSuffix }

// WorkloadName returns the name in the resource key of a Workload; cluster is "" for config-watcher's own.
func WorkloadName(name, cluster string) string { return suffixed(name, cluster) }

// EndpointSetName returns the name in the resource key of an EndpointSet.
func EndpointSetName(s *configv1.EndpointSet) string {
	return visibilityName(s.GetHostname()+":"+strconv.FormatUint(uint64(s.GetPort()), 10)+"/"+s.GetCluster(), s.GetAudience())
}

// HostnameOf returns the hostname in the name of a Service's or EndpointSet's resource key.
func HostnameOf(name string) string {
	if i := strings.IndexAny(name, ":/"); i >= 0 {
		return name[:i]
	}
	return name
}

// IsEndpointKind reports whether resources of the kind say which endpoints there are, and on what workloads. A revision
// of such resources alone is a revision of endpoints: xds-servers may apply it before revisions of configuration that
// have come earlier (see configv1.Revision).
func IsEndpointKind(kind string) bool { return kind == "EndpointSet" || kind == "Workload" }

// visibilityName adds the visibility of a Service, which is empty unless several Services with one hostname are visible
// to different namespaces: then it is the first of the namespaces that see this one (configv1.Service.audience).
func visibilityName(name, visibility string) string { return suffixed(name, visibility) }

// suffixed adds a suffix that is not empty.
func suffixed(name, suffix string) string {
	if suffix == "" {
		return name
	}
	return name + "/" + suffix
}
