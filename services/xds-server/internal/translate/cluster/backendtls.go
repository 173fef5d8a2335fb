package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
)

// backendTLS makes a gateway connect by TLS as a BackendTLSPolicy says, in place of what a DestinationRule says about
// TLS.
func backendTLS(r *input.Reader, out *clusterv3.Cluster, options *httpOptions, policy *mesh.BackendTLS) error {
	if policy.Spec.GetUnusable() || policy.Spec.GetAuthorities() == "" && !policy.Spec.GetSystemAuthorities() {
		withoutEndpoints(out)
		return nil
	}
	var err error
	out.TransportSocket, err = tlsctx.Backend(policy.Spec, backendCredential(r), r.Mesh().GetTlsDefaults(), options.protocol == http2)
	return err
}

// backendCredential is the name of the certificate that the gateway shows to backends; "" if it has none. Of several
// Gateways, which share the clusters, the oldest that has one decides.
func backendCredential(r *input.Reader) string {
	for _, g := range r.GatewayListeners() {
		if name := g.Spec.GetBackendCredential(); name != "" {
			return name
		}
	}
	return ""
}

// withoutEndpoints makes a cluster to which no request can be sent.
func withoutEndpoints(out *clusterv3.Cluster) {
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	out.EdsClusterConfig, out.LbConfig, out.LbPolicy = nil, nil, clusterv3.Cluster_ROUND_ROBIN
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: out.GetName()}
}
