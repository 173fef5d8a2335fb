package validate

import (
	"encoding/base64"
	"encoding/hex"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// cipherSuites that Envoy's TLS library knows, in OpenSSL's names.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
	"ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES128-SHA",
	"AES256-GCM-SHA384", "AES256-SHA", "DES-CBC3-SHA",
}

// curves that it knows.
var curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

func (c *checker) oneOf(at string, list []string, reason string, known []string) {
	for i, s := range list {
		if !contains(known, s) {
			c.fail(index(at, i), s, reason, suggestion(s, known))
		}
	}
}

// serverTLS checks the TLS settings of a port that is not plain HTTP.
func (c *checker) serverTLS(at string, t *networking.ServerTLSSettings) {
	if t == nil {
		return
	}
	c.serverModes(at, t)
	c.serverCertificates(at, t)
	c.oneOf(at+".cipherSuites", t.CipherSuites, "unknown cipher suite", cipherSuites)
	if lo, hi := t.MinProtocolVersion, t.MaxProtocolVersion; lo != 0 && hi != 0 && lo > hi {
		c.fail(at+".minProtocolVersion", lo, "newer than maxProtocolVersion "+hi.String(), "swap them")
	}
	if hi := t.MaxProtocolVersion; hi != 0 && hi < networking.ServerTLSSettings_TLSV1_2 && len(t.CipherSuites) == 0 {
		c.fail(at+".maxProtocolVersion", hi.String(), "no default cipher suite is for a version so old", "set cipherSuites such as ECDHE-RSA-AES128-SHA, or allow TLSV1_2")
	}
	for i, name := range t.SubjectAltNames {
		if name == "" {
			c.fail(index(at+".subjectAltNames", i), nil, "empty", "name a client, or remove it")
		}
	}
	for i, h := range t.VerifyCertificateHash {
		if b, err := hex.DecodeString(strings.ReplaceAll(h, ":", "")); err != nil || len(b) != 32 {
			c.fail(index(at+".verifyCertificateHash", i), h, "not a SHA-256 in hexadecimal", "write 64 hexadecimal digits")
		}
	}
	for i, h := range t.VerifyCertificateSpki {
		if b, err := base64.StdEncoding.DecodeString(h); err != nil || len(b) != 32 {
			c.fail(index(at+".verifyCertificateSpki", i), h, "not a SHA-256 in base64", "write 44 base64 characters")
		}
	}
}

// serverModes refuses settings that the mode would leave without effect where they seem to keep clients out, and warns of the others.
func (c *checker) serverModes(at string, t *networking.ServerTLSSettings) {
	const (
		passes = 1 << iota // modes that terminate no TLS
		simple             // SIMPLE asks for no client certificate
		mesh               // ISTIO_MUTUAL has the mesh's authorities
	)
	var mode int
	var why, remedy string
	switch t.Mode {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		mode, why, remedy = passes, "terminates no TLS", "remove it, or use SIMPLE or MUTUAL"
	case networking.ServerTLSSettings_SIMPLE:
		mode, why, remedy = simple, "asks clients for no certificate", "remove it, or use MUTUAL or OPTIONAL_MUTUAL"
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		mode, why, remedy = mesh, "trusts the mesh's own authorities", "remove it, or use MUTUAL"
	}
	why = "mode " + t.Mode.String() + " " + why
	for _, setting := range []struct {
		name     string
		set      bool
		useless  int
		harmless bool
	}{
		{"caCertificates", t.CaCertificates != "", passes | simple | mesh, false},
		{"caCertCredentialName", t.CaCertCredentialName != "", passes | simple | mesh, false},
		{"insecureSkipVerify", t.InsecureSkipVerify.GetValue(), mesh, false},
		{"insecureSkipVerify", t.InsecureSkipVerify.GetValue(), passes | simple, true},
		{"caCrl", t.CaCrl != "", passes | simple | mesh, false},
		{"subjectAltNames", len(t.SubjectAltNames) > 0, passes | simple, false},
		{"verifyCertificateSpki", len(t.VerifyCertificateSpki) > 0, passes | simple, false},
		{"verifyCertificateHash", len(t.VerifyCertificateHash) > 0, passes | simple, false},
		{"minProtocolVersion", t.MinProtocolVersion != 0, passes, true},
		{"maxProtocolVersion", t.MaxProtocolVersion != 0, passes, true},
		{"cipherSuites", len(t.CipherSuites) > 0, passes, true},
		{"serverCertificate", t.ServerCertificate != "", passes, true},
		{"privateKey", t.PrivateKey != "", passes, true},
		{"credentialName", t.CredentialName != "", passes, true},
		{"credentialNames", len(t.CredentialNames) > 0, passes, true},
		{"tlsCertificates", len(t.TlsCertificates) > 0, passes, true},
	} {
		switch {
		case !setting.set || mode&setting.useless == 0:
		case setting.harmless:
			c.warn(at+"."+setting.name, verdict{why, remedy})
		default:
			c.fail(at+"."+setting.name, nil, "has no effect: "+why, remedy)
		}
	}
}

// serverCertificates checks that each mode has what it needs, from exactly one place.
func (c *checker) serverCertificates(at string, t *networking.ServerTLSSettings) {
	files := t.ServerCertificate != "" || t.PrivateKey != ""
	secrets := t.CredentialName != "" || len(t.CredentialNames) > 0
	ways := 0
	for _, set := range []bool{files, t.CredentialName != "", len(t.CredentialNames) > 0, len(t.TlsCertificates) > 0} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		c.fail(at, nil, "serverCertificate, credentialName, credentialNames and tlsCertificates exclude each other", "keep one of them")
	}
	c.credentialName(at+".credentialName", t.CredentialName)
	for i, name := range t.CredentialNames {
		c.credentialName(index(at+".credentialNames", i), name)
	}
	c.credentialName(at+".caCertCredentialName", t.CaCertCredentialName)
	if len(t.CredentialNames) > 2 || len(t.TlsCertificates) > 2 {
		c.fail(at, nil, "more than two certificates", "give at most one RSA and one ECDSA certificate")
	}
	authority := t.CaCertificates
	if files {
		c.certificateFiles(at, t.ServerCertificate, t.PrivateKey)
	}
	for i, pair := range t.TlsCertificates {
		c.certificateFiles(index(at+".tlsCertificates", i), pair.GetServerCertificate(), pair.GetPrivateKey())
		authority = firstOf(authority, pair.GetCaCertificates())
	}
	switch t.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if ways == 0 {
			c.fail(at, nil, "no certificate for mode "+t.Mode.String(), "set credentialName, or serverCertificate and privateKey")
		}
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if ways > 0 {
			c.fail(at+".mode", "ISTIO_MUTUAL", "uses the workload's own certificate, none can be given", "remove the certificates, or use MUTUAL")
		}
		return
	default:
		return
	}
	if t.CaCrl != "" && authority == "" {
		c.fail(at+".caCrl", t.CaCrl, "goes with caCertificates alone", "remove it; a Secret has its own list, in ca.crl")
	}
	c.askable(at+".caCertificates", authority)
	c.askable(at+".caCrl", t.CaCrl)
	switch {
	case authority != "" && secrets:
		c.fail(at+".caCertificates", nil, "cannot be combined with credentialName", "store the authorities in the Secret, as ca.crt, or in one named by caCertCredentialName")
	case authority != "" && t.CaCertCredentialName != "":
		c.fail(at+".caCertificates", nil, "cannot be combined with caCertCredentialName", "keep one of them")
	case t.Mode != networking.ServerTLSSettings_SIMPLE && ways > 0 && !secrets && authority == "" && t.CaCertCredentialName == "":
		c.fail(at+".caCertificates", nil, "missing in mode "+t.Mode.String()+", clients could not be verified", "set caCertificates or caCertCredentialName")
	}
}

// certificateFiles checks a certificate and its key in files.
func (c *checker) certificateFiles(at, certificate, key string) {
	if certificate == "" || key == "" {
		c.fail(at, nil, "serverCertificate and privateKey belong together", "set both")
	}
	c.askable(at+".serverCertificate", certificate)
	c.askable(at+".privateKey", key)
}

// askable checks the path of a file that the proxy's agent is asked for, perhaps of two in one name with "~" between them.
func (c *checker) askable(at, path string) {
	if c.printable(at, path) && strings.Contains(path, "~") {
		c.fail(at, path, "a path with ~ cannot be asked for", "give the file another name")
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// credentialName refuses schemes that nothing serves: left alone, they would be handshakes refused without a word.
func (c *checker) credentialName(at, name string) {
	scheme, _, found := strings.Cut(name, "://")
	if !found || scheme == "kubernetes" {
		return
	}
	if scheme != "kubernetes-gateway" {
		c.fail(at, name, "no secrets are served for "+scheme+"://", "name a Secret: its bare name, or kubernetes-gateway://<namespace>/<name>")
		return
	}
	if namespace, secret, _ := strings.Cut(strings.TrimPrefix(name, "kubernetes-gateway://"), "/"); namespace == "" || secret == "" {
		c.fail(at, name, "kubernetes-gateway:// wants a namespace and a name", "write kubernetes-gateway://<namespace>/<name>")
	}
}
