package validate

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// secretOf is a Secret as users write it.
func secretOf(t *testing.T, kind string, entries map[string][]byte) *manifest.Document {
	t.Helper()
	js, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": map[string]any{"name": "shop-tls", "namespace": "shop"}, "data": entries,
	})
	if err != nil {
		t.Fatal(err)
	}
	docs, problems := manifest.Parse("shop.yaml", js)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return docs[0]
}

func pkcs8(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// keyLines are texts that would show a leaked key.
func keyLines(key []byte) []string {
	var lines []string
	for l := range strings.Lines(string(key)) {
		if l = strings.TrimSpace(l); len(l) > 16 && !strings.HasPrefix(l, "-----") {
			lines = append(lines, l[4:20])
		}
	}
	return lines
}

func TestSecrets(t *testing.T) {
	pki := testkit.PKI(t)
	chain, key := pki.NewServer("shop.example.com")
	_, other := pki.NewServer("shop.example.com")
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	odd, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(odd)
	if err != nil {
		t.Fatal(err)
	}
	garbled := []byte(strings.Replace(string(key), "M", "N", 1))
	type entries = map[string][]byte
	const tlsType, opaque = "kubernetes.io/tls", "Opaque"
	cases := map[string]struct {
		kind string
		data entries
		want string // "" if it is taken
		part string // the parts of the credential it makes
	}{
		"TLS":                {tlsType, entries{"tls.crt": chain, "tls.key": key}, "", "chain key"},
		"TLS with authority": {tlsType, entries{"tls.crt": chain, "tls.key": key, "ca.crt": pki.RootPEM}, "", "chain key ca"},
		"empty authority":    {tlsType, entries{"tls.crt": chain, "tls.key": key, "ca.crt": nil}, "", "chain key"},
		"generic":            {opaque, entries{"cert": chain, "key": key, "cacert": pki.RootPEM, "crl": pki.Revoke()}, "", "chain key ca crl"},
		"authority alone":    {opaque, entries{"cacert": pki.RootPEM}, "", "ca"},
		"authority of TLS":   {opaque, entries{"ca.crt": pki.RootPEM, "ca.crl": pki.Revoke()}, "", "ca crl"},
		"TLS names, no type": {"", entries{"tls.crt": chain, "tls.key": key}, "", "chain key"},
		"RSA":                {tlsType, entries{"tls.crt": pki.SignServer(long.Public(), "x"), "tls.key": pkcs8(t, long)}, "", "chain key"},
		"chain of two": {tlsType, entries{"tls.crt": append(append([]byte{}, chain...), pki.RootPEM...), "tls.key": key}, "",
			"chain key"},
		"something else":       {opaque, entries{"password": []byte("hunter2")}, "", ""},
		"only a key":           {opaque, entries{"key": []byte("api-key")}, "", ""},
		"service account":      {"kubernetes.io/service-account-token", entries{"ca.crt": []byte("x"), "token": []byte("y")}, "", ""},
		"helm release":         {"helm.sh/release.v1", entries{"release": []byte("x")}, "", ""},
		"no key":               {tlsType, entries{"tls.crt": chain}, `data\.tls\.key|data\["tls\.key"\]`, ""},
		"no certificate":       {tlsType, entries{"tls.key": key}, `tls\.crt.*missing or empty`, ""},
		"TLS of nothing":       {tlsType, nil, `missing or empty`, ""},
		"another key":          {tlsType, entries{"tls.crt": chain, "tls.key": other}, `tls\.key.*not that of the first certificate`, ""},
		"generic, another key": {opaque, entries{"cert": chain, "key": other}, `key.*not that of the first certificate in cert`, ""},
		"garbled key":          {tlsType, entries{"tls.crt": chain, "tls.key": garbled}, `the key cannot be read`, ""},
		"key is no PEM":        {tlsType, entries{"tls.crt": chain, "tls.key": []byte("not PEM at all")}, `tls\.key.*no PEM`, ""},
		"certificate no PEM":   {tlsType, entries{"tls.crt": []byte("x"), "tls.key": key}, `tls\.crt.*no certificate in PEM`, ""},
		"swapped":              {tlsType, entries{"tls.crt": key, "tls.key": chain}, `tls\.crt.*holds a private key`, ""},
		"key behind chain": {tlsType, entries{"tls.crt": append(append([]byte{}, chain...), key...), "tls.key": key},
			`tls\.crt.*holds a private key`, ""},
		"encrypted key": {tlsType,
			entries{"tls.crt": chain, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})},
			`encrypted.*without a passphrase`, ""},
		"short RSA": {tlsType, entries{"tls.crt": pki.SignServer(short.Public(), "x"), "tls.key": pkcs8(t, short)},
			`RSA key of 1024 bits.*2048`, ""},
		"odd curve": {tlsType,
			entries{"tls.crt": pki.SignServer(odd.Public(), "x"), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1})},
			`curve P-224`, ""},
		"Ed25519": {tlsType, entries{"tls.crt": pki.SignServer(edPublic, "x"), "tls.key": pkcs8(t, ed)}, `Ed25519.*RSA or ECDSA`,
			""},
		"bad authority": {opaque, entries{"cacert": []byte("x")}, `cacert.*no certificate in PEM`, ""},
		"bad list":      {opaque, entries{"cacert": pki.RootPEM, "crl": []byte("x")}, `crl.*no revocation list`, ""},
		"broken list": {opaque,
			entries{"cacert": pki.RootPEM, "crl": pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("x")})}, `crl.*cannot be read`, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := Document(secretOf(t, c.kind, c.data))
			if c.want != "" {
				if err == nil {
					t.Fatal("taken")
				}
				if !strings.Contains(err.Error(), "Secret shop/shop-tls") || !regexp.MustCompile(c.want).MatchString(err.Error()) {
					t.Errorf("%v", err)
				}
				for _, content := range c.data {
					for _, line := range append(keyLines(content), keyLines(key)...) {
						if strings.Contains(err.Error(), line) {
							t.Errorf("the error repeats the content: %v", err)
						}
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			credential, _ := o.Body.(*object.Credential)
			var parts []string
			if m := credential.Proto(); m != nil {
				for _, p := range []struct {
					name    string
					content []byte
				}{{"chain", m.GetCertificateChain()}, {"key", m.GetPrivateKey()}, {"ca", m.GetCaCertificates()}, {"crl", m.GetCrl()}} {
					if len(p.content) > 0 {
						parts = append(parts, p.name)
					}
				}
			}
			if got := strings.Join(parts, " "); got != c.part {
				t.Errorf("made %q, want %q", got, c.part)
			}
		})
	}
}

// TestSecretsAreRedacted: no way of printing a decoded Secret shows its content.
func TestSecretsAreRedacted(t *testing.T) {
	pki := testkit.PKI(t)
	chain, key := pki.NewServer("shop.example.com")
	o, err := Document(secretOf(t, "kubernetes.io/tls", map[string][]byte{"tls.crt": chain, "tls.key": key}))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", o)
		fmt.Fprintf(&out, verb+"\n", o.Body)
		fmt.Fprintf(&out, verb+"\n", []any{o.Body})
	}
	js, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(js)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "body", o.Body, "object", o)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "body", o.Body, "object", o)
	for _, line := range keyLines(key) {
		var numbers []string
		for _, b := range []byte(line) {
			numbers = append(numbers, strconv.Itoa(int(b)))
		}
		for _, form := range []string{line, fmt.Sprintf("%x", line), strings.Join(numbers, " ")} {
			if strings.Contains(out.String(), form) {
				t.Errorf("the key shows: %s", out.String())
			}
		}
	}
	if !strings.Contains(out.String(), "(redacted)") {
		t.Error("nothing was printed")
	}
}
