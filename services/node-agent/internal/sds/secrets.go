package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/tlsconf"
)

// Names of the secrets, the same as with Istio's agent.
const (
	// Default is the workload's own certificate and key.
	Default = "default"
	// RootCA is the bundle peers are verified against.
	RootCA = "ROOTCA"
)

// typeURL is the type of every resource served here.
const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

func known(name string) bool { return name == Default || name == RootCA }

// available lists the secrets that m can make, and their versions.
func available(m *tlsconf.Material) []resource {
	var out []resource
	if m.Certificate != nil {
		out = append(out, resource{Default, version(m.CertPEM)})
	}
	if len(m.RootsPEM) > 0 {
		out = append(out, resource{RootCA, version(m.RootsPEM)})
	}
	return out
}

// version is a hash of public material only: it ends in config dumps.
func version(pem []byte) string {
	sum := sha256.Sum256(pem)
	return hex.EncodeToString(sum[:8])
}

// secret makes the resource called name from m.
func secret(m *tlsconf.Material, name string) (*anypb.Any, error) {
	s := &tlsv3.Secret{Name: name}
	switch name {
	case Default:
		s.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(m.CertPEM),
			PrivateKey:       inline(m.KeyPEM),
		}}
	case RootCA:
		s.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(m.RootsPEM),
		}}
	default:
		return nil, fmt.Errorf("secret %q does not exist", name)
	}
	if err := s.ValidateAll(); err != nil {
		return nil, fmt.Errorf("secret %q: %w", name, err)
	}
	return anypb.New(s)
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
