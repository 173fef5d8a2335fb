package vault

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/services/ca/internal/signer"
)

const (
	// maxCertificates is how many certificates an answer may have.
	maxCertificates = 10
	// maxCertificate bounds the text of one.
	maxCertificate = 16 << 10
)

// errNoSecret means that an answer has no data.
var errNoSecret = errors.New("the answer is empty")

// text returns a field of an answer; empty if it is missing or no string.
func text(data map[string]any, field string) string {
	value, _ := data[field].(string)
	return value
}

// list returns a field of an answer that is a list of strings.
func list(data map[string]any, field string) ([]string, error) {
	values, ok := data[field].([]any)
	if !ok && data[field] != nil {
		return nil, fmt.Errorf("%s is no list", field)
	}
	if len(values) > maxCertificates {
		return nil, fmt.Errorf("%s has %d entries, more than %d", field, len(values), maxCertificates)
	}
	var out []string
	for _, v := range values {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s has an entry that is no text", field)
		}
		out = append(out, s)
	}
	return out, nil
}

// number returns a field of an answer that is an integer; 0 if it is missing.
func number(data map[string]any, field string) int64 {
	n, ok := data[field].(json.Number)
	if !ok {
		return 0
	}
	value, err := n.Int64()
	if err != nil {
		return 0
	}
	return value
}

// flag returns a field of an answer that is true or false.
func flag(data map[string]any, field string) bool {
	value, _ := data[field].(bool)
	return value
}

// certificate parses the PEM text of exactly one certificate.
func certificate(what, text string) (*x509.Certificate, error) {
	if len(text) > maxCertificate {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", what, len(text), maxCertificate)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s is no single certificate in PEM", what)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return cert, nil
}

// signedAnswer is the answer of sign and sign-intermediate. Certificates are in DER, in base64.
type signedAnswer struct {
	Data struct {
		Certificate string `json:"certificate"`
		IssuingCA   string `json:"issuing_ca"`
		// CAChain begins with the certificate itself for intermediates. Its order is not relied on.
		CAChain []string `json:"ca_chain"`
	} `json:"data"`
}

// readSignedAnswer decodes the bytes of an answer.
func readSignedAnswer(body []byte) (*signedAnswer, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errNoSecret
	}
	a := &signedAnswer{}
	if err := json.Unmarshal(body, a); err != nil {
		return nil, err
	}
	if n := len(a.Data.CAChain); n > maxCertificates {
		return nil, fmt.Errorf("ca_chain has %d entries, more than %d", n, maxCertificates)
	}
	return a, nil
}

func (a *signedAnswer) certificate() (*x509.Certificate, error) {
	return der("certificate", a.Data.Certificate)
}

// above is the certificate's issuer and what is above that, nearest first, the root included if Vault knows it.
func (a *signedAnswer) above() ([]*x509.Certificate, error) {
	issuer, err := der("issuing_ca", a.Data.IssuingCA)
	if err != nil {
		return nil, err
	}
	var among []*x509.Certificate
	for _, text := range a.Data.CAChain {
		cert, err := der("ca_chain", text)
		if err != nil {
			return nil, err
		}
		among = append(among, cert)
	}
	return path(issuer, among), nil
}

// der parses a certificate in base64.
func der(what, text string) (*x509.Certificate, error) {
	if len(text) > maxCertificate {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", what, len(text), maxCertificate)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 {
		return nil, fmt.Errorf("%s is no certificate in base64", what)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return cert, nil
}

// readIssuer reads the answer of issuer/REF/json: the issuer's certificate, and those above it.
func readIssuer(s *api.Secret) ([]*x509.Certificate, error) {
	if s == nil || s.Data == nil {
		return nil, errNoSecret
	}
	issuer, err := certificate("certificate", text(s.Data, "certificate"))
	if err != nil {
		return nil, err
	}
	above, err := readChain(s.Data)
	if err != nil {
		return nil, err
	}
	return path(issuer, above), nil
}

func readChain(data map[string]any) ([]*x509.Certificate, error) {
	texts, err := list(data, "ca_chain")
	if err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for _, t := range texts {
		cert, err := certificate("ca_chain", t)
		if err != nil {
			return nil, err
		}
		chain = append(chain, cert)
	}
	return chain, nil
}

// path is from, and then each time the certificate of among that signed the one before, until one signed itself or none
// is there.
func path(from *x509.Certificate, among []*x509.Certificate) []*x509.Certificate {
	chain := []*x509.Certificate{from}
	for current := from; !selfSigned(current) && len(chain) <= maxCertificates; {
		var next *x509.Certificate
		for _, c := range among {
			if !c.Equal(current) && bytes.Equal(current.RawIssuer, c.RawSubject) && current.CheckSignatureFrom(c) == nil {
				// A root is preferred to the same authority signed by another (a cross-signed certificate).
				if next == nil || selfSigned(c) {
					next = c
				}
			}
		}
		if next == nil {
			break
		}
		chain = append(chain, next)
		current = next
	}
	return chain
}

// selfSigned tells a root.
func selfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// authorities are those of an issuer with the certificates above it, as readIssuer returns them.
func authorities(chain []*x509.Certificate, now time.Time) (*signer.Authorities, error) {
	for _, c := range chain {
		if !c.IsCA || !c.BasicConstraintsValid {
			return nil, fmt.Errorf("%q is no certificate authority", c.Subject)
		}
		if !now.Before(c.NotAfter) {
			return nil, fmt.Errorf("the certificate of %q expired at %s; renew it in Vault", c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	root := chain[len(chain)-1]
	if !selfSigned(root) {
		return nil, fmt.Errorf("the chain ends with %q, which %q signed: Vault does not know the root; %s", root.Subject, root.Issuer,
			"import the missing certificates into the PKI engine (issuers/import/cert), or set the issuer's manual_chain")
	}
	a := &signer.Authorities{Roots: []*x509.Certificate{root}, Intermediates: chain[:len(chain)-1]}
	a.NotBefore, a.NotAfter = signer.Window(chain)
	return a, nil
}
