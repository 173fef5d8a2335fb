package intermediate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/directory"
	"fairlead.dev/services/ca/internal/signer/selfsigned"
)

var (
	now    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	domain = spiffeid.RequireTrustDomainFromString("cluster.local")
)

// newConfig makes intermediates of a self-signed root, with keys in a directory of the test's.
func newConfig(t *testing.T) Config {
	t.Helper()
	keys := directory.New(directory.Config{Dir: filepath.Join(t.TempDir(), "keys")})
	root, err := selfsigned.Config{Keys: keys, Algorithm: signer.ECDSAP256, TrustDomain: domain, TTL: 365 * 24 * time.Hour,
		Now: func() time.Time { return now }}.Make(t.Context(), "root-1")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Keys: keys, Minter: root, Algorithm: signer.ECDSAP256, TrustDomain: domain, TTL: 30 * 24 * time.Hour,
		MinTTL: 48 * time.Hour, DNSNames: []string{"ca.istio-system.svc"}}
}

func TestWhatWasMadeSignsAfterARestart(t *testing.T) {
	for _, algorithm := range []signer.Algorithm{signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048} {
		t.Run(string(algorithm), func(t *testing.T) {
			c := newConfig(t)
			c.Algorithm = algorithm
			made, err := c.Make(t.Context(), "intermediate-1", now)
			if err != nil {
				t.Fatal(err)
			}
			issuer, err := Open(t.Context(), c.Keys, made)
			if err != nil {
				t.Fatal(err)
			}
			probe := signer.Probe{Identity: spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca"),
				DNSNames: c.DNSNames, TTL: 24 * time.Hour}
			if err := probe.Try(t.Context(), issuer, now); err != nil {
				t.Error(err)
			}
			authorities, _ := issuer.Authorities()
			if got := authorities.NotAfter; !got.Equal(now.Add(c.TTL)) || len(authorities.Intermediates) != 1 {
				t.Errorf("ends at %s with %d intermediates", got, len(authorities.Intermediates))
			}
		})
	}
}

// A ca that ended between key and certificate uses the key when it starts again.
func TestAKeyOfAnAttemptThatEndedIsUsed(t *testing.T) {
	c := newConfig(t)
	if _, err := c.Keys.Make(t.Context(), "intermediate-1", c.Algorithm); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Make(t.Context(), "intermediate-1", now); err != nil {
		t.Error(err)
	}
}

// other is a Minter that answers something else.
type other struct {
	signer.Minter
	change func(chain, roots []*x509.Certificate) ([]*x509.Certificate, []*x509.Certificate, error)
}

func (o other) Mint(ctx context.Context, r signer.MintRequest) (chain, roots []*x509.Certificate, err error) {
	if chain, roots, err = o.Minter.Mint(ctx, r); err != nil {
		return nil, nil, err
	}
	return o.change(chain, roots)
}

func TestAnIntermediateThatTheMeshCannotUseIsRefused(t *testing.T) {
	c := newConfig(t)
	another, _, err := c.Minter.Mint(t.Context(), signer.MintRequest{Key: newKey(t), TTL: 30 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	foreign := newConfig(t)
	authorities, err := foreign.Minter.Authorities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type certs = []*x509.Certificate
	for name, tc := range map[string]struct {
		change func(chain, roots certs) (certs, certs, error)
		minTTL time.Duration
		says   string
	}{
		"none":               {change: func(_, r certs) (certs, certs, error) { return nil, r, nil }, says: "without a certificate"},
		"of another key":     {change: func(_, r certs) (certs, certs, error) { return another, r, nil }, says: "key"},
		"of a foreign root":  {change: func(c, _ certs) (certs, certs, error) { return c, authorities.Roots, nil }, says: "leads to none"},
		"without roots":      {change: func(c, _ certs) (certs, certs, error) { return c, nil, nil }, says: "root"},
		"a root as one":      {change: func(_, r certs) (certs, certs, error) { return r, r, nil }, says: "key"},
		"that ends too soon": {minTTL: 60 * 24 * time.Hour, says: "at least 1440h0m0s are needed"},
		"because it is away": {change: func(_, _ certs) (certs, certs, error) { return nil, nil, signer.Errorf(signer.Away, "sealed") }, says: "sealed"},
	} {
		t.Run(name, func(t *testing.T) {
			c := c
			if tc.change != nil {
				c.Minter = other{c.Minter, tc.change}
			}
			if tc.minTTL > 0 {
				c.MinTTL = tc.minTTL
			}
			_, err := c.Make(t.Context(), "intermediate-2", now)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			if _, ok := errors.AsType[*signer.Error](err); !ok {
				t.Errorf("%v is no error of a signer", err)
			}
		})
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	c := newConfig(t)
	made, err := c.Make(t.Context(), "intermediate-1", now)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Made)
		says   string
	}{
		"the key":         {func(m *Made) { m.Key = "intermediate-7" }, "intermediate-7"},
		"the certificate": {func(m *Made) { m.Chain = nil }, "there is no certificate"},
		"a certificate":   {func(m *Made) { m.Chain = []string{"x"} }, "record of its intermediate"},
		"the roots":       {func(m *Made) { m.Roots = nil }, "roots: there is no certificate"},
		"the right key":   {func(m *Made) { m.Key = "root-1" }, "not that of its certificate"},
		"nothing":         {func(*Made) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := *made
			tc.change(&m)
			_, err := Open(t.Context(), c.Keys, &m)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

func TestAnExpiredRootMintsNothing(t *testing.T) {
	keys := directory.New(directory.Config{Dir: filepath.Join(t.TempDir(), "keys")})
	at := now
	cfg := selfsigned.Config{Keys: keys, Algorithm: signer.ECDSAP256, TrustDomain: domain, TTL: time.Hour, Now: func() time.Time { return at }}
	root, err := cfg.Make(t.Context(), "root-1")
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := root.Mint(t.Context(), signer.MintRequest{Key: newKey(t), TTL: 24 * time.Hour})
	if err != nil || !chain[0].NotAfter.Equal(root.Certificate.NotAfter) {
		t.Errorf("an intermediate outlives its root: %v", err)
	}
	if _, err := cfg.Open(t.Context(), "root-1", root.Certificate); err != nil {
		t.Errorf("opened again: %v", err)
	}
	if _, err := cfg.Open(t.Context(), "root-1", chain[0]); err == nil || !strings.Contains(err.Error(), "not that of the mesh's root") {
		t.Errorf("opened with another certificate: %v", err)
	}
	at = now.Add(2 * time.Hour)
	if _, _, err := root.Mint(t.Context(), signer.MintRequest{Key: newKey(t), TTL: time.Hour}); err == nil ||
		!strings.Contains(err.Error(), "rotate it") {
		t.Errorf("got %v", err)
	}
}
