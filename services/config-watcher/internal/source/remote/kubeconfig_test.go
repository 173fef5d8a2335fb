package remote

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"fairlead.dev/pkg/fetch"
)

// kubeconfigOf is what `istioctl create-remote-secret` writes, with other fields of the cluster and of the user.
func kubeconfigOf(cluster, user string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: east, preferences: {},
 clusters: [{name: east, cluster: {%s}}],
 contexts: [{name: east, context: {cluster: east, user: reader}}],
 users: [{name: reader, user: {%s}}]}`, cluster, user)
}

const server = `server: "https://203.0.113.7:6443"`

// parsed returns the problems of a kubeconfig, one a line; "" if it is accepted.
func parsed(t *testing.T, text string, allow ...string) string {
	t.Helper()
	p := problems{secret: "Secret istio-system/s", at: "data[east]"}
	a := fetch.Addresses{}
	for _, prefix := range allow {
		a.Allow = append(a.Allow, netip.MustParsePrefix(prefix))
	}
	if cfg := p.parse([]byte(text), a); (cfg == nil) != (len(p.found) > 0) {
		t.Errorf("a connection %v with problems %v", cfg, p.found)
	}
	return p.found.Error()
}

func TestAKubeconfigMayOnlyHaveInlineCredentialsForAnAuthenticatedServer(t *testing.T) {
	secret := "very-secret-token"
	for name, c := range map[string]struct {
		cluster, user string
		want          []string // field and remedy
	}{
		"exec": {server, `exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}`,
			[]string{"users[reader].user.exec", "names a program", "create-remote-secret"}},
		"auth provider": {server, `auth-provider: {name: gcp, config: {cmd-path: /bin/sh}}`, []string{"users[reader].user.auth-provider"}},
		"token file": {server, `tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token`,
			[]string{"users[reader].user.tokenFile", "names a file"}},
		"certificate file": {server, `client-certificate: ../../tls.crt, token: ` + secret, []string{"users[reader].user.client-certificate"}},
		"key file":         {server, `client-key: /etc/key, token: ` + secret, []string{"users[reader].user.client-key"}},
		"password":         {server, `username: admin, password: ` + secret, []string{"users[reader].user.username", "no passwords"}},
		"nothing":          {server, ``, []string{"users[reader].user: has no credential"}},
		"half a certificate": {server, `client-certificate-data: ` + base64.StdEncoding.EncodeToString([]byte(secret)),
			[]string{"client-certificate-data"}},
		"a header in a token": {server, `token: "a\r\nX-Remote-User: admin"`, []string{"users[reader].user.token", "line breaks"}},
		"insecure": {server + `, insecure-skip-tls-verify: true`, `token: ` + secret,
			[]string{"clusters[east].cluster.insecure-skip-tls-verify", "certificate-authority-data"}},
		"CA file": {server + `, certificate-authority: /etc/ssl/ca.crt`, `token: ` + secret,
			[]string{"clusters[east].cluster.certificate-authority", "names a file"}},
		"CA without PEM": {server + `, certificate-authority-data: AAAA`, `token: ` + secret,
			[]string{"clusters[east].cluster.certificate-authority-data"}},
		"proxy": {server + `, proxy-url: "http://169.254.169.254"`, `token: ` + secret,
			[]string{"clusters[east].cluster.proxy-url"}},
		"plaintext":           {`server: "http://203.0.113.7"`, `token: ` + secret, []string{"clusters[east].cluster.server", "is not https"}},
		"user in the address": {`server: "https://a:b@203.0.113.7"`, `token: ` + secret, []string{"clusters[east].cluster.server", "has a user"}},
		"no address":          {`server: "https://"`, `token: ` + secret, []string{"clusters[east].cluster.server", "no URL"}},
		"loopback": {`server: "https://127.0.0.1:6443"`, `token: ` + secret,
			[]string{"clusters[east].cluster.server", "127.0.0.1", "loopback", "--remote-cluster-allow-addresses"}},
		"loopback by name":  {`server: "https://localhost:6443"`, `token: ` + secret, []string{"clusters[east].cluster.server", "loopback"}},
		"loopback, IPv6":    {`server: "https://[::1]:6443"`, `token: ` + secret, []string{"loopback"}},
		"loopback, mapped":  {`server: "https://[::ffff:127.0.0.1]:6443"`, `token: ` + secret, []string{"loopback"}},
		"unspecified":       {`server: "https://0.0.0.0:6443"`, `token: ` + secret, []string{"unspecified"}},
		"metadata":          {`server: "https://169.254.169.254"`, `token: ` + secret, []string{"metadata"}},
		"metadata, IPv6":    {`server: "https://[fd00:ec2::254]"`, `token: ` + secret, []string{"metadata"}},
		"metadata by NAT64": {`server: "https://[64:ff9b::a9fe:a9fe]"`, `token: ` + secret, []string{"169.254.169.254"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parsed(t, kubeconfigOf(c.cluster, c.user))
			for _, part := range append(c.want, "Secret istio-system/s", "data[east]: ") {
				if !strings.Contains(got, part) {
					t.Errorf("%q lacks %q", got, part)
				}
			}
			if strings.Contains(got, secret) {
				t.Errorf("%q tells the credential", got)
			}
		})
	}
}

func TestWhatIsNoKubeconfigIsRefusedWithoutItsContent(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no YAML": "{token: very-secret", "text": "very-secret",
		"no context": "{apiVersion: v1, kind: Config, current-context: none}", "too large": strings.Repeat("#", maxKubeconfig+1),
		"dangling": `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: x, user: y}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got := parsed(t, text); got == "" || strings.Contains(got, "very-secret") || !strings.Contains(got, "; ") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestAKubeconfigWithATokenIsAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		server string
		allow  []string
	}{
		"address": {server: "https://203.0.113.7:6443"}, "name and path": {server: "https://rancher.example.com/k8s/clusters/c-1"},
		"private address": {server: "https://10.0.0.1"}, "allowed loopback": {"https://127.0.0.1:6443", []string{"127.0.0.0/8"}},
		"allowed localhost": {"https://localhost:6443", []string{"127.0.0.0/8"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parsed(t, kubeconfigOf(`server: "`+c.server+`"`, "token: abc.def"), c.allow...); got != "" {
				t.Error(got)
			}
		})
	}
}

// What the current context does not name plays no part: no credential goes to a server of another context.
func TestContextsOfAKubeconfigAreNotMixed(t *testing.T) {
	const file = `{apiVersion: v1, kind: Config, current-context: %s,
 clusters: [{name: east, cluster: {server: "https://203.0.113.7"}}, {name: west, cluster: {server: "https://203.0.113.8"}}],
 contexts: [{name: east, context: {cluster: east, user: east}}, {name: west, context: {cluster: west, user: west}}],
 users: [{name: east, user: {token: of-east}}, {name: west, user: {token: of-west}}]}`
	for context, want := range map[string]string{"east": "https://203.0.113.7 of-east", "west": "https://203.0.113.8 of-west"} {
		p := problems{secret: "Secret istio-system/s", at: "data[east]"}
		cfg := p.parse(fmt.Appendf(nil, file, context), fetch.Addresses{})
		if cfg == nil || cfg.Host+" "+cfg.BearerToken != want {
			t.Errorf("context %s: %v, %v; want %s", context, cfg, p.found, want)
		}
	}
	if got := parsed(t, fmt.Sprintf(file, "north")); !strings.Contains(got, "there is no context") {
		t.Errorf("an unknown context: %q", got)
	}
}

// A name may turn into any address after it was checked.
func TestTheAddressOfEachConnectionIsChecked(t *testing.T) {
	inside := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(inside.Close)
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := fetch.Addresses{}.Dialer().DialContext(t.Context(), "tcp", "localhost:"+port)
	if err == nil {
		_ = conn.Close()
		t.Fatal("a name that stands for a loopback address was connected to")
	}
	if !strings.Contains(err.Error(), "loopback") {
		t.Errorf("error %v does not say why", err)
	}
	allowed := fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	if conn, err = allowed.Dialer().DialContext(t.Context(), "tcp4", "localhost:"+port); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
