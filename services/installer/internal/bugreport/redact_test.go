package bugreport_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/bugreport"
)

func privateKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

const jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIiwic3ViIjoiYSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZS1zaWduYXR1cmU"

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// wrapped is base64 in lines of 76 characters, as the program base64 writes it.
func wrapped(text string) string {
	var out strings.Builder
	for rest := b64(text); rest != ""; {
		n := min(len(rest), 76)
		out.WriteString(rest[:n] + "\n")
		rest = rest[n:]
	}
	return out.String()
}

// leaks reports the pieces of a secret that are in a text, plain or within base64.
func leaks(text []byte, secret string) bool {
	core := strings.TrimSpace(secret)
	if strings.Contains(secret, "PRIVATE KEY") {
		core = strings.Split(secret, "\n")[1] // a line of the key itself
	}
	for skip := range 3 { // base64 of the secret within other text, whatever it is aligned to
		enc := b64(strings.Repeat("x", skip) + core)
		if enc = enc[4 : len(enc)-4]; bytes.Contains(text, []byte(enc)) {
			return true
		}
	}
	return bytes.Contains(text, []byte(core))
}

func TestSecretsAreRedactedInEveryForm(t *testing.T) {
	key := privateKey(t)
	quoted, _ := json.Marshal(key)
	const password = "correct horse battery"
	for name, tc := range map[string]struct{ text, secret string }{
		"key":                         {"before\n" + key + "after", key},
		"key that is cut off":         {"before\n" + key[:len(key)/2], key},
		"key in a line of JSON":       {`{"msg":"key","pem":` + string(quoted) + `}`, key},
		"key in base64":               {"tls.key: " + b64(key), key},
		"key in wrapped base64":       {"tls.key: |\n" + wrapped(key), key},
		"key in base64 of base64":     {"x: " + b64(b64(key)), key},
		"token":                       {"token is " + jwt + " here", jwt},
		"token in base64":             {"x " + b64(jwt), jwt},
		"token in the middle of text": {"x " + b64("some words before it "+jwt+" and after it"), jwt},
		"bearer":                      {"curl -H 'Authorization: Bearer abcdefghijklmnop'", "abcdefghijklmnop"},
		"basic":                       {"Authorization: Basic " + b64("joe:s3cr3t-of-joe"), b64("joe:s3cr3t-of-joe")},
		"header in JSON":              {`{"authorization": ["Bearer qwertyuiopasdf"]}`, "qwertyuiopasdf"},
		"password in an environment":  {"DB_PASSWORD=hunter2hunter2 started", "hunter2hunter2"},
		"password in quotes":          {`db_password: "` + password + `"`, password},
		"flag":                        {"--client-secret=abcdefgh12", "abcdefgh12"},
		"user in a URL":               {"postgres://joe:pa55word@db:5432/x", "pa55word"},
	} {
		t.Run(name, func(t *testing.T) {
			for form, redact := range map[string]func(*bugreport.Redactor) []byte{
				"text": func(r *bugreport.Redactor) []byte { return r.Text([]byte(tc.text)) },
				"JSON": func(r *bugreport.Redactor) []byte {
					js, err := json.Marshal(map[string]any{"log": []string{tc.text}})
					if err != nil {
						t.Fatal(err)
					}
					return r.JSON(js)
				},
			} {
				if got := redact(&bugreport.Redactor{}); leaks(got, tc.secret) || !bytes.Contains(got, []byte(bugreport.Redacted)) {
					t.Errorf("as %s: %s", form, got)
				}
			}
		})
	}
}

func TestWhatIsRedactedInAnObjectIsRedactedInLaterTexts(t *testing.T) {
	r := &bugreport.Redactor{}
	const value, env = "plain-value-of-a-secret", "value-of-variable"
	object := fmt.Sprintf(`{"items": [
	  {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "copy of %s"}}, "data": {"k": %q}, "stringData": {"j": "other-value"}},
	  {"kind": "Pod", "spec": {"containers": [{"name": "app", "env": [{"name": "API_KEY", "value": %q}, {"name": "MODE", "value": "verbose"}]}]}}]}`, b64(value), b64(value), env)
	got := string(r.JSON([]byte(object)))
	for _, secret := range []string{value, b64(value), "other-value", env} {
		if strings.Contains(got, secret) {
			t.Errorf("%s is left in %s", secret, got)
		}
	}
	if !strings.Contains(got, "verbose") || !strings.Contains(got, `"API_KEY"`) {
		t.Errorf("more than secrets is gone: %s", got)
	}
	for _, log := range []string{"connect with " + value, "sent " + b64("user:"+value), "x=" + env, b64("ab" + env + "cd")} {
		if later := r.Text([]byte(log)); leaks(later, value) || leaks(later, env) {
			t.Errorf("a later log has it: %s", later)
		}
	}
}

func TestSecretsThatAreNumbersOrInListsAreRedacted(t *testing.T) {
	for name, redact := range map[string]func(*bugreport.Redactor, []byte) []byte{
		"JSON": (*bugreport.Redactor).JSON, "YAML": (*bugreport.Redactor).YAML,
	} {
		r := &bugreport.Redactor{}
		got := string(redact(r, []byte(
			`{"password": 1234567890, "apiTokens": ["first-of-them", {"value": "second-of-them"}], "spec": {"db_passwords": ["third-of-them"], "fromCookies": ["session"], "max_tokens": 77}}`)))
		for _, secret := range []string{"1234567890", "1.23456789", "first-of-them", "second-of-them", "third-of-them"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s: %s is left in %s", name, secret, got)
			}
		}
		if !strings.Contains(got, "session") || !strings.Contains(got, "77") {
			t.Errorf("%s: more than secrets is gone: %s", name, got)
		}
		if later := string(r.Text([]byte("sent first-of-them"))); strings.Contains(later, "first-of-them") {
			t.Errorf("%s: a later log has it: %s", name, later)
		}
	}
}

func TestWhatIsNoSecretStays(t *testing.T) {
	r := &bugreport.Redactor{}
	for _, text := range []string{
		"credentialName: web-cert", "--token-file=/var/run/secrets/tokens/istio-token", "outbound|9080|v1|reviews.default.svc.cluster.local",
		`"secretName": "web-tls"`, "GET /productpage HTTP/1.1", "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		"-----BEGIN CERTIFICATE-----", "automountServiceAccountToken: false", "spiffe://cluster.local/ns/apps/sa/server", "tokenReview: true",
		"fairlead_ca_tokens_total 5", "serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}",
	} {
		if got := string(r.Text([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func FuzzRedactKeepsNoKey(f *testing.F) {
	f.Add("a", "b")
	f.Add("{\"x\": \"", "\"}")
	f.Fuzz(func(t *testing.T, before, after string) {
		const key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49\n-----END EC PRIVATE " +
			"KEY-----"
		r := &bugreport.Redactor{}
		for _, got := range [][]byte{r.Text([]byte(before + key + after)), r.JSON([]byte(before + key + after)),
			r.YAML([]byte(before + key + after))} {
			if bytes.Contains(got, []byte("MHcCAQEEIIrYSSNQ")) {
				t.Errorf("%q", got)
			}
		}
	})
}

// Anybody writes anything into annotations of his own.
func TestForeignAnnotationsKeepTheirNamesOnly(t *testing.T) {
	r := &bugreport.Redactor{}
	got, ok := r.Tree(map[string]any{"kind": "Pod", "metadata": map[string]any{"annotations": map[string]any{
		"sidecar.istio.io/inject": "true", "fairlead.dev/x": "1", "kubectl.kubernetes.io/default-container": "app", "helm.sh/hook": "test",
		"example.com/dsn": "postgres://user:hunter2@db/shop", "note": "the key is hunter2", "evil-istio.io/x": "hunter2",
		"istio.io.example.com/x":                           "hunter2",
		"kubectl.kubernetes.io/last-applied-configuration": "hunter2",
	}}}).(map[string]any)
	text, err := json.Marshal(got)
	if !ok || err != nil || strings.Contains(string(text), "hunter2") ||
		!strings.Contains(string(text), `"example.com/dsn":"`+bugreport.Redacted) ||
		!strings.Contains(string(text), `"sidecar.istio.io/inject":"true"`) || !strings.Contains(string(text), `default-container":"app"`) {
		t.Errorf("%s, %v", text, err)
	}
}
