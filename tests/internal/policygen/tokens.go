package policygen

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit/token"
)

// Keys sign the tokens of requests, with a key for each issuer.
type Keys struct {
	issuers map[string]token.Issuer
	foreign token.Issuer
}

// NewKeys makes new keys.
func NewKeys() (*Keys, error) {
	k := &Keys{issuers: map[string]token.Issuer{}}
	for i, name := range issuers {
		issuer, err := token.NewIssuer(name)
		if err != nil {
			return nil, err
		}
		issuer.KeyID = fmt.Sprintf("key-%d", i)
		k.issuers[name] = issuer
	}
	var err error
	k.foreign, err = token.NewIssuer(issuers[0])
	k.foreign.KeyID = "key-0"
	return k, err
}

// JWKS are the public keys of an issuer.
func (k *Keys) JWKS(issuer string) (string, error) {
	i := k.issuers[issuer]
	raw, err := i.JWKS()
	return string(raw), err
}

// Fault is what is wrong with a token.
type Fault string

// Faults of tokens; the zero value is none.
const (
	Expired      Fault = "expired"
	Early        Fault = "not valid yet"
	ForeignKey   Fault = "signed by another key"
	Unsigned     Fault = "not signed"
	Garbage      Fault = "no token"
	OtherIssuer  Fault = "an issuer that nobody knows"
	NoExpiration Fault = "without an end"
)

// Token is what a request shows to prove who its user is.
type Token struct {
	Claims map[string]any
	Fault  Fault
	// One of these says where it stands. Prefix is in front of it in a header.
	Header, Prefix, Parameter, Cookie string
}

// validFor is longer than any test.
const validFor = 24 * time.Hour

// Sign makes the text of a token.
func (k *Keys) Sign(t Token) (string, error) {
	claims := map[string]any{"iat": time.Now().Unix() - 10, "exp": time.Now().Add(validFor).Unix()}
	for name, value := range t.Claims {
		claims[name] = value
	}
	name, _ := claims["iss"].(string)
	issuer, known := k.issuers[name]
	if !known {
		issuer = k.foreign
	}
	switch t.Fault {
	case Garbage:
		return "abc.def", nil
	case Expired:
		claims["exp"] = time.Now().Add(-validFor).Unix()
	case NoExpiration:
		delete(claims, "exp")
	case Early:
		claims["nbf"] = time.Now().Add(validFor).Unix()
	case ForeignKey:
		issuer = k.foreign
	case OtherIssuer:
		claims["iss"] = "https://nobody.example"
	case Unsigned:
		payload, err := json.Marshal(claims)
		encode := base64.RawURLEncoding.EncodeToString
		return encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(payload) + ".", err
	}
	return issuer.Sign(claims)
}

// authentication draws a RequestAuthentication.
func (d drawer) authentication(keys *Keys) *security.RequestAuthentication {
	a := &security.RequestAuthentication{}
	for range 1 + d.IntN(2) {
		rule := &security.JWTRule{Issuer: d.word(issuers)}
		jwks, err := keys.JWKS(rule.GetIssuer())
		if err != nil {
			panic(err) // keys that were just made
		}
		rule.Jwks = jwks
		if d.one(4) {
			rule.Audiences = d.some(2, audiences)
		}
		switch d.IntN(6) {
		case 0:
			rule.FromHeaders = []*security.JWTHeader{{Name: "x-token", Prefix: d.word([]string{"", "Token "})}}
		case 1:
			rule.FromParams = []string{"token"}
		case 2:
			rule.FromCookies = []string{"session"}
		case 3:
			rule.FromHeaders = []*security.JWTHeader{{Name: "Authorization", Prefix: "Bearer "}, {Name: "x-token"}}
			rule.FromParams = []string{"token"}
		}
		rule.ForwardOriginalToken = d.one(2)
		if d.one(4) {
			rule.OutputPayloadToHeader = "x-payload"
		}
		if d.one(4) {
			rule.OutputClaimToHeaders = []*security.ClaimToHeader{{Header: "x-claim-sub", Claim: "sub"}, {Header: "x-claim-level", Claim: "level"}}
		}
		if d.one(8) {
			rule.SpaceDelimitedClaims = []string{"custom"}
		}
		a.JwtRules = append(a.JwtRules, rule)
	}
	return a
}

// token draws a token for a request; two of three are good.
func (d drawer) token() Token {
	t := Token{Claims: map[string]any{"iss": d.word(issuers), "sub": d.word(subjects)}}
	if d.one(3) {
		t.Fault = []Fault{Expired, Early, ForeignKey, Unsigned, Garbage, OtherIssuer, NoExpiration}[d.IntN(7)]
	}
	switch d.IntN(4) {
	case 0:
		t.Claims["aud"] = d.word(audiences)
	case 1, 2:
		t.Claims["aud"] = d.some(3, audiences)
	}
	for _, c := range []struct {
		name  string
		value func() any
	}{
		{"azp", func() any { return d.word(presenters) }},
		{"group", func() any { return d.some(3, []string{"dev", "ops", "developers"}) }},
		{"group", func() any { return d.word([]string{"dev", "ops", "developers"}) }},
		{"realm", func() any { return map[string]any{"roles": d.some(2, []string{"reader", "writer", "other"})} }},
		{"scope", func() any { return d.word([]string{"read", "read write", "write admin", "readonly"}) }},
		{"email", func() any { return d.word([]string{"alice@example.com", "bob@other.example"}) }},
		{"level", func() any { return 5 }}, {"admin", func() any { return d.one(2) }},
		{"nested", func() any { return map[string]any{"a": map[string]any{"b": "deep"}} }},
		{"custom", func() any { return d.word([]string{"one", "one two", "three"}) }},
	} {
		if value := c.value(); d.one(3) {
			t.Claims[c.name] = value
		}
	}
	d.place(&t)
	return t
}

// place draws where the token stands.
func (d drawer) place(t *Token) {
	t.Header, t.Prefix, t.Parameter, t.Cookie = "", "", "", ""
	switch d.IntN(8) {
	case 0:
		t.Header = "x-token"
	case 1:
		t.Header, t.Prefix = "x-token", "Token "
	case 2:
		t.Parameter = "token"
	case 3:
		t.Cookie = "session"
	default:
		t.Header, t.Prefix = "Authorization", "Bearer "
	}
}

// claim sets a claim of a condition's key, "a][b".
func (t *Token) claim(path string, value any) {
	names := strings.Split(path, "][")
	into := t.Claims
	for _, name := range names[:len(names)-1] {
		inner, ok := into[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			into[name] = inner
		}
		into = inner
	}
	into[names[len(names)-1]] = value
}
