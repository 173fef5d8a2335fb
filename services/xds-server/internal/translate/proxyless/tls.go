package proxyless

import (
	"cmp"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

const (
	tlsSocket = "envoy.transport_sockets.tls"
	// provider is the certificate provider in the bootstrap that an agent writes. It has the workload's certificate and
	// the mesh's CA certificates.
	provider = "default"
)

// serverTLS requires a client certificate of the mesh. gRPC servers cannot match SPIFFE IDs, so every workload of the
// mesh is accepted.
func serverTLS() *corev3.TransportSocket {
	return socket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: commonTLS(&tlsv3.CertificateValidationContext{}), RequireClientCertificate: wrapperspb.Bool(true),
	})
}

// clientTLS returns the transport socket of a gRPC client for a cluster, nil for plaintext. gRPC treats all endpoints
// of a cluster alike. The mode in the DestinationRule applies; without one the client uses mTLS if every server
// requires it. If servers accept both it uses plaintext, because a sidecar tells mesh mTLS from the application's own
// TLS by an ALPN value that gRPC does not offer.
func clientTLS(r *input.Reader, c discovery.Cluster) (*corev3.TransportSocket, error) {
	settings := c.Policy.GetTls()
	switch mode := settings.GetMode(); {
	case settings == nil:
		if !r.AutoMTLS(c.Service) || !requiresMTLS(r, c) {
			return nil, nil
		}
	case mode == networking.ClientTLSSettings_DISABLE:
		return nil, nil
	case mode != networking.ClientTLSSettings_ISTIO_MUTUAL:
		where := "MeshConfig: tls"
		if c.Rule != nil {
			where = fmt.Sprintf("DestinationRule %s/%s: trafficPolicy.tls", c.Rule.Key.Namespace, c.Rule.Key.Name)
		}
		return nil, fmt.Errorf("%s.mode: a proxyless gRPC client cannot do %v, only DISABLE or ISTIO_MUTUAL; let it do TLS itself", where, mode)
	}
	identities := settings.GetSubjectAltNames()
	if len(identities) == 0 {
		identities = endpoint.Identities(r, c)
	}
	sni := cmp.Or(settings.GetSni(), resourcename.SNI(c.Port, c.Subset, c.Hostname))
	trust := tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases())
	return socket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext: commonTLS(&tlsv3.CertificateValidationContext{
			MatchSubjectAltNames: trust.Peers(identities), //nolint:staticcheck // the field that gRPC reads
		}),
		Sni: sni,
	}), nil
}

// requiresMTLS reports whether every endpoint of the cluster accepts mesh mTLS only. Without endpoints the mode of the
// service's namespace decides, so that a service which scales to zero and back keeps its cluster.
func requiresMTLS(r *input.Reader, c discovery.Cluster) bool {
	type kind struct{ labelSet, port uint32 }
	found := false
	for _, shard := range r.Endpoints(c.Service, c.Port) {
		known := map[kind]bool{}
		for _, e := range shard.GetEndpoints() {
			var labels map[string]string
			if int(e.GetLabelSet()) < len(shard.GetLabelSets()) {
				labels = shard.GetLabelSets()[e.GetLabelSet()].GetLabels()
			}
			if c.SubsetSpec != nil && !mesh.Matches(c.SubsetSpec.GetLabels(), labels) {
				continue
			}
			id := kind{e.GetLabelSet(), e.GetPort()}
			strict, ok := known[id]
			if !ok {
				namespace, _, _ := strings.Cut(e.GetWorkload(), "/")
				if namespace == "" {
					namespace = c.Service.GetNamespace()
				}
				strict = r.PeerMTLS(namespace, labels, e.GetPort()) == input.Strict
				known[id] = strict
			}
			if !strict || e.GetTlsMode() != configv1.TlsMode_TLS_MODE_ISTIO {
				return false
			}
			found = true
		}
	}
	return found || r.PeerMTLS(c.Service.GetNamespace(), nil, c.Spec.GetTargetPort()) == input.Strict
}

func commonTLS(validation *tlsv3.CertificateValidationContext) *tlsv3.CommonTlsContext {
	instance := func() *tlsv3.CertificateProviderPluginInstance {
		return &tlsv3.CertificateProviderPluginInstance{InstanceName: provider}
	}
	validation.CaCertificateProviderInstance = instance()
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: instance(),
		ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation},
	}
}

func socket(m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typedconfig.Any(m)}}
}
