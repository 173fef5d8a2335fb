package meshconfig

import (
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// Schemes of the addresses of config sources, as in Istio.
const (
	SchemeXDS        = "xds"
	SchemeFiles      = "fs"
	SchemeKubernetes = "k8s"
)

// SchemeOf is the scheme of a config source's address.
func SchemeOf(c *mesh.ConfigSource) string {
	scheme, _, _ := strings.Cut(c.GetAddress(), "://")
	return scheme
}

// configSources checks where Istio's objects come from.
func (c checker) configSources(at string, list []*mesh.ConfigSource) {
	seen := map[string]bool{}
	for at, s := range manifest.Items(at, list) {
		u, err := url.Parse(s.Address)
		if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			c.Fail(at+".address", s.Address, "not the address of a source", `write it like "xds://istiod.istio-system.svc:15012"`)
			continue
		}
		c.FailIf(seen[s.Address], at+".address", s.Address, "is in the list twice", "remove one")
		seen[s.Address] = true
		for i, r := range s.SubscribedResources {
			c.FailIf(u.Scheme != SchemeXDS || r != mesh.Resource_SERVICE_REGISTRY, manifest.Index(at+".subscribedResources", i), r.String(),
				"is not read from such a source", "remove it; servers of xds:// have SERVICE_REGISTRY")
		}
		switch u.Scheme {
		case SchemeXDS:
			host, port, err := net.SplitHostPort(u.Host)
			n, errPort := strconv.ParseUint(port, 10, 16)
			c.FailIf(err != nil || errPort != nil || host == "" || n == 0 || strings.Trim(u.Path, "/") != "", at+".address", s.Address,
				"not a host and a port", `write it like "xds://istiod.istio-system.svc:15012"`)
			c.sourceTLS(at+".tlsSettings", s.TlsSettings)
		case SchemeFiles:
			c.FailIf(u.Host != "" || !filepath.IsAbs(u.Path), at+".address", s.Address, "not the path of a directory",
				`write it in full, with three slashes: "fs:///etc/istio/config"`)
		case SchemeKubernetes:
			c.FailIf(u.Host != "" || strings.Trim(u.Path, "/") != "", at+".address", s.Address, "names another cluster than the own one",
				`write "k8s://"; further clusters are Secrets with the label istio/multiCluster=true`)
		default:
			c.Fail(at+".address", s.Address, "unknown scheme, which Istio leaves out", "use xds://, fs:// or k8s://")
		}
	}
}

// Modes of tlsSettings that have a use for a field.
const (
	simple = 1 << iota
	mutual
	ofMesh
)

// sourceTLS checks how a server is connected to. Whatever cannot be honoured is refused, since nobody would notice what
// it fails to protect. caCertificates and caCrl may be PEM, as istiod reads them, or paths of files.
func (c checker) sourceTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	mode := map[networking.ClientTLSSettings_TLSmode]int{
		networking.ClientTLSSettings_SIMPLE: simple, networking.ClientTLSSettings_MUTUAL: mutual,
		networking.ClientTLSSettings_ISTIO_MUTUAL: ofMesh,
	}[t.Mode]
	skips := t.InsecureSkipVerify.GetValue()
	for _, f := range []struct {
		name string
		set  bool
		of   int
	}{
		{"clientCertificate", t.ClientCertificate != "", mutual},
		{"privateKey", t.PrivateKey != "", mutual},
		{"caCertificates", t.CaCertificates != "", simple | mutual},
		{"caCrl", t.CaCrl != "", simple | mutual},
		{"credentialName", t.CredentialName != "", simple | mutual},
		{"insecureSkipVerify", skips, simple | mutual},
		{"sni", t.Sni != "", simple | mutual | ofMesh},
		{"subjectAltNames", len(t.SubjectAltNames) > 0, simple | mutual | ofMesh},
	} {
		c.FailIf(f.set && mode&f.of == 0, at+"."+f.name, nil, "has no effect in mode "+t.Mode.String(),
			"remove it, or set the mode that has a use for it")
	}
	if mode&(simple|mutual) == 0 {
		return
	}
	files := t.ClientCertificate != "" || t.PrivateKey != "" || t.CaCertificates != "" || t.CaCrl != ""
	c.FailIf(t.CredentialName != "" && files, at+".credentialName", t.CredentialName,
		"cannot be combined with clientCertificate, privateKey, caCertificates and caCrl", "keep credentialName, or the files")
	c.FailIf(t.CredentialName != "" && !check.DNSSubdomain(t.CredentialName), at+".credentialName", t.CredentialName,
		"not the name of a Secret", "name a Secret of config-watcher's namespace, without namespace and scheme")
	needs := mode == mutual && t.CredentialName == ""
	c.FailIf(needs && t.ClientCertificate == "", at+".clientCertificate", nil, "missing in mode MUTUAL",
		"set clientCertificate and privateKey, or credentialName, or use ISTIO_MUTUAL")
	c.FailIf(needs && t.PrivateKey == "", at+".privateKey", nil, "missing in mode MUTUAL",
		"set clientCertificate and privateKey, or credentialName, or use ISTIO_MUTUAL")
	verifies := t.CaCertificates != "" || len(t.SubjectAltNames) > 0 || t.CaCrl != "" || mode == simple && t.CredentialName != ""
	c.FailIf(skips && verifies, at+".insecureSkipVerify", true,
		"contradicts what the server is verified with: caCertificates, caCrl, credentialName and subjectAltNames", "remove insecureSkipVerify")
	for i, name := range t.SubjectAltNames {
		c.FailIf(name == "", manifest.Index(at+".subjectAltNames", i), name, "no server has an empty name", "remove it")
	}
}
