package cluster

import (
	"cmp"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// transportSocket sets the TLS of a cluster: of a gateway by a BackendTLSPolicy, else by the traffic policy, or else
// mesh mTLS to every endpoint that has a proxy.
func transportSocket(r *input.Reader, out *clusterv3.Cluster, options *httpOptions, c discovery.Cluster) error {
	if policy := r.BackendTLS(c.Hostname, c.Port); policy != nil {
		if err := backendTLS(r, out, options, policy); err != nil {
			return fmt.Errorf("BackendTLSPolicy %s/%s: %w", policy.Key.Namespace, policy.Key.Name, err)
		}
		return nil
	}
	settings := c.Policy.GetTls()
	if settings == nil {
		autoMTLS(r, out, options, c)
		return nil
	}
	switch settings.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		out.TransportSocket = meshMTLS(r, out, options, c, settings)
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
		if settings.GetCredentialName() != "" && !hasCredentials(r, c) {
			return nil
		}
		socket, err := tlsctx.External(settings, c.Service.GetSubjectAltNames(), r.Mesh().GetTlsDefaults(), options.protocol == http2)
		if err != nil {
			return err
		}
		out.TransportSocket = socket
		// Without an SNI in the policy, the SNI is the host of each request; without subjectAltNames, that host must be
		// in the server's certificate.
		if settings.GetSni() == "" {
			options.autoSNI = true
			options.autoSAN = len(settings.GetSubjectAltNames()) == 0 && !settings.GetInsecureSkipVerify().GetValue()
		}
	default:
		return fmt.Errorf("tls.mode: %v is not supported", settings.GetMode())
	}
	return nil
}

// hasCredentials reports whether credentialName applies to the class: to gateways, and to the sidecars that the
// DestinationRule's workloadSelector selects. As in Istio, all others connect without TLS: the DestinationRule is then
// about the gateway on their way.
func hasCredentials(r *input.Reader, c discovery.Cluster) bool {
	return r.Class().Type == class.Router || c.Rule != nil && len(c.Rule.Spec.GetWorkloadSelector().GetMatchLabels()) > 0
}

// autoMTLS chooses mTLS for each endpoint by whether a proxy terminates it there. It applies where no traffic policy
// has TLS settings.
func autoMTLS(r *input.Reader, out *clusterv3.Cluster, options *httpOptions, c discovery.Cluster) {
	if !r.AutoMTLS(c.Service) {
		return
	}
	if out.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		// The proxy learns of an endpoint by connecting to it and knows nothing else about it, so all have to be alike.
		if endpoint.AllTerminateMTLS(r, c) {
			out.TransportSocket = meshMTLS(r, out, options, c, nil)
		}
		return
	}
	if off := endpoint.MTLSTurnedOff(r, c); off != "" {
		// Nothing reads this value. It changes the cluster when PeerAuthentication turns mTLS off or on, so Envoy
		// closes the open connections, which still have the old TLS settings.
		addMetadata(out, "mtls_turned_off", off)
	}
	out.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{
			Name: "tlsMode-" + endpoint.TLSModeIstio,
			Match: &structpb.Struct{Fields: map[string]*structpb.Value{
				endpoint.TLSModeKey: structpb.NewStringValue(endpoint.TLSModeIstio),
			}},
			TransportSocket: meshMTLS(r, out, options, c, nil),
		},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: tlsctx.Plaintext()},
	}
}

func meshMTLS(r *input.Reader, out *clusterv3.Cluster, options *httpOptions, c discovery.Cluster,
	settings *networking.ClientTLSSettings) *corev3.TransportSocket {
	sni := cmp.Or(settings.GetSni(), resourcename.SNI(c.Port, c.Subset, c.Hostname))
	identities := settings.GetSubjectAltNames()
	if len(identities) == 0 {
		identities = endpoint.Identities(r, c)
	}
	if isSniffed(c) {
		addMetadata(out, hcm.ALPNMetadataKey, tlsctx.OfferSniffed)
	}
	trust := tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases())
	return tlsctx.Client(trust, sni, identities, carries(options, c))
}

func carries(options *httpOptions, c discovery.Cluster) tlsctx.Carries {
	switch {
	case !contract.IsHTTP(c.Spec.GetProtocol()):
		return tlsctx.CarriesAny
	case options.protocol == http2:
		return tlsctx.CarriesHTTP2
	case options.protocol == downstreamProtocol:
		return tlsctx.CarriesHTTP
	default:
		return tlsctx.CarriesHTTP1
	}
}

// proxyProtocol sends the PROXY protocol header before everything else on a connection.
func proxyProtocol(out *clusterv3.Cluster, in *networking.TrafficPolicy_ProxyProtocol) {
	if in == nil {
		return
	}
	version := corev3.ProxyProtocolConfig_V1
	if in.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	wrap := func(inner *corev3.TransportSocket) *corev3.TransportSocket {
		if inner == nil {
			inner = tlsctx.Plaintext()
		}
		return &corev3.TransportSocket{
			Name: "envoy.transport_sockets.upstream_proxy_protocol",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typedconfig.Any(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
				Config: &corev3.ProxyProtocolConfig{Version: version}, TransportSocket: inner,
			})},
		}
	}
	if len(out.GetTransportSocketMatches()) == 0 {
		out.TransportSocket = wrap(out.GetTransportSocket())
		return
	}
	for _, m := range out.GetTransportSocketMatches() {
		m.TransportSocket = wrap(m.GetTransportSocket())
	}
}
