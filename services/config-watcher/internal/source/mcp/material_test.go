package mcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/testkit"
)

const (
	simple = networking.ClientTLSSettings_SIMPLE
	mutual = networking.ClientTLSSettings_MUTUAL
)

// revoked is a list of a ca with serial numbers, in PEM.
func revoked(t *testing.T, ca *testkit.CA, serials ...*big.Int) []byte {
	t.Helper()
	tmpl := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, n := range serials {
		tmpl.RevokedCertificateEntries = append(tmpl.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: n, RevocationTime: time.Now().Add(-time.Hour)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, ca.Cert, ca.Key)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// serialOf is the number of the certificate that the server at an address shows.
func serialOf(t *testing.T, address string) *big.Int {
	t.Helper()
	var n *big.Int
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(cs tls.ConnectionState) error {
		n = cs.PeerCertificates[0].SerialNumber
		return nil
	}}}).DialContext(t.Context(), "tcp", address)
	testkit.NoError(t, err)
	testkit.NoError(t, conn.Close())
	return n
}

// tryOpen opens a stream with settings, and returns how it ends; nil if the server is believed, and believes.
func tryOpen(t *testing.T, address string, settings *networking.ClientTLSSettings, trust Trust) error {
	t.Helper()
	conn, err := Dialer(address, settings, trust)(t.Context())
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // a test
	if err := opened(conn); status.Code(err) != codes.Unimplemented {
		return err
	}
	return nil
}

// TestRevokedServers: a list in the settings, in a file or in the Secret takes the belief in a server, and one that can
// have no effect is named.
func TestRevokedServers(t *testing.T) {
	ca, other := testkit.PKI(t), testkit.PKI(t)
	other.Cert.RawSubject, other.Cert.Subject.CommonName = nil, "other"
	address := secured(t, ca, "a", "b", tls.NoClientCert, "localhost")
	serial := serialOf(t, address)
	file := filepath.Join(t.TempDir(), "crl.pem")
	testkit.WriteFile(t, file, revoked(t, ca, serial))
	for name, c := range map[string]struct{ list, refused string }{
		"none is revoked":      {string(revoked(t, ca)), ""},
		"another is":           {string(revoked(t, ca, big.NewInt(99))), ""},
		"it is":                {string(revoked(t, ca, big.NewInt(99), serial)), "tlsSettings.caCrl: the server's certificate"},
		"it is, in the second": {string(revoked(t, ca)) + string(revoked(t, ca, serial)), "is revoked"},
		"it is, in a file":     {file, "is revoked"},
		"another ca's":         {string(revoked(t, other, serial)), "tlsSettings.caCrl: has no list of the authorities"},
		"no such file":         {"/none", "tlsSettings.caCrl: open /none"},
		"no list":              {string(ca.RootPEM), "tlsSettings.caCrl"},
		"cut off":              {"-----BEGIN X509 CRL-----\nAAAA", "tlsSettings.caCrl: has no list"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tryOpen(t, address, &networking.ClientTLSSettings{Mode: simple, CaCertificates: string(ca.RootPEM), CaCrl: c.list}, Trust{})
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}

// TestCertificatesOfASecret: its entries have the names of a gateway's, and what is missing is named with the field.
func TestCertificatesOfASecret(t *testing.T) {
	ca := testkit.PKI(t)
	m, err := ca.NewSVID("apps", "adapter").Current()
	testkit.NoError(t, err)
	anybody := secured(t, ca, "a", "b", tls.NoClientCert, "localhost")
	named := secured(t, ca, "a", "b", tls.RequireAndVerifyClientCert, "localhost")
	root, crl := ca.RootPEM, revoked(t, ca, serialOf(t, anybody))
	for name, c := range map[string]struct {
		address string
		mode    networking.ClientTLSSettings_TLSmode
		data    map[string][]byte // nil for a Secret that is not there
		refused string
	}{
		"simple":                 {anybody, simple, map[string][]byte{"ca.crt": root}, ""},
		"simple, Istio's name":   {anybody, simple, map[string][]byte{"cacert": root}, ""},
		"simple, revoked":        {anybody, simple, map[string][]byte{"ca.crt": root, "ca.crl": crl}, "entry ca.crl: the server's certificate"},
		"simple, no roots":       {anybody, simple, map[string][]byte{"tls.crt": m.CertPEM, "tls.key": m.KeyPEM}, "has no ca.crt"},
		"simple, no PEM":         {anybody, simple, map[string][]byte{"ca.crt": []byte("x")}, `"registry", entry ca.crt`},
		"no Secret":              {anybody, simple, nil, `tlsSettings.credentialName "registry": not found`},
		"mutual":                 {named, mutual, map[string][]byte{"ca.crt": root, "tls.crt": m.CertPEM, "tls.key": m.KeyPEM}, ""},
		"mutual, Istio's names":  {named, mutual, map[string][]byte{"cacert": root, "cert": m.CertPEM, "key": m.KeyPEM}, ""},
		"mutual, no certificate": {named, mutual, map[string][]byte{"ca.crt": root}, "has no tls.crt and tls.key"},
		"mutual, another key": {named, mutual, map[string][]byte{"ca.crt": root, "tls.crt": m.CertPEM, "tls.key": []byte("secret words")},
			"do not go together"},
		"simple shows no one's": {named, simple, map[string][]byte{"ca.crt": root, "tls.crt": m.CertPEM, "tls.key": m.KeyPEM}, "Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			trust := Trust{Secret: func(_ context.Context, name string) (*corev1.Secret, error) {
				if c.data == nil || name != "registry" {
					return nil, errors.New("not found")
				}
				return &corev1.Secret{Data: c.data}, nil
			}}
			err := tryOpen(t, c.address, &networking.ClientTLSSettings{Mode: c.mode, CredentialName: "registry"}, trust)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
			if err != nil && strings.Contains(err.Error(), "secret words") {
				t.Error("the error has content of the Secret")
			}
		})
	}
	settings := &networking.ClientTLSSettings{Mode: simple, CredentialName: "registry"}
	for _, err := range []error{tryOpen(t, anybody, settings, Trust{}), CheckSecret(settings, Trust{})} {
		if err == nil || !strings.Contains(err.Error(), "credentialName") {
			t.Errorf("without an API server: %v", err)
		}
	}
}

// TestExchangedCertificates: server and client change to another authority, while the stream is open. The client takes
// the new files, or the new Secret, with its next stream, and no object is missing for a moment.
func TestExchangedCertificates(t *testing.T) {
	for _, ofSecret := range []bool{false, true} {
		cas := []*testkit.CA{testkit.PKI(t), testkit.PKI(t)}
		serving := make(chan *tls.Config, 1)
		configOf := func(ca *testkit.CA) *tls.Config {
			m, err := ca.NewSVID("a", "b", func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} }).Current()
			testkit.NoError(t, err)
			return &tls.Config{Certificates: []tls.Certificate{*m.Certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.Roots,
				NextProtos: []string{"h2"}}
		}
		serving <- configOf(cas[0])
		p := newPeer(t, grpc.Creds(credentials.NewTLS(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := <-serving
			serving <- now
			return now, nil
		}})))
		dir := t.TempDir()
		secret := make(chan *corev1.Secret, 1)
		install := func(ca *testkit.CA) {
			m, err := ca.NewSVID("apps", "adapter").Current()
			testkit.NoError(t, err)
			testkit.WriteFile(t, filepath.Join(dir, "ca"), ca.RootPEM)
			testkit.WriteFile(t, filepath.Join(dir, "crt"), m.CertPEM)
			testkit.WriteFile(t, filepath.Join(dir, "key"), m.KeyPEM)
			select {
			case <-secret:
			default:
			}
			secret <- &corev1.Secret{Data: map[string][]byte{"ca.crt": ca.RootPEM, "tls.crt": m.CertPEM, "tls.key": m.KeyPEM}}
		}
		install(cas[0])
		settings := &networking.ClientTLSSettings{Mode: mutual, CaCertificates: filepath.Join(dir, "ca"),
			ClientCertificate: filepath.Join(dir, "crt"), PrivateKey: filepath.Join(dir, "key")}
		if ofSecret {
			settings = &networking.ClientTLSSettings{Mode: mutual, CredentialName: "registry"}
		}
		trust := Trust{Secret: func(context.Context, string) (*corev1.Secret, error) {
			now := <-secret
			secret <- now
			return now, nil
		}}
		c := follow(t, p.address, "", func(cfg *Config) {
			cfg.Dial = Dialer(strings.Replace(p.address, "127.0.0.1", "localhost", 1), settings, trust)
		})
		s := p.next()
		s.tell(entriesV1, serviceEntry("a/one"))
		s.rest(entriesV1)
		c.has("a/one:80")
		events := c.count()
		// The server is first; its client cannot read it until it has the new ones, too.
		<-serving
		serving <- configOf(cas[1])
		s.end <- errors.New("the test ends the stream")
		testkit.Eventually(t, testkit.Patience, func() error {
			c.clock.Advance(time.Second)
			err := c.Status().Degraded
			return errorIf(err == nil || !strings.Contains(err.Error(), "authority"), "not degraded")
		})
		install(cas[1])
		s = c.after(p)
		s.tell(entriesV1, serviceEntry("a/one"))
		s.rest(entriesV1)
		if n := c.count() - events; n != 0 || c.delivered() != "a/one:80" {
			t.Errorf("%d events, in force is %q", n, c.delivered())
		}
	}
}
