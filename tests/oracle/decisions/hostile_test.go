package decisions

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	api "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// TestHostileTokensAreRefused shows real Envoy tokens that attackers make, by Fairlead's filter: each is answered 401,
// or 403 if nothing but its audience is wrong, and a good one 200, before and after.
func TestHostileTokensAreRefused(t *testing.T) {
	b := newOwn(t)
	key := testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t)
	foreign := testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t)
	public := testkit.Must(json.Marshal(jose.JSONWebKey{Key: key.Public(), KeyID: "a", Algorithm: "RS256"}))(t)
	attacker := testkit.Must(json.Marshal(jose.JSONWebKey{Key: foreign.Public(), KeyID: "a", Algorithm: "RS256"}))(t)
	der := testkit.Must(x509.MarshalPKIXPublicKey(key.Public()))(t)
	sign := func(with *rsa.PrivateKey, header, payload string) string {
		text := encoded(header) + "." + encoded(payload)
		sum := sha256.Sum256([]byte(text))
		return text + "." + encoded(string(testkit.Must(rsa.SignPKCS1v15(rand.Reader, with, crypto.SHA256, sum[:]))(t)))
	}
	keyed := func(secret []byte) string {
		text := encoded(`{"alg":"HS256","kid":"a","typ":"JWT"}`) + "." + encoded(claims(``))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		return text + "." + encoded(string(mac.Sum(nil)))
	}
	const header = `{"alg":"RS256","kid":"a","typ":"JWT"}`
	good := sign(key, header, claims(``))
	parts := strings.Split(good, ".")
	hours := func(n time.Duration) int64 { return time.Now().Add(n * time.Hour).Unix() }
	hostile := map[string]string{
		"dots": "..", "one part": parts[0], "no signature": parts[0] + "." + parts[1] + ".", "four parts": good + "." + parts[2],
		"two signatures": good + "," + good, "a JSON serialization": fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q},`+
			`{"protected":%q,"signature":%q}]}`, parts[1], parts[0], parts[2], parts[0], parts[2]),
		"five parts, as if encrypted": strings.Join([]string{parts[0], "", parts[1], parts[2], parts[2]}, "."),
		"a cut signature":             good[:len(good)-8], "a longer signature": good + "AAAA", "not base64": parts[0] + "." + parts[1] + ".!!",
		"no algorithm":          encoded(`{"kid":"a"}`) + "." + parts[1] + "." + parts[2],
		"HMAC with the PEM":     keyed(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		"HMAC with the DER":     keyed(der),
		"HMAC with the key set": keyed(public), "HMAC with the modulus": keyed(key.N.Bytes()), "HMAC with nothing": keyed(nil),
		"another key":                 sign(foreign, header, claims(``)),
		"another key in the header":   sign(foreign, `{"alg":"RS256","kid":"a","jwk":`+string(attacker)+`}`, claims(``)),
		"another key by address":      sign(foreign, `{"alg":"RS256","kid":"a","jku":"https://e.example","x5u":"https://e.example"}`, claims(``)),
		"another kid":                 sign(key, `{"alg":"RS256","kid":"b"}`, claims(``)),
		"a kid that is a path":        sign(foreign, `{"alg":"RS256","kid":"../../dev/null"}`, claims(``)),
		"another algorithm":           sign(key, `{"alg":"ES256","kid":"a"}`, claims(``)),
		"an algorithm that is a list": sign(key, `{"alg":["RS256"],"kid":"a"}`, claims(``)),
		"a header that is a list":     sign(key, `["RS256"]`, claims(``)), "a header that is no JSON": sign(key, `{`, claims(``)),
		"expired":                         sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","aud":"web","exp":%d}`, hours(-1))),
		"not valid yet":                   sign(key, header, claims(fmt.Sprintf(`"nbf":%d,`, hours(1)))),
		"an end before the time":          sign(key, header, `{"iss":"i","sub":"s","aud":"web","exp":-1}`),
		"an end that is a text":           sign(key, header, `{"iss":"i","sub":"s","aud":"web","exp":"never"}`),
		"an end that is a list":           sign(key, header, `{"iss":"i","sub":"s","aud":"web","exp":[9999999999]}`),
		"no audience":                     sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","exp":%d}`, hours(1))),
		"another audience":                sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","aud":"api","exp":%d}`, hours(1))),
		"an audience that is a number":    sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","aud":7,"exp":%d}`, hours(1))),
		"an audience that is an object":   sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","aud":{"web":true},"exp":%d}`, hours(1))),
		"audiences that are numbers":      sign(key, header, fmt.Sprintf(`{"iss":"i","sub":"s","aud":[7,null],"exp":%d}`, hours(1))),
		"no issuer":                       sign(key, header, fmt.Sprintf(`{"sub":"s","aud":"web","exp":%d}`, hours(1))),
		"an issuer that is a list":        sign(key, header, fmt.Sprintf(`{"iss":["i"],"sub":"s","aud":"web","exp":%d}`, hours(1))),
		"an issuer with more behind it":   sign(key, header, fmt.Sprintf(`{"iss":"i\u0000","sub":"s","aud":"web","exp":%d}`, hours(1))),
		"duplicate claims":                sign(foreign, header, claims(`"iss":"evil","aud":"api",`)),
		"duplicate claims, by the issuer": sign(key, header, claims(`"iss":"evil","aud":"api",`)),
		"claims that are a list":          sign(key, header, `["i"]`),
		"claims that are no JSON":         sign(key, header, `{"iss":"i"`),
		"claims that are another token":   sign(key, `{"alg":"RS256","kid":"a","cty":"JWT"}`, good),
		"nested deeply":                   sign(foreign, header, strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)),
		"nested deeply, by the issuer":    sign(key, header, claims(`"a":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+",")),
		"huge":                            sign(foreign, header, claims(`"a":"`+strings.Repeat("a", 32<<10)+`",`)),
		"huge and no token":               strings.Repeat("A", 48<<10),
		"many dots":                       strings.Repeat(".", 16<<10),
		"half a character":                sign(foreign, header, claims(`"a":"\ud800",`)),
	}
	for _, alg := range []string{"none", "None", "NONE", "nOnE", ""} {
		unsigned := encoded(fmt.Sprintf(`{"alg":%q,"kid":"a","typ":"JWT"}`, alg)) + "." + parts[1] + "."
		hostile["algorithm "+alg] = unsigned
		hostile["algorithm "+alg+" with a signature"] = unsigned + parts[2]
	}

	s := policygen.Set{Name: "tokens", Namespace: "p0", Address: policygen.AddressOf(0), Labels: map[string]string{"set": "p0"}}
	s.Objects = []policygen.Object{
		{Kind: policygen.RequestAuthentication, Namespace: "p0", Name: "tokens", Spec: &api.RequestAuthentication{JwtRules: []*api.JWTRule{{
			Issuer: "i", Audiences: []string{"web"}, Jwks: `{"keys":[` + string(public) + `]}`,
		}}}},
	}
	m := Mesh{TrustDomain: policygen.TrustDomain, Sets: []policygen.Set{s}}
	ours := startFairlead(t, b.programs, m)
	names := map[string]string{}
	asked := 0
	b.ask(t, m.Sets, [gate.Sides]side{ours.beside, ours.within}, func(policygen.Set) (out []policygen.Request) {
		shown := func(name, token string) {
			r := policygen.Request{Connection: policygen.Connection{Source: "127.0.0.2", Remote: "192.0.2.1", Port: httpPort}, Method: "GET",
				Host: "host", Path: fmt.Sprintf("/%d", len(names)), Headers: []policygen.Header{{Name: "authorization", Value: "Bearer " + token}}}
			names[r.Path] = name
			out = append(out, r)
		}
		shown("good", good)
		for name, token := range hostile {
			shown(name, token)
		}
		shown("good", good)
		return out
	}, func(a Answered) {
		asked++
		want := 401
		switch names[a.Request.Path] {
		case "good":
			want = 200
		case "no audience", "another audience":
			want = 403
		}
		for _, got := range a.Answers {
			if got.Status != want {
				t.Errorf("%s: Envoy answers %s, want %d", names[a.Request.Path], got, want)
			}
		}
	})
	if asked != len(hostile)+2 {
		t.Errorf("%d answers to %d tokens", asked, len(hostile)+2)
	}
}

// claims are those of a good token, with more before them.
func claims(more string) string {
	return fmt.Sprintf(`{%s"iss":"i","sub":"s","aud":["web"],"exp":%d}`, more, time.Now().Add(time.Hour).Unix())
}
