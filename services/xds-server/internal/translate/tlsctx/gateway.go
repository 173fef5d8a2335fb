package tlsctx

import (
	"errors"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// ErrUnserved is returned for settings that name a credential which nothing serves to proxies yet.
var ErrUnserved = errors.New("credentialName is not served")

// Terminate builds the TLS context of a server that a gateway or a Sidecar's ingress listener terminates, with certificates from files of
// the proxy. http offers HTTP/2.
func Terminate(settings *networking.ServerTLSSettings, trust Trust, http bool) (*corev3.TransportSocket, error) {
	if settings.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return Server(trust, nil), nil
	}
	common := &tlsv3.CommonTlsContext{TlsParams: versions(settings)}
	if http {
		common.AlpnProtocols = serverALPN
	}
	var err error
	if common.TlsCertificates, err = certificates(settings); err != nil {
		return nil, err
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	switch settings.GetMode() {
	case networking.ServerTLSSettings_SIMPLE:
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if settings.GetCaCertificates() == "" {
			return nil, fmt.Errorf("tls.caCertificates: required with mode %s", settings.GetMode())
		}
		validation := &tlsv3.CertificateValidationContext{
			TrustedCa:                 file(settings.GetCaCertificates()),
			MatchTypedSubjectAltNames: anyTypeMatchers(settings.GetSubjectAltNames()),
			VerifyCertificateSpki:     settings.GetVerifyCertificateSpki(),
			VerifyCertificateHash:     settings.GetVerifyCertificateHash(),
		}
		if settings.GetCaCrl() != "" {
			validation.Crl = file(settings.GetCaCrl())
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
		out.RequireClientCertificate = wrapperspb.Bool(settings.GetMode() == networking.ServerTLSSettings_MUTUAL)
	default:
		return nil, fmt.Errorf("tls.mode: %s does not terminate TLS", settings.GetMode())
	}
	return checkedSocket(out)
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func certificates(settings *networking.ServerTLSSettings) ([]*tlsv3.TlsCertificate, error) {
	if settings.GetCredentialName() != "" || len(settings.GetCredentialNames()) > 0 {
		return nil, ErrUnserved
	}
	if settings.GetServerCertificate() == "" || settings.GetPrivateKey() == "" {
		if len(settings.GetTlsCertificates()) == 0 {
			return nil, errors.New("tls.serverCertificate and tls.privateKey: required without credentialName")
		}
		var out []*tlsv3.TlsCertificate
		for _, pair := range settings.GetTlsCertificates() {
			out = append(out, &tlsv3.TlsCertificate{CertificateChain: file(pair.GetServerCertificate()), PrivateKey: file(pair.GetPrivateKey())})
		}
		return out, nil
	}
	return []*tlsv3.TlsCertificate{{
		CertificateChain: file(settings.GetServerCertificate()), PrivateKey: file(settings.GetPrivateKey()),
	}}, nil
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
