// Package upstream has what those signers share that ask another service for every leaf: Chain reads an answer,
// GRPCError and HTTPError say what an error means for an operator, and Trust holds what verifies the answers.
package upstream

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
)

// The bounds of what a service may answer.
const (
	// MaxAnswer is the size of an answer with a certificate, in bytes. A chain of five RSA-4096 certificates has 16
	// KiB.
	MaxAnswer = 256 << 10
	// MaxRoots and MaxIntermediates count certificates.
	MaxRoots         = 16
	MaxIntermediates = signer.MaxChain - 1
	// MaxCRLBytes is the size of all lists of revoked certificates of a service.
	MaxCRLBytes = 1 << 20
	// maxQuoted is how many bytes of a service's own words an error quotes.
	maxQuoted = 512
)

// Timeouts of calls: the default, and the longest that a configuration may have. Agents wait for about ten seconds.
const (
	DefaultTimeout = 10 * time.Second
	MaxTimeout     = time.Minute
)

// KeepaliveTime is how often a connection is tried while a call runs and nothing is heard. gRPC's servers close
// connections of clients that ping more often than every five minutes, unless they are told otherwise.
const KeepaliveTime = 6 * time.Minute

// CheckTimeout returns what is wrong with the field timeout of a configuration; 0 stands for the default.
func CheckTimeout(d time.Duration) error {
	if d < 0 || d > MaxTimeout {
		return fmt.Errorf("timeout: is %s; leave it out for %s, or set it to more than 0 and at most %s", d, DefaultTimeout, MaxTimeout)
	}
	return nil
}

// Chain reads the certificates that a service answered, leaf first, in one or several PEM texts. It leaves out roots
// behind the leaf, and verifies nothing. Its errors have the fault Lied.
func Chain(who string, texts ...string) ([]*x509.Certificate, error) {
	chain, _, err := Split(who, texts...)
	return chain, err
}

// Split is Chain, and returns the roots behind the leaf too. They are words of the service and verify nothing.
func Split(who string, texts ...string) (chain, roots []*x509.Certificate, err error) {
	certs, err := certificates(1+MaxIntermediates+MaxRoots, texts...)
	if err != nil {
		return nil, nil, signer.Errorf(signer.Lied, "%s answered with what is no certificate chain: %w", who, err)
	}
	if len(certs) == 0 {
		return nil, nil, signer.Errorf(signer.Lied, "%s answered without a certificate", who)
	}
	chain = certs[:1:1]
	for _, c := range certs[1:] {
		if selfIssued(c) {
			roots = append(roots, c)
		} else {
			chain = append(chain, c)
		}
	}
	if len(chain) > 1+MaxIntermediates {
		return nil, nil, signer.Errorf(signer.Lied, "%s answered with %d intermediate certificates, wanted at most %d", who, len(chain)-1,
			MaxIntermediates)
	}
	return chain, roots, nil
}

// Roots reads root certificates in one or several PEM texts: at least one, each an authority's.
func Roots(texts ...string) ([]*x509.Certificate, error) {
	certs, err := certificates(MaxRoots, texts...)
	if err != nil {
		return nil, err
	}
	return authorities(certs)
}

// Intermediates reads the certificates between leaves and roots; there may be none.
func Intermediates(texts ...string) ([]*x509.Certificate, error) {
	certs, err := certificates(MaxIntermediates, texts...)
	if err != nil || len(certs) == 0 {
		return nil, err
	}
	return authorities(certs)
}

func authorities(certs []*x509.Certificate) ([]*x509.Certificate, error) {
	if len(certs) == 0 {
		return nil, errors.New("there is no certificate in PEM")
	}
	for i, c := range certs {
		if !c.IsCA || !c.BasicConstraintsValid {
			return nil, fmt.Errorf("entry %d (%s) is not a certificate authority's", i+1, Quote(c.Subject.String()))
		}
	}
	return certs, nil
}

// certificates reads at most a number of certificates, so that a long answer costs little.
func certificates(most int, texts ...string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for _, text := range texts {
		if n := strings.Count(text, "-----BEGIN"); len(certs)+n > most {
			return nil, fmt.Errorf("there are more than %d certificates", most)
		}
		more, err := tlsconf.ParseCertificates([]byte(text))
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			return nil, errors.New("there is an entry without a certificate in PEM")
		}
		certs = append(certs, more...)
	}
	return certs, nil
}

// selfIssued reports whether a certificate has the form of a root's. Its signature is not verified.
func selfIssued(c *x509.Certificate) bool {
	return string(c.RawIssuer) == string(c.RawSubject) &&
		(len(c.AuthorityKeyId) == 0 || string(c.AuthorityKeyId) == string(c.SubjectKeyId))
}

// PEM encodes a request for a certificate.
func PEM(csr []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
}

// Quote makes a service's own words fit for an error: at most 512 bytes, without line breaks and without the secrets,
// which a service may repeat.
func Quote(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[secret]")
		}
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "..."
	}
	return text
}
