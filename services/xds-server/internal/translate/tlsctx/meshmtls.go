// Package tlsctx builds transport sockets with TLS contexts: mesh mTLS with the workload's own certificate (Server,
// Client), TLS that a DestinationRule originates (External), and TLS that a gateway or a Sidecar's ingress listener
// terminates (Terminate).
package tlsctx

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// Secrets that node-agent serves by SDS, and the cluster of its SDS server in the bootstrap.
const (
	workloadCertificate = "default"
	meshRoots           = "ROOTCA"
	sdsCluster          = "sds-grpc"
)

const (
	tlsSocket = "envoy.transport_sockets.tls"
	rawSocket = "envoy.transport_sockets.raw_buffer"
)

// Plaintext is the transport socket without TLS.
func Plaintext() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       rawSocket,
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typedconfig.Any(&rawbufferv3.RawBuffer{})},
	}
}

// ALPN values of mesh mTLS, the same as Istio's sidecars use. A client offers the values of what it carries, and a
// server chooses its filter chain by them: so it tells HTTP from other connections on a port of undeclared protocol
// although both are encrypted. "istio-peer-exchange" is accepted but never offered, because it announces metadata
// before the payload, for a filter that upstream Envoy does not have.
var (
	// MeshHTTP are the values of an HTTP connection.
	MeshHTTP = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	// MeshAny are the values of any mesh connection.
	MeshAny = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}
	// MeshTCP are the values of a connection that may carry anything.
	MeshTCP = []string{"istio", "istio-peer-exchange"}

	offerTCP   = []string{"istio"}
	offerHTTP1 = []string{"istio-http/1.1", "istio", "http/1.1"}
	offerHTTP2 = []string{"istio-h2", "istio", "h2"}
	offerHTTP  = []string{"istio-http/1.1", "istio-h2", "istio"}

	serverALPN = []string{"h2", "http/1.1"}
	// meshServerALPN never negotiates HTTP/1.1: the server then detects the version by the first bytes, and an
	// EnvoyFilter may have changed the client's cluster to HTTP/2, without changing its ALPN values. Some gRPC clients
	// require h2.
	meshServerALPN = []string{"h2"}
)

// OfferSniffed are the ALPN values, separated by commas, that HTTP requests to ports of undeclared protocol offer
// instead of the cluster's. They name both versions of HTTP and negotiate neither: the server detects the version by
// the first bytes.
const OfferSniffed = "istio-http/1.1,istio-h2,istio"

// Carries is what a cluster's connections carry.
type Carries int

// Values of Carries.
const (
	// CarriesAny is anything; connections that carry HTTP offer OfferSniffed.
	CarriesAny Carries = iota
	CarriesHTTP1
	CarriesHTTP2
	// CarriesHTTP is HTTP of either version, whichever the caller used.
	CarriesHTTP
)

// Trust is the list of trust domains whose workloads the mesh accepts, its own first.
type Trust []string

// NewTrust returns the trust domain and its aliases, each once.
func NewTrust(domain string, aliases []string) Trust {
	trust := Trust{domain}
	for _, alias := range aliases {
		if alias != "" && !slices.Contains(trust, alias) {
			trust = append(trust, alias)
		}
	}
	return trust
}

// matchers accepts any workload of the trust domains.
func (t Trust) matchers() []*tlsv3.SubjectAltNameMatcher { return uriMatchers(t.Peers(nil)) }

// Peers accepts the identities, also in the aliases of their trust domain; without identities it accepts every workload
// of the trust domains.
func (t Trust) Peers(identities []string) []*matcherv3.StringMatcher {
	var out []*matcherv3.StringMatcher
	if len(identities) > 0 {
		for _, identity := range t.expand(identities) {
			out = append(out, matcher.Exact(identity))
		}
		return out
	}
	for _, domain := range t {
		out = append(out, matcher.Prefix(spiffeScheme+domain+"/"))
	}
	return out
}

// expand returns the identities and their equivalents in the other trust domains.
func (t Trust) expand(identities []string) []string {
	out := slices.Clone(identities)
	for _, identity := range identities {
		domain, path, ok := strings.Cut(strings.TrimPrefix(identity, spiffeScheme), "/")
		if !ok || !strings.HasPrefix(identity, spiffeScheme) || !slices.Contains(t, domain) {
			continue
		}
		for _, other := range t {
			out = append(out, spiffeScheme+other+"/"+path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

const spiffeScheme = "spiffe://"

func uriMatchers(in []*matcherv3.StringMatcher) []*tlsv3.SubjectAltNameMatcher {
	out := make([]*tlsv3.SubjectAltNameMatcher, 0, len(in))
	for _, m := range in {
		out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m})
	}
	return out
}

func sdsConfig(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType:             corev3.ApiConfigSource_GRPC,
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: sdsCluster},
				}}},
				SetNodeOnFirstMessageOnly: true,
			}},
			InitialFetchTimeout: durationpb.New(0),
			ResourceApiVersion:  corev3.ApiVersion_V3,
		},
	}
}

func combinedValidation(defaults *tlsv3.CertificateValidationContext, roots string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         defaults,
			ValidationContextSdsSecretConfig: sdsConfig(roots),
		},
	}
}

// Server terminates mesh mTLS for clients of the trust domains. The minimum version is TLS 1.2; meshMTLS may raise it,
// and choose the cipher suites.
func Server(trust Trust, meshMTLS *meshv1alpha1.MeshConfig_TLSConfig) *corev3.TransportSocket {
	return socket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsParams:                      serverParams(meshMTLS),
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsConfig(workloadCertificate)},
			ValidationContextType: combinedValidation(
				&tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: trust.matchers()}, meshRoots),
			AlpnProtocols: meshServerALPN,
		},
		RequireClientCertificate: wrapperspb.Bool(true),
	})
}

func serverParams(settings *meshv1alpha1.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	params := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites: []string{
			"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
			"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		},
	}
	if settings.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		params.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	if len(settings.GetCipherSuites()) > 0 {
		params.CipherSuites = settings.GetCipherSuites()
	}
	return params
}

// Client originates mesh mTLS to a server with one of the identities; without identities, to any workload of the trust
// domains.
func Client(trust Trust, sni string, identities []string, carries Carries) *corev3.TransportSocket {
	validation := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: uriMatchers(trust.Peers(identities))}
	return socket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsParams:                      clientParams(),
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsConfig(workloadCertificate)},
			ValidationContextType:          combinedValidation(validation, meshRoots),
			AlpnProtocols:                  offer(carries),
		},
		Sni: sni,
	})
}

func offer(carries Carries) []string {
	switch carries {
	case CarriesHTTP1:
		return offerHTTP1
	case CarriesHTTP2:
		return offerHTTP2
	case CarriesHTTP:
		return offerHTTP
	default:
		return offerTCP
	}
}

func clientParams() *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
}

// checkedSocket is socket for a TLS context with settings of a user, which it validates.
func checkedSocket(m interface {
	proto.Message
	ValidateAll() error
}) (*corev3.TransportSocket, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	return socket(m), nil
}

func socket(m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       tlsSocket,
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typedconfig.Any(m)},
	}
}
