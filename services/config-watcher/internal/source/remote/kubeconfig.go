package remote

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxKubeconfig bounds a kubeconfig: `istioctl create-remote-secret` writes about 5 KiB.
const maxKubeconfig = 128 << 10

// problems collects what is wrong with one kubeconfig. at is its place in the Secret.
type problems struct {
	secret, at string
	found      object.Problems
}

func (p *problems) add(field, reason, remedy string) {
	if field != "" {
		field = ": " + field
	}
	p.found = append(p.found, object.Problem{Object: p.secret, Field: p.at + field, Reason: reason, Remedy: remedy})
}

// inline is the remedy for what makes config-watcher read its own files or run programs.
const inline = "write the credential itself into the kubeconfig, as istioctl create-remote-secret does"

// parse reads the current context of a kubeconfig. It takes nothing but what stands in it: no file is read, no program
// runs, and the API server is authenticated. Nothing of the content is in the problems but names, paths and addresses.
func (p *problems) parse(raw []byte, a fetch.Addresses) *rest.Config {
	if len(raw) > maxKubeconfig {
		p.add("", fmt.Sprintf("kubeconfig of %d bytes, at most %d are read", len(raw), maxKubeconfig),
			"leave in it what reaches this cluster alone")
		return nil
	}
	file, err := clientcmd.Load(raw)
	if err != nil {
		p.add("", "is no kubeconfig", "make it with istioctl create-remote-secret") // the error may quote the content
		return nil
	}
	at := file.Contexts[file.CurrentContext]
	if at == nil {
		p.add("current-context", fmt.Sprintf("there is no context %s", object.Quote(file.CurrentContext)), "name one of the contexts of the file")
		return nil
	}
	cluster, user := file.Clusters[at.Cluster], file.AuthInfos[at.AuthInfo]
	if cluster == nil {
		p.add("contexts["+file.CurrentContext+"].context.cluster", fmt.Sprintf("there is no cluster %s", object.Quote(at.Cluster)),
			"name one of the clusters of the file")
	}
	if user == nil {
		p.add("contexts["+file.CurrentContext+"].context.user", fmt.Sprintf("there is no user %s", object.Quote(at.AuthInfo)),
			"name one of the users of the file")
	}
	if cluster == nil || user == nil {
		return nil
	}
	p.checkCluster("clusters["+at.Cluster+"].cluster", cluster, a)
	p.checkUser("users["+at.AuthInfo+"].user", user)
	if len(p.found) > 0 {
		return nil
	}
	cfg, err := connection(cluster, user, a)
	if err != nil {
		p.add("", "is no connection: "+err.Error(), "make it with istioctl create-remote-secret")
		return nil
	}
	return cfg
}

func (p *problems) checkCluster(at string, c *api.Cluster, a fetch.Addresses) {
	p.checkServer(at+".server", c.Server, a)
	if c.InsecureSkipTLSVerify {
		p.add(at+".insecure-skip-tls-verify", "the API server would not be authenticated",
			"remove it, and give the API server's CA in certificate-authority-data")
	}
	if c.CertificateAuthority != "" {
		p.add(at+".certificate-authority", "names a file, and config-watcher reads none for a kubeconfig",
			"write the certificate, in base64, into certificate-authority-data")
	}
	if c.ProxyURL != "" {
		p.add(at+".proxy-url", "a proxy hides which address is connected to",
			"remove it, and name an address that config-watcher reaches by itself")
	}
	if len(c.CertificateAuthorityData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(c.CertificateAuthorityData) {
		p.add(at+".certificate-authority-data", "has no certificate in PEM", "write the API server's CA, PEM in base64")
	}
}

func (p *problems) checkServer(at, server string, a fetch.Addresses) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Hostname() == "" {
		p.add(at, "is no URL of an API server", "write https:// and the address")
		return
	}
	switch {
	case u.Scheme != "https":
		p.add(at, "is not https: the credential would cross the network in the clear", "write https:// and the address")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		p.add(at, "has a user, a query or a fragment", "leave only https://, the address and a path in it")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	ip, err := netip.ParseAddr(host)
	if err != nil && (host == "localhost" || strings.HasSuffix(host, ".localhost")) {
		ip, err = netip.IPv6Loopback(), nil
		if a.Check(netip.AddrFrom4([4]byte{127, 0, 0, 1})) == nil {
			return
		}
	}
	if err != nil {
		return // a name: what it stands for is checked at each connection
	}
	if err := a.Check(ip); err != nil {
		p.add(at, err.Error(), "name the address that the API server has for other clusters, or allow it with --remote-cluster-allow-addresses")
	}
}

func (p *problems) checkUser(at string, u *api.AuthInfo) {
	for _, f := range []struct {
		name  string
		given bool
		what  string
	}{
		{"exec", u.Exec != nil, "names a program, and config-watcher runs none for a kubeconfig"},
		{"auth-provider", u.AuthProvider != nil, "names an auth provider, and config-watcher has none"},
		{"tokenFile", u.TokenFile != "", "names a file, and config-watcher reads none for a kubeconfig"},
		{"client-certificate", u.ClientCertificate != "", "names a file, and config-watcher reads none for a kubeconfig"},
		{"client-key", u.ClientKey != "", "names a file, and config-watcher reads none for a kubeconfig"},
		{"username", u.Username != "" || u.Password != "", "API servers take no passwords"},
	} {
		if f.given {
			p.add(at+"."+f.name, f.what, inline)
		}
	}
	switch certificate := len(u.ClientCertificateData) > 0 || len(u.ClientKeyData) > 0; {
	case certificate:
		if _, err := tls.X509KeyPair(u.ClientCertificateData, u.ClientKeyData); err != nil {
			p.add(at+".client-certificate-data", "is not a certificate with the key in client-key-data", "write both, PEM in base64")
		}
	case u.Token == "" && len(p.found) == 0:
		p.add(at, "has no credential", inline)
	}
	if strings.ContainsFunc(u.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		p.add(at+".token", "has characters that no token has", "write the token alone, without quotes and line breaks")
	}
}

// connection makes the settings of clients. They use no proxy, and check the address of each connection.
func connection(c *api.Cluster, u *api.AuthInfo, a fetch.Addresses) (*rest.Config, error) {
	cfg := &rest.Config{
		Host: c.Server, BearerToken: u.Token,
		TLSClientConfig: rest.TLSClientConfig{ServerName: c.TLSServerName, CAData: c.CertificateAuthorityData, CertData: u.ClientCertificateData,
			KeyData: u.ClientKeyData},
		Impersonate: rest.ImpersonationConfig{UserName: u.Impersonate, UID: u.ImpersonateUID, Groups: u.ImpersonateGroups,
			Extra: u.ImpersonateUserExtra},
	}
	settings, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	// A transport of its own can be closed with the connection; client-go keeps the others for ever.
	transport := utilnet.SetTransportDefaults(&http.Transport{
		DialContext: a.Dialer().DialContext, TLSClientConfig: settings, TLSHandshakeTimeout: fetch.DialTimeout, MaxIdleConnsPerHost: 8,
		IdleConnTimeout: 90 * time.Second,
	})
	transport.Proxy = nil
	cfg.Transport, cfg.TLSClientConfig = transport, rest.TLSClientConfig{}
	return cfg, nil
}
