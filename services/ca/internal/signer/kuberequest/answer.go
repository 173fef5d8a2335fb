package kuberequest

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
)

// Bounds of an answer.
const (
	maxAnswerBytes  = 64 << 10
	maxCertificates = 10
)

// Status is what controllers write into an object.
type Status struct {
	Conditions []Condition `json:"conditions,omitempty"`
	// Certificate is the chain in PEM.
	Certificate []byte `json:"certificate,omitempty"`
	// CA is what cert-manager's issuers take for their root. It is a hint for people, and verifies nothing.
	CA []byte `json:"ca,omitempty"`
}

// Condition of an object.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Condition returns the condition of this type, without a status if there is none.
func (s Status) Condition(kind string) Condition {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return Condition{Type: kind}
}

// True is whether the condition holds.
func (c Condition) True() bool { return c.Status == "True" }

// Words are the reason and the message, of which a person must make sense.
func (c Condition) Words() string {
	words := c.Reason
	if c.Message != "" {
		words += ": " + c.Message
	}
	return cut(words, maxWords)
}

// readStatus reads the status of an object.
func readStatus(o *unstructured.Unstructured) (Status, error) {
	var typed struct {
		Status Status `json:"status"`
	}
	raw, _ := o.Object["status"].(map[string]any)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"status": raw}, &typed)
	return typed.Status, err
}

// parseChain reads the certificates of an answer, the leaf first, and leaves out roots behind it: those that are given,
// and what has signed itself.
func parseChain(text []byte, roots []*x509.Certificate) ([]*x509.Certificate, *signer.Error) {
	if len(text) > maxAnswerBytes {
		return nil, signer.Errorf(signer.Lied, "the signer answered with %d bytes, the limit is %d", len(text), maxAnswerBytes)
	}
	if n := bytes.Count(text, []byte("-----BEGIN ")); n > maxCertificates {
		return nil, signer.Errorf(signer.Lied, "the signer answered with %d PEM blocks, the limit is %d", n, maxCertificates)
	}
	certs, err := tlsconf.ParseCertificates(text)
	if err != nil {
		return nil, signer.Errorf(signer.Lied, "the signer's answer is no chain of certificates: %w", short(err))
	}
	if len(certs) == 0 {
		return nil, signer.Errorf(signer.Lied, "the signer's answer has no certificate in PEM")
	}
	return append(certs[:1:1], lists.Filter(certs[1:], func(c *x509.Certificate) bool {
		return !slices.ContainsFunc(roots, c.Equal) && !selfSigned(c)
	})...), nil
}

func selfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// hint says which root an issuer claims to have, if that is not among the roots of the configuration.
func hint(s Status, roots []*x509.Certificate) string {
	if len(s.CA) == 0 || len(s.CA) > maxAnswerBytes {
		return ""
	}
	claimed, err := tlsconf.ParseCertificates(s.CA)
	if err != nil || len(claimed) == 0 || slices.ContainsFunc(roots, claimed[0].Equal) {
		return ""
	}
	return fmt.Sprintf("; the issuer says that its root is %q (serial number %x), which is not among roots: add it there if it is yours",
		cut(claimed[0].Subject.String(), 128), claimed[0].SerialNumber)
}
