package vault

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/testkit"
)

func TestWhatARoleMustBe(t *testing.T) {
	shared := func(r map[string]any) { r["generate_lease"], r["key_usage"] = true, []string{"KeyAgreement"} }
	for name, tc := range map[string]struct {
		change func(map[string]any)
		says   []string
	}{
		"as it should be":  {func(map[string]any) {}, nil},
		"ECDSA alone":      {func(r map[string]any) { r["key_type"] = "ec" }, nil},
		"no URIs":          {func(r map[string]any) { r["allowed_uri_sans"] = []string{} }, []string{"allowed_uri_sans=spiffe://TRUST-DOMAIN/*"}},
		"names of the CSR": {func(r map[string]any) { r["use_csr_sans"] = true }, []string{"use_csr_sans=false"}},
		"a short life": {func(r map[string]any) { r["max_ttl"] = 3600 },
			[]string{"max_ttl=86400s (it allows 1h0m0s, less than the mesh's 24h0m0s)"}},
		"no longest life":       {func(r map[string]any) { r["max_ttl"] = 0 }, nil},
		"a fixed end":           {func(r map[string]any) { r["not_after"] = "2030-01-01T00:00:00Z" }, []string{"not_after="}},
		"servers alone":         {func(r map[string]any) { r["client_flag"] = false }, []string{"client_flag=true"}},
		"leases, and no TLS":    {shared, []string{"generate_lease=false", "key_usage=DigitalSignature"}},
		"other kinds of values": {func(r map[string]any) { r["allowed_uri_sans"] = 7 }, []string{"allowed_uri_sans is no list"}},
		"that of Vault's defaults": {func(r map[string]any) {
			clear(r)
			for k, v := range map[string]any{"use_csr_sans": true, "use_csr_common_name": true, "require_cn": true, "key_type": "rsa",
				"server_flag": true, "client_flag": true, "key_usage": []string{"DigitalSignature", "KeyAgreement", "KeyEncipherment"}, "max_ttl": 0} {
				r[k] = v
			}
		}, []string{"allowed_uri_sans=", "use_csr_sans=false", "use_csr_common_name=false", "require_cn=false", "key_type=any"}},
	} {
		t.Run(name, func(t *testing.T) {
			data := goodRole()
			tc.change(data)
			text, err := json.Marshal(map[string]any{"data": data})
			testkit.NoError(t, err)
			s, err := api.ParseSecret(strings.NewReader(string(text)))
			testkit.NoError(t, err)
			r, err := readRole(s)
			if err == nil {
				err = r.allows(24 * time.Hour)
			}
			if (err == nil) != (tc.says == nil) {
				t.Fatalf("got %v, want %q", err, tc.says)
			}
			for _, w := range tc.says {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want %q in it", err, w)
				}
			}
		})
	}
}

func TestReadCRL(t *testing.T) {
	ca := testkit.PKI(t)
	now := time.Now()
	crl := func(text string) *api.Secret { return &api.Secret{Data: map[string]any{"crl": text}} }
	for name, tc := range map[string]struct {
		s    *api.Secret
		now  time.Time
		says string
	}{
		"a good one":      {crl(string(ca.Revoke())), now, ""},
		"none":            {crl(""), now, "it has none"},
		"no answer":       {nil, now, "it has none"},
		"of another":      {crl(string(testkit.PKI(t).Revoke())), now, "not signed by the issuer"},
		"an old one":      {crl(string(ca.Revoke())), now.Add(2 * time.Hour), "auto_rebuild=true"},
		"a certificate":   {crl(string(ca.RootPEM)), now, "no CRL"},
		"no PEM":          {crl("x"), now, "no CRL"},
		"PEM of no list":  {crl("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"), now, "crl: "},
		"a field of bool": {&api.Secret{Data: map[string]any{"crl": true}}, now, "it has none"},
		"one that ends":   {crl(string(ca.Revoke())), now.Add(55 * time.Minute), "ends at"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := readCRL(tc.s, ca.Cert, tc.now)
			if (list == nil) != (err != nil) || (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

func TestAuthoritiesOfAChain(t *testing.T) {
	ca := testkit.PKI(t)
	leaf := ca.Sign(ca.ID("a", "b"), ca.Key.Public())
	cert, err := certificate("leaf", string(leaf))
	testkit.NoError(t, err)
	now := time.Now()
	for name, tc := range map[string]struct {
		chain []*x509.Certificate
		now   time.Time
		says  string
	}{
		"a root":         {[]*x509.Certificate{ca.Cert}, now, ""},
		"a leaf":         {path(cert, []*x509.Certificate{ca.Cert}), now, "no certificate authority"},
		"an expired one": {[]*x509.Certificate{ca.Cert}, now.AddDate(20, 0, 0), "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := authorities(tc.chain, tc.now)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

// FuzzAnswers reads any answer as each kind of answer that Vault gives.
func FuzzAnswers(f *testing.F) {
	ca := testkit.PKI(f)
	root := string(ca.RootPEM)
	leaf, err := certificate("leaf", string(ca.Sign(ca.ID("shop", "cart"), ca.Key.Public())))
	testkit.NoError(f, err)
	rootDER := base64.StdEncoding.EncodeToString(ca.Cert.Raw)
	for _, seed := range []any{
		map[string]any{"certificate": base64.StdEncoding.EncodeToString(leaf.Raw), "issuing_ca": rootDER, "ca_chain": []string{rootDER, rootDER},
			"serial_number": "17:9a", "expiration": 1654105687},
		map[string]any{"certificate": root, "ca_chain": []string{root, root}, "issuer_id": "7545992c-1910-0898-9e64-d575549fbe9c", "issuer_name": ""},
		map[string]any{"crl": string(ca.Revoke())},
		goodRole(),
		map[string]any{"ttl": 3600, "renewable": true, "explicit_max_ttl": 0, "policies": []string{"default"}},
	} {
		text, err := json.Marshal(map[string]any{
			"request_id": "x", "lease_id": "", "renewable": false, "lease_duration": 0, "data": seed, "wrap_info": nil, "warnings": nil,
			"auth": map[string]any{"client_token": "hvs.x", "lease_duration": 3600, "renewable": true},
		})
		testkit.NoError(f, err)
		f.Add(string(text))
	}
	f.Add(`{"data": {"certificate": "` + strings.ReplaceAll(root, "\n", `\n`) + `", "ca_chain": null}, "auth": null}`)
	now := time.Now()
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := readSignedAnswer([]byte(text)); err == nil {
			if cert, err := a.certificate(); err == nil && cert == nil {
				t.Error("an answer without a certificate")
			}
			if chain, err := a.above(); err == nil && len(chain) == 0 {
				t.Error("an answer without an issuer")
			}
		}
		s, err := api.ParseSecret(strings.NewReader(text))
		if err != nil {
			return
		}
		if chain, err := readIssuer(s); err == nil {
			if a, err := authorities(chain, now); err == nil && (len(a.Roots) == 0 || !a.NotAfter.After(now)) {
				t.Errorf("got the authorities %+v", a)
			}
		}
		if list, err := readCRL(s, ca.Cert, now); err == nil && !list.NextUpdate.After(now) {
			t.Error("a CRL that has ended")
		}
		if r, err := readRole(s); err == nil && (r.maxTTL < 0 || r.maxTTL > maxLease*time.Second) {
			t.Errorf("got %+v", r)
		}
		if g, err := readGrant(s, "", now); err == nil && (g.token == "" || g.ttl < 0) {
			t.Error("a grant without a token, or that has ended")
		}
	})
}
