package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// tlsSecret is a Secret with a server's certificate, and with what clients are verified with if there is one.
func tlsSecret(name string, chain, key, authority []byte) string {
	text := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	out := fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s, namespace: istio-system}\ndata:\n  "+
		"tls.crt: %s\n  tls.key: %s\n",
		name, text(chain), text(key))
	if authority != nil {
		out += "  ca.crt: " + text(authority) + "\n"
	}
	return out + "---\n"
}

// browser is a client of a gateway.
type browser struct {
	roots *x509.CertPool
	// certificate that it shows; nil for none.
	certificate *tls.Certificate
	// most is the newest version of TLS that it speaks; 0 for all.
	most uint16
}

// dial connects to a gateway as a client of the host does.
func (b browser) dial(t *testing.T, pod *fleet.Pod, host string) (*tls.Conn, error) {
	t.Helper()
	cfg := &tls.Config{RootCAs: b.roots, ServerName: host, NextProtos: []string{"h2", "http/1.1"}, MaxVersion: b.most}
	if b.certificate != nil {
		cfg.Certificates = []tls.Certificate{*b.certificate}
		cfg.NextProtos = []string{"http/1.1"}
	}
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: testkit.Patience}, Config: cfg}
	conn, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(pod.IP, "8443"))
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// get asks for a page over a connection of HTTP/1.1.
func get(conn *tls.Conn, host string) (int, error) {
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// shown is the serial number of the certificate that a gateway shows for a host.
func (b browser) shown(t *testing.T, pod *fleet.Pod, host string) (string, error) {
	t.Helper()
	conn, err := b.dial(t, pod, host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// listenerUpdates counts what a gateway has done to its listeners.
func listenerUpdates(t *testing.T, pod *fleet.Pod) int64 {
	t.Helper()
	stats, err := pod.Stats(t.Context(), "listener_manager.listener_(added|modified|removed|in_place_updated)")
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, v := range stats {
		n += v
	}
	if n == 0 {
		t.Fatalf("%s counts no listeners", pod.ID())
	}
	return n
}

// TestGatewayTLS follows the certificates of a gateway through their lives, from the Secret in a file to the handshake.
func TestGatewayTLS(t *testing.T) {
	web := testkit.PKI(t)
	var keys [][]byte
	issue := func(hosts ...string) (chain, key []byte, serial string) {
		chain, key = web.NewServer(hosts...)
		keys = append(keys, key)
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return chain, key, pair.Leaf.SerialNumber.String()
	}
	shopChain, shopKey, shopSerial := issue("shop.example.com")
	membersChain, membersKey, _ := issue("members.example.com")
	lateChain, lateKey, lateSerial := issue("late.example.com")
	members := tlsSecret("members-tls", membersChain, membersKey, web.RootPEM)

	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml", "testdata/gateway-tls.yaml"}})
	m.WriteConfig(t, "shop-tls.yaml", tlsSecret("shop-tls", shopChain, shopKey, nil))
	m.WriteConfig(t, "members-tls.yaml", members)
	m.WaitReady(t)
	ingress, sotw, edge := m.Pod(t, "ingress-0"), m.Pod(t, "sotw-0"), m.Pod(t, "edge-0")
	anyone := browser{roots: x509.NewCertPool()}
	anyone.roots.AddCert(web.Cert)
	untilShown := func(host, serial string) {
		t.Helper()
		for _, pod := range []*fleet.Pod{ingress, sotw} {
			m.Eventually(t, takesEffect, func() error {
				got, err := anyone.shown(t, pod, host)
				if err == nil && got != serial {
					err = fmt.Errorf("%s shows certificate %s for %s, want %s", pod.ID(), got, host, serial)
				}
				return err
			})
		}
	}

	// The certificate of the host that is asked for; HTTP/2 is offered, and the least version is kept.
	untilShown("shop.example.com", shopSerial)
	conn, err := anyone.dial(t, ingress, "shop.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != "h2" {
		t.Errorf("agreed on %q, want h2", got)
	}
	_ = conn.Close() // nothing was asked
	old := browser{roots: anyone.roots, most: tls.VersionTLS12}
	if _, err := old.dial(t, ingress, "shop.example.com"); err == nil {
		t.Error("TLS 1.2 was taken where 1.3 is the least")
	}

	// Clients of a MUTUAL server need a certificate of the authority beside it, with the right name.
	clientOf := func(host string) browser {
		pair, err := tls.X509KeyPair(web.NewServer(host))
		if err != nil {
			t.Fatal(err)
		}
		return browser{roots: anyone.roots, certificate: &pair}
	}
	member := clientOf("member.example.com")
	m.Eventually(t, takesEffect, func() error {
		c, err := member.dial(t, ingress, "members.example.com")
		if err != nil {
			return err
		}
		defer c.Close()
		if status, err := get(c, "members.example.com"); err != nil || status != http.StatusOK {
			return fmt.Errorf("a member is answered %d: %w", status, errors.Join(err))
		}
		return nil
	})
	for name, b := range map[string]browser{"nobody": anyone, "somebody else": clientOf("guest.example.com")} {
		if c, err := b.dial(t, ingress, "members.example.com"); err == nil {
			if status, err := get(c, "members.example.com"); err == nil {
				t.Errorf("%s is answered %d", name, status)
			}
			_ = c.Close() // refused
		}
	}

	// A Secret that does not exist yet concerns nobody but its own host, and is used without another listener when it
	// is there.
	if serial, err := anyone.shown(t, ingress, "late.example.com"); err == nil {
		t.Errorf("shows certificate %s, and there is none", serial)
	}
	before := listenerUpdates(t, ingress) + listenerUpdates(t, sotw)
	m.WriteConfig(t, "late-tls.yaml", tlsSecret("late-tls", lateChain, lateKey, nil))
	untilShown("late.example.com", lateSerial)

	// A replaced Secret is shown in the next handshake; a connection that was there goes on.
	pair, err := tls.X509KeyPair(shopChain, shopKey)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := browser{roots: anyone.roots, certificate: &pair}.dial(t, ingress, "shop.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	chain, key, serial := issue("shop.example.com")
	m.WriteConfig(t, "shop-tls.yaml", tlsSecret("shop-tls", chain, key, nil))
	untilShown("shop.example.com", serial)
	if status, err := get(kept, "shop.example.com"); err != nil || status != http.StatusOK {
		t.Errorf("a connection from before the change is answered %d: %v", status, err)
	}
	// One that does not fit is refused, and the last good one stays: so says what follows.
	m.WriteConfig(t, "shop-tls.yaml", tlsSecret("shop-tls", chain, shopKey, nil))
	m.Eventually(t, takesEffect, func() error {
		if !strings.Contains(m.Log(t, "config-watcher"), "Secret istio-system/shop-tls") {
			return errors.New("the refused Secret is not in the log")
		}
		return nil
	})
	untilShown("shop.example.com", serial)
	// One that is removed stays in use where it is.
	m.WriteConfig(t, "late-tls.yaml", "# nothing\n")
	m.Eventually(t, takesEffect, func() error {
		if code, said, _ := m.CLI(t, "config", "get", "secret", "late-tls", "-n", "istio-system"); code == 0 {
			return fmt.Errorf("still there: %s", said)
		}
		return nil
	})
	untilShown("late.example.com", lateSerial)
	if after := listenerUpdates(t, ingress) + listenerUpdates(t, sotw); after != before {
		t.Errorf("%d updates of listeners because of Secrets", after-before)
	}

	// The other gateway has the same listeners, and none of the Secrets: they are not of its namespace.
	for _, host := range []string{"shop.example.com", "members.example.com", "late.example.com"} {
		if serial, err := anyone.shown(t, edge, host); err == nil {
			t.Errorf("the gateway of another namespace shows certificate %s for %s", serial, host)
		}
	}
	shown := []string{}
	for _, path := range []string{"/certs", "/config_dump"} {
		page, err := edge.Admin(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, string(page))
		if strings.Contains(string(page), base64.StdEncoding.EncodeToString(chain)[:200]) {
			t.Errorf("%s of the gateway of another namespace has the certificate", path)
		}
	}

	// Keys are in no log and in no answer to operators.
	logs := []string{filepath.Join(filepath.Dir(m.ConfigDir), "up.log")}
	for _, s := range m.State(t).Services {
		logs = append(logs, s.Log)
	}
	for _, pod := range m.State(t).Proxies() {
		logs = append(logs, pod.Agent.Log)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, string(text))
	}
	for _, args := range [][]string{
		{"proxy-config", "ingress-0.istio-system", "secrets"}, {"proxy-config", "ingress-0.istio-system", "secrets", "-o", "json"},
		{"proxy-config", "ingress-0.istio-system", "secrets", "--served", "-o", "json"},
		{"why", "ingress-0.istio-system", "kubernetes://shop-tls"}, {"why", "ingress-0.istio-system", "kubernetes://shop-tls", "-o", "json"},
		{"proxy-status"}, {"config", "get", "secret", "-n", "istio-system", "-o", "yaml"},
	} {
		_, stdout, stderr := m.CLI(t, args...)
		shown = append(shown, stdout, stderr)
	}
	for _, key := range keys {
		line := strings.Split(string(key), "\n")[1]
		at := strings.Index(string(key), line)
		forms := []string{line[8:32]}
		for shift := range 3 {
			forms = append(forms, base64.StdEncoding.EncodeToString(key[at+shift : at+shift+24])[:28])
		}
		for i, text := range shown {
			for _, form := range forms {
				if strings.Contains(text, form) {
					t.Errorf("a key shows in text %d: %.300s", i, text)
				}
			}
		}
	}
}
