package auth_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/metadata"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
)

var td = spiffeid.RequireTrustDomainFromString("cluster.local")

func newJWT(t testing.TB, issuer *testkit.Issuer, clk *testkit.Clock) *auth.JWT {
	t.Helper()
	j, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: issuer.JWKSFile, Issuer: issuer.Name, Audiences: []string{"istio-ca", "fairlead"}, TrustDomain: td, Clock: clk,
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func claims(issuer *testkit.Issuer, now time.Time) jwt.Claims {
	return jwt.Claims{
		Issuer: issuer.Name, Subject: "system:serviceaccount:bookinfo:reviews", Audience: jwt.Audience{"other", "istio-ca"},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}
}

func TestJWTVerify(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clk := testkit.NewClock(time.Now())
	j := newJWT(t, issuer, clk)
	now := clk.Now()

	for name, tc := range map[string]struct {
		change func(*jwt.Claims)
		want   string // part of the error; empty: accepted
	}{
		"good":                         {func(*jwt.Claims) {}, ""},
		"expired within the leeway":    {func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-20 * time.Second)) }, ""},
		"expired":                      {func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-2 * time.Minute)) }, "expired"},
		"without expiry":               {func(c *jwt.Claims) { c.Expiry = nil }, "no expiry"},
		"not valid yet":                {func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(now.Add(5 * time.Minute)) }, "not valid yet"},
		"issued in the future":         {func(c *jwt.Claims) { c.IssuedAt = jwt.NewNumericDate(now.Add(5 * time.Minute)) }, "not valid yet"},
		"another issuer":               {func(c *jwt.Claims) { c.Issuer += "/" }, "another issuer"},
		"no issuer":                    {func(c *jwt.Claims) { c.Issuer = "" }, "another issuer"},
		"another audience":             {func(c *jwt.Claims) { c.Audience = jwt.Audience{"vault"} }, "another audience"},
		"no audience":                  {func(c *jwt.Claims) { c.Audience = nil }, "another audience"},
		"a user":                       {func(c *jwt.Claims) { c.Subject = "alice" }, "not a service account"},
		"a node":                       {func(c *jwt.Claims) { c.Subject = "system:node:n1" }, "not a service account"},
		"subject without account":      {func(c *jwt.Claims) { c.Subject = "system:serviceaccount:bookinfo" }, "not a service account"},
		"subject with empty namespace": {func(c *jwt.Claims) { c.Subject = "system:serviceaccount::a" }, "not a service account"},
		"subject with a path":          {func(c *jwt.Claims) { c.Subject = "system:serviceaccount:a/sa/b:c" }, "not a service account"},
		"subject with four parts":      {func(c *jwt.Claims) { c.Subject = "system:serviceaccount:a:b:c" }, "not a service account"},
		"subject with dots only":       {func(c *jwt.Claims) { c.Subject = "system:serviceaccount:..:b" }, "not a service account"},
	} {
		t.Run(name, func(t *testing.T) {
			c := claims(issuer, now)
			tc.change(&c)
			p, err := j.Verify(t.Context(), issuer.Sign(c))
			if tc.want == "" {
				if err != nil || p.ID.String() != "spiffe://cluster.local/ns/bookinfo/sa/reviews" || p.Method != auth.MethodJWT {
					t.Fatalf("got %v %v", p, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v %v, want an error with %q", p, err, tc.want)
			}
			for _, secret := range []string{c.Subject, c.Issuer} {
				if secret != "" && strings.Contains(err.Error(), secret) {
					t.Errorf("error %q repeats the token", err)
				}
			}
		})
	}
}

func TestJWTRefusesForgeries(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clk := testkit.NewClock(time.Now())
	j := newJWT(t, issuer, clk)
	good := issuer.Sign(claims(issuer, clk.Now()))
	parts := strings.Split(good, ".")
	enc := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

	stranger := testkit.NewIssuer(t)
	stranger.Name = issuer.Name
	unknownKey := testkit.NewIssuer(t)
	unknownKey.Name, unknownKey.KeyID = issuer.Name, "key-9"

	public, err := os.ReadFile(issuer.JWKSFile)
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: public}, nil)
	if err != nil {
		t.Fatal(err)
	}
	confused, err := jwt.Signed(hmac).Claims(claims(issuer, clk.Now())).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"empty":                         "",
		"garbage":                       "abc",
		"no signature":                  parts[0] + "." + parts[1] + ".",
		"algorithm none":                enc(`{"alg":"none"}`) + "." + parts[1] + ".",
		"HMAC with the public key":      confused,
		"payload changed":               parts[0] + "." + enc(`{"sub":"system:serviceaccount:istio-system:ca"}`) + "." + parts[2],
		"another key, same key id":      stranger.Sign(claims(issuer, clk.Now())),
		"another key, unknown key id":   unknownKey.Sign(claims(issuer, clk.Now())),
		"five parts (encrypted)":        good + ".a.b",
		"JSON form":                     `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
		"longer than any service token": good + strings.Repeat("A", 20<<10),
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := j.Verify(t.Context(), token); err == nil {
				t.Errorf("accepted as %s", p.ID)
			}
		})
	}
}

func TestJWTFollowsTheKeySet(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clk := testkit.NewClock(time.Now())
	j := newJWT(t, issuer, clk)
	old := issuer.Sign(claims(issuer, clk.Now()))
	verify := func(token string) error { _, err := j.Verify(t.Context(), token); return err }

	if err := verify(old); err != nil {
		t.Fatal(err)
	}
	issuer.Rotate("key-2")
	if err := verify(issuer.Sign(claims(issuer, clk.Now()))); err != nil {
		t.Errorf("token of a new key is refused: %v", err)
	}
	if verify(old) == nil {
		t.Error("token of a removed key is still accepted")
	}

	current := issuer.Sign(claims(issuer, clk.Now()))
	testkit.WriteFile(t, issuer.JWKSFile, []byte(`{"keys": [`))
	clk.Advance(2 * time.Second)
	if err := verify(current); err != nil {
		t.Errorf("half-written file put the last good keys out of force: %v", err)
	}
	if err := j.Check(); err == nil || !strings.Contains(err.Error(), issuer.JWKSFile) {
		t.Errorf("Check gives %v, want the file's trouble", err)
	}

	testkit.WriteFile(t, issuer.JWKSFile, []byte(`{"keys": []}`))
	clk.Advance(2 * time.Second)
	if verify(current) == nil {
		t.Error("an empty key set still accepts tokens")
	}
	issuer.WriteJWKS()
	clk.Advance(2 * time.Second)
	if err := verify(current); err != nil {
		t.Error(err)
	}
	if err := os.Remove(issuer.JWKSFile); err != nil {
		t.Fatal(err)
	}
	clk.Advance(2 * time.Second)
	if verify(current) == nil {
		t.Error("a removed key set still accepts tokens")
	}
	if j.Check() == nil {
		t.Error("Check does not notice the removed file")
	}
}

func TestJWTOtherAlgorithmsAndKeySets(t *testing.T) {
	clk := testkit.NewClock(time.Now())
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(alg jose.SignatureAlgorithm, issuer *testkit.Issuer) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: rsaKey}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(claims(issuer, clk.Now())).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	write := func(t *testing.T, issuer *testkit.Issuer, keys ...jose.JSONWebKey) {
		raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, issuer.JWKSFile, raw)
	}
	for name, tc := range map[string]struct {
		alg jose.SignatureAlgorithm
		key jose.JSONWebKey
		ok  bool
	}{
		"RS256, key without id":     {jose.RS256, jose.JSONWebKey{Key: rsaKey.Public()}, true},
		"PS256":                     {jose.PS256, jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "a"}, true},
		"key for another algorithm": {jose.PS256, jose.JSONWebKey{Key: rsaKey.Public(), Algorithm: "RS256"}, false},
		"key for encryption":        {jose.RS256, jose.JSONWebKey{Key: rsaKey.Public(), Use: "enc"}, false},
		"private key in the file":   {jose.RS256, jose.JSONWebKey{Key: rsaKey}, false},
		"symmetric key in the file": {jose.RS256, jose.JSONWebKey{Key: []byte("secret")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			issuer := testkit.NewIssuer(t)
			write(t, issuer, tc.key)
			_, err := newJWT(t, issuer, clk).Verify(t.Context(), sign(tc.alg, issuer))
			if (err == nil) != tc.ok {
				t.Errorf("got %v, want accepted: %t", err, tc.ok)
			}
		})
	}
}

func TestJWTAuthenticate(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clk := testkit.NewClock(time.Now())
	j := newJWT(t, issuer, clk)
	good := issuer.Sign(claims(issuer, clk.Now()))
	for name, tc := range map[string]struct {
		headers []string
		err     error // ErrNoCredentials, or any other if nil and not ok
		ok      bool
	}{
		"bearer":            {[]string{"Bearer " + good}, nil, true},
		"lower case scheme": {[]string{"bearer " + good}, nil, true},
		"none":              {nil, auth.ErrNoCredentials, false},
		"basic":             {[]string{"Basic YTpi"}, nil, false},
		"two headers":       {[]string{"Bearer " + good, "Bearer " + good}, nil, false},
		"no token":          {[]string{"Bearer"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{"authorization": tc.headers})
			_, err := j.Authenticate(ctx)
			if (err == nil) != tc.ok || (tc.err != nil && !errors.Is(err, tc.err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNewJWTNeedsEverything(t *testing.T) {
	_, err := auth.NewJWT(auth.JWTConfig{})
	for _, part := range []string{"JWKS", "issuer", "audience", "trust domain"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not ask for the %s", err, part)
		}
	}
	j, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: filepath.Join(t.TempDir(), "later.json"), Issuer: "i", Audiences: []string{"a"}, TrustDomain: td,
	})
	if err != nil {
		t.Fatalf("a file that may appear later is refused: %v", err)
	}
	if err := j.Check(); err == nil {
		t.Error("Check does not notice the missing file")
	}
}

func FuzzJWTVerify(f *testing.F) {
	issuer := testkit.NewIssuer(f)
	clk := testkit.NewClock(time.Now())
	j := newJWT(f, issuer, clk)
	good := issuer.Sign(claims(issuer, clk.Now()))
	f.Add(good)
	f.Add("..")
	f.Add(`{"payload":"","signatures":[{},{}]}`)
	f.Fuzz(func(t *testing.T, token string) {
		// The text of a valid token can be changed (base64, ECDSA), but not what it says.
		if p, err := j.Verify(context.Background(), token); err == nil && p.ID != id("/ns/bookinfo/sa/reviews") {
			t.Errorf("%q is accepted as %s", token, p.ID)
		}
	})
}

func FuzzKeySet(f *testing.F) {
	issuer := testkit.NewIssuer(f)
	raw, err := os.ReadFile(issuer.JWKSFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA"}]}`))
	token := issuer.Token("a", "b", "istio-ca")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, set []byte) {
		path := filepath.Join(dir, "jwks.json")
		if err := os.WriteFile(path, set, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := auth.NewJWT(auth.JWTConfig{JWKSFile: path, Issuer: issuer.Name, Audiences: []string{"istio-ca"}, TrustDomain: td})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Verify(context.Background(), token); err == nil && !strings.Contains(string(set), `"EC"`) {
			t.Errorf("token is verified by %q", set)
		}
	})
}

func TestTokensOfLongLifetimes(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	now := time.Now()
	for name, tc := range map[string]struct {
		limit, lifetime time.Duration
		silent          bool
		want            string
	}{
		"within the limit":     {24 * time.Hour, 24 * time.Hour, false, ""},
		"of a year":            {24 * time.Hour, 8760 * time.Hour, false, "8760h0m0s from its issue on, longer than 24h0m0s"},
		"of a year, any taken": {0, 8760 * time.Hour, false, ""},
		"that says no issue":   {24 * time.Hour, time.Hour, true, "does not say when it was issued"},
	} {
		tokens, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: issuer.JWKSFile, Issuer: issuer.Name, Audiences: []string{"istio-ca"},
			TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), MaxLifetime: tc.limit,
		})
		if err != nil {
			t.Fatal(err)
		}
		claims := map[string]any{
			"iss": issuer.Name, "sub": "system:serviceaccount:shop:web", "aud": "istio-ca", "exp": now.Add(tc.lifetime).Unix(),
			"kubernetes.io": map[string]any{"namespace": "shop", "pod": map[string]any{"name": "web-0", "uid": "p1"},
				"serviceaccount": map[string]any{"name": "web", "uid": "a1"}},
		}
		if !tc.silent {
			claims["iat"] = now.Unix()
		}
		who, err := tokens.Verify(t.Context(), issuer.Sign(claims))
		if tc.want != "" {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("a token %s: %v", name, err)
			}
			continue
		}
		if err != nil || who.Token == nil || who.Token.AccountUID != "a1" || who.Token.Pod != "web-0" || who.Token.PodUID != "p1" ||
			who.Token.IssuedAt.Unix() != now.Unix() {
			t.Errorf("a token %s: %+v, %v", name, who.Token, err)
		}
	}
}
