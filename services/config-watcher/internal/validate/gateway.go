package validate

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkGateway follows https://istio.io/latest/docs/reference/config/networking/gateway/.
func checkGateway(c *checker, _ *object.Object, g *networking.Gateway) {
	if len(g.Servers) == 0 {
		c.fail("spec.servers", nil, "missing", "add a server with port and hosts")
	}
	c.workloadLabels("spec.selector", g.Selector)
	names := map[string]int{}
	ports := map[string]int{}
	for i, s := range g.Servers {
		at := index("spec.servers", i)
		c.server(at, s)
		if s.Name != "" {
			if first, dup := names[s.Name]; dup {
				c.fail(at+".name", s.Name, fmt.Sprintf("same name as servers[%d]", first), "rename one of them")
			}
			names[s.Name] = i
		}
		if s.Port.GetName() != "" {
			if first, dup := ports[s.Port.Name]; dup {
				c.fail(at+".port.name", s.Port.Name, fmt.Sprintf("same port name as servers[%d]", first), "port names are unique within a gateway: rename one of them")
			}
			ports[s.Port.Name] = i
		}
	}
}

func (c *checker) server(at string, s *networking.Server) {
	if s.Bind != "" && !strings.HasPrefix(s.Bind, "unix://") && !isIP(s.Bind) {
		c.fail(at+".bind", s.Bind, "not an IP address", `use an address such as "0.0.0.0"`)
	}
	if strings.HasPrefix(s.Bind, "unix://") {
		c.unixSocket(at+".bind", s.Bind)
	}
	if len(s.Hosts) == 0 {
		c.fail(at+".hosts", nil, "missing", `list the hosts served, "*" for all`)
	}
	for i, h := range s.Hosts {
		c.namespacedHost(index(at+".hosts", i), h, true)
	}
	if s.DefaultEndpoint != "" {
		c.fail(at+".defaultEndpoint", s.DefaultEndpoint, "has no meaning on a gateway", "route with a VirtualService")
	}
	if s.Port == nil {
		c.fail(at+".port", nil, "missing", "set number, name and protocol")
		return
	}
	c.port(at+".port.number", s.Port.Number)
	c.portName(at+".port.name", s.Port.Name)
	c.protocol(at+".port.protocol", s.Port.Protocol, "AUTO")
	protocol := strings.ToUpper(s.Port.Protocol)
	switch {
	case protocol == "UDP":
		c.fail(at+".port.protocol", s.Port.Protocol, "UDP is not proxied", "remove the server")
	case s.Tls == nil && (protocol == "HTTPS" || protocol == "TLS"):
		c.fail(at+".tls", nil, "missing for protocol "+protocol, "set tls.mode, such as SIMPLE with credentialName")
	case s.Tls != nil && (protocol == "HTTP" || protocol == "HTTP2" || protocol == "GRPC" || protocol == "GRPC-WEB"):
		if !s.Tls.HttpsRedirect || s.Tls.Mode != networking.ServerTLSSettings_PASSTHROUGH {
			c.fail(at+".tls", nil, "protocol "+protocol+" is plaintext", "use protocol HTTPS; a plaintext port can only have tls.httpsRedirect")
		}
	}
	c.serverTLS(at+".tls", s.Tls)
}

// namespacedHost checks "host", or "namespace/host" with "." and "*" as namespaces.
func (c *checker) namespacedHost(at, s string, optional bool) {
	ns, host, ok := strings.Cut(s, "/")
	if !ok {
		if !optional {
			c.fail(at, s, "no namespace", `write it as "<namespace>/<host>", with "." for this namespace, "*" for any or "~" for none`)
			return
		}
		c.host(at, s)
		return
	}
	if ns != "." && ns != "*" && ns != "~" && !dnsLabel(ns) {
		c.fail(at, s, "not a namespace before the slash", `use a namespace, "." for this one or "*" for any`)
	}
	c.host(at, host)
}

// cipherSuites that Envoy's TLS library knows, in OpenSSL's names.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
	"ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES128-SHA",
	"AES256-GCM-SHA384", "AES256-SHA", "DES-CBC3-SHA",
}

func (c *checker) serverTLS(at string, t *networking.ServerTLSSettings) {
	if t == nil {
		return
	}
	c.serverCertificates(at, t)
	for i, s := range t.CipherSuites {
		if !contains(cipherSuites, s) {
			c.fail(index(at+".cipherSuites", i), s, "unknown cipher suite", suggestion(s, cipherSuites))
		}
	}
	if lo, hi := t.MinProtocolVersion, t.MaxProtocolVersion; lo != 0 && hi != 0 && lo > hi {
		c.fail(at+".minProtocolVersion", lo, "newer than maxProtocolVersion "+hi.String(), "swap them")
	}
	for i, h := range t.VerifyCertificateHash {
		if n := len(strings.ReplaceAll(h, ":", "")); n != 64 {
			c.fail(index(at+".verifyCertificateHash", i), h, "not a SHA-256 in hexadecimal", "write 64 hexadecimal digits")
		}
	}
	for i, h := range t.VerifyCertificateSpki {
		if len(h) != 44 {
			c.fail(index(at+".verifyCertificateSpki", i), h, "not a SHA-256 in base64", "write 44 base64 characters")
		}
	}
}

// serverCertificates checks that each mode has what it needs, from exactly one place.
func (c *checker) serverCertificates(at string, t *networking.ServerTLSSettings) {
	files := t.ServerCertificate != "" || t.PrivateKey != ""
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
	if files && (t.ServerCertificate == "" || t.PrivateKey == "") {
		c.fail(at, nil, "serverCertificate and privateKey belong together", "set both")
	}
	switch t.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if ways == 0 {
			c.fail(at, nil, "no certificate for mode "+t.Mode.String(), "set credentialName, or serverCertificate and privateKey")
		}
		if t.Mode != networking.ServerTLSSettings_SIMPLE && files && t.CaCertificates == "" {
			c.fail(at+".caCertificates", nil, "missing in mode "+t.Mode.String()+", clients could not be verified", "set caCertificates")
		}
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if ways > 0 || t.CaCertificates != "" {
			c.fail(at+".mode", "ISTIO_MUTUAL", "uses the workload's own certificate, none can be given", "remove the certificates, or use MUTUAL")
		}
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		if ways > 0 {
			c.fail(at+".mode", t.Mode.String(), "terminates no TLS, but a certificate is given", "use SIMPLE, or remove the certificate")
		}
	}
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
