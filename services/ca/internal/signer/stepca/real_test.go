package stepca_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/signertest"
	"fairlead.dev/services/ca/internal/signer/stepca"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// template is that of a provisioner for the ca.
const template = `{"subject": {}, "sans": {{ toJson .SANs }}, "keyUsage": ["digitalSignature"], "extKeyUsage": ["serverAuth", "clientAuth"],
  "extensions": {{ toJson .Token.extensions }}}`

// stepCA is a real step-ca, with these provisioners: fairlead (JWK), brief (the same key, lifetimes to ten minutes),
// plain (without a template) and certificate (X5C).
type stepCA struct {
	ca                *signertest.CA
	dir, address, url string
	key               jose.JSONWebKey
	log               testkit.Buffer
	stop              func()
}

func newStepCA(t *testing.T) *stepCA {
	t.Helper()
	if os.Getenv("STEPCA_BIN") == "" {
		t.Skip("STEPCA_BIN names no directory with step-ca: run `make signers`, or set it to the output of tools/build-cached.sh stepca")
	}
	address := testkit.FreeAddress(t)
	s := &stepCA{
		dir: t.TempDir(), address: address.String(), url: "https://" + address.String(),
		key: jose.JSONWebKey{Key: catest.Key(t), Algorithm: string(jose.ES256), Use: "sig"},
	}
	sum, err := s.key.Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	s.key.KeyID = base64.RawURLEncoding.EncodeToString(sum)
	s.writeJSON(t, "provisioner.jwk", s.key)
	s.start(t, signertest.NewCA(t, "step"))
	return s
}

func (s *stepCA) file(name string) string { return filepath.Join(s.dir, name) }

func (s *stepCA) writeJSON(t *testing.T, name string, value any) {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, s.file(name), raw)
}

// start starts step-ca with an authority, instead of the one that ran.
func (s *stepCA) start(t *testing.T, ca *signertest.CA) {
	t.Helper()
	if s.stop != nil {
		s.stop()
	}
	s.ca = ca
	private, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, s.file("root.pem"), []byte(signertest.PEM(ca.Root)[0]))
	testkit.WriteFile(t, s.file("intermediate.pem"), []byte(signertest.PEM(ca.Intermediate)[0]))
	testkit.WriteFile(t, s.file("intermediate.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	host, _, _ := net.SplitHostPort(s.address)
	options := map[string]any{"x509": map[string]any{"template": template}}
	s.writeJSON(t, "ca.json", map[string]any{
		"root": s.file("root.pem"), "crt": s.file("intermediate.pem"), "key": s.file("intermediate.key"), "address": s.address,
		"dnsNames": []string{"step-ca.example", host}, "logger": map[string]any{"format": "text"},
		"db": map[string]any{"type": "badgerv2", "dataSource": s.file("db")}, "crl": map[string]any{"enabled": true},
		"authority": map[string]any{"provisioners": []any{
			map[string]any{"type": "JWK", "name": "fairlead", "key": s.key.Public(), "options": options},
			map[string]any{"type": "JWK", "name": "brief", "key": s.key.Public(), "options": options,
				"claims": map[string]any{"maxTLSCertDuration": "10m", "defaultTLSCertDuration": "10m"}},
			map[string]any{"type": "JWK", "name": "plain", "key": s.key.Public()},
			map[string]any{"type": "X5C", "name": "certificate", "roots": []byte(signertest.PEM(ca.Root)[0]), "options": options},
		}},
	})
	s.stop = testkit.Background(t, func(ctx context.Context) error {
		c := exec.CommandContext(ctx, filepath.Join(os.Getenv("STEPCA_BIN"), "step-ca"), s.file("ca.json"))
		c.Env = append(os.Environ(), "STEPPATH="+s.dir)
		c.Stdout, c.Stderr = &s.log, &s.log
		if err := c.Run(); ctx.Err() == nil {
			return errors.Join(err, errors.New(s.log.String()))
		}
		return nil
	})
	testkit.Eventually(t, testkit.Patience, func() error {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return fmt.Errorf("%w: %s", err, s.log.String())
		}
		return conn.Close()
	})
}

func tail(text string) string { return text[max(0, len(text)-2000):] }

func deps(log *testkit.Buffer) signer.Deps {
	return signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), Log: slog.New(slog.NewTextHandler(log, nil))}
}

func start(t *testing.T, cfg stepca.Config, log *testkit.Buffer) *stepca.Signer {
	t.Helper()
	s, err := stepca.New(cfg, deps(log))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	return s
}

func ready(t *testing.T, s signer.Issuer) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ := s.Authorities(); a == nil {
			return os.ErrNotExist
		}
		return nil
	})
}

func TestStepCA(t *testing.T) {
	real := newStepCA(t)
	var log testkit.Buffer
	cfg := stepca.Config{
		URL: real.url, Fingerprints: []string{strings.ToUpper(upstream.Fingerprint(real.ca.Root))}, Provisioner: "fairlead",
		JWK: &stepca.JWK{KeyFile: real.file("provisioner.jwk")}, Extensions: true, CRL: true,
	}
	s := start(t, cfg, &log)
	ready(t, s)
	r, _ := signertest.Request(t)
	chain, err := signertest.Issue(t, s, r)
	if err != nil {
		t.Fatalf("%v: %s", err, tail(real.log.String()))
	}
	if a, _ := s.Authorities(); len(chain) != 2 || len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(real.ca.Intermediate) {
		t.Errorf("a chain of %d certificates, and %v", len(chain), a)
	}
	if chain[0].Subject.String() != "" {
		t.Errorf("the subject is %q", chain[0].Subject)
	}
	if strings.Contains(log.String(), "ott") {
		t.Errorf("the log has a token: %s", log.String())
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ := s.Authorities(); len(a.CRLs) != 1 {
			return fmt.Errorf("no list of revoked certificates: %s", tail(log.String()))
		}
		return nil
	})
	change := func(change func(*stepca.Config)) *stepca.Signer {
		c := cfg
		change(&c)
		s := start(t, c, &testkit.Buffer{})
		ready(t, s)
		return s
	}
	t.Run("many at once", func(t *testing.T) { signertest.Flood(t, s, r, 512) })
	t.Run("names beside the CSR", func(t *testing.T) {
		named, template := *r, *r.Template
		named.Template, template.DNSNames, template.IPAddresses = &template, []string{"web.shop.svc"}, []net.IP{net.IPv4(10, 0, 0, 1)}
		if _, err := signertest.Issue(t, s, &named); err != nil {
			t.Error(err)
		}
	})
	t.Run("a certificate for tokens", func(t *testing.T) {
		leaf := *r.Template
		key := catest.Key(t)
		leaf.PublicKey, leaf.URIs, leaf.DNSNames = key.Public(), nil, []string{"fairlead-ca"}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, real.file("x5c.pem"), []byte(strings.Join(signertest.PEM(real.ca.Sign(t, &leaf)...), "")))
		testkit.WriteFile(t, real.file("x5c.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
		x5c := change(func(c *stepca.Config) {
			c.Provisioner, c.JWK, c.X5C = "certificate", nil, &stepca.X5C{CertFile: real.file("x5c.pem"), KeyFile: real.file("x5c.key")}
		})
		if _, err := signertest.Issue(t, x5c, r); err != nil {
			t.Errorf("%v: %s", err, tail(real.log.String()))
		}
	})
	t.Run("an encrypted key", func(t *testing.T) {
		encrypter, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{
			Algorithm: jose.PBES2_HS256_A128KW, Key: []byte("correct horse"), PBES2Count: 100_000, PBES2Salt: []byte("sixteen bytes...")}, nil)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := json.Marshal(real.key)
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := encrypter.Encrypt(plain)
		if err != nil {
			t.Fatal(err)
		}
		text, err := sealed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, real.file("encrypted"), []byte(text+"\n"))
		testkit.WriteFile(t, real.file("password"), []byte("battery staple\n"))
		encrypted := change(func(c *stepca.Config) {
			c.JWK = &stepca.JWK{KeyFile: real.file("encrypted"), PasswordFile: real.file("password")}
		})
		_, err = encrypted.Issue(t.Context(), r)
		signertest.WantError(t, err, signer.Refused, "encrypted", "cannot be decrypted")
		testkit.WriteFile(t, real.file("password"), []byte("correct horse\n"))
		if _, err := signertest.Issue(t, encrypted, r); err != nil {
			t.Errorf("with the right password: %v", err)
		}
		testkit.WriteFile(t, real.file("encrypted"), []byte(sealed.FullSerialize()))
		if _, err := signertest.Issue(t, encrypted, r); err != nil {
			t.Errorf("as JSON: %v", err)
		}
	})
	for name, tc := range map[string]struct {
		change func(*stepca.Config)
		fault  signer.Fault
		says   []string
	}{
		"a provisioner that is not there":  {func(c *stepca.Config) { c.Provisioner = "nobody" }, signer.Refused, []string{"compare provisioner"}},
		"a provisioner of shorter lives":   {func(c *stepca.Config) { c.Provisioner = "brief" }, signer.Refused, []string{"requested duration"}},
		"a provisioner without a template": {func(c *stepca.Config) { c.Provisioner = "plain" }, signer.Lied, []string{"lacks the extension"}},
		"another key than the provisioner's": {func(c *stepca.Config) {
			real.writeJSON(t, "other.jwk", jose.JSONWebKey{Key: catest.Key(t), KeyID: real.key.KeyID, Algorithm: string(jose.ES256)})
			c.JWK = &stepca.JWK{KeyFile: real.file("other.jwk")}
		}, signer.Refused, []string{"401"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := signertest.Issue(t, change(tc.change), r)
			signertest.WantError(t, err, tc.fault, tc.says...)
		})
	}
	t.Run("a provisioner without a template, said so", func(t *testing.T) {
		plain := change(func(c *stepca.Config) { c.Provisioner, c.Extensions = "plain", false })
		if _, err := signertest.Issue(t, plain, r); err != nil {
			t.Error(err)
		}
	})
	t.Run("a CSR for other names than the token", func(t *testing.T) {
		bad, template := *r, *r.Template
		bad.Template, template.URIs = &template, []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/kube-system/sa/admin"}}
		_, err := signertest.Issue(t, s, &bad)
		signertest.WantError(t, err, signer.Refused, "URIs")
	})

	// The root is exchanged: announced beside the old one, then confirmed, then used.
	old, next := real.ca, signertest.NewCA(t, "next")
	real.start(t, next)
	testkit.Eventually(t, time.Minute, func() error {
		_, err = s.Issue(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "no TLS connection") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	signertest.WantError(t, err, signer.Away, "fingerprints")
	both := change(func(c *stepca.Config) {
		c.Fingerprints = []string{upstream.Fingerprint(old.Root), upstream.Fingerprint(next.Root)}
	})
	if _, err := signertest.Issue(t, both, r); err != nil {
		t.Error(err)
	}
}
