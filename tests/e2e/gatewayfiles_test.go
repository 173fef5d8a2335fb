package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestGatewayFiles: certificates of a gateway that are files of its own are used as they come, go and are replaced, and
// a file that is missing keeps no other server from working.
func TestGatewayFiles(t *testing.T) {
	web, dir := testkit.PKI(t), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name+".pem") }
	// write writes a host's files, the key first: half a pair is not used.
	write := func(name, host string) (serial string) {
		t.Helper()
		chain, key := web.NewServer(host)
		testkit.WriteFile(t, path(name+"-key"), key)
		testkit.WriteFile(t, path(name), chain)
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.String()
	}
	shop := write("shop", "shop.example.com")
	write("members", "members.example.com")
	testkit.WriteFile(t, path("authority"), web.RootPEM)

	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml", "testdata/gateway-files.yaml"}})
	server := func(name, mode string) string {
		if mode == "MUTUAL" {
			mode += ", caCertificates: " + path("authority")
		}
		return fmt.Sprintf(`
    - port: {number: 443, name: %[1]s, protocol: HTTPS}
      hosts: [%[1]s.example.com]
      tls: {mode: %[2]s, serverCertificate: %[3]s, privateKey: %[4]s}`, name, mode, path(name), path(name+"-key"))
	}
	m.WriteConfig(t, "gateway.yaml", `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: secure, namespace: apps}
spec:
  selector: {istio: ingress}
  servers:`+server("shop", "SIMPLE")+server("members", "MUTUAL")+server("late", "SIMPLE")+"\n")
	m.WaitReady(t)
	ingress := m.Pod(t, "ingress-0")
	anyone := browser{roots: x509.NewCertPool()}
	anyone.roots.AddCert(web.Cert)
	untilShown := func(host, serial string) {
		t.Helper()
		m.Eventually(t, takesEffect, func() error {
			got, err := anyone.shown(t, ingress, host)
			if err == nil && got != serial {
				err = fmt.Errorf("certificate %s for %s, want %s", got, host, serial)
			}
			return err
		})
	}
	untilShown("shop.example.com", shop)
	if serial, err := anyone.shown(t, ingress, "late.example.com"); err == nil {
		t.Errorf("shows certificate %s, and there is none", serial)
	}

	pair, err := tls.X509KeyPair(web.NewServer("member.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	var conn *tls.Conn
	m.Eventually(t, takesEffect, func() error { // its certificate comes by itself
		conn, err = browser{roots: anyone.roots, certificate: &pair}.dial(t, ingress, "members.example.com")
		return err
	})
	defer conn.Close()
	m.Eventually(t, takesEffect, func() error {
		status, err := get(conn, "members.example.com")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	if c, err := anyone.dial(t, ingress, "members.example.com"); err == nil {
		if status, err := get(c, "members.example.com"); err == nil {
			t.Errorf("nobody is answered %d", status)
		}
		_ = c.Close() // refused
	}

	before := listenerUpdates(t, ingress)
	untilShown("late.example.com", write("late", "late.example.com"))
	untilShown("shop.example.com", write("shop", "shop.example.com"))
	if n := listenerUpdates(t, ingress); n != before {
		t.Errorf("%d listeners were replaced", n-before)
	}
	if status, err := get(conn, "members.example.com"); err != nil || status != http.StatusOK {
		t.Errorf("a connection that was there is answered %d, %v", status, err)
	}
}
