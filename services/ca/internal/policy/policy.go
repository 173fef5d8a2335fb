// Package policy decides what certificate an authenticated caller gets. It neither signs nor reads clocks: inputs in, a
// template or a refusal out.
//
// The template is made from the caller's identity and the ca's configuration alone. The request gives its public key
// and may wish for a lifetime, which is clamped; its names must be absent or exactly those the template has anyway, so
// that a caller who expected something else hears of it instead of getting another certificate.
package policy

import (
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/proof"
	"fairlead.dev/services/ca/internal/refusal"
)

// Config is what an operator sets.
type Config struct {
	// TrustDomain of every identity that is issued.
	TrustDomain spiffeid.TrustDomain
	// DefaultTTL applies when the request wishes for none.
	DefaultTTL time.Duration
	// MinTTL and MaxTTL clamp the wish. MinTTL may be 0.
	MinTTL, MaxTTL time.Duration
	// MaxRenewalAge is how long after the last token a certificate may be renewed with a certificate; 0 means that
	// every request needs a token.
	MaxRenewalAge time.Duration
	// Backdate moves notBefore into the past, for verifiers whose clocks are behind.
	Backdate time.Duration
	// DNSNames of certain workloads.
	DNSNames DNSNames
	// IPAddresses of certain workloads.
	IPAddresses IPAddresses
	// Impersonators may ask for others' certificates.
	Impersonators Impersonators
}

// Policy decides. It is immutable.
type Policy struct{ cfg Config }

// New checks the configuration.
func New(cfg Config) (*Policy, error) {
	switch {
	case cfg.TrustDomain.IsZero():
		return nil, errors.New("the trust domain is empty")
	case cfg.DefaultTTL <= 0:
		return nil, fmt.Errorf("the workload certificates' lifetime is %s, wanted more than 0", cfg.DefaultTTL)
	case cfg.MaxTTL < cfg.DefaultTTL:
		return nil, fmt.Errorf("the workload certificates' longest lifetime %s is shorter than the ordinary one %s", cfg.MaxTTL, cfg.DefaultTTL)
	case cfg.MinTTL < 0 || cfg.MinTTL > cfg.DefaultTTL:
		return nil, fmt.Errorf("the workload certificates' shortest lifetime is %s, wanted 0 to the ordinary one %s", cfg.MinTTL, cfg.DefaultTTL)
	case cfg.MaxRenewalAge < 0:
		return nil, fmt.Errorf("certificates are renewed until %s after the last token, wanted 0 or more", cfg.MaxRenewalAge)
	case cfg.Backdate < 0:
		return nil, fmt.Errorf("certificates would start %s in the future", -cfg.Backdate)
	}
	return &Policy{cfg: cfg}, nil
}

// Ask is one request.
type Ask struct {
	// Caller is the authenticated identity.
	Caller spiffeid.ID
	// ByCertificate means that a certificate authenticated the caller, not a token.
	ByCertificate bool
	// Proven is when the caller last showed a token; the certificate issued carries it on.
	Proven time.Time
	// Impersonate is the SPIFFE ID wanted instead of the caller's own, empty for the ordinary case.
	Impersonate string
	// TTLSeconds is the lifetime wished for, 0 for the default.
	TTLSeconds int64
	// CSR has been parsed and its signature verified.
	CSR *csr.Request
}

// Validity is the issuer's.
type Validity struct{ NotBefore, NotAfter time.Time }

// Decide returns the template of the certificate to sign, without a serial number. Errors are refusals.
func (p *Policy) Decide(ask Ask, now time.Time, issuer Validity) (*x509.Certificate, error) {
	id, workload, err := p.identity(ask)
	if err != nil {
		return nil, err
	}
	if err := p.renewable(ask, now); err != nil {
		return nil, err
	}
	dns := p.cfg.DNSNames[workload]
	ips := p.cfg.IPAddresses[workload]
	if err := checkNames(ask.CSR.Names, id, dns, ips); err != nil {
		return nil, err
	}
	notBefore, notAfter, err := p.validity(ask.TTLSeconds, now, issuer)
	if err != nil {
		return nil, err
	}
	proven, err := proof.Extension(ask.Proven)
	if err != nil {
		return nil, err
	}
	usage := x509.KeyUsageDigitalSignature
	if _, ok := ask.CSR.PublicKey.(*rsa.PublicKey); ok {
		usage |= x509.KeyUsageKeyEncipherment
	}
	// The subject stays empty, which makes the names critical (RFC 5280, 4.2.1.6).
	return &x509.Certificate{
		PublicKey:             ask.CSR.PublicKey,
		URIs:                  []*url.URL{id.URL()},
		DNSNames:              slices.Clone(dns),
		IPAddresses:           ips.forCertificate(),
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              usage,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		ExtraExtensions:       []pkix.Extension{proven},
	}, nil
}

// renewable refuses a renewal by certificate when the last token was shown too long ago: whoever stole a key once would
// otherwise keep the identity forever.
func (p *Policy) renewable(ask Ask, now time.Time) error {
	if age := now.Sub(ask.Proven); !ask.ByCertificate || age <= p.cfg.MaxRenewalAge {
		return nil
	}
	return refusal.New(refusal.Denied, refusal.RenewalAge,
		"%s last showed a token at %s, and certificates are renewed with a certificate until %s after that; send a token", ask.Caller,
		ask.Proven.UTC().Format(time.RFC3339), p.cfg.MaxRenewalAge)
}

func (p *Policy) identity(ask Ask) (spiffeid.ID, Workload, error) {
	if ask.Caller.TrustDomain() != p.cfg.TrustDomain {
		return spiffeid.ID{}, Workload{}, refusal.New(refusal.Denied, refusal.ForeignTrustDomain,
			"%s is of another trust domain; this ca issues for %s", ask.Caller, p.cfg.TrustDomain.IDString())
	}
	caller, err := WorkloadOf(ask.Caller)
	if err != nil {
		return spiffeid.ID{}, Workload{}, refusal.New(refusal.Denied, refusal.IdentityForm, "caller %v", err)
	}
	if ask.Impersonate == "" {
		return ask.Caller, caller, nil
	}
	id, err := spiffeid.FromString(ask.Impersonate)
	if err != nil {
		return spiffeid.ID{}, Workload{}, refusal.New(refusal.Invalid, refusal.IdentityForm, "metadata ImpersonatedIdentity: %v", err)
	}
	wanted, err := WorkloadOf(id)
	if err != nil {
		return spiffeid.ID{}, Workload{}, refusal.New(refusal.Invalid, refusal.IdentityForm, "metadata ImpersonatedIdentity: %v", err)
	}
	if id.TrustDomain() != p.cfg.TrustDomain || !p.cfg.Impersonators.allowed(caller, wanted) {
		return spiffeid.ID{}, Workload{}, refusal.New(refusal.Denied, refusal.Impersonation,
			"%s may not ask for the certificate of %s; remove the metadata field ImpersonatedIdentity, or have the ca's operator allow it", ask.Caller, id)
	}
	return id, wanted, nil
}

// checkNames compares as strings, not as parsed URLs, so that no two spellings are taken for one.
func checkNames(names csr.Names, id spiffeid.ID, dns []string, ips addressList) error {
	if len(names.Emails) > 0 {
		return refusal.New(refusal.Denied, refusal.CSRNames, "csr names %d email addresses; only the URI %s is accepted", len(names.Emails), id)
	}
	if len(names.IPs) > 0 && !ips.are(names.IPs) {
		return refusal.New(refusal.Denied, refusal.CSRNames, "csr asks for IP addresses %q, configured for %s are %q; leave the addresses out", names.IPs, id, ips)
	}
	if len(names.URIs) > 1 {
		return refusal.New(refusal.Invalid, refusal.CSRNames, "csr has %d URIs; a workload has exactly one: %s", len(names.URIs), id)
	}
	if len(names.URIs) == 1 && names.URIs[0] != id.String() {
		return refusal.New(refusal.Denied, refusal.ForeignIdentity, "csr asks for %q, but the caller is %s; leave the names out or ask for the caller's own", names.URIs[0], id)
	}
	if len(names.DNS) == 0 {
		return nil
	}
	asked, allowed := slices.Sorted(slices.Values(names.DNS)), slices.Sorted(slices.Values(dns))
	if !slices.Equal(asked, allowed) {
		return refusal.New(refusal.Denied, refusal.CSRNames, "csr asks for DNS names %q, configured for %s are %q; leave the names out", asked, id, allowed)
	}
	return nil
}

func (p *Policy) validity(seconds int64, now time.Time, issuer Validity) (notBefore, notAfter time.Time, err error) {
	if seconds < 0 {
		return notBefore, notAfter, refusal.New(refusal.Invalid, refusal.ValidityNegative, "validity_duration is %d seconds; send 0 for the default or more", seconds)
	}
	ttl := p.cfg.DefaultTTL
	if seconds > 0 {
		// Compared in seconds: a wish of many centuries would overflow a duration.
		ttl = p.cfg.MaxTTL
		if seconds < int64(p.cfg.MaxTTL/time.Second) {
			ttl = max(time.Duration(seconds)*time.Second, p.cfg.MinTTL)
		}
	}
	notBefore, notAfter = now.Add(-p.cfg.Backdate), now.Add(ttl)
	if notBefore.Before(issuer.NotBefore) {
		notBefore = issuer.NotBefore
	}
	if notAfter.After(issuer.NotAfter) {
		notAfter = issuer.NotAfter
	}
	// Certificates have whole seconds (RFC 5280, 4.1.2.5): downwards, so that neither end leaves the issuer's validity.
	notBefore, notAfter = notBefore.UTC().Truncate(time.Second), notAfter.UTC().Truncate(time.Second)
	if !notAfter.After(now) {
		return notBefore, notAfter, refusal.New(refusal.Unavailable, refusal.IssuerExpired,
			"the ca's own certificate expired at %s, so it cannot issue; its operator must install a new root", issuer.NotAfter.UTC().Format(time.RFC3339))
	}
	return notBefore, notAfter, nil
}
