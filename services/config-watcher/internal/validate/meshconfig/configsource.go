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

// sourceTLS checks how a server is connected to. caCertificates may be PEM, as istiod reads it, or the path of a file.
func (c checker) sourceTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	mutual := t.Mode == networking.ClientTLSSettings_MUTUAL
	c.FailIf(mutual && t.ClientCertificate == "", at+".clientCertificate", nil, "missing in mode MUTUAL",
		"set clientCertificate and privateKey, or use ISTIO_MUTUAL")
	c.FailIf(mutual && t.PrivateKey == "", at+".privateKey", nil, "missing in mode MUTUAL",
		"set clientCertificate and privateKey, or use ISTIO_MUTUAL")
	c.FailIf(t.InsecureSkipVerify.GetValue() && (t.CaCertificates != "" || len(t.SubjectAltNames) > 0), at+".insecureSkipVerify", true,
		"contradicts what the server is verified with: caCertificates and subjectAltNames", "remove insecureSkipVerify")
}
