// Package policy decides which certificate an authenticated caller gets. Policy.Decide is a pure function: it takes a
// Request, the time and the issuer's validity, and returns a template or a rejection; it neither signs nor reads
// clocks. Package issuance calls it for every certificate request, package servercert for the ca's own certificate.
//
// The template is made from the caller's identity and the ca's configuration alone. The CSR gives its public key and
// the request may ask for a lifetime, which is clamped. Names in the CSR must be absent or exactly those of the
// template, so that a caller who expects other names gets an error and not another certificate.
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
	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/tokentime"
)

// Config is what an operator sets.
type Config struct {
	// TrustDomain of every identity that is issued.
	TrustDomain spiffeid.TrustDomain
	// Aliases are trust domains that the mesh has had before. A CSR may name the workload in one of them; the
	// certificate is of TrustDomain all the same. Callers of an alias are turned into those of TrustDomain before.
	Aliases []spiffeid.TrustDomain
	// DefaultTTL applies when the request asks for none.
	DefaultTTL time.Duration
	// MinTTL and MaxTTL clamp the lifetime that the request asks for. MinTTL may be 0.
	MinTTL, MaxTTL time.Duration
	// MaxRenewalAge is for how long after its last token a workload may renew with its certificate alone; 0 means that
	// every request needs a token.
	MaxRenewalAge time.Duration
	// MaxForeignAge is MaxRenewalAge for those whose token was one of a remote cluster: whether their accounts still
	// exist, tokens alone tell. The shorter of both counts.
	MaxForeignAge time.Duration
	// ClockSkew is how far notBefore is in the past, for verifiers whose clocks are behind (--clock-skew).
	ClockSkew     time.Duration
	DNSNames      DNSNames
	IPAddresses   IPAddresses
	Impersonators Impersonators
}

// Policy is the checked Config. It is immutable.
type Policy struct{ cfg Config }

// New returns an error for a Config that contradicts itself.
func New(cfg Config) (*Policy, error) {
	switch {
	case cfg.TrustDomain.IsZero():
		return nil, errors.New("the trust domain is empty")
	case slices.Contains(cfg.Aliases, cfg.TrustDomain):
		return nil, fmt.Errorf("the trust domain %s is an alias of itself", cfg.TrustDomain)
	case cfg.DefaultTTL <= 0:
		return nil, fmt.Errorf("the workload certificates' lifetime is %s, wanted more than 0", cfg.DefaultTTL)
	case cfg.MaxTTL < cfg.DefaultTTL:
		return nil, fmt.Errorf("the workload certificates' longest lifetime %s is shorter than the default one %s", cfg.MaxTTL, cfg.DefaultTTL)
	case cfg.MinTTL < 0 || cfg.MinTTL > cfg.DefaultTTL:
		return nil, fmt.Errorf("the workload certificates' shortest lifetime is %s, wanted 0 to the default one %s", cfg.MinTTL, cfg.DefaultTTL)
	case cfg.MaxRenewalAge < 0:
		return nil, fmt.Errorf("certificates are renewed until %s after the last token, wanted 0 or more", cfg.MaxRenewalAge)
	case cfg.MaxForeignAge < 0:
		return nil, fmt.Errorf("certificates of remote clusters are renewed until %s after the last token, wanted 0 or more", cfg.MaxForeignAge)
	case cfg.ClockSkew < 0:
		return nil, fmt.Errorf("certificates would start %s in the future", -cfg.ClockSkew)
	}
	return &Policy{cfg: cfg}, nil
}

// Request is what an authenticated caller asks for.
type Request struct {
	// Caller is the authenticated identity.
	Caller spiffeid.ID
	// ByCertificate means that a certificate authenticated the caller, not a token.
	ByCertificate bool
	// TokenTime is when the caller last showed a token, and Cluster the remote cluster whose token it was; "" for the
	// own one. The certificate issued carries both on.
	TokenTime time.Time
	Cluster   string
	// Impersonate is the SPIFFE ID asked for instead of the caller's own, mostly empty.
	Impersonate string
	// TTLSeconds is the lifetime asked for, 0 for the default.
	TTLSeconds int64
	// CSR has been parsed and its signature verified.
	CSR *csr.Request
}

// Issuer is what the signer allows.
type Issuer struct {
	// NotBefore and NotAfter bound the validity of its own certificates, which no issued certificate exceeds. Zero is
	// no bound.
	NotBefore, NotAfter time.Time
	// NeedsToken is true for a signer that must see each caller's token, or whose certificates do not say when their
	// owner last showed one.
	NeedsToken bool
}

// Decide returns the template of the certificate to sign, without a serial number. Its errors are rejections,
// except failures to encode.
func (p *Policy) Decide(req Request, now time.Time, issuer Issuer) (*x509.Certificate, error) {
	id, workload, err := p.identity(req)
	if err != nil {
		return nil, err
	}
	if err := p.checkRenewal(req, now, issuer); err != nil {
		return nil, err
	}
	dns := p.cfg.DNSNames[workload]
	ips := p.cfg.IPAddresses[workload]
	if err := checkNames(p.withoutAlias(req.CSR.Names, id), id, dns, ips); err != nil {
		return nil, err
	}
	notBefore, notAfter, err := p.validity(req.TTLSeconds, now, issuer)
	if err != nil {
		return nil, err
	}
	lastToken, err := tokentime.Extension(req.TokenTime, req.Cluster)
	if err != nil {
		return nil, err
	}
	usage := x509.KeyUsageDigitalSignature
	if _, ok := req.CSR.PublicKey.(*rsa.PublicKey); ok {
		usage |= x509.KeyUsageKeyEncipherment
	}
	// The subject stays empty, which makes the names critical (RFC 5280, 4.2.1.6).
	return &x509.Certificate{
		PublicKey:             req.CSR.PublicKey,
		URIs:                  []*url.URL{id.URL()},
		DNSNames:              slices.Clone(dns),
		IPAddresses:           ips.forCertificate(),
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              usage,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		ExtraExtensions:       []pkix.Extension{lastToken},
	}, nil
}

// checkRenewal rejects a renewal by certificate when the last token was shown too long ago. Otherwise whoever steals a
// key once could renew with it forever.
func (p *Policy) checkRenewal(req Request, now time.Time, issuer Issuer) error {
	if req.ByCertificate && issuer.NeedsToken {
		return rejection.New(rejection.Denied, rejection.RenewalAge,
			"%s has sent a certificate and no token; the signer of this mesh needs a token with each request; send a token", req.Caller)
	}
	most := p.RenewalAge(req.Cluster)
	if age := now.Sub(req.TokenTime); !req.ByCertificate || age <= most {
		return nil
	}
	return rejection.New(rejection.Denied, rejection.RenewalAge,
		"%s last showed a token at %s, and certificates are renewed with a certificate until %s after that; send a token", req.Caller,
		req.TokenTime.UTC().Format(time.RFC3339), most)
}

// RenewalAge is how long after its last token a workload may renew with its certificate alone; cluster is the remote
// cluster whose token it was, "" for the own one.
func (p *Policy) RenewalAge(cluster string) time.Duration {
	if cluster != "" {
		return min(p.cfg.MaxRenewalAge, p.cfg.MaxForeignAge)
	}
	return p.cfg.MaxRenewalAge
}

func (p *Policy) identity(req Request) (spiffeid.ID, Workload, error) {
	if req.Caller.TrustDomain() != p.cfg.TrustDomain {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Denied, rejection.ForeignTrustDomain,
			"%s is of another trust domain; this ca issues for %s", req.Caller, p.cfg.TrustDomain.IDString())
	}
	caller, err := WorkloadOf(req.Caller)
	if err != nil {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Denied, rejection.IdentityForm, "caller %v", err)
	}
	if req.Impersonate == "" {
		return req.Caller, caller, nil
	}
	if req.Cluster != "" {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Denied, rejection.Impersonation,
			"%s is of remote cluster %s, whose workloads ask for certificates of their own alone; remove the metadata field ImpersonatedIdentity",
			req.Caller, req.Cluster)
	}
	id, err := spiffeid.FromString(req.Impersonate)
	if err != nil {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Invalid, rejection.IdentityForm, "metadata ImpersonatedIdentity: %v", err)
	}
	wanted, err := WorkloadOf(id)
	if err != nil {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Invalid, rejection.IdentityForm, "metadata ImpersonatedIdentity: %v", err)
	}
	if id.TrustDomain() != p.cfg.TrustDomain || !p.cfg.Impersonators.allowed(caller, wanted) {
		return spiffeid.ID{}, Workload{}, rejection.New(rejection.Denied, rejection.Impersonation,
			"%s may not ask for the certificate of %s; remove the metadata field ImpersonatedIdentity, or have the ca's operator allow it",
			req.Caller, id)
	}
	return id, wanted, nil
}

// withoutAlias returns the names with the identity in place of its form in an alias, which an agent asks for that does
// not know the new trust domain yet.
func (p *Policy) withoutAlias(names csr.Names, id spiffeid.ID) csr.Names {
	if len(names.URIs) != 1 {
		return names
	}
	for _, alias := range p.cfg.Aliases {
		if before, err := spiffeid.FromPath(alias, id.Path()); err == nil && names.URIs[0] == before.String() {
			names.URIs = []string{id.String()}
			return names
		}
	}
	return names
}

// checkNames compares URIs as strings and not as parsed URLs, so that two spellings of one URL differ.
func checkNames(names csr.Names, id spiffeid.ID, dns []string, ips addressList) error {
	if len(names.Emails) > 0 {
		return rejection.New(rejection.Denied, rejection.CSRNames, "csr names %d email addresses; only the URI %s is accepted", len(names.Emails),
			id)
	}
	if len(names.IPs) > 0 && !ips.equal(names.IPs) {
		return rejection.New(rejection.Denied, rejection.CSRNames,
			"csr asks for IP addresses %q, configured for %s are %q; leave the addresses out", names.IPs, id, ips)
	}
	if len(names.URIs) > 1 {
		return rejection.New(rejection.Invalid, rejection.CSRNames, "csr has %d URIs; a workload has exactly one: %s", len(names.URIs), id)
	}
	if len(names.URIs) == 1 && names.URIs[0] != id.String() {
		return rejection.New(rejection.Denied, rejection.ForeignIdentity,
			"csr asks for %q, but the caller is %s; leave the names out or req for the caller's own", names.URIs[0], id)
	}
	if len(names.DNS) == 0 {
		return nil
	}
	asked, allowed := slices.Sorted(slices.Values(names.DNS)), slices.Sorted(slices.Values(dns))
	if !slices.Equal(asked, allowed) {
		return rejection.New(rejection.Denied, rejection.CSRNames, "csr asks for DNS names %q, configured for %s are %q; leave the names out",
			asked, id, allowed)
	}
	return nil
}

func (p *Policy) validity(seconds int64, now time.Time, issuer Issuer) (notBefore, notAfter time.Time, err error) {
	if seconds < 0 {
		return notBefore, notAfter, rejection.New(rejection.Invalid, rejection.ValidityNegative,
			"validity_duration is %d seconds; send 0 for the default or more", seconds)
	}
	ttl := p.cfg.DefaultTTL
	if seconds > 0 {
		// Compared in seconds, because many centuries overflow a time.Duration.
		ttl = p.cfg.MaxTTL
		if seconds < int64(p.cfg.MaxTTL/time.Second) {
			ttl = max(time.Duration(seconds)*time.Second, p.cfg.MinTTL)
		}
	}
	notBefore, notAfter = now.Add(-p.cfg.ClockSkew), now.Add(ttl)
	if notBefore.Before(issuer.NotBefore) {
		notBefore = issuer.NotBefore
	}
	if !issuer.NotAfter.IsZero() && notAfter.After(issuer.NotAfter) {
		notAfter = issuer.NotAfter
	}
	// Certificates have whole seconds (RFC 5280, 4.1.2.5). The issuer's do too, so rounding down stays within its
	// validity.
	notBefore, notAfter = notBefore.UTC().Truncate(time.Second), notAfter.UTC().Truncate(time.Second)
	if !notAfter.After(now) {
		return notBefore, notAfter, rejection.New(rejection.Unavailable, rejection.IssuerExpired,
			"the ca's own certificate expired at %s, so it cannot issue; its operator must install a new root",
			issuer.NotAfter.UTC().Format(time.RFC3339))
	}
	return notBefore, notAfter, nil
}
