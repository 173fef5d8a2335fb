package webhook

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

func TestAddressesOfAPIServers(t *testing.T) {
	a := &APIServers{Addresses: []string{"10.1.0.0/16", "192.0.2.7"}}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	a.Set([]string{"198.51.100.1", "2001:db8::1", "no address"})
	for remote, want := range map[string]bool{
		"10.1.2.3:1": true, "10.2.0.1:1": false, "192.0.2.7:1": true, "198.51.100.1:1": true, "[2001:db8::1]:1": true,
		"[::ffff:198.51.100.1]:1": true, "198.51.100.2:1": false, "": false,
	} {
		if got := a.are(&http.Request{RemoteAddr: remote}); got != want {
			t.Errorf("%q: %v", remote, got)
		}
	}
	a.Set(nil)
	if a.are(&http.Request{RemoteAddr: "198.51.100.1:1"}) {
		t.Error("an address that is gone counts")
	}
	for _, bad := range []*APIServers{{Addresses: []string{"api"}}, {CAFile: filepath.Join(t.TempDir(), "none")}} {
		if bad.Check() == nil {
			t.Errorf("%v is taken", bad.Addresses)
		}
	}
}

func TestAPIServersShowTheirCertificate(t *testing.T) {
	ours, theirs, strangers := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, theirs.RootPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &APIServers{CAFile: file, Require: true}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.are(r) {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	server.TLS = a.TLS(tlsconf.Server(ours.NewSVID("istio-system", "injector"), tls.NoClientCert))
	server.StartTLS()
	defer server.Close()
	for name, c := range map[string]struct {
		by   *testkit.CA
		want int
	}{"its own": {theirs, http.StatusOK}, "of another authority": {strangers, http.StatusForbidden},
		"of the mesh": {ours, http.StatusForbidden}, "none": {nil, http.StatusForbidden}} {
		cfg := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the client is what is tested
		if c.by != nil {
			m, err := c.by.NewSVID("kube-system", "apiserver").Current()
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{*m.Certificate}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}, Timeout: 10 * time.Second}
		answer, err := client.Get(server.URL)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("a certificate: %s: %d", name, answer.StatusCode)
		}
	}
}
