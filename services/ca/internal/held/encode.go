package held

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

var (
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidAuthorityKeyID   = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidServerAuth       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	oidClientAuth       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}
	oidECDSAWithSHA256  = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	oidECDSAWithSHA384  = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}
)

// Tags of the names in a SubjectAltName.
const (
	tagDNS = cbasn1.Tag(2)
	tagURI = cbasn1.Tag(6)
	tagIP  = cbasn1.Tag(7)
)

// emptySubject is a subject without a name.
var emptySubject = []byte{0x30, 0}

// quick signs leaves with an ECDSA key in this process. The bytes are those of x509.CreateCertificate, which verifies
// each signature that it has made, and so takes twice the time. Only keys that are elsewhere need that.
type quick struct {
	key       *ecdsa.PrivateKey
	hash      crypto.Hash
	algorithm asn1.ObjectIdentifier
}

// newQuick returns nil if only x509.CreateCertificate can sign with the key.
func newQuick(issuer *x509.Certificate, key crypto.Signer) *quick {
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok || !own.PublicKey.Equal(issuer.PublicKey) || len(issuer.RawSubject) == 0 || bytes.Equal(issuer.RawSubject, emptySubject) {
		return nil
	}
	switch own.Curve {
	case elliptic.P256():
		return &quick{own, crypto.SHA256, oidECDSAWithSHA256}
	case elliptic.P384():
		return &quick{own, crypto.SHA384, oidECDSAWithSHA384}
	}
	return nil
}

// knows reports whether create writes all that the template says.
func (*quick) knows(t *x509.Certificate) bool {
	other := func(u x509.ExtKeyUsage) bool {
		return u != x509.ExtKeyUsageServerAuth && u != x509.ExtKeyUsageClientAuth
	}
	subject := t.Subject
	return len(t.RawSubject) == 0 && len(subject.ToRDNSequence()) == 0 && t.KeyUsage > 0 && t.KeyUsage < 1<<8 && t.BasicConstraintsValid &&
		!t.IsCA && t.MaxPathLen == 0 && !t.MaxPathLenZero && len(t.ExtKeyUsage) > 0 && !slices.ContainsFunc(t.ExtKeyUsage, other) &&
		len(t.UnknownExtKeyUsage) == 0 && len(t.SubjectKeyId) == 0 && len(t.AuthorityKeyId) == 0 &&
		len(t.OCSPServer)+len(t.IssuingCertificateURL)+len(t.CRLDistributionPoints) == 0 && len(t.EmailAddresses) == 0 &&
		len(t.PolicyIdentifiers)+len(t.Policies) == 0 && len(t.PermittedDNSDomains)+len(t.ExcludedDNSDomains) == 0 &&
		len(t.PermittedIPRanges)+len(t.ExcludedIPRanges) == 0 && len(t.PermittedEmailAddresses)+len(t.ExcludedEmailAddresses) == 0 &&
		len(t.PermittedURIDomains)+len(t.ExcludedURIDomains) == 0 && !slices.ContainsFunc(t.ExtraExtensions, isEncoded)
}

// isEncoded reports whether create writes such an extension itself.
func isEncoded(e pkix.Extension) bool {
	return slices.ContainsFunc([]asn1.ObjectIdentifier{
		oidKeyUsage, oidSubjectAltName, oidBasicConstraints, oidAuthorityKeyID, oidExtKeyUsage,
	}, e.Id.Equal)
}

// create returns the certificate in DER. The template has a serial number.
func (q *quick) create(t, issuer *x509.Certificate, random io.Reader) ([]byte, error) {
	key, err := x509.MarshalPKIXPublicKey(t.PublicKey)
	if err != nil {
		return nil, err
	}
	b := cryptobyte.NewBuilder(make([]byte, 0, 1024))
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) { b.AddASN1Int64(2) }) // version 3
		b.AddASN1BigInt(t.SerialNumber)
		q.addAlgorithm(b)
		b.AddBytes(issuer.RawSubject)
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			addTime(b, t.NotBefore)
			addTime(b, t.NotAfter)
		})
		b.AddBytes(emptySubject)
		b.AddBytes(key)
		b.AddASN1(cbasn1.Tag(3).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { addExtensions(b, t, issuer.SubjectKeyId) })
		})
	})
	tbs, err := b.Bytes()
	if err != nil {
		return nil, err
	}
	digest := q.hash.New()
	digest.Write(tbs)
	signature, err := ecdsa.SignASN1(random, q.key, digest.Sum(nil))
	if err != nil {
		return nil, err
	}
	b = cryptobyte.NewBuilder(make([]byte, 0, len(tbs)+len(signature)+64))
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		q.addAlgorithm(b)
		b.AddASN1BitString(signature)
	})
	return b.Bytes()
}

func (q *quick) addAlgorithm(b *cryptobyte.Builder) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(q.algorithm) })
}

// addTime adds a time as RFC 5280, 4.1.2.5 asks for.
func addTime(b *cryptobyte.Builder, t time.Time) {
	if t = t.UTC(); t.Year() >= 1950 && t.Year() < 2050 {
		b.AddASN1UTCTime(t)
	} else {
		b.AddASN1GeneralizedTime(t)
	}
}

func addExtensions(b *cryptobyte.Builder, t *x509.Certificate, issuerKeyID []byte) {
	addExtension(b, oidKeyUsage, true, func(b *cryptobyte.Builder) { addKeyUsage(b, byte(t.KeyUsage)) })
	addExtension(b, oidExtKeyUsage, false, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, usage := range t.ExtKeyUsage {
				id := oidServerAuth
				if usage == x509.ExtKeyUsageClientAuth {
					id = oidClientAuth
				}
				b.AddASN1ObjectIdentifier(id)
			}
		})
	})
	addExtension(b, oidBasicConstraints, true, func(b *cryptobyte.Builder) { b.AddASN1(cbasn1.SEQUENCE, func(*cryptobyte.Builder) {}) })
	if len(issuerKeyID) > 0 {
		addExtension(b, oidAuthorityKeyID, false, func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1(cbasn1.Tag(0).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(issuerKeyID) })
			})
		})
	}
	// The subject is empty, which makes the names critical (RFC 5280, 4.2.1.6).
	addExtension(b, oidSubjectAltName, true, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { addNames(b, t) })
	})
	for _, e := range t.ExtraExtensions {
		addExtension(b, e.Id, e.Critical, func(b *cryptobyte.Builder) { b.AddBytes(e.Value) })
	}
}

func addExtension(b *cryptobyte.Builder, id asn1.ObjectIdentifier, critical bool, value func(b *cryptobyte.Builder)) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(id)
		if critical {
			b.AddASN1Boolean(true)
		}
		b.AddASN1(cbasn1.OCTET_STRING, value)
	})
}

// addKeyUsage adds a BIT STRING whose first bit is the lowest of usage. DER leaves zeros at its end out.
func addKeyUsage(b *cryptobyte.Builder, usage byte) {
	var reversed, unused byte
	for bit := range 8 {
		reversed |= usage >> bit & 1 << (7 - bit)
	}
	for reversed>>unused&1 == 0 && unused < 7 {
		unused++
	}
	b.AddASN1(cbasn1.BIT_STRING, func(b *cryptobyte.Builder) { b.AddBytes([]byte{unused, reversed}) })
}

func addNames(b *cryptobyte.Builder, t *x509.Certificate) {
	text := func(tag cbasn1.Tag, name string) {
		for _, c := range []byte(name) {
			if c >= 0x80 {
				b.SetError(errors.New("the name " + name + " has characters other than ASCII's"))
			}
		}
		b.AddASN1(tag.ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
	}
	for _, name := range t.DNSNames {
		text(tagDNS, name)
	}
	for _, ip := range t.IPAddresses {
		if short := ip.To4(); short != nil {
			ip = short
		}
		b.AddASN1(tagIP.ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(ip) })
	}
	for _, uri := range t.URIs {
		text(tagURI, uri.String())
	}
}
