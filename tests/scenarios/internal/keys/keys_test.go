package keys_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/keys"
)

const issuer = "issuer@example.com"

func ring(t *testing.T, tokens map[string]format.Token) (*keys.Ring, *format.Material) {
	t.Helper()
	home := netip.MustParseAddr("127.0.0.1")
	root, err := format.NewMaterial("issuers", format.Certificate{CA: true}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m, err := format.NewMaterial("keys", format.Certificate{IPs: []netip.Addr{home}}, root, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := m.TLS()
	if err != nil {
		t.Fatal(err)
	}
	r := keys.New(tokens, keys.Place{IP: home, Listen: new(net.ListenConfig).Listen, Certificate: pair})
	t.Cleanup(r.Close)
	return r, root
}

func token(t *testing.T, r *keys.Ring, name string) string {
	t.Helper()
	text, err := r.Token(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// verify is what a verifier that takes two algorithms says of a token.
func verify(t *testing.T, set, text string) (map[string]any, error) {
	t.Helper()
	var known jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(set), &known); err != nil {
		t.Fatalf("%q: %v", set, err)
	}
	parsed, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return nil, err
	}
	claims, standard := map[string]any{}, jwt.Claims{}
	if err := parsed.Claims(&known, &claims, &standard); err != nil {
		return nil, err
	}
	return claims, standard.ValidateWithLeeway(jwt.Expected{Time: time.Now()}, 0)
}

func TestTokens(t *testing.T) {
	of := func(alg string) format.Token { return format.Token{Issuer: issuer, Key: "k", Alg: alg} }
	tokens := map[string]format.Token{
		"rsa": of(format.RS256), "ecdsa": of(format.ES256), "hmac": of(format.HS256), "unsigned": of(format.Unsigned),
		"expired": {Issuer: issuer, Key: "k", Alg: format.RS256, Expired: true},
		"future":  {Issuer: issuer, Key: "k", Alg: format.ES256, Future: true},
		"full": {Issuer: issuer, Subject: "alice", Audiences: []string{"a", "b"}, Key: "k", Alg: format.RS256,
			Claims: map[string]any{"groups": []any{"admins"}, "nested": map[string]any{"deep": true}}},
	}
	r, _ := ring(t, tokens)
	set, err := r.Set("k")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(set, "\n") {
		t.Errorf("the set has several lines: %q", set)
	}
	for name, reason := range map[string]string{
		"rsa": "", "ecdsa": "", "full": "", "hmac": "unexpected signature algorithm", "unsigned": "unexpected signature algorithm",
		"expired": "expired", "future": "not valid yet",
	} {
		claims, err := verify(t, set, token(t, r, name))
		if (err == nil) != (reason == "") || err != nil && !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: error %v, want one with %q", name, err, reason)
		}
		if err == nil && claims["iss"] != issuer {
			t.Errorf("%s has claims %v", name, claims)
		}
	}
	claims, err := verify(t, set, token(t, r, "full"))
	if err != nil || claims["sub"] != "alice" || len(claims["aud"].([]any)) != 2 || claims["nested"].(map[string]any)["deep"] != true {
		t.Errorf("full has claims %v (%v)", claims, err)
	}
	if parts := strings.Split(token(t, r, "unsigned"), "."); len(parts) != 3 || parts[2] != "" {
		t.Errorf("unsigned is %v", parts)
	}
	header, err := base64.RawURLEncoding.DecodeString(strings.Split(token(t, r, "hmac"), ".")[0])
	if err != nil || !strings.Contains(string(header), `"alg":"HS256"`) || !strings.Contains(string(header), `"kid":"k-`) {
		t.Errorf("the header of hmac is %s (%v)", header, err)
	}
	if _, err := r.Token("nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a token that is not there: %v", err)
	}
}

func TestRotation(t *testing.T) {
	r, _ := ring(t, map[string]format.Token{"a": {Issuer: issuer, Key: "k", Alg: format.ES256}})
	if _, err := r.Token("a.before"); err == nil || !strings.Contains(err.Error(), "rotated") {
		t.Errorf("before any rotation: %v", err)
	}
	old, err := r.Set("k")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Change("k", keys.Rotate); err != nil {
		t.Fatal(err)
	}
	set, err := r.Set("k")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		set, token string
		good       bool
	}{{set, "a", true}, {old, "a.before", true}, {set, "a.before", false}, {old, "a", false}} {
		if _, err := verify(t, test.set, token(t, r, test.token)); (err == nil) != test.good {
			t.Errorf("%s with %s: %v", test.token, test.set, err)
		}
	}
}

func TestServer(t *testing.T) {
	r, root := ring(t, nil)
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: root.Pool()},
		DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	get := func(uri string) (int, string, http.Header, error) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, uri, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", nil, err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(raw), resp.Header, err
	}
	plain, err := r.URI("k", false)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := r.URI("k", true)
	if err != nil {
		t.Fatal(err)
	}
	base, err := r.Issuer("k")
	if err != nil {
		t.Fatal(err)
	}
	set, err := r.Set("k")
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{plain, secure} {
		if code, body, header, err := get(uri); code != http.StatusOK || body != set || header.Get("Cache-Control") != "max-age=1" {
			t.Errorf("%s: %d, %v, %v", uri, code, header, err)
		}
	}
	var found map[string]string
	if _, body, _, err := get(base + "/.well-known/openid-configuration"); err != nil || json.Unmarshal([]byte(body), &found) != nil ||
		found["jwks_uri"] != plain || found["issuer"] != base {
		t.Errorf("discovery: %q (%v)", body, err)
	}
	for _, state := range []string{keys.Garbage, keys.Redirect, keys.Down, keys.Slow, keys.Up} {
		if err := r.Change("k", state); err != nil {
			t.Fatal(err)
		}
		code, body, header, err := get(plain)
		var late net.Error
		ok := map[string]bool{
			keys.Garbage:  code == http.StatusOK && !json.Valid([]byte(body)),
			keys.Redirect: code == http.StatusFound && strings.HasPrefix(header.Get("Location"), "http://127.0.0.1:"),
			keys.Down:     err != nil && strings.Contains(err.Error(), "refused"),
			keys.Slow:     err != nil && errors.As(err, &late) && late.Timeout(),
			keys.Up:       code == http.StatusOK && body == set,
		}[state]
		if !ok {
			t.Errorf("%s: %d, %q, %v, %v", state, code, body, header, err)
		}
	}
	if err := r.Change("k", keys.Rotate); err != nil {
		t.Fatal(err)
	}
	if _, body, _, err := get(plain); err != nil || body == set || !strings.Contains(body, `"kid":"k-`) {
		t.Errorf("after a rotation: %q (%v)", body, err)
	}
	if _, err := keys.New(nil, keys.Place{}).URI("k", false); err == nil {
		t.Error("a set was served nowhere")
	}
}
