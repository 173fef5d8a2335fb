package tlsctx

import (
	"errors"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// ErrUnserved is returned for a credentialName where the proxy cannot request credentials.
var ErrUnserved = errors.New("credentialName is served to gateways only")

// credentialTimeout limits how long a listener or cluster waits for a credential. Without it a missing credential would
// keep the whole listener from working, also for servers whose credentials exist. Before and after the timeout,
// connections that need a missing credential fail in the handshake.
const credentialTimeout = 5 * time.Second

// Terminator describes the proxy that terminates TLS.
type Terminator struct {
	Trust Trust
	// HTTP is true if the connections carry HTTP: then ALPN offers h2 and http/1.1.
	HTTP bool
	// Credentials is true if the proxy can request credentials by name.
	Credentials bool
	// ClientAuthorities are certificates in PEM to one of which a client's must chain. They take the place of what the
	// settings say about clients, unless they are empty.
	ClientAuthorities string
	// InsecureFallback lets clients in nevertheless that have no certificate, or another one.
	InsecureFallback bool
	// Mesh has the defaults for settings that are not set; nil for none.
	Mesh *meshv1alpha1.MeshConfig
}

// Terminate builds the TLS context of a gateway's server or of a Sidecar's ingress listener, with certificates from
// Secrets, from files, or of the workload itself.
func Terminate(settings *networking.ServerTLSSettings, by Terminator) (*corev3.TransportSocket, error) {
	if !by.Credentials && (len(credentialNames(settings)) > 0 || settings.GetCaCertCredentialName() != "") {
		return nil, ErrUnserved
	}
	common := &tlsv3.CommonTlsContext{}
	if by.HTTP {
		common.AlpnProtocols = serverALPN
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if settings.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		terminateMesh(out, settings, by)
		return checkedSocket(out)
	}
	common.TlsParams = chosenParams(defaultParams(by.Mesh.GetTlsDefaults()), settings)
	var err error
	if common.TlsCertificateSdsSecretConfigs, err = certificates(settings); err != nil {
		return nil, err
	}
	if by.ClientAuthorities != "" {
		verifyByAuthorities(out, settings, by)
		return checkedSocket(out)
	}
	switch settings.GetMode() {
	case networking.ServerTLSSettings_SIMPLE:
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if err := verifyClients(common, settings); err != nil {
			return nil, err
		}
		out.RequireClientCertificate = wrapperspb.Bool(settings.GetMode() == networking.ServerTLSSettings_MUTUAL)
	default:
		return nil, fmt.Errorf("tls.mode: %s does not terminate TLS", settings.GetMode())
	}
	return checkedSocket(out)
}

// terminateMesh applies mode ISTIO_MUTUAL: the workload's own certificate, for clients of the trust domains or with the
// subjectAltNames of the settings.
func terminateMesh(out *tlsv3.DownstreamTlsContext, settings *networking.ServerTLSSettings, by Terminator) {
	common := out.GetCommonTlsContext()
	common.TlsParams = chosenParams(serverParams(by.Mesh.GetMeshMTLS()), settings)
	common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{sdsConfig(workloadCertificate)}
	common.ValidationContextType = combinedValidation(
		clientValidation(settings, uriMatchers(by.Trust.Peers(settings.GetSubjectAltNames()))), meshRoots)
	out.RequireClientCertificate = wrapperspb.Bool(true)
}

// clientValidation are the requirements for a client's certificate besides its issuer.
func clientValidation(settings *networking.ServerTLSSettings, subjects []*tlsv3.SubjectAltNameMatcher) *tlsv3.CertificateValidationContext {
	out := &tlsv3.CertificateValidationContext{
		MatchTypedSubjectAltNames: subjects,
		VerifyCertificateSpki:     settings.GetVerifyCertificateSpki(),
		VerifyCertificateHash:     settings.GetVerifyCertificateHash(),
	}
	if settings.GetInsecureSkipVerify().GetValue() {
		out.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	return out
}

// verifyByAuthorities verifies client certificates by the authorities of a listener of the Gateway API. Clients have to
// have one, unless there is the insecure fallback.
func verifyByAuthorities(out *tlsv3.DownstreamTlsContext, settings *networking.ServerTLSSettings, by Terminator) {
	validation := clientValidation(settings, anyTypeMatchers(settings.GetSubjectAltNames()))
	validation.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: by.ClientAuthorities}}
	if by.InsecureFallback {
		validation.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	out.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	out.RequireClientCertificate = wrapperspb.Bool(!by.InsecureFallback)
}

// verifyClients verifies client certificates by the CA certificates of a Secret or a file, and by clientValidation.
func verifyClients(common *tlsv3.CommonTlsContext, settings *networking.ServerTLSSettings) error {
	var roots *tlsv3.SdsSecretConfig
	credentials := credentialNames(settings)
	switch {
	case len(credentials) > 0 && settings.GetCaCertCredentialName() != "":
		roots = credentialSDS(resourcename.CredentialAuthority(settings.GetCaCertCredentialName()))
	case len(credentials) > 0:
		roots = credentialSDS(resourcename.CredentialAuthority(credentials[0]))
	case settings.GetCaCertificates() != "":
		roots = fileRoots(settings.GetCaCertificates(), settings.GetCaCrl())
	default:
		return fmt.Errorf("tls.caCertificates: required with mode %s", settings.GetMode())
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         clientValidation(settings, anyTypeMatchers(settings.GetSubjectAltNames())),
			ValidationContextSdsSecretConfig: roots,
		},
	}
	return nil
}

// credentialSDS requests a secret from xds-server, over ADS.
func credentialSDS(name string) *tlsv3.SdsSecretConfig {
	return withFetchTimeout(&tlsv3.SdsSecretConfig{Name: name, SdsConfig: coreconfig.ADS()})
}

// withFetchTimeout limits how long a listener or a cluster waits for a secret.
func withFetchTimeout(config *tlsv3.SdsSecretConfig) *tlsv3.SdsSecretConfig {
	config.SdsConfig.InitialFetchTimeout = durationpb.New(credentialTimeout)
	return config
}

// credentialNames lists the Secrets with the server's certificates, one per type of key.
func credentialNames(settings *networking.ServerTLSSettings) []string {
	if name := settings.GetCredentialName(); name != "" {
		return []string{name}
	}
	return settings.GetCredentialNames()
}

// certificates lists the SDS configs of the server's certificates. node-agent serves files, so a missing file fails the
// handshakes of one server instead of the whole listener, and a replaced file is noticed.
func certificates(settings *networking.ServerTLSSettings) ([]*tlsv3.SdsSecretConfig, error) {
	var out []*tlsv3.SdsSecretConfig
	if credentials := credentialNames(settings); len(credentials) > 0 {
		for _, name := range credentials {
			out = append(out, credentialSDS(resourcename.Credential(name)))
		}
		return out, nil
	}
	pair := func(certificate, key string) {
		out = append(out, filePair(certificate, key))
	}
	switch {
	case settings.GetServerCertificate() != "" && settings.GetPrivateKey() != "":
		pair(settings.GetServerCertificate(), settings.GetPrivateKey())
	case len(settings.GetTlsCertificates()) > 0:
		for _, each := range settings.GetTlsCertificates() {
			pair(each.GetServerCertificate(), each.GetPrivateKey())
		}
	default:
		return nil, errors.New("tls.serverCertificate and tls.privateKey: required without credentialName")
	}
	return out, nil
}

var protocolVersions = map[networking.ServerTLSSettings_TLSProtocol]tlsv3.TlsParameters_TlsProtocol{
	networking.ServerTLSSettings_TLSV1_0: tlsv3.TlsParameters_TLSv1_0,
	networking.ServerTLSSettings_TLSV1_1: tlsv3.TlsParameters_TLSv1_1,
	networking.ServerTLSSettings_TLSV1_2: tlsv3.TlsParameters_TLSv1_2,
	networking.ServerTLSSettings_TLSV1_3: tlsv3.TlsParameters_TLSv1_3,
}

// defaultParams are the TLS parameters of MeshConfig.tlsDefaults, for TLS that is not the mesh's own.
func defaultParams(defaults *meshv1alpha1.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	out := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites:              defaults.GetCipherSuites(),
		EcdhCurves:                defaults.GetEcdhCurves(),
	}
	if defaults.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return out
}

// chosenParams overrides defaults with the server's settings. A maximum version below the default minimum lowers the
// minimum.
func chosenParams(out *tlsv3.TlsParameters, settings *networking.ServerTLSSettings) *tlsv3.TlsParameters {
	least, leastSet := protocolVersions[settings.GetMinProtocolVersion()]
	most, mostSet := protocolVersions[settings.GetMaxProtocolVersion()]
	if leastSet {
		out.TlsMinimumProtocolVersion = least
	}
	if mostSet {
		out.TlsMaximumProtocolVersion = most
		if !leastSet {
			out.TlsMinimumProtocolVersion = min(out.GetTlsMinimumProtocolVersion(), most)
		}
	}
	if len(settings.GetCipherSuites()) > 0 {
		out.CipherSuites = settings.GetCipherSuites()
	}
	return out
}
