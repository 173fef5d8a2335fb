package cluster

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/dynamicforwardproxy"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// outbound builds the cluster of a service port or of one of its subsets.
func outbound(r *input.Reader, c discovery.Cluster) (*clusterv3.Cluster, error) {
	out := &clusterv3.Cluster{
		Name:           c.String(),
		AltStatName:    outboundAltStatName(r, c),
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{},
		Metadata:       metadata(c),
	}
	discoveryType(r, out, c)
	byClient := r.Class().Type == class.Sidecar || isSniffed(c) && r.IsGRPCBackend(c.Hostname, c.Port)
	options := &httpOptions{protocol: upstreamFor(c.Spec.GetProtocol(), byClient), keepCase: keepsCase(r, c.Spec.GetProtocol())}
	connectionPool(out, options, r.Mesh(), c.Policy.GetConnectionPool())
	if upgrades(r.Mesh(), c.Spec.GetProtocol(), c.Policy.GetConnectionPool().GetHttp()) {
		options.protocol = http2
	}
	retryBudget(out, c.Policy.GetRetryBudget())
	outlierDetection(out, options, c.Policy.GetOutlierDetection())
	if endpoint.UsesLocalityWeights(r, c) {
		out.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	lbPolicy(out, c.Policy.GetLoadBalancer())
	// The connections carry the clients' mesh TLS, so the cluster adds no TLS and no protocol options.
	if c.AutoPassthrough {
		return out, nil
	}
	err := transportSocket(r, out, options, c)
	if err == nil {
		proxyProtocol(out, c.Policy.GetProxyProtocol())
		err = options.apply(out)
	}
	if err != nil && c.Rule != nil {
		return nil, fmt.Errorf("DestinationRule %s/%s: trafficPolicy: %w", c.Rule.Key.Namespace, c.Rule.Key.Name, err)
	}
	return out, err
}

// discoveryType sets how the cluster finds its endpoints.
func discoveryType(r *input.Reader, out *clusterv3.Cluster, c discovery.Cluster) {
	kind := clusterv3.Cluster_EDS
	switch c.Kind {
	case discovery.StrictDNS, discovery.LogicalDNS:
		dnsDiscovery(r, out, c)
		return
	case discovery.DynamicHosts:
		dynamicforwardproxy.Set(r, out)
		return
	case discovery.OriginalDestination:
		kind = clusterv3.Cluster_ORIGINAL_DST
		// A STATIC service's address is its own, not that of a server: the load balancer at that address, such as a
		// node of the Kubernetes cluster, also maps the port.
		own := c.Service.GetResolution() == configv1.Resolution_RESOLUTION_STATIC && len(c.Service.GetAddresses()) > 0
		if target := c.Spec.GetTargetPort(); target != 0 && target != c.Spec.GetNumber() && !own {
			out.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{
				OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{UpstreamPortOverride: wrapperspb.UInt32(target)},
			}
		}
	default:
		out.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{
			ServiceName: out.GetName(),
			EdsConfig:   coreconfig.ADSWithoutTimeout(),
		}
	}
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: kind}
}

// lookupFamily is dynamicforwardproxy.LookupFamily in the type of DNS clusters.
func lookupFamily(f class.Families) commondnsv3.DnsLookupFamily {
	return commondnsv3.DnsLookupFamily(commondnsv3.DnsLookupFamily_value[dynamicforwardproxy.LookupFamily(f).String()])
}

// dnsDiscovery makes a cluster resolve the DNS names of its endpoints.
func dnsDiscovery(r *input.Reader, out *clusterv3.Cluster, c discovery.Cluster) {
	out.LoadAssignment = endpoint.Assignment(r, c)
	out.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.cluster.dns",
		TypedConfig: typedconfig.Any(&dnsv3.DnsCluster{
			DnsRefreshRate:  r.Mesh().GetDnsRefreshRate(),
			DnsLookupFamily: lookupFamily(r.Class().Families),
			RespectDnsTtl:   true,
			// With this option Envoy requires exactly one name, and rejects a cluster without any.
			AllAddressesInSingleEndpoint: c.Kind == discovery.LogicalDNS && len(out.GetLoadAssignment().GetEndpoints()) > 0,
		}),
	}}
}

// upgrades reports whether HTTP/1.1 requests to a port of declared HTTP are sent as HTTP/2, by h2UpgradePolicy of the
// DestinationRule or else of the mesh. useClientProtocol in the DestinationRule prevents it.
func upgrades(mesh *meshv1alpha1.MeshConfig, p configv1.Protocol, rule *networking.ConnectionPoolSettings_HTTPSettings) bool {
	if !contract.IsHTTP(p) || rule.GetUseClientProtocol() {
		return false
	}
	if rule.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_DEFAULT {
		return mesh.GetH2UpgradePolicy() == meshv1alpha1.MeshConfig_UPGRADE
	}
	return rule.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE
}

// keepsCase reports whether the case of HTTP/1 headers to a port is preserved.
func keepsCase(r *input.Reader, p configv1.Protocol) bool {
	return r.ProxyHeaders().GetPreserveHttp1HeaderCase().GetValue() && (contract.IsHTTP(p) || protocol.IsSniffed(p))
}

func retryBudget(out *clusterv3.Cluster, in *networking.TrafficPolicy_RetryBudget) {
	if in == nil {
		return
	}
	budget := &clusterv3.CircuitBreakers_Thresholds_RetryBudget{}
	if in.GetPercent() != nil {
		budget.BudgetPercent = &typev3.Percent{Value: in.GetPercent().GetValue()}
	}
	if n := in.GetMinRetryConcurrency(); n > 0 {
		budget.MinRetryConcurrency = wrapperspb.UInt32(n)
	}
	out.GetCircuitBreakers().GetThresholds()[0].RetryBudget = budget
}

// metadata names the service, the DestinationRule and the subset where Istio's tools read them.
func metadata(c discovery.Cluster) *corev3.Metadata {
	istio := map[string]*structpb.Value{
		"services": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				"host":      structpb.NewStringValue(c.Service.GetHostname()),
				"name":      structpb.NewStringValue(c.Service.GetName()),
				"namespace": structpb.NewStringValue(c.Service.GetNamespace()),
			}}),
		}}),
	}
	if c.Rule != nil {
		istio["config"] = structpb.NewStringValue(fmt.Sprintf("/apis/networking.istio.io/v1/namespaces/%s/destination-rule/%s",
			c.Rule.Key.Namespace, c.Rule.Key.Name))
	}
	if c.Subset != "" {
		istio["subset"] = structpb.NewStringValue(c.Subset)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: istio}}}
}

// addMetadata adds a value to the cluster's metadata in Fairlead's namespace.
func addMetadata(out *clusterv3.Cluster, key, value string) {
	notes := out.GetMetadata().GetFilterMetadata()
	if notes[hcm.ALPNMetadataNamespace] == nil {
		notes[hcm.ALPNMetadataNamespace] = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	notes[hcm.ALPNMetadataNamespace].Fields[key] = structpb.NewStringValue(value)
}

// isSniffed reports whether the protocol of a cluster's connections is detected for each of them.
func isSniffed(c discovery.Cluster) bool { return protocol.IsSniffed(c.Spec.GetProtocol()) }
