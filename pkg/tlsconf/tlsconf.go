// Package tlsconf makes the TLS configurations of all services: Server, ServerFrom and Client. Each handshake takes
// certificate and roots from a Source (Files, or svid.Manager), so a renewed certificate or a changed root needs no
// restart. Peers are verified by SPIFFE id and chain; ClientNamed, for servers outside of the mesh, verifies a DNS
// name. TLS 1.3 is the only version unless ServerFrom is told otherwise.
package tlsconf

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Material is a certificate with the roots of the same moment. It is immutable.
type Material struct {
	// Certificate is nil until one has been issued; Certificate.Leaf is set otherwise.
	Certificate *tls.Certificate
	Roots       *x509.CertPool
	RootsPEM    []byte
	// CertPEM is the chain, leaf first, without the root. KeyPEM is secret.
	CertPEM, KeyPEM []byte
	// NotAfter is the leaf's end of validity; zero without a certificate.
	NotAfter time.Time
}

// String shows nothing secret, so a Material may be logged.
func (m *Material) String() string {
	if m == nil || m.Certificate == nil {
		return "Material(no certificate)"
	}
	return fmt.Sprintf("Material(serial %x, not after %s)", m.Certificate.Leaf.SerialNumber, m.NotAfter.Format(time.RFC3339))
}

// Format makes every fmt verb print String, %#v included.
func (m *Material) Format(f fmt.State, _ rune) { fmt.Fprint(f, m.String()) }

// ID is the SPIFFE id of the own certificate.
func (m *Material) ID() (spiffeid.ID, error) {
	if m.Certificate == nil {
		return spiffeid.ID{}, ErrNoCertificate
	}
	return x509svid.IDFromCert(m.Certificate.Leaf)
}

// ErrNoCertificate means that no certificate has been issued yet.
var ErrNoCertificate = errors.New("no certificate has been issued yet")

// Source provides the current material. Implementations are safe for concurrent use.
type Source interface {
	// Current returns an error only if there are no roots.
	Current() (*Material, error)
	// Changed returns a channel that the next change closes. Call it before Current, so that no change is missed.
	Changed() <-chan struct{}
}

// Identified returns a task that calls run once source has an own certificate, and does nothing if ctx ends before. A
// client that connects earlier would stay anonymous on its connection.
func Identified(source Source, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			changed := source.Changed()
			if m, err := source.Current(); err == nil && m.Certificate != nil {
				return run(ctx)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
		}
	}
}

// Values of options for the lowest TLS version of a port.
const (
	Version12 = "1.2"
	Version13 = "1.3"
)

// ParseVersion parses a TLS version for ServerFrom; empty is 1.3.
func ParseVersion(text string) (uint16, error) {
	switch text {
	case Version13, "":
		return tls.VersionTLS13, nil
	case Version12:
		return tls.VersionTLS12, nil
	default:
		return 0, fmt.Errorf("TLS version %q; choose %s (default) or %s", text, Version13, Version12)
	}
}

// fips are the cipher suites and curves of TLS 1.2 that FIPS 140-3 approves, as in Go's own list for that mode.
var (
	fipsSuites = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}
	fipsCurves = []tls.CurveID{tls.CurveP256, tls.CurveP384, tls.CurveP521}
)

// Server is ServerFrom with TLS 1.3.
func Server(src Source, clientAuth tls.ClientAuthType) *tls.Config {
	return ServerFrom(tls.VersionTLS13, src, clientAuth)
}

// ServerFrom returns the configuration of a server: it presents the source's certificate and verifies clients against
// the current roots. clientAuth is tls.RequireAndVerifyClientCert, or tls.VerifyClientCertIfGiven where a token is
// accepted too; a client's certificate must be an X.509-SVID of the server's own trust domain, or of one of aliases,
// which the mesh has had before. There are no session tickets, so every connection is verified anew.
//
// If lowest is TLS 1.2, clients that do not offer TLS 1.3 get the suites and curves that FIPS 140-3 approves.
func ServerFrom(lowest uint16, src Source, clientAuth tls.ClientAuthType, aliases ...spiffeid.TrustDomain) *tls.Config {
	return &tls.Config{
		MinVersion:             lowest, //nolint:gosec // TLS 1.2 or 1.3
		SessionTicketsDisabled: true,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := src.Current()
			if err != nil {
				return nil, err
			}
			if m.Certificate == nil {
				return nil, ErrNoCertificate
			}
			cfg := &tls.Config{
				MinVersion:             tls.VersionTLS13,
				SessionTicketsDisabled: true,
				Certificates:           []tls.Certificate{*m.Certificate},
				ClientAuth:             clientAuth,
				ClientCAs:              m.Roots,
				VerifyConnection: func(cs tls.ConnectionState) error {
					if len(cs.PeerCertificates) == 0 {
						return nil // ClientAuth allows clients without a certificate
					}
					if len(cs.VerifiedChains) == 0 {
						return errors.New("client certificate was not verified")
					}
					return verifyID(cs.PeerCertificates[0], m, nil, aliases...)
				},
			}
			if lowest == tls.VersionTLS12 && !slices.Contains(hello.SupportedVersions, tls.VersionTLS13) {
				cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
				cfg.CipherSuites, cfg.CurvePreferences = fipsSuites, fipsCurves
			}
			return cfg, nil
		},
	}
}

// Client returns the configuration of a client: it presents the source's certificate, if there is one, and verifies
// that the server's chain ends in a current root and that its SPIFFE id is one of allowed. Without allowed, any id of
// the own trust domain is accepted.
func Client(src Source, allowed ...spiffeid.ID) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The standard verification is by DNS name with fixed roots; VerifyConnection replaces it.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, err := src.Current()
			if err != nil {
				return nil, err
			}
			if m.Certificate == nil {
				return &tls.Certificate{}, nil
			}
			return m.Certificate, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			m, err := src.Current()
			if err != nil {
				return err
			}
			return verifyServer(cs, m, allowed)
		},
	}
}

// ClientNamed returns the configuration of a client of a server that has no SPIFFE id: as Client, but the server's
// certificate must be valid for name, a DNS name or an IP address.
func ClientNamed(src Source, name string) *tls.Config {
	cfg := Client(src)
	cfg.ServerName = name
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		m, err := src.Current()
		if err != nil {
			return err
		}
		return verifyChain(cs, m, name)
	}
	return cfg
}

func verifyServer(cs tls.ConnectionState, m *Material, allowed []spiffeid.ID) error {
	if err := verifyChain(cs, m, ""); err != nil {
		return err
	}
	return verifyID(cs.PeerCertificates[0], m, allowed)
}

// verifyChain verifies a server's chain, and its name unless that is empty.
func verifyChain(cs tls.ConnectionState, m *Material, name string) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("server presented no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	if _, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		DNSName:       name,
		Roots:         m.Roots,
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	return nil
}

// verifyID checks that leaf is an X.509-SVID (SPIFFE X509-SVID, section 4) whose id is one of allowed, or, without
// allowed, of the own trust domain or of one of aliases.
func verifyID(leaf *x509.Certificate, m *Material, allowed []spiffeid.ID, aliases ...spiffeid.TrustDomain) error {
	id, err := x509svid.IDFromCert(leaf)
	if err != nil {
		return fmt.Errorf("peer certificate: %w", err)
	}
	if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return fmt.Errorf("peer certificate of %s: is an authority's, not a workload's", id)
	}
	if len(allowed) > 0 {
		if slices.Contains(allowed, id) {
			return nil
		}
		return fmt.Errorf("peer is %s: expected %v", id, allowed)
	}
	own, err := m.ID()
	if err != nil {
		return fmt.Errorf("peer is %s: cannot tell whether it is of the own trust domain: %w", id, err)
	}
	if !id.MemberOf(own.TrustDomain()) && !slices.Contains(aliases, id.TrustDomain()) {
		return fmt.Errorf("peer is %s: not of trust domain %s", id, own.TrustDomain())
	}
	return nil
}
