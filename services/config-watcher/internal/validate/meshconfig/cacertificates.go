package meshconfig

import (
	"fmt"
	"net/url"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// maxBundleURL bounds spiffeBundleUrl, in bytes.
const maxBundleURL = 2048

// caCertificates checks the further roots of the mesh, which xds-server sends agents. An agent refuses all of them if
// it cannot use one.
func (c checker) caCertificates(at string, m *mesh.MeshConfig) {
	list := m.CaCertificates
	if len(list) > contract.MaxMeshRoots {
		c.Fail(at, len(list), fmt.Sprintf("more than %d entries", contract.MaxMeshRoots), "put several certificates into one pem")
		return
	}
	size := 0
	for each, entry := range manifest.Items(at, list) {
		size += len(entry.GetPem())
		switch {
		case entry.GetSpiffeBundleUrl() != "":
			u, err := url.Parse(entry.GetSpiffeBundleUrl())
			c.FailIf(err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || len(entry.GetSpiffeBundleUrl()) > maxBundleURL,
				each+".spiffeBundleUrl", nil, "not the URL of a bundle", "write a URL such as https://bundle.example.com/")
		case entry.GetPem() != "":
			if _, err := tlsconf.ParseAuthorities([]byte(entry.GetPem())); err != nil {
				c.Fail(each+".pem", nil, err.Error(), "write the certificates of authorities in PEM, and no key")
			}
		default:
			c.Fail(each, nil, "has no roots", "set pem or spiffeBundleUrl")
		}
		for j, domain := range entry.TrustDomains {
			if _, err := spiffeid.TrustDomainFromString(domain); err != nil {
				c.Fail(manifest.Index(each+".trustDomains", j), domain, err.Error(), `write a trust domain such as "partner.example.com"`)
			}
		}
	}
	c.FailIf(size > contract.MaxMeshRootsBytes, at, nil, fmt.Sprintf("%d bytes of pem, more than %d", size, contract.MaxMeshRootsBytes),
		"keep the roots that are in use")
	if len(list) == 0 {
		return
	}
	for i, alias := range m.TrustDomainAliases {
		if _, err := spiffeid.TrustDomainFromString(alias); err != nil {
			c.Fail(manifest.Index("trustDomainAliases", i), alias, "cannot be one beside caCertificates: "+err.Error(),
				"write a trust domain in lower case")
		}
	}
}
