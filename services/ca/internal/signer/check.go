package signer

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/tokentime"
)

const (
	// MaxChain is how many certificates a chain may have, without the root.
	MaxChain = 5
	// minSerialBits of a serial number are random (CA/Browser Forum, Baseline Requirements 7.1).
	minSerialBits = 64
	// slack is how far the validity may lie outside of what was decided: certificates have whole seconds, and clocks of
	// signers differ.
	slack = 2 * time.Second
)

// Check returns an *Error unless the chain is what the request asks for: a leaf of its key with exactly its names and
// usages, valid no longer than it asks for, no authority, and signed by way of the intermediates by one of the
// announced roots. notBefore may be earlier than the template's: a signer may allow for more clock skew.
func Check(r *Request, c Capabilities, chain []*x509.Certificate, roots *x509.CertPool, now time.Time) *Error {
	if len(chain) == 0 || len(chain) > MaxChain {
		return Errorf(Lied, "the signer answered with a chain of %d certificates, wanted 1 to %d", len(chain), MaxChain)
	}
	leaf := chain[0]
	if err := CheckLeaf(r.Template, c, leaf, now); err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, i := range chain[1:] {
		if !i.IsCA || !i.BasicConstraintsValid {
			return Errorf(Lied, "the signer's chain has %q behind the leaf, which is no authority", i.Subject)
		}
		intermediates.AddCert(i)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: r.Template.ExtKeyUsage,
	}); err != nil {
		return Errorf(Lied, "the certificate that the signer issued does not verify with the roots of the mesh: %w", err)
	}
	return nil
}

// CheckLeaf compares a leaf with its template. It verifies no signature.
func CheckLeaf(t *x509.Certificate, c Capabilities, leaf *x509.Certificate, now time.Time) *Error {
	switch {
	case !SameKey(leaf.PublicKey, t.PublicKey):
		return Errorf(Lied, "the signer's certificate is for another key than the request's")
	case leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return Errorf(Lied, "the signer's certificate is an authority's")
	case !slices.EqualFunc(leaf.URIs, t.URIs, func(a, b *url.URL) bool { return a.String() == b.String() }):
		return Errorf(Lied, "the signer's certificate has the URIs %v, wanted %v", leaf.URIs, t.URIs)
	case !sameNames(leaf.DNSNames, t.DNSNames):
		return Errorf(Lied, "the signer's certificate has the DNS names %q, wanted %q", leaf.DNSNames, t.DNSNames)
	case !sameIPs(leaf.IPAddresses, t.IPAddresses):
		return Errorf(Lied, "the signer's certificate has the IP addresses %v, wanted %v", leaf.IPAddresses, t.IPAddresses)
	case len(leaf.EmailAddresses) > 0:
		return Errorf(Lied, "the signer's certificate has email addresses")
	case leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 159:
		return Errorf(Lied, "the signer's certificate has a serial number that is not positive or longer than 20 octets")
	case leaf.SerialNumber.BitLen() < minSerialBits-16:
		return Errorf(Lied, "the signer's certificate has the serial number %d, of less than %d random bits", leaf.SerialNumber, minSerialBits)
	case leaf.NotAfter.After(t.NotAfter.Add(slack)):
		return Errorf(Lied, "the signer's certificate is valid until %s, longer than the %s asked for", leaf.NotAfter.UTC().Format(time.RFC3339),
			t.NotAfter.UTC().Format(time.RFC3339))
	case c.Validity && leaf.NotAfter.Before(t.NotAfter.Add(-slack)):
		return Errorf(Lied, "the signer's certificate is valid until %s, less than the %s asked for", leaf.NotAfter.UTC().Format(time.RFC3339),
			t.NotAfter.UTC().Format(time.RFC3339))
	case !now.Before(leaf.NotAfter):
		return Errorf(Lied, "the signer's certificate expired at %s; compare the signer's clock with the ca's",
			leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Add(slack).Before(leaf.NotBefore):
		return Errorf(Lied, "the signer's certificate is valid from %s on, which is later than now; compare the signer's clock with the ca's",
			leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return checkUsages(t, c, leaf)
}

// harmless are the key usages that a signer may add: with a key that signs they give no right.
const harmless = x509.KeyUsageKeyEncipherment | x509.KeyUsageKeyAgreement | x509.KeyUsageDataEncipherment

// checkUsages compares usages and extensions. A signer may add what says nothing about rights, such as key identifiers
// and where it publishes lists; one that a verifier must understand it may not.
func checkUsages(t *x509.Certificate, c Capabilities, leaf *x509.Certificate) *Error {
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return Errorf(Lied, "the signer's certificate is not for digital signatures, so that nobody can use it for TLS")
	}
	if extra := leaf.KeyUsage &^ (t.KeyUsage | harmless); extra != 0 {
		return Errorf(Lied, "the signer's certificate has key usages that were not asked for (%#x)", int(extra))
	}
	for _, u := range t.ExtKeyUsage {
		if !slices.Contains(leaf.ExtKeyUsage, u) {
			return Errorf(Lied, "the signer's certificate lacks an extended key usage; have the signer allow server and client authentication")
		}
	}
	if len(leaf.ExtKeyUsage) != len(t.ExtKeyUsage) || len(leaf.UnknownExtKeyUsage) > 0 {
		return Errorf(Lied, "the signer's certificate has extended key usages that were not asked for")
	}
	if len(leaf.UnhandledCriticalExtensions) > 0 {
		return Errorf(Lied, "the signer's certificate has critical extensions that peers do not know: %v", leaf.UnhandledCriticalExtensions)
	}
	for _, wanted := range t.ExtraExtensions {
		at := slices.IndexFunc(leaf.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(wanted.Id) })
		switch {
		case at < 0 && c.Extensions:
			return Errorf(Lied, "the signer's certificate lacks the extension %v; have the signer copy extensions", wanted.Id)
		case at >= 0 && !bytes.Equal(leaf.Extensions[at].Value, wanted.Value):
			return Errorf(Lied, "the signer's certificate has another value of the extension %v", wanted.Id)
		}
	}
	for _, e := range leaf.Extensions {
		if reserved(e.Id) && !slices.ContainsFunc(t.ExtraExtensions, func(w pkix.Extension) bool { return w.Id.Equal(e.Id) }) {
			return Errorf(Lied, "the signer's certificate has the extension %v, which only the ca may ask for", e.Id)
		}
	}
	return nil
}

// arc has the ca's own extensions below it.
var arc = tokentime.OID[:len(tokentime.OID)-1]

func reserved(id asn1.ObjectIdentifier) bool {
	return len(id) > len(arc) && id[:len(arc)].Equal(arc)
}

// SameKey compares two public keys.
func SameKey(a, b crypto.PublicKey) bool {
	known, ok := a.(interface{ Equal(x crypto.PublicKey) bool })
	return ok && known.Equal(b)
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func sameIPs(a, b []net.IP) bool {
	text := func(list []net.IP) []string {
		var out []string
		for _, ip := range list {
			out = append(out, ip.String())
		}
		return out
	}
	return sameNames(text(a), text(b))
}
