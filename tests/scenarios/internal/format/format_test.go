package format

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func loader(t *testing.T) *Loader {
	t.Helper()
	schema, err := os.ReadFile("../../schema.json")
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(schema, os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLoadExamples(t *testing.T) {
	scenarios, err := loader(t).Load("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	if len(scenarios) != 8 {
		t.Fatalf("%d scenarios", len(scenarios))
	}
	byName := map[string]*Scenario{}
	for _, s := range scenarios {
		byName[s.Name] = s
		if s.Topology.Name == "standard" && s.Topology != byName["gateway-tls-simple"].Topology {
			t.Errorf("%s has a topology of its own", s.Name)
		}
	}
	call := byName["http-weights"].Steps[1].Call
	if call.From != "client" || call.Count != 300 || call.Timeout.D() != 5*time.Second || call.Expect.Status.OneOf[0] != 200 ||
		call.Expect.Share() != 10 {
		t.Errorf("call is %+v", call)
	}
	if id := byName["peer-authentication-strict"].Steps[0].Call.Expect.Identity; !id.Given || id.URI != "" {
		t.Errorf("identity null is %+v", id)
	}
	if n := len(byName["http-weights"].Topology.Workloads[0].Ports); n != 8 {
		t.Errorf("client has %d ports", n)
	}
}

func TestLoadTokens(t *testing.T) {
	dir := t.TempDir()
	text := `name: x
about: a.
covers: [x]
topology: policy
tokens: {a: {issuer: "${jwksIssuer:k}", claims: {n: 1}}, b: {issuer: i, key: k, alg: none, future: true}}
steps:
- keys: {k: rotate}
- call: {url: "http://server/", target: "*", headers: {a: b, c: null, d: [e, f]}, expect: {accessLog: [{at: server, has: [GET]}]}}
`
	if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loader(t).Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := got[0]
	if a, b := s.Tokens["a"], s.Tokens["b"]; a.Key != DefaultKey || a.Alg != RS256 || b.Key != "k" || b.Alg != Unsigned || !b.Future {
		t.Errorf("tokens are %+v", s.Tokens)
	}
	call := s.Steps[1].Call
	if h := call.Headers; len(h["a"]) != 1 || h["c"] != nil || len(h["d"]) != 2 || call.Target != "*" || s.Steps[0].Keys["k"] != "rotate" {
		t.Errorf("the steps are %+v", s.Steps)
	}
}

// fixedKeys are keys that a test knows.
type fixedKeys struct{ turn int }

func (k *fixedKeys) Token(name string) (string, error) {
	k.turn++
	return fmt.Sprintf("token-%s-%d", name, k.turn), nil
}
func (*fixedKeys) Set(key string) (string, error) { return `{"keys":[{"kid":"` + key + `"}]}`, nil }
func (*fixedKeys) URI(key string, secure bool) (string, error) {
	return fmt.Sprintf("http://198.18.0.8/%s/%t", key, secure), nil
}
func (*fixedKeys) Issuer(key string) (string, error) { return "http://198.18.0.8/" + key, nil }

// TestKeysInText: what stands for tokens and keys is of the moment of its step, and written as the YAML demands.
func TestKeysInText(t *testing.T) {
	v := &Values{Keys: &fixedKeys{}, IP: func(string) (string, error) { return "198.18.0.1", nil }}
	s := &Scenario{Steps: []Step{{Call: &Call{
		URL: "http://${ip:a}/${jwt:t}", Headers: map[string]Fields{"a": {"Bearer ${jwt:t}"}, "b": nil},
	}}}}
	expanded, err := v.Expand(s)
	if err != nil || expanded.Steps[0].Call.URL != "http://198.18.0.1/${jwt:t}" {
		t.Fatalf("expanded to %+v (%v)", expanded.Steps[0].Call, err)
	}
	for i := range 2 {
		now, err := v.Now(&expanded.Steps[0])
		if err != nil || !strings.HasPrefix(now.Call.URL, "http://198.18.0.1/token-t-") ||
			!strings.HasPrefix(now.Call.Headers["a"][0], "Bearer token-t-") || now.Call.Headers["b"] != nil ||
			i == 1 && strings.Contains(now.Call.URL+now.Call.Headers["a"][0], "-1") {
			t.Errorf("now it is %+v (%v)", now.Call, err)
		}
	}
	for _, text := range []string{
		"a: ${jwks:k}\n", "a: '${jwks:k}'\n", "a: \"${jwks:k}\"\n", "a: |-\n  ${jwks:k}\n", "{b: 1, a: ${jwks:k}}\n",
	} {
		out, err := v.Text(text)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ A string }
		if err := yaml.Unmarshal([]byte(out), &got); err != nil || got.A != `{"keys":[{"kid":"k"}]}` {
			t.Errorf("%q became %q, %q (%v)", text, out, got.A, err)
		}
	}
	if got, err := v.Text("${jwksUri:k} ${jwksHttpsUri:k} ${jwksIssuer:k}"); err != nil ||
		got != "http://198.18.0.8/k/false http://198.18.0.8/k/true http://198.18.0.8/k" {
		t.Errorf("addresses are %q (%v)", got, err)
	}
	if _, err := (&Values{}).Text("${jwt:t}"); err == nil {
		t.Error("a token without keys was taken")
	}
}

func TestLoadRefuses(t *testing.T) {
	const good = `name: x
about: a.
covers: [x]
topology: standard
steps:
- call: {url: "http://server/", expect: {status: 200}}
`
	tests := []struct{ name, from, to, place, want string }{
		{"unknown key", "about: a.", "about: a.\nhints: 3", "x.yaml:3: ", "/hints: "},
		{"unknown key of a call", "url:", "urls: 3, url:", "x.yaml:6: ", "/steps/0/call/urls: "},
		{"wrong type of a call", `status: 200`, `status: yes`, "x.yaml:6: ", "/steps/0/call/expect/status: "},
		{"unknown topology", "standard", "nowhere", "x.yaml:4: ", `there is no topology "nowhere"`},
		{"unknown caller", "url:", "from: nobody, url:", "x.yaml:6: ", `/steps/0/call/from: topology standard has no workload "nobody"`},
		{"unknown certificate", "url:", "tls: {ca: root}, url:", "x.yaml:6: ", `there is no certificate "root"`},
		{"name unlike the file", "name: x", "name: z", "x.yaml:1: ", `"z"`},
		{"duplicate key", "about: a.", "about: a.\nabout: b.", "x.yaml: ", "line 3"},
		{"no steps", "steps:\n- call: {url: \"http://server/\", expect: {status: 200}}", "steps: []", "x.yaml:5: ", "/steps: "},
		{"a token of no time", "steps:", "tokens: {t: {issuer: i, expired: true, future: true}}\nsteps:", "x.yaml:5: ", "/tokens/t: "},
		{"a log of nobody", "status: 200", "accessLog: [{at: nobody}]", "x.yaml:6: ", `/steps/0/call/expect: topology standard has no workload`},
		{"what no key can become", "- call", "- keys: {default: lost}\n- call", "x.yaml:6: ", "/steps/0/keys/default: "},
		{"end of nothing", "- call:", "- end: x\n- call:", "x.yaml:6: ", `nothing named "x"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			text := strings.Replace(good, tt.from, tt.to, 1)
			if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := loader(t).Load(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.place) {
				t.Errorf("error %v, want one with %q and %q", err, tt.place, tt.want)
			}
		})
	}
	if _, err := loader(t).Load(t.TempDir()); err == nil {
		t.Error("an empty directory was taken")
	}
}

func TestTopologyOfTheDirectoryWins(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("topologies/standard.yaml", "namespaces: {apps: {}}\nworkloads: [{name: client, namespace: apps}]\n")
	write("x.yaml", "name: x\nabout: a\ncovers: [x]\ntopology: standard\nsteps: [{wait: 1s}]\n")
	got, err := loader(t).Load(dir)
	if err != nil || len(got[0].Topology.Workloads) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	write("topologies/standard.yaml", "namespaces: {}\nworkloads: [{name: client, namespace: apps}]\n")
	if _, err := loader(t).Load(dir); err == nil || !strings.Contains(err.Error(), "standard.yaml:2: /workloads/0/namespace") {
		t.Errorf("error %v", err)
	}
}

func TestRevoked(t *testing.T) {
	made, err := Issue(map[string]Certificate{"root": {CA: true}, "good": {Issuer: "root"}, "gone": {Issuer: "root", Revoked: true}},
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, err := (&Values{Certificates: made}).Text("${crl64:root}")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	list, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if all := list.RevokedCertificateEntries; len(all) != 1 || all[0].SerialNumber.Cmp(made["gone"].Certificate.SerialNumber) != 0 {
		t.Errorf("the list has %v", all)
	}
}

func TestText(t *testing.T) {
	made, err := Issue(map[string]Certificate{
		"root": {CA: true}, "middle": {CA: true, Issuer: "root"}, "leaf": {Issuer: "middle", DNSNames: []string{"a.example.com"}},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	v := &Values{Certificates: made, IP: func(string) (string, error) { return "198.18.0.1", nil }}
	for _, text := range []string{
		"a: \"${chain:leaf}\"\n", "b: {a: 1}\na: |\n  ${chain:leaf}\n", "a: ${chain:leaf}\n",
	} {
		out, err := v.Text(text)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ A string }
		if err := yaml.Unmarshal([]byte(out), &got); err != nil || got.A != string(made["leaf"].ChainPEM) {
			t.Errorf("%q became %q (%v)", text, out, err)
		}
	}
	if n := strings.Count(string(made["leaf"].ChainPEM), "BEGIN"); n != 2 {
		t.Errorf("the chain has %d certificates, want leaf and middle", n)
	}
	for text, want := range map[string]string{"${cert:leaf}": string(made["leaf"].CertPEM), "# ${ip:server}\n": "# 198.18.0.1\n"} {
		out, err := v.Expand(&Scenario{Steps: []Step{{Files: map[string]map[string]*FileText{"server": {"a": (*FileText)(&text), "b": nil}}}}})
		if got := out.Steps[0].Files["server"]; err != nil || string(*got["a"]) != want || got["b"] != nil {
			t.Errorf("a file with %q became %q (%v)", text, *got["a"], err)
		}
	}
	s := &Scenario{Steps: []Step{{Call: &Call{URL: "http://${ip:server}/"}}}}
	got, err := v.Expand(s)
	if err != nil || got.Steps[0].Call.URL != "http://198.18.0.1/" || s.Steps[0].Call.URL != "http://${ip:server}/" {
		t.Errorf("expanded to %q (%v), the original to %q", got.Steps[0].Call.URL, err, s.Steps[0].Call.URL)
	}
	v.IP = func(string) (string, error) { return "fd18::1", nil }
	for text, want := range map[string]string{
		"http://${ip:a}:80/": "http://[fd18::1]:80/", "http://[${ip:a}]/": "http://[fd18::1]/", "address: ${ip:a}": "address: fd18::1",
	} {
		if got, err := v.Text(text); err != nil || got != want {
			t.Errorf("%q became %q (%v), want %q", text, got, err, want)
		}
	}
	if _, err := v.Text("${what:x}"); err == nil {
		t.Error("an unknown variable was taken")
	}
	if _, err := Issue(map[string]Certificate{"a": {Issuer: "b"}, "b": {Issuer: "a"}}, time.Now()); err == nil {
		t.Error("certificates that issue one another were made")
	}
}
