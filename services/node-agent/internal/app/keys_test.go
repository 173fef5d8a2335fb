package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/config"
)

// Envoy serves with every type of key, and OUTPUT_CERTS has it in the encoding that was asked for.
func TestEveryTypeOfKeyServes(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	for name, tc := range map[string]struct {
		env   []string
		block string
		is    func(public any) bool
	}{
		"RSA": {[]string{"WORKLOAD_RSA_KEY_SIZE=2048", "PKCS8_KEY=false"}, "RSA PRIVATE KEY", func(k any) bool {
			public, ok := k.(*rsa.PublicKey)
			return ok && public.N.BitLen() == 2048
		}},
		"P-384": {[]string{"ECC_SIGNATURE_ALGORITHM=ECDSA", "ECC_CURVE=P384", "PKCS8_KEY=false"}, "EC PRIVATE KEY", func(k any) bool {
			public, ok := k.(*ecdsa.PublicKey)
			return ok && public.Curve == elliptic.P384()
		}},
		"default": {nil, "PRIVATE KEY", func(k any) bool {
			public, ok := k.(*ecdsa.PublicKey)
			return ok && public.Curve == elliptic.P256()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "certs")
			p := m.start(ca, xds, append(tc.env, "OUTPUT_CERTS="+out)...)
			m.inbound(name, p.ip, application(t, http.HandlerFunc(hello)), true)
			p.wantReady()
			c := caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}
			testkit.Eventually(t, testkit.Patience, func() error { _, err := c.call(); return err })
			cert, err := c.call()
			if err != nil || !tc.is(cert.PublicKey) {
				t.Errorf("key %T, %v", cert.PublicKey, err)
			}
			p.wantLog("the workload's certificate files are written", 1)
			raw, err := os.ReadFile(filepath.Join(out, "key.pem"))
			if err != nil || !strings.HasPrefix(string(raw), "-----BEGIN "+tc.block+"-----") {
				t.Errorf("key.pem begins %.40q, %v", raw, err)
			}
			p.stop()
			if err := p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A machine whose token has expired gets its certificate by the provisioned one.
func TestProvisionedCertificateTakesTheTokensPlace(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	dir := t.TempDir()
	provisioned := material(t, m.PKI.NewSVID("shop", "web"))
	writeSet(t, inDir(dir, "cert-chain.pem", "key.pem", "root-cert.pem"), provisioned)
	m.configure = func(c *config.Config) {
		c.TokenFile, c.RootCertFile = filepath.Join(dir, "no-token"), filepath.Join(dir, "no-roots")
	}
	p := m.start(ca, xds, "PROV_CERT="+dir)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	c := caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}
	testkit.Eventually(t, testkit.Patience, func() error { _, err := c.call(); return err })
	if cert, err := c.call(); err != nil || cert.Equal(provisioned.Certificate.Leaf) {
		t.Errorf("the proxy serves with the provisioned certificate itself, or not at all: %v", err)
	}
}
