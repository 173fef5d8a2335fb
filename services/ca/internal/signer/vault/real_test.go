package vault

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/intermediate"
	"fairlead.dev/services/ca/internal/signer/keys/directory"
)

var probe = signer.Probe{
	Identity: spiffeid.RequireFromPath(domain, "/ns/istio-system/sa/ca"), DNSNames: []string{"ca.istio-system.svc"}, TTL: 24 * time.Hour,
}

// chains are issuers in Vault: roots and intermediates with each kind of key.
func TestRealLeaves(t *testing.T) {
	s := sharedServer(t)
	for _, tc := range []struct{ root, intermediate string }{{root: "ec"}, {root: "rsa"}, {"ec", "ec"}, {"rsa", "rsa"}, {"rsa", "ec"}} {
		t.Run(strings.TrimSpace(tc.root+" "+tc.intermediate), func(t *testing.T) {
			mount, root := s.pki(t, tc.root)
			depth := 1
			if tc.intermediate != "" {
				depth = 2
				mount, _ = s.intermediate(t, tc.intermediate, mount)
			}
			s.role(t, mount, map[string]any{"max_ttl": "87600h"})
			cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{})
			i := newTestIssuer(t, cfg, deps(t))
			testkit.NoError(t, i.Probe(t.Context(), probe))
			testkit.Background(t, i.Run)
			a := announcedAuthorities(t, i, nil)
			if len(a.Roots) != 1 || !a.Roots[0].Equal(root) || len(a.Intermediates) != depth-1 || len(a.CRLs) != 0 {
				t.Errorf("got %d roots, %d intermediates, %d CRLs", len(a.Roots), len(a.Intermediates), len(a.CRLs))
			}
			testkit.NoError(t, probe.Try(t.Context(), i, time.Now()))

			// Late in the issuer's life a leaf lives shorter, and the ca starts all the same.
			late := probe
			late.TTL = 2 * time.Until(root.NotAfter)
			testkit.NoError(t, i.Probe(t.Context(), late))
			testkit.NoError(t, late.Try(t.Context(), i, time.Now()))

			// A CSR without names, other names, a subject; an RSA key.
			r := request(t)
			r.Template.DNSNames = []string{"a.istio-system.svc", "b.istio-system.svc"}
			r.Template.IPAddresses = []net.IP{net.IPv4(10, 1, 2, 3), net.ParseIP("fd00::1")}
			testkit.NoError(t, issueAndCheck(t.Context(), i, r, root))
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			testkit.NoError(t, err)
			r = request(t)
			r.Template.PublicKey = &key.PublicKey
			r.CSR, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin"}}, key)
			testkit.NoError(t, err)
			testkit.NoError(t, issueAndCheck(t.Context(), i, r, root))
			chain, err := i.Issue(t.Context(), request(t))
			testkit.NoError(t, err)
			if len(chain) != depth && len(chain) != 1 || len(chain) == depth && depth == 2 && !chain[1].Equal(a.Intermediates[0]) {
				t.Errorf("the chain has %d certificates", len(chain))
			}
		})
	}
}

// announcedAuthorities waits for those of Run that differ from before.
func announcedAuthorities(t *testing.T, i *Issuer, before *signer.Authorities) *signer.Authorities {
	t.Helper()
	deadline := time.After(testkit.Patience)
	for {
		a, changed := i.Authorities()
		if a != before {
			return a
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the authorities have not changed")
		}
	}
}

func TestRealIntermediates(t *testing.T) {
	s := sharedServer(t)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	rsa2048, err := rsa.GenerateKey(rand.Reader, 2048)
	testkit.NoError(t, err)
	td := &url.URL{Scheme: "spiffe", Host: testkit.TrustDomain}
	ask := func(key crypto.Signer) signer.MintRequest {
		subject := pkix.Name{CommonName: "Fairlead ca", Organization: []string{testkit.TrustDomain}}
		return signer.MintRequest{Key: key, Subject: subject, URIs: []*url.URL{td}, TTL: 240 * time.Hour}
	}
	for _, kind := range []string{"ec", "rsa"} {
		mount, root := s.pki(t, kind)
		below, middle := s.intermediate(t, kind, mount)
		for _, key := range []crypto.Signer{p256, rsa2048} {
			for at, want := range map[string]int{mount: 1, below: 2} {
				t.Run(fmt.Sprintf("%s %T %d", kind, key, want), func(t *testing.T) {
					cfg, _ := s.newToken(t, at, api.TokenCreateRequest{})
					cfg.Role = ""
					m, err := NewMinter(MinterConfig(cfg), deps(t))
					testkit.NoError(t, err)
					chain, roots, err := m.Mint(t.Context(), ask(key))
					testkit.NoError(t, err)
					if len(roots) != 1 || !roots[0].Equal(root) || len(chain) != want || want == 2 && !chain[1].Equal(middle) {
						t.Fatalf("got a chain of %d and %d roots", len(chain), len(roots))
					}
					c := chain[0]
					if !c.IsCA || c.MaxPathLen != 0 || !c.MaxPathLenZero || c.Subject.CommonName != "Fairlead ca" || len(c.URIs) != 1 ||
						c.URIs[0].String() != td.String() || len(c.DNSNames) > 0 || c.KeyUsage&x509.KeyUsageCertSign == 0 {
						t.Errorf("got %q, %v, path length %d, %v, usage %b", c.Subject, c.URIs, c.MaxPathLen, c.DNSNames, c.KeyUsage)
					}
					if left := time.Until(c.NotAfter); left > 240*time.Hour || left < 239*time.Hour {
						t.Errorf("it lives for %s", left)
					}
					checkLeafBelow(t, chain, roots, key)
					a, err := m.Authorities(t.Context())
					testkit.NoError(t, err)
					if len(a.Roots) != 1 || !a.Roots[0].Equal(root) || len(a.Intermediates) != want-1 || len(a.CRLs) != 0 {
						t.Errorf("got %+v", a)
					}
				})
			}
		}
	}
	t.Run("as the ca makes and uses one", func(t *testing.T) {
		mount, root := s.pki(t, "rsa")
		below, _ := s.intermediate(t, "ec", mount)
		cfg, _ := s.newToken(t, below, api.TokenCreateRequest{})
		cfg.Role = ""
		m, err := NewMinter(MinterConfig(cfg), deps(t))
		testkit.NoError(t, err)
		testkit.Background(t, m.Run)
		keys := directory.New(directory.Config{Dir: filepath.Join(t.TempDir(), "keys")})
		made, err := intermediate.Config{
			Keys: keys, Minter: m, Algorithm: signer.ECDSAP256, TrustDomain: domain, TTL: 240 * time.Hour, MinTTL: time.Hour,
			DNSNames: probe.DNSNames,
		}.Make(t.Context(), "signer-1", time.Now())
		testkit.NoError(t, err)
		opened, err := intermediate.Open(t.Context(), keys, made)
		testkit.NoError(t, err)
		testkit.NoError(t, probe.Try(t.Context(), opened, time.Now()))
		if a, _ := opened.Authorities(); len(a.Roots) != 1 || !a.Roots[0].Equal(root) || len(a.Intermediates) != 2 {
			t.Errorf("got %d roots and %d intermediates", len(a.Roots), len(a.Intermediates))
		}
		if err := m.Problem(); err != nil {
			t.Error(err)
		}
	})
	t.Run("longer than its issuer", func(t *testing.T) {
		mount, root := s.pki(t, "ec")
		cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{})
		cfg.Role = ""
		m, err := NewMinter(MinterConfig(cfg), deps(t))
		testkit.NoError(t, err)
		r := ask(p256)
		r.TTL = 5 * 8760 * time.Hour
		chain, _, err := m.Mint(t.Context(), r)
		testkit.NoError(t, err)
		if !chain[0].NotAfter.Equal(root.NotAfter) {
			t.Errorf("it ends at %s, its issuer at %s", chain[0].NotAfter, root.NotAfter)
		}
		r.Subject = pkix.Name{}
		_, _, err = m.Mint(t.Context(), r)
		wantFault(t, err, signer.Unsuitable, "no subject")
	})
	t.Run("by an issuer that signs only leaves", func(t *testing.T) {
		mount, _ := s.pki(t, "ec")
		below := s.engine(t)
		asked := s.write(t, below+"/intermediate/generate/internal", map[string]any{"common_name": "leaves only", "key_type": "ec"})
		made := s.write(t, mount+"/root/sign-intermediate", map[string]any{"csr": asked["csr"], "ttl": "48h", "max_path_length": 0})
		s.write(t, below+"/intermediate/set-signed", map[string]any{"certificate": made["certificate"]})
		cfg, _ := s.newToken(t, below, api.TokenCreateRequest{})
		cfg.Role = ""
		m, err := NewMinter(MinterConfig(cfg), deps(t))
		testkit.NoError(t, err)
		_, _, err = m.Mint(t.Context(), ask(p256))
		wantFault(t, err, signer.Refused, "path length of 1 or more")
		// Vault does not know the root here.
		_, err = m.Authorities(t.Context())
		wantFault(t, err, signer.Refused, "does not know the root", "issuers/import/cert")
	})
}

func checkLeafBelow(t *testing.T, chain, roots []*x509.Certificate, key crypto.Signer) {
	t.Helper()
	leafKey := catest.Key(t)
	r := request(t)
	template := *r.Template
	template.PublicKey = &leafKey.PublicKey
	template.SerialNumber, _ = rand.Int(rand.Reader, roots[0].SerialNumber)
	der, err := x509.CreateCertificate(rand.Reader, &template, chain[0], &leafKey.PublicKey, key)
	testkit.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	pool.AddCert(roots[0])
	for _, c := range chain {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: template.ExtKeyUsage}); err != nil {
		t.Errorf("a leaf below the intermediate does not verify: %v", err)
	}
}

// TestRealRoles: a role that does not suit is refused before it is used, whether or not the ca may read it.
func TestRealRoles(t *testing.T) {
	s := sharedServer(t)
	mount, root := s.pki(t, "ec")
	testkit.NoError(t, s.root.Sys().PutPolicy("blind", `path "`+mount+`/issuer/+/sign/mesh" { capabilities = ["update"] }`))
	for name, tc := range map[string]struct {
		change map[string]any
		// read is said if the ca may read the role, tried if it may not.
		read, tried string
	}{
		"as it should be": {nil, "", ""},
		"drops the URI":   {map[string]any{"use_csr_sans": true}, "use_csr_sans=false", "use_csr_sans=false"},
		"allows no URI":   {map[string]any{"allowed_uri_sans": ""}, "allowed_uri_sans=spiffe://", "allowed_uri_sans to spiffe://"},
		"allows another domain": {map[string]any{"allowed_uri_sans": "spiffe://other/*"}, "allowed_uri_sans to spiffe://",
			"allowed_uri_sans to spiffe://"},
		"shortens lifetimes": {map[string]any{"max_ttl": "1h"}, "max_ttl=86400s (it allows 1h0m0s",
			"lives for about 1h0m0s instead of 24h0m0s; raise max_ttl"},
		"has a fixed end":        {map[string]any{"not_after": "2126-01-01T00:00:00Z"}, "not_after=", "remove not_after from the role"},
		"requires a common name": {map[string]any{"require_cn": true}, "require_cn=false", "require_cn=false"},
		"takes the common name":  {map[string]any{"use_csr_common_name": true}, "use_csr_common_name=false", "use_csr_common_name=false"},
		"takes any common name": {map[string]any{"use_csr_common_name": true, "allow_any_name": true}, "use_csr_common_name=false",
			"use_csr_common_name=false"},
		"takes only RSA keys":  {map[string]any{"key_type": "rsa"}, "key_type=any", "key_type=any"},
		"is for clients alone": {map[string]any{"server_flag": false}, "server_flag=true", "server_flag=true"},
		"is for servers alone": {map[string]any{"client_flag": false}, "client_flag=true", "client_flag=true"},
		"is for code too":      {map[string]any{"code_signing_flag": true}, "code_signing_flag=false", "extended key usages"},
		"signs nothing in TLS": {map[string]any{"key_usage": "KeyAgreement"}, "key_usage=DigitalSignature", "key_usage=DigitalSignature"},
		"allows no DNS name":   {map[string]any{"allowed_domains": ""}, "allowed_domains", "allowed_domains"},
	} {
		t.Run(name, func(t *testing.T) {
			s.role(t, mount, tc.change)
			for says, policies := range map[*string][]string{&tc.read: nil, &tc.tried: {"blind"}} {
				cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{Policies: policies})
				i := newTestIssuer(t, cfg, deps(t))
				err := i.Probe(t.Context(), probe)
				switch {
				case *says == "" && err != nil:
					t.Errorf("refused: %v", err)
				case *says != "" && strings.Contains(*says, "extended"):
					wantFault(t, err, signer.Lied, *says)
				case *says != "":
					wantFault(t, err, signer.Refused, *says)
				}
				if err == nil {
					testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
				}
			}
		})
	}
	t.Run("is away", func(t *testing.T) {
		cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{Policies: []string{"root"}})
		cfg.Role = "other"
		i := newTestIssuer(t, cfg, deps(t))
		wantFault(t, i.Probe(t.Context(), probe), signer.Refused, "no such role")
		_, err := i.Issue(t.Context(), request(t))
		wantFault(t, err, signer.Refused, "role other")
	})
}

func TestRealWrongConfiguration(t *testing.T) {
	s := sharedServer(t)
	mount, _ := s.pki(t, "ec")
	s.role(t, mount, nil)
	for name, tc := range map[string]struct {
		change func(*Config)
		root   bool
		fault  signer.Fault
		says   []string
	}{
		"another mount":               {func(c *Config) { c.Mount = "pki-none" }, false, signer.Refused, []string{"403", "compare mount and namespace"}},
		"another mount, as root":      {func(c *Config) { c.Mount = "pki-none" }, true, signer.Refused, []string{"404", "compare mount"}},
		"another issuer":              {func(c *Config) { c.IssuerRef = "none" }, false, signer.Refused, []string{"correct issuerRef"}},
		"another CA file":             {func(c *Config) { c.CAFile = testkit.PKI(t).WriteRoot(t.TempDir()) }, false, signer.Away, []string{"does not verify", "caFile"}},
		"the roots of the system":     {func(c *Config) { c.CAFile = "" }, false, signer.Away, []string{"does not verify", "caFile"}},
		"another server name":         {func(c *Config) { c.ServerName = "other.test" }, false, signer.Away, []string{"does not verify", "serverName"}},
		"the address as name":         {func(c *Config) { c.ServerName = "" }, false, signer.Away, []string{"does not verify", "serverName"}},
		"a port where nobody is":      {func(c *Config) { c.Address = "https://127.0.0.1:1" }, false, signer.Away, []string{"connection refused"}},
		"an issuer without an engine": {func(c *Config) { c.Mount = "sys" }, true, signer.Refused, []string{"compare mount"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := api.TokenCreateRequest{}
			if tc.root {
				r.Policies = []string{"root"}
			}
			cfg, _ := s.newToken(t, mount, r)
			tc.change(&cfg)
			_, err := newTestIssuer(t, cfg, deps(t)).Issue(t.Context(), request(t))
			wantFault(t, err, tc.fault, tc.says...)
			wantFault(t, newTestIssuer(t, cfg, deps(t)).Probe(t.Context(), probe), tc.fault)
			cfg.Role = ""
			m, err := NewMinter(MinterConfig(cfg), deps(t))
			testkit.NoError(t, err)
			_, err = m.Authorities(t.Context())
			wantFault(t, err, tc.fault)
		})
	}
	t.Run("an engine without an issuer", func(t *testing.T) {
		empty := s.engine(t)
		s.role(t, empty, nil)
		cfg, _ := s.newToken(t, empty, api.TokenCreateRequest{})
		i := newTestIssuer(t, cfg, deps(t))
		_, err := i.Issue(t.Context(), request(t))
		wantFault(t, err, signer.Refused, "give the PKI engine an issuer")
		wantFault(t, i.Probe(t.Context(), probe), signer.Refused, "issuer")
	})
}

// TestRealRevocation: a certificate that is revoked shows in the CRL, of which there is one for each authority or none.
func TestRealRevocation(t *testing.T) {
	s := sharedServer(t)
	alone, _ := s.pki(t, "ec")
	both, _ := s.pki(t, "rsa")
	s.newIntermediate(t, "ec", both, both)
	above, _ := s.pki(t, "ec")
	below, _ := s.intermediate(t, "ec", above)
	for name, tc := range map[string]struct {
		mount string
		want  int
	}{"a root": {alone, 1}, "an intermediate, and its root": {both, 2}, "an intermediate without its root's key": {below, 0}} {
		t.Run(name, func(t *testing.T) {
			s.role(t, tc.mount, map[string]any{"no_store": false})
			cfg, _ := s.newToken(t, tc.mount, api.TokenCreateRequest{})
			cfg.CRL = true
			d, log := deps(t), &testkit.Buffer{}
			d.Log = slog.New(slog.NewTextHandler(log, nil))
			i := newTestIssuer(t, cfg, d)
			testkit.Background(t, i.Run)
			a := announcedAuthorities(t, i, nil)
			if len(a.CRLs) != tc.want {
				t.Fatalf("got %d CRLs, want %d; the log: %s", len(a.CRLs), tc.want, log)
			}
			if tc.want == 0 {
				if !strings.Contains(log.String(), "remove crl") {
					t.Errorf("the log does not say why there are none: %s", log)
				}
				return
			}
			leaf, err := i.Issue(t.Context(), request(t))
			testkit.NoError(t, err)
			s.write(t, tc.mount+"/revoke", map[string]any{"certificate": string(testkit.CertPEM(leaf[0]))})
			a = announcedAuthorities(t, i, a)
			crl, err := x509.ParseRevocationList(a.CRLs[0])
			testkit.NoError(t, err)
			if n := crl.RevokedCertificateEntries; len(n) != 1 || n[0].SerialNumber.Cmp(leaf[0].SerialNumber) != 0 || len(a.CRLs) != tc.want {
				t.Errorf("the CRL has %d entries, and there are %d CRLs", len(n), len(a.CRLs))
			}
		})
	}
}

// TestRealRotation: an issuer that is replaced in Vault shows within the interval, below the same root without any
// refused leaf.
func TestRealRotation(t *testing.T) {
	s := sharedServer(t)
	above, root := s.pki(t, "ec")
	mount, first := s.intermediate(t, "ec", above)
	s.role(t, mount, nil)
	cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{})
	i := newTestIssuer(t, cfg, deps(t))
	testkit.Background(t, i.Run)
	a := announcedAuthorities(t, i, nil)
	if len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(first) {
		t.Fatalf("got %+v", a)
	}
	second := s.newIntermediate(t, "rsa", mount, above)
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
	a = announcedAuthorities(t, i, a)
	if len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(second) || !a.Roots[0].Equal(root) {
		t.Errorf("got %+v", a)
	}
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))

	// Another root: no leaf of it leaves before the ca has seen it.
	other, otherRoot := s.pki(t, "ec")
	s.newIntermediate(t, "ec", mount, other)
	_, err := i.Issue(t.Context(), request(t))
	if err == nil {
		err = errors.New("a leaf was issued")
	}
	wantFault(t, err, signer.Away, "another root")
	a = announcedAuthorities(t, i, a)
	if !a.Roots[0].Equal(otherRoot) {
		t.Errorf("got %+v", a)
	}
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), otherRoot))
}
