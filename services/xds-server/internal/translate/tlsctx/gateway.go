package tlsctx

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/names"
)

// ErrUnserved is returned for settings that name a credential where nothing serves it.
var ErrUnserved = errors.New("credentialName is served to gateways only")

// credentialTimeout bounds how long a listener waits for a credential that does not come: until then it would not listen at all, also for
// the servers whose credentials are there. Connections to a server without one are refused in the handshake, before and after.
const credentialTimeout = 5 * time.Second

// Terminator is the proxy that terminates TLS, and what for.
type Terminator struct {
	Trust Trust
	// HTTP offers HTTP/2.
	HTTP bool
	// Credentials is true where the proxy is served credentials by name.
	Credentials bool
}

// Terminate builds the TLS context of a server that a gateway or a Sidecar's ingress listener terminates, with certificates from Secrets or
// from files of the proxy.
func Terminate(settings *networking.ServerTLSSettings, by Terminator) (*corev3.TransportSocket, error) {
	if settings.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return Server(by.Trust, nil), nil
	}
	if !by.Credentials && (len(credentialNames(settings)) > 0 || settings.GetCaCertCredentialName() != "") {
		return nil, ErrUnserved
	}
	common := &tlsv3.CommonTlsContext{TlsParams: versions(settings)}
	if by.HTTP {
		common.AlpnProtocols = serverALPN
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if credentials := credentialNames(settings); len(credentials) > 0 {
		for _, name := range credentials {
			common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, credentialSDS(names.Credential(name)))
		}
	} else {
		var err error
		if common.TlsCertificateSdsSecretConfigs, err = certificates(settings); err != nil {
			return nil, err
		}
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

// verifyClients adds what clients' certificates are verified with: the authorities in a Secret or in a file, and what the settings say.
func verifyClients(common *tlsv3.CommonTlsContext, settings *networking.ServerTLSSettings) error {
	validation := &tlsv3.CertificateValidationContext{
		MatchTypedSubjectAltNames: anyTypeMatchers(settings.GetSubjectAltNames()),
		VerifyCertificateSpki:     settings.GetVerifyCertificateSpki(),
		VerifyCertificateHash:     settings.GetVerifyCertificateHash(),
	}
	if settings.GetCaCrl() != "" {
		validation.Crl = file(settings.GetCaCrl())
	}
	authority := settings.GetCaCertCredentialName()
	if credentials := credentialNames(settings); authority == "" && len(credentials) > 0 {
		authority = credentials[0]
	}
	switch {
	case authority != "":
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         validation,
				ValidationContextSdsSecretConfig: credentialSDS(names.CredentialAuthority(authority)),
			},
		}
	case settings.GetCaCertificates() != "":
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         validation,
				ValidationContextSdsSecretConfig: serverFile(fileRootPrefix + settings.GetCaCertificates()),
			},
		}
	default:
		return fmt.Errorf("tls.caCertificates: required with mode %s", settings.GetMode())
	}
	return nil
}

// credentialSDS asks xds-server itself, over ADS.
func credentialSDS(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(credentialTimeout),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}}
}

// credentialNames lists the Secrets that a server shows certificates of, one per kind of key.
func credentialNames(settings *networking.ServerTLSSettings) []string {
	if name := settings.GetCredentialName(); name != "" {
		return []string{name}
	}
	return settings.GetCredentialNames()
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// certificates asks the agent for the files of the proxy's own file system.
func certificates(settings *networking.ServerTLSSettings) ([]*tlsv3.SdsSecretConfig, error) {
	pairs := settings.GetTlsCertificates()
	if settings.GetServerCertificate() != "" && settings.GetPrivateKey() != "" {
		pairs = []*networking.ServerTLSSettings_TLSCertificate{{ServerCertificate: settings.GetServerCertificate(), PrivateKey: settings.GetPrivateKey()}}
	}
	var out []*tlsv3.SdsSecretConfig
	for _, pair := range pairs {
		out = append(out, serverFile(filePairPrefix+pair.GetServerCertificate()+"~"+pair.GetPrivateKey()))
	}
	if len(out) == 0 {
		return nil, errors.New("tls.serverCertificate and tls.privateKey: required without credentialName")
	}
	return out, nil
}

// serverFile is fileSDS for listeners, which wait for files that do not come no longer than for credentials.
func serverFile(name string) *tlsv3.SdsSecretConfig {
	config := fileSDS(name)
	config.SdsConfig.InitialFetchTimeout = durationpb.New(credentialTimeout)
	return config
}

var protocolVersions = map[networking.ServerTLSSettings_TLSProtocol]tlsv3.TlsParameters_TlsProtocol{
	networking.ServerTLSSettings_TLSV1_0: tlsv3.TlsParameters_TLSv1_0,
	networking.ServerTLSSettings_TLSV1_1: tlsv3.TlsParameters_TLSv1_1,
	networking.ServerTLSSettings_TLSV1_2: tlsv3.TlsParameters_TLSv1_2,
	networking.ServerTLSSettings_TLSV1_3: tlsv3.TlsParameters_TLSv1_3,
}

func versions(settings *networking.ServerTLSSettings) *tlsv3.TlsParameters {
	out := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
	if v, ok := protocolVersions[settings.GetMinProtocolVersion()]; ok {
		out.TlsMinimumProtocolVersion = v
	}
	if v, ok := protocolVersions[settings.GetMaxProtocolVersion()]; ok {
		out.TlsMaximumProtocolVersion = v
	}
	for _, suite := range settings.GetCipherSuites() {
		out.CipherSuites = append(out.CipherSuites, strings.TrimSpace(suite))
	}
	return out
}
