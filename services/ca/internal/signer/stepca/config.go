package stepca

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/ca/internal/signer/upstream"
)

// Config says where step-ca is, what verifies it, and which provisioner lets the ca sign.
type Config struct {
	// URL of step-ca, such as https://step-ca.example:9000; its host is among dnsNames of ca.json.
	URL string `json:"url"`
	// RootsFile has step-ca's roots, which verify it and its certificates. Fingerprints are the SHA-256 of such roots
	// in hexadecimal, as `step certificate fingerprint` prints them; the roots are then fetched. One of them is
	// required.
	RootsFile    string   `json:"rootsFile,omitempty"`
	Fingerprints []string `json:"fingerprints,omitempty"`
	// ServerName is the DNS name or IP address of step-ca's certificate; the host of URL by default.
	ServerName string `json:"serverName,omitempty"`
	// Provisioner is the name of a provisioner in ca.json; JWK or X5C has its key. One of them is required.
	Provisioner string `json:"provisioner"`
	JWK         *JWK   `json:"jwk,omitempty"`
	X5C         *X5C   `json:"x5c,omitempty"`
	// Extensions is true if the provisioner's template has `"extensions": {{ toJson .Token.extensions }}`. Without it
	// certificates do not say when their workload last showed a token, so that each request needs one.
	Extensions bool `json:"extensions,omitempty"`
	// CRL is true if step-ca makes a list of revoked certificates (crl.enabled in ca.json); it is fetched every minute.
	CRL bool `json:"crl,omitempty"`
	// Timeout of a call; 10 s by default.
	Timeout metav1.Duration `json:"timeout,omitempty"`
}

// JWK is the key of a provisioner of type JWK.
type JWK struct {
	// KeyFile has the private key: a JSON Web Key, such a key encrypted as in encryptedKey of ca.json, or PEM.
	KeyFile string `json:"keyFile"`
	// PasswordFile has the password of an encrypted key. A line break at its end does not count.
	PasswordFile string `json:"passwordFile,omitempty"`
}

// X5C is a certificate that a provisioner of type X5C accepts. No certificate that it lets sign outlives it.
type X5C struct {
	// CertFile has the certificate, followed by those between it and a root of the provisioner, KeyFile its key, in
	// PEM.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// Check returns all that is wrong with the configuration.
func (c *Config) Check() error {
	problems := []error{upstream.CheckTimeout(c.Timeout.Duration), c.checkURL(), c.checkRoots()}
	if c.Provisioner == "" {
		problems = append(problems, errors.New("provisioner: is required; name the provisioner in ca.json that is for the ca"))
	}
	switch {
	case c.JWK == nil && c.X5C == nil:
		problems = append(problems, errors.New("jwk, x5c: one is required; write the key of the provisioner"))
	case c.JWK != nil && c.X5C != nil:
		problems = append(problems, errors.New("jwk, x5c: both are set; keep the one of the provisioner's type"))
	case c.JWK != nil && c.JWK.KeyFile == "":
		problems = append(problems, errors.New("jwk.keyFile: is required; name the file with the provisioner's private key"))
	case c.X5C != nil && (c.X5C.CertFile == "" || c.X5C.KeyFile == ""):
		problems = append(problems, errors.New("x5c.certFile, x5c.keyFile: both are required; name the files of a certificate that the "+
			"provisioner accepts"))
	}
	return errors.Join(problems...)
}

func (c *Config) checkURL() error {
	if c.URL == "" {
		return errors.New("url: is required; write that of step-ca, such as https://step-ca.example:9000")
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
		return errors.New("url: is not of the form https://host:port; correct it")
	}
	return nil
}

func (c *Config) checkRoots() error {
	switch {
	case c.RootsFile == "" && len(c.Fingerprints) == 0:
		return errors.New("rootsFile, fingerprints: one is required; write the output of `step certificate fingerprint root_ca.crt`")
	case c.RootsFile != "" && len(c.Fingerprints) > 0:
		return errors.New("rootsFile, fingerprints: both are set; keep one")
	case len(c.Fingerprints) > upstream.MaxRoots:
		return fmt.Errorf("fingerprints: there are %d, wanted at most %d", len(c.Fingerprints), upstream.MaxRoots)
	}
	for _, f := range c.Fingerprints {
		if raw, err := hex.DecodeString(f); err != nil || len(raw) != 32 {
			return fmt.Errorf("fingerprints: %q is no SHA-256 in hexadecimal", f)
		}
	}
	return nil
}
