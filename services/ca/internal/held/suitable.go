package held

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/signer"
)

// Names are what the leaves of a mesh are called.
type Names struct {
	TrustDomain spiffeid.TrustDomain
	// DNS and IPs are in some leaves, beside their SPIFFE ID; mostly none.
	DNS []string
	IPs []net.IP
}

// Unsuitable is a reason why an Authority cannot sign for a mesh.
type Unsuitable struct {
	// Certificate is the one to blame; nil if it is the key.
	Certificate *x509.Certificate
	// Field of the certificate, in the words of RFC 5280.
	Field string
	// Text says what is wrong, and what to do.
	Text string
}

// Error implements error. The caller writes before it where the certificate was found.
func (u *Unsuitable) Error() string { return u.Field + ": " + u.Text }

const (
	minRSA = 2048
	// maxRSA is what crypto/tls verifies at most.
	maxRSA = 8192
	// wantedKeys completes sentences.
	wantedKeys = "use ECDSA on P-256 or P-384, or RSA of 2048 to 8192 bits"
)

// Unsuited returns why leaves of these names would not verify, or should not exist: every reason of type *Unsuitable;
// none if the Authority can sign for the mesh now. It signs a leaf and verifies it as peers do.
func (a *Authority) Unsuited(names Names, now time.Time) []*Unsuitable {
	if err := a.check(); err != nil {
		return []*Unsuitable{{Field: "key", Text: err.Error() + "; write certificate, key and roots of one set"}}
	}
	var found []*Unsuitable
	for _, c := range slices.Concat(a.intermediates(), a.Roots) {
		found = append(found, unsuitedAlone(c, names.TrustDomain)...)
	}
	found = append(found, unsuitedIssuer(a.Certificate)...)
	if n := len(a.intermediates()); n >= signer.MaxChain {
		found = append(found, &Unsuitable{a.Certificate, "chain", fmt.Sprintf("%d certificates lie between a leaf and the root, and verifiers "+
			"take %d at most; use an issuing certificate that is nearer to the root", n, signer.MaxChain-1)})
	}
	paths := a.paths()
	if len(paths) == 0 {
		return append(found, &Unsuitable{a.Certificate, "issuer", fmt.Sprintf("the chain of this certificate, issued by %q, leads to none of "+
			"the %d roots; write the certificates of its issuers into the chain, and the root that ends it into the roots",
			a.Certificate.Issuer, len(a.Roots))})
	}
	wrong := make([][]*Unsuitable, len(paths)) // one way that suits is enough
	for i, path := range paths {
		wrong[i] = unsuitedPath(path, now)
	}
	found = append(found, slices.MinFunc(wrong, func(a, b []*Unsuitable) int { return len(a) - len(b) })...)
	if len(found) > 0 {
		return found
	}
	return a.rehearse(names, paths, now)
}

// unsuitedAlone looks at a certificate of an authority by itself.
func unsuitedAlone(c *x509.Certificate, td spiffeid.TrustDomain) []*Unsuitable {
	var found []*Unsuitable
	add := func(field, format string, args ...any) {
		found = append(found, &Unsuitable{c, field, fmt.Sprintf(format, args...)})
	}
	if !c.BasicConstraintsValid || !c.IsCA {
		add("basicConstraints", "this is not the certificate of a certificate authority; issue one with CA:TRUE")
	}
	if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
		add("keyUsage", "the key must not sign certificates; issue one with keyCertSign")
	}
	if len(c.RawSubject) <= 2 {
		add("subject", "is empty, so that verifiers find no issuer by name; issue one with a subject")
	}
	if len(c.UnhandledCriticalExtensions) > 0 {
		add("extensions", "%v is critical, and verifiers do not know it; issue one without it", c.UnhandledCriticalExtensions[0])
	}
	for _, u := range c.URIs {
		if u.Scheme == "spiffe" && !strings.EqualFold(u.Host, td.Name()) {
			add("subjectAltName", "the certificate is an authority of the trust domain %q, and this mesh is %q; use one for this mesh, or "+
				"correct the trust domain", u.Host, td.Name())
		}
	}
	if weak := weakKey(c.PublicKey); weak != "" {
		add("subjectPublicKeyInfo", "%s; %s", weak, wantedKeys)
	}
	// A root's own signature proves nothing, and nobody verifies it.
	if string(c.RawIssuer) != string(c.RawSubject) && slices.Contains(weakSignatures, c.SignatureAlgorithm) {
		add("signatureAlgorithm", "%s can be forged, and verifiers refuse it; have the certificate issued again, with SHA-256",
			c.SignatureAlgorithm)
	}
	return found
}

var weakSignatures = []x509.SignatureAlgorithm{
	x509.UnknownSignatureAlgorithm, x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.DSAWithSHA256,
	x509.ECDSAWithSHA1,
}

// weakKey says what is wrong with a key that is somewhere in a chain; "" if nothing is.
func weakKey(public any) string {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Sprintf("an RSA key of %d bits", bits)
		}
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() && k.Curve != elliptic.P521() {
			return "an ECDSA key on " + k.Curve.Params().Name
		}
	case ed25519.PublicKey:
	default:
		return fmt.Sprintf("a key of an unknown kind (%T)", public)
	}
	return ""
}

// unsuitedIssuer looks at what the certificate that signs leaves needs besides. Proxies need not have support for other
// keys than those of P-256, P-384 and RSA.
func unsuitedIssuer(c *x509.Certificate) []*Unsuitable {
	var found []*Unsuitable
	switch k := c.PublicKey.(type) {
	case ed25519.PublicKey:
		found = append(found, &Unsuitable{c, "subjectPublicKeyInfo", "an Ed25519 key, with which the ca signs nothing; " + wantedKeys})
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P521() {
			found = append(found, &Unsuitable{c, "subjectPublicKeyInfo", "an ECDSA key on P-521, with which the ca signs nothing; " + wantedKeys})
		}
	}
	return found
}

// unsuitedPath looks at the certificates from the issuing one to a root.
func unsuitedPath(path []*x509.Certificate, now time.Time) []*Unsuitable {
	var found []*Unsuitable
	below := 0 // certificates that count for the path length: RFC 5280, 4.2.1.9
	for _, c := range path {
		switch {
		case now.Before(c.NotBefore):
			found = append(found, &Unsuitable{c, "validity", fmt.Sprintf("valid from %s on; wait, or set the clock",
				stamp(c.NotBefore))})
		case !now.Before(c.NotAfter):
			found = append(found, &Unsuitable{c, "validity", fmt.Sprintf("expired at %s; replace it by a new one, or set the clock",
				stamp(c.NotAfter))})
		}
		if limited := c.MaxPathLen > 0 || c.MaxPathLen == 0 && c.MaxPathLenZero; limited && below > c.MaxPathLen {
			found = append(found, &Unsuitable{c, "basicConstraints", fmt.Sprintf("pathLenConstraint allows %d authorities below this one, and "+
				"there are %d; issue one with a longer path, or use an issuing certificate nearer to it", c.MaxPathLen, below)})
		}
		if string(c.RawSubject) != string(c.RawIssuer) {
			below++
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			restricted := len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) > 0
			if restricted && !slices.Contains(c.ExtKeyUsage, usage) && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
				found = append(found, &Unsuitable{c, "extendedKeyUsage", "the authority may not certify both TLS servers and TLS clients, and " +
					"proxies are both; issue one without extendedKeyUsage, or with serverAuth and clientAuth"})
				break
			}
		}
	}
	return found
}

// rehearse signs leaves and checks them as every signer's are checked, and says which names do not pass.
func (a *Authority) rehearse(names Names, paths [][]*x509.Certificate, now time.Time) []*Unsuitable {
	s, err := NewIssuer(*a)
	if err != nil {
		return []*Unsuitable{{a.Certificate, "issuer", err.Error()}}
	}
	whole := s.rehearse(names, now)
	if whole == nil {
		return nil
	}
	constrained := slices.IndexFunc(paths[0], func(c *x509.Certificate) bool {
		return len(c.PermittedURIDomains)+len(c.ExcludedURIDomains)+len(c.PermittedDNSDomains)+len(c.ExcludedDNSDomains)+len(c.PermittedIPRanges)+
			len(c.ExcludedIPRanges) > 0
	})
	invalid, ok := errors.AsType[x509.CertificateInvalidError](whole)
	if !ok || invalid.Reason != x509.CANotAuthorizedForThisName || constrained < 0 {
		return []*Unsuitable{{a.Certificate, "certificate", fmt.Sprintf("a leaf that it signs does not verify: %v", whole)}}
	}
	blamed := paths[0][constrained]
	excluded := func(name string, err error) *Unsuitable {
		return &Unsuitable{blamed, "nameConstraints", fmt.Sprintf("exclude %s, a name of this mesh (%v); have the certificate issued with "+
			"constraints that permit it, or use other names", name, err)}
	}
	domain := Names{TrustDomain: names.TrustDomain}
	if err := s.rehearse(domain, now); err != nil {
		return []*Unsuitable{excluded(names.TrustDomain.IDString(), err)}
	}
	var found []*Unsuitable
	for _, name := range names.DNS {
		if err := s.rehearse(Names{TrustDomain: names.TrustDomain, DNS: []string{name}}, now); err != nil {
			found = append(found, excluded(name, err))
		}
	}
	for _, ip := range names.IPs {
		if err := s.rehearse(Names{TrustDomain: names.TrustDomain, IPs: []net.IP{ip}}, now); err != nil {
			found = append(found, excluded(ip.String(), err))
		}
	}
	return found
}

// rehearse issues a leaf with all of the names, for a key that is thrown away, and returns what Check says.
func (s *Signer) rehearse(names Names, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	id, err := spiffeid.FromSegments(names.TrustDomain, "ns", "default", "sa", "default")
	if err != nil {
		return err
	}
	a := &s.authorities
	r := &signer.Request{Identity: id, Template: &x509.Certificate{
		PublicKey: key.Public(), URIs: []*url.URL{id.URL()}, DNSNames: names.DNS, IPAddresses: names.IPs, NotBefore: a.NotBefore,
		NotAfter: a.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}}
	chain, err := s.Issue(context.Background(), r)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	for _, c := range a.Roots {
		roots.AddCert(c)
	}
	if err := signer.Check(r, s.Capabilities(), chain, roots, now); err != nil {
		return err
	}
	return nil
}

// maxNotice is the longest time before its end that a certificate is said to expire soon.
const maxNotice = 30 * 24 * time.Hour

// Expiring returns the certificates that leaves need and that expire soon: they are in the last fifth of their lives,
// and end in less than 30 days. Whatever renews intermediates by itself does so earlier: cert-manager after two thirds.
func (a *Authority) Expiring(now time.Time) []*Unsuitable {
	var found []*Unsuitable
	for _, c := range a.Path() {
		left, notice := c.NotAfter.Sub(now), min(maxNotice, c.NotAfter.Sub(c.NotBefore)/5)
		if left > 0 && left < notice {
			found = append(found, &Unsuitable{c, "validity", fmt.Sprintf("expires at %s; replace it by a new one before",
				stamp(c.NotAfter))})
		}
	}
	return found
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
