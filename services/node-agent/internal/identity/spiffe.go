package identity

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/tlsconf"
)

// spiffeValidator is the name of Envoy's validator that has roots for each trust domain.
const spiffeValidator = "envoy.tls.cert_validator.spiffe"

// spiffeBundle returns the roots of the chain's trust domain in the configuration of Envoy's SPIFFE validator, or those
// of the only trust domain.
func spiffeBundle(config *corev3.TypedExtensionConfig, chain []byte) ([]byte, error) {
	validator := &tlsv3.SPIFFECertValidatorConfig{}
	if err := config.GetTypedConfig().UnmarshalTo(validator); err != nil {
		return nil, fmt.Errorf("validator %q: %w", config.GetName(), err)
	}
	if err := validator.ValidateAll(); err != nil {
		return nil, fmt.Errorf("validator %q: %w", config.GetName(), err)
	}
	domains := validator.GetTrustDomains()
	if len(domains) == 0 {
		return nil, fmt.Errorf("validator %q has no trust domain", config.GetName())
	}
	bundle := domains[0].GetTrustBundle()
	if len(chain) > 0 {
		certs, err := tlsconf.ParseCertificates(chain)
		if err != nil {
			return nil, err
		}
		if len(certs) == 0 {
			return nil, errors.New("certificate_chain has no certificate")
		}
		id, err := x509svid.IDFromCert(certs[0])
		if err != nil {
			return nil, err
		}
		bundle = nil
		for _, d := range domains {
			if d.GetName() == id.TrustDomain().Name() {
				bundle = d.GetTrustBundle()
			}
		}
		if bundle == nil {
			return nil, fmt.Errorf("validator %q has no roots of the certificate's trust domain %s", config.GetName(), id.TrustDomain())
		}
	}
	return inlineBytes("trust_bundle", bundle)
}

// domain is a trust domain with its roots in PEM.
type domain struct {
	name     string
	rootsPEM []byte
}

// byTrustDomain makes Envoy verify a peer with the roots of the peer's own trust domain only.
func byTrustDomain(domains []domain) (*tlsv3.CertificateValidationContext, error) {
	config := &tlsv3.SPIFFECertValidatorConfig{}
	for _, d := range domains {
		config.TrustDomains = append(config.TrustDomains,
			&tlsv3.SPIFFECertValidatorConfig_TrustDomain{Name: d.name, TrustBundle: inline(d.rootsPEM)})
	}
	if err := config.ValidateAll(); err != nil {
		return nil, err
	}
	packed, err := anypb.New(config)
	if err != nil {
		return nil, err
	}
	return &tlsv3.CertificateValidationContext{CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: spiffeValidator,
		TypedConfig: packed}}, nil
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
