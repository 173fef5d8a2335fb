package networking

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/cipher"
)

// serverTLS checks the TLS settings of an encrypted port.
func (c Checker) serverTLS(at string, t *networking.ServerTLSSettings) {
	if t == nil {
		return
	}
	c.serverModes(at, t)
	c.serverCertificates(at, t)
	c.ciphers(at+".cipherSuites", t.CipherSuites)
	switch lo, hi := t.MinProtocolVersion, t.MaxProtocolVersion; {
	case passesTLS(t):
	case lo != 0 && hi != 0 && lo > hi:
		c.Remark(at+".minProtocolVersion", "newer than maxProtocolVersion "+hi.String()+": no handshake succeeds", "swap them")
	case len(t.CipherSuites) > 0:
	case hi != 0 && hi < networking.ServerTLSSettings_TLSV1_2:
		c.Remark(at+".maxProtocolVersion", "no default cipher suite is for a version so old: no handshake succeeds",
			"set cipherSuites such as ECDHE-RSA-AES128-SHA, or allow TLSV1_2")
	case lo != 0 && lo < networking.ServerTLSSettings_TLSV1_2:
		c.Remark(at+".minProtocolVersion", "no default cipher suite is for versions below TLSV1_2: they are not spoken",
			"set cipherSuites such as ECDHE-RSA-AES128-SHA too, or TLSV1_2")
	}
	for i, name := range t.SubjectAltNames {
		c.WarnIf(name == "", manifest.Index(at+".subjectAltNames", i), "no client has an empty name", "name a client, or remove it")
	}
	if !verifiesClients(t) {
		return
	}
	for i, h := range t.VerifyCertificateHash {
		if b, err := hex.DecodeString(strings.ReplaceAll(h, ":", "")); err != nil || len(b) != 32 {
			c.Fail(manifest.Index(at+".verifyCertificateHash", i), h, "not a SHA-256 in hexadecimal", "write 64 hexadecimal digits")
		}
	}
	for i, h := range t.VerifyCertificateSpki {
		if b, err := base64.StdEncoding.DecodeString(h); err != nil || len(b) != 32 {
			c.Fail(manifest.Index(at+".verifyCertificateSpki", i), h, "not a SHA-256 in base64", "write 44 base64 characters")
		}
	}
}

// verifiesClients reports whether the mode asks clients for certificates.
func verifiesClients(t *networking.ServerTLSSettings) bool {
	return t.Mode != networking.ServerTLSSettings_SIMPLE && !passesTLS(t)
}

// serverModes warns of settings without effect in the mode, and refuses certificates in mode ISTIO_MUTUAL.
func (c Checker) serverModes(at string, t *networking.ServerTLSSettings) {
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
		name    string
		set     bool
		useless int
		refused int
	}{
		{"caCertificates", t.CaCertificates != "", passes | simple, mesh},
		{"caCertCredentialName", t.CaCertCredentialName != "", passes | simple | mesh, 0},
		// It accepts certificates of every authority: with ISTIO_MUTUAL those from outside the mesh.
		{"insecureSkipVerify", t.InsecureSkipVerify.GetValue(), passes | simple, mesh},
		{"caCrl", t.CaCrl != "" && t.CredentialName == "" && len(t.CredentialNames) == 0, passes | mesh, simple},
		{"subjectAltNames", len(t.SubjectAltNames) > 0, passes | simple, 0},
		{"verifyCertificateSpki", len(t.VerifyCertificateSpki) > 0, passes | simple, 0},
		{"verifyCertificateHash", len(t.VerifyCertificateHash) > 0, passes | simple, 0},
		{"minProtocolVersion", t.MinProtocolVersion != 0, passes, 0},
		{"maxProtocolVersion", t.MaxProtocolVersion != 0, passes, 0},
		{"cipherSuites", len(t.CipherSuites) > 0, passes, 0},
		{"serverCertificate", t.ServerCertificate != "", passes, mesh},
		{"privateKey", t.PrivateKey != "", passes, mesh},
		{"credentialName", t.CredentialName != "", passes, mesh},
		{"credentialNames", len(t.CredentialNames) > 0, passes, mesh},
		{"tlsCertificates", len(t.TlsCertificates) > 0, passes, mesh},
	} {
		switch {
		case !setting.set:
		case mode&setting.refused != 0:
			c.Fail(at+"."+setting.name, nil, "has no effect: "+why, remedy)
		case mode&setting.useless != 0:
			c.Warn(at+"."+setting.name, why, remedy)
		}
	}
}

// oneSource refuses a server's certificates from several places.
func (c Checker) oneSource(at string, t *networking.ServerTLSSettings) {
	files, ways := t.ServerCertificate != "" && t.PrivateKey != "", 0
	for _, set := range []bool{files, t.CredentialName != "", len(t.CredentialNames) > 0, len(t.TlsCertificates) > 0} {
		if set {
			ways++
		}
	}
	c.FailIf(ways > 1, at, nil, "serverCertificate, credentialName, credentialNames and tlsCertificates exclude each other",
		"keep one of them")
}

// serverCertificates checks that the server's certificates come from exactly one place, and that the mode has what it
// needs.
func (c Checker) serverCertificates(at string, t *networking.ServerTLSSettings) {
	c.credentialName(at+".credentialName", t.CredentialName)
	for i, name := range t.CredentialNames {
		c.credentialName(manifest.Index(at+".credentialNames", i), name)
	}
	c.credentialName(at+".caCertCredentialName", t.CaCertCredentialName)
	if t.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return
	}
	secrets := t.CredentialName != "" || len(t.CredentialNames) > 0
	c.oneSource(at, t)
	switch {
	case passesTLS(t):
		if t.CaCrl != "" && t.CredentialName != "" {
			c.Fail(at+".caCrl", t.CaCrl, "cannot be combined with credentialName", "remove it; a Secret has its own list, in ca.crl")
		}
	case secrets:
		c.unusedFiles(at, t)
	default:
		c.serverFiles(at, t)
	}
}

// unusedFiles warns of files that a server with a Secret does not use, because the Secret has their content.
func (c Checker) unusedFiles(at string, t *networking.ServerTLSSettings) {
	c.fewCertificates(at+".credentialNames", len(t.CredentialNames))
	for _, file := range []struct{ name, path string }{
		{"serverCertificate", t.ServerCertificate}, {"privateKey", t.PrivateKey}, {"caCertificates", t.CaCertificates}, {"caCrl", t.CaCrl},
	} {
		if file.path != "" && (verifiesClients(t) || !strings.HasPrefix(file.name, "ca")) {
			c.Warn(at+"."+file.name, "the credential's Secret has the certificates, authorities and revoked certificates",
				"remove it, or credentialName")
		}
	}
}

// serverFiles checks the files of a server without a Secret.
func (c Checker) serverFiles(at string, t *networking.ServerTLSSettings) {
	switch {
	case len(t.TlsCertificates) == 0 && t.ServerCertificate == "" && t.PrivateKey == "":
		c.Fail(at, nil, "no certificate for mode "+t.Mode.String(), "set credentialName, or serverCertificate and privateKey")
	case len(t.TlsCertificates) == 0:
		c.certificateFiles(at, t.ServerCertificate, t.PrivateKey)
	case t.ServerCertificate != "" || t.PrivateKey != "":
		c.Warn(at, "tlsCertificates come before half a pair of serverCertificate and privateKey", "remove the half")
	}
	c.fewCertificates(at+".tlsCertificates", len(t.TlsCertificates))
	for pp, pair := range manifest.Items(at+".tlsCertificates", t.TlsCertificates) {
		c.certificateFiles(pp, pair.GetServerCertificate(), pair.GetPrivateKey())
		if pair.GetCaCertificates() != "" {
			c.Warn(pp+".caCertificates", "clients are verified with tls.caCertificates, whichever certificate they are shown",
				"set it there")
		}
	}
	c.filePath(at+".caCertificates", t.CaCertificates)
	c.filePath(at+".caCrl", t.CaCrl)
	if !verifiesClients(t) {
		return
	}
	if t.CaCertificates == "" {
		c.Fail(at+".caCertificates", nil, "missing in mode "+t.Mode.String()+", clients could not be verified",
			"set caCertificates, or credentialName for a Secret that has them")
	} else if t.CaCertCredentialName != "" {
		c.Warn(at+".caCertCredentialName", "certificates in files go with authorities in files", "remove it, or use credentialName")
	}
}

// ciphers warns of cipher suites that Envoy does not know, and refuses expressions that Envoy would refuse.
func (c Checker) ciphers(at string, list []string) {
	for i, s := range list {
		switch plain := s == "" || s[0] >= '0' && s[0] <= '9' || s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z'; {
		case s == "":
		case slices.Index(list, s) < i:
			c.Warn(manifest.Index(at, i), "listed twice", "keep one of them")
		case cipher.IsExpression(s):
		case plain:
			c.Warn(manifest.Index(at, i), "no cipher suite that proxies know", decode.Suggest(s, cipher.Suites))
		default:
			c.Fail(manifest.Index(at, i), s, "no expression of cipher suites that proxies know",
				`write a suite such as "AES128-SHA", "-AES128-SHA" to take it out, or "[AES128-SHA|AES256-SHA]" for suites of one rank`)
		}
	}
	if known := cipher.Known(list); len(known) > 0 && !cipher.LeavesAny(known) {
		c.Fail(at, strings.Join(known, ","), "leaves no cipher suite", `begin with suites, or with "ALL"`)
	}
}

// fewCertificates warns of more certificates than kinds of keys.
func (c Checker) fewCertificates(at string, n int) {
	if n > 2 {
		c.Remark(at, "more than two certificates: of several with the same kind of key a client is shown the first that fits",
			"give at most one RSA and one ECDSA certificate")
	}
}

// certificateFiles checks a certificate and its key in files.
func (c Checker) certificateFiles(at, certificate, key string) {
	c.FailIf(certificate == "" || key == "", at, nil, "serverCertificate and privateKey belong together", "set both")
	c.filePath(at+".serverCertificate", certificate)
	c.filePath(at+".privateKey", key)
}

// filePath checks the path of a file that Envoy requests from the agent by SDS. The resource name joins two paths with
// "~".
func (c Checker) filePath(at, path string) {
	c.FailIf(c.Printable(at, path) && strings.Contains(path, "~"), at, path, "a path with ~ cannot be asked for", "give the file another name")
}

// credentialName warns of schemes that no secret is served for.
func (c Checker) credentialName(at, name string) {
	scheme, _, found := strings.Cut(name, "://")
	if !found || scheme == "kubernetes" {
		return
	}
	if scheme != "kubernetes-gateway" {
		c.Remark(at, "no secrets are served for "+scheme+"://: handshakes fail",
			"name a Secret: its bare name, or kubernetes-gateway://<namespace>/<name>")
		return
	}
	if namespace, secret, _ := strings.Cut(strings.TrimPrefix(name, "kubernetes-gateway://"), "/"); namespace == "" || secret == "" {
		c.Remark(at, "kubernetes-gateway:// wants a namespace and a name: handshakes fail", "write kubernetes-gateway://<namespace>/<name>")
	}
}
