package tlsctx

import (
	"errors"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Prefixes of the secrets that node-agent serves from certificate files of the workload, as Istio's agent does. The CA
// certificates with a revocation list are Fairlead's own. If a cluster or listener named a file itself, Envoy would
// reject it when the file is missing, and would not notice a replaced file.
const (
	filePairPrefix = "file-cert:"
	fileRootPrefix = "file-root:"
	fileSeparator  = "~"
	systemRoots    = "system"
)

// External originates TLS with mode SIMPLE or MUTUAL of a DestinationRule. subjectAltNames are those of the
// ServiceEntry, for a rule without any. With http2 it offers h2 only. xds-server serves credentials over ADS,
// node-agent serves files.
func External(settings *networking.ClientTLSSettings, subjectAltNames []string, defaults *meshv1alpha1.MeshConfig_TLSConfig,
	http2 bool) (*corev3.TransportSocket, error) {
	common := &tlsv3.CommonTlsContext{TlsParams: externalParams(defaults)}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	if settings.GetMode() == networking.ClientTLSSettings_MUTUAL {
		config, err := clientCertificate(settings)
		if err != nil {
			return nil, err
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{config}
	}
	if sans := settings.GetSubjectAltNames(); len(sans) > 0 {
		subjectAltNames = sans
	}
	if !settings.GetInsecureSkipVerify().GetValue() {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: anyTypeMatchers(subjectAltNames)},
				ValidationContextSdsSecretConfig: rootsConfig(settings),
			},
		}
	}
	return checkedSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: settings.GetSni()})
}

// externalParams are the TLS parameters of connections to servers outside of the mesh's TLS.
func externalParams(defaults *meshv1alpha1.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	out := clientParams()
	if curves := defaults.GetEcdhCurves(); len(curves) > 0 {
		out.EcdhCurves = curves
	}
	if ciphers := defaults.GetCipherSuites(); len(ciphers) > 0 {
		out.CipherSuites = ciphers
	}
	if defaults.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return out
}

// Backend originates TLS as a BackendTLSPolicy of the Gateway API says. credential is the name of the certificate to
// show, "" for none. With http2 it offers h2 only.
func Backend(policy *configv1.BackendTLS, credential string, defaults *meshv1alpha1.MeshConfig_TLSConfig,
	http2 bool) (*corev3.TransportSocket, error) {
	common := &tlsv3.CommonTlsContext{TlsParams: externalParams(defaults)}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	if credential != "" {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{credentialSDS(resourcename.Credential(credential))}
	}
	validation := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: backendNames(policy)}
	if policy.GetSystemAuthorities() {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: validation, ValidationContextSdsSecretConfig: fileRoots(systemRoots, ""),
			},
		}
	} else {
		validation.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: policy.GetAuthorities()}}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	}
	return checkedSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: policy.GetHostname()})
}

// backendNames accepts the names of a policy as DNS names or URIs of the certificate; the hostname if it has none.
func backendNames(policy *configv1.BackendTLS) []*tlsv3.SubjectAltNameMatcher {
	names := policy.GetSubjectAltNames()
	if len(names) == 0 {
		names = []string{policy.GetHostname()}
	}
	var out []*tlsv3.SubjectAltNameMatcher
	for _, name := range names {
		kind := tlsv3.SubjectAltNameMatcher_DNS
		if strings.Contains(name, "://") {
			kind = tlsv3.SubjectAltNameMatcher_URI
		}
		out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: matcher.Exact(name)})
	}
	return out
}

func clientCertificate(settings *networking.ClientTLSSettings) (*tlsv3.SdsSecretConfig, error) {
	if settings.GetCredentialName() != "" {
		return credentialSDS(resourcename.Credential(settings.GetCredentialName())), nil
	}
	certificate, key := settings.GetClientCertificate(), settings.GetPrivateKey()
	if certificate == "" || key == "" {
		return nil, errors.New("tls.mode MUTUAL needs clientCertificate and privateKey, or credentialName")
	}
	return filePair(certificate, key), nil
}

func rootsConfig(settings *networking.ClientTLSSettings) *tlsv3.SdsSecretConfig {
	switch {
	case settings.GetCredentialName() != "":
		return credentialSDS(resourcename.CredentialAuthority(settings.GetCredentialName()))
	case settings.GetCaCertificates() != "":
		return fileRoots(settings.GetCaCertificates(), settings.GetCaCrl())
	default:
		return fileRoots(systemRoots, settings.GetCaCrl())
	}
}

func filePair(certificate, key string) *tlsv3.SdsSecretConfig {
	return fileSDS(filePairPrefix + certificate + fileSeparator + key)
}

// fileRoots requests the CA certificates in a file, with the revocation list in another file if there is one.
func fileRoots(authorities, revoked string) *tlsv3.SdsSecretConfig {
	if revoked != "" {
		authorities += fileSeparator + revoked
	}
	return fileSDS(fileRootPrefix + authorities)
}

// fileSDS requests a secret from node-agent. A user has chosen the file, which may not exist.
func fileSDS(name string) *tlsv3.SdsSecretConfig { return withFetchTimeout(sdsConfig(name)) }

// anyTypeMatchers accepts the names as DNS names, URIs or IP addresses of the certificate.
func anyTypeMatchers(subjects []string) []*tlsv3.SubjectAltNameMatcher {
	var out []*tlsv3.SubjectAltNameMatcher
	for _, name := range subjects {
		for _, kind := range []tlsv3.SubjectAltNameMatcher_SanType{
			tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_URI, tlsv3.SubjectAltNameMatcher_IP_ADDRESS,
		} {
			out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: matcher.Exact(name)})
		}
	}
	return out
}
