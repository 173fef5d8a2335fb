// Package dynamicforwardproxy configures Envoy's dynamic forward proxy for the wildcard hosts of ServiceEntries with
// resolution DYNAMIC_DNS: Envoy resolves the host of each request (ForRequests) or the SNI of each TLS handshake
// (ForHandshakes), and connects through the cluster of Set.
package dynamicforwardproxy

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	sniv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// Names of Envoy's extensions.
const (
	HTTPFilter    = "envoy.filters.http.dynamic_forward_proxy"
	NetworkFilter = "envoy.filters.network.sni_dynamic_forward_proxy"
	clusterType   = "envoy.clusters.dynamic_forward_proxy"
)

// Is reports whether a service has resolution DYNAMIC_DNS.
func Is(svc *configv1.Service) bool {
	return svc.GetResolution() == configv1.Resolution_RESOLUTION_DYNAMIC_DNS
}

// Any reports whether Is is true for one of the services.
func Any(services []*configv1.Service) bool { return slices.ContainsFunc(services, Is) }

// LookupFamily prefers the IP family that the proxy has; a dual-stack proxy tries all addresses of a name.
func LookupFamily(f class.Families) clusterv3.Cluster_DnsLookupFamily {
	switch f {
	case class.IPv6:
		return clusterv3.Cluster_AUTO
	case class.DualStack:
		return clusterv3.Cluster_ALL
	default:
		return clusterv3.Cluster_V4_PREFERRED
	}
}

// cache is the one DNS cache of the filters and the clusters. Envoy rejects two caches of one name that differ, so the
// name contains every setting.
func cache(r *input.Reader) *dfpv3.DnsCacheConfig {
	family, every := LookupFamily(r.Class().Families), r.Mesh().GetDnsRefreshRate()
	return &dfpv3.DnsCacheConfig{
		Name: fmt.Sprintf("dynamic %s %s", family, every.AsDuration()), DnsLookupFamily: family, DnsRefreshRate: every,
	}
}

// ForRequests configures the HTTP filter, which resolves the host of requests that are routed to a cluster of Set.
func ForRequests(r *input.Reader) *httpv3.FilterConfig {
	return &httpv3.FilterConfig{ImplementationSpecifier: &httpv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: cache(r)}}
}

// ForHandshakes configures the network filter, which resolves the SNI of a TLS handshake.
func ForHandshakes(r *input.Reader, port uint32) *sniv3.FilterConfig {
	return &sniv3.FilterConfig{DnsCacheConfig: cache(r), PortSpecifier: &sniv3.FilterConfig_PortValue{PortValue: port}}
}

// Set makes out a dynamic forward proxy cluster.
func Set(r *input.Reader, out *clusterv3.Cluster) {
	out.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	out.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: clusterType,
		TypedConfig: typedconfig.Any(&dfpclusterv3.ClusterConfig{
			ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: cache(r)},
			// A DestinationRule may set the SNI, which Envoy allows only with this option.
			AllowInsecureClusterOptions: true,
		}),
	}}
}
