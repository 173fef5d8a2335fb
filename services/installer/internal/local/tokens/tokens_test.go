package tokens_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/tokens"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func issuer(t *testing.T) (*tokens.Issuer, string) {
	t.Helper()
	i, err := tokens.NewIssuer("https://issuer")
	if err != nil {
		t.Fatal(err)
	}
	jwks, err := i.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "jwks.json")
	testkit.WriteFile(t, file, jwks)
	return i, file
}

// TestServicesAcceptTheTokens verifies a token as ca and config-watcher do (pkg/auth).
func TestServicesAcceptTheTokens(t *testing.T) {
	i, jwks := issuer(t)
	clock := testkit.NewClock(start)
	verify, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: jwks, Issuer: "https://issuer", Audiences: []string{"istio-ca"},
		TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := i.Issue(tokens.Subject{Namespace: "shop", Account: "web", Pod: "web-0", Audience: "istio-ca"}, clock.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := verify.Verify(context.Background(), token)
	if err != nil || peer.ID.String() != "spiffe://cluster.local/ns/shop/sa/web" {
		t.Errorf("peer %v, %v", peer, err)
	}
	key, err := i.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tokens.LoadIssuer("https://issuer", key)
	if err != nil {
		t.Fatal(err)
	}
	if token, err = loaded.Issue(tokens.Subject{Namespace: "shop", Account: "db", Audience: "istio-ca"}, clock.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if peer, err := verify.Verify(context.Background(), token); err != nil || peer.ID.String() != "spiffe://cluster.local/ns/shop/sa/db" {
		t.Errorf("token of an issuer that was loaded: %v, %v", peer, err)
	}
	for _, text := range []string{"", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"} {
		if _, err := tokens.LoadIssuer("https://issuer", []byte(text)); err == nil {
			t.Errorf("key %q is loaded", text)
		}
	}
	other, _ := issuer(t)
	forged, err := other.Issue(tokens.Subject{Namespace: "shop", Account: "web", Audience: "istio-ca"}, clock.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Verify(context.Background(), forged); err == nil {
		t.Error("another issuer's token was accepted")
	}
	clock.Advance(2 * time.Hour)
	if _, err := verify.Verify(context.Background(), token); err == nil {
		t.Error("an expired token was accepted")
	}
}

func TestClaimsNameThePod(t *testing.T) {
	i, _ := issuer(t)
	text, err := i.Issue(tokens.Subject{Namespace: "shop", Account: "web", Pod: "web-0", Audience: "a"}, start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(claims["kubernetes.io"])
	if string(b) != `{"namespace":"shop","pod":{"name":"web-0"},"serviceaccount":{"name":"web"}}` {
		t.Errorf("claims %s", b)
	}
}

func TestJWKSHoldsNoPrivateKey(t *testing.T) {
	i, file := issuer(t)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Keys []map[string]any `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil || len(set.Keys) != 1 || set.Keys[0]["d"] != nil {
		t.Errorf("key set %s, %v", b, err)
	}
	if key, err := i.KeyPEM(); err != nil || len(key) == 0 {
		t.Error(err)
	}
}

func TestFilesAreRenewed(t *testing.T) {
	i, _ := issuer(t)
	clock := testkit.NewClock(start)
	name := filepath.Join(t.TempDir(), "deep", "token")
	f := tokens.NewFiles(i, clock, map[string]tokens.Subject{name: {Namespace: "a", Account: "b", Audience: "c"}})
	if err := f.Write(); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file %v, %v", info, err)
	}
	first := read()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, func(err error) { t.Error(err) }) }()
	clock.WaitFor(t, 1)
	if in, _ := clock.NextIn(); in != 48*time.Minute {
		t.Errorf("renewed after %s", in)
	}
	clock.Advance(48 * time.Minute)
	testkit.Eventually(t, testkit.Patience, func() error {
		if read() == first {
			return errors.New("still the first token")
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
