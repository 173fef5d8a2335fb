package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/tlsconf"
)

// Names of the workload's own secrets, as in Istio's agent.
const (
	// Default is the workload's own certificate and key.
	Default = "default"
	// RootCA is the trust bundle that peers are verified against.
	RootCA = "ROOTCA"
)

// TypeURL is the type of every resource served here.
const TypeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// resource is one secret that can be sent now. version identifies its content without revealing it.
type resource struct {
	name    string
	version string
	secret  func() *tlsv3.Secret
}

// workloadSecrets lists the workload's own secrets that exist in m, which may be nil. validation is nil, or takes the
// place of m's roots.
func workloadSecrets(m *tlsconf.Material, validation *tlsv3.CertificateValidationContext) []*resource {
	if m == nil {
		return nil
	}
	var out []*resource
	if m.Certificate != nil {
		out = append(out, &resource{Default, version(m.CertPEM), func() *tlsv3.Secret { return pair(Default, m.CertPEM, m.KeyPEM) }})
	}
	if validation != nil {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(validation)
		if err == nil {
			out = append(out, &resource{RootCA, version(raw), func() *tlsv3.Secret {
				return &tlsv3.Secret{Name: RootCA, Type: &tlsv3.Secret_ValidationContext{ValidationContext: validation}}
			}})
		}
	} else if len(m.RootsPEM) > 0 {
		out = append(out, &resource{RootCA, version(m.RootsPEM), func() *tlsv3.Secret { return authorities(RootCA, m.RootsPEM, nil) }})
	}
	return out
}

// version is a hash of public material only, because config dumps show it.
func version(pem []byte) string {
	sum := sha256.Sum256(pem)
	return hex.EncodeToString(sum[:8])
}

func pair(name string, cert, key []byte) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(cert),
		PrivateKey:       inline(key),
	}}}
}

// authorities is a secret of roots and, unless crl is nil, their revocation list.
func authorities(name string, roots, crl []byte) *tlsv3.Secret {
	out := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)}
	if crl != nil {
		out.Crl = inline(crl)
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: out}}
}

// body is the validated secret, packed.
func (r *resource) body() (*anypb.Any, error) {
	s := r.secret()
	if err := s.ValidateAll(); err != nil {
		return nil, fmt.Errorf("secret %q: %w", r.name, err)
	}
	return anypb.New(s)
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
