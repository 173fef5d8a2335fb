package clustertrust

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
)

var someRules = []clusterkeys.NomadRule{{Namespace: "default", Job: "web", Task: "server", Account: "shop/web"}}

// nomadServer answers as Nomad's HTTP API does with these keys, and with an issuer if it has one.
func nomadServer(t *testing.T, issuer string, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/jwks.json", answer)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		if issuer == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"issuer": "` + issuer + `", "jwks_uri": "` + issuer + `/.well-known/jwks.json"}`))
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return s
}

func caOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	testkit.WriteFile(t, file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	return file
}

func TestNomadIsAskedForItsKeys(t *testing.T) {
	of := issuer(t, "15a95f48")
	keys := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(testkit.Must(os.ReadFile(of.JWKSFile))(t))
	}
	for _, issuer := range []string{"", "https://nomad.example"} {
		s := nomadServer(t, issuer, keys)
		got := testkit.Must(ReadNomad(t.Context(), "cluster nomad", Nomad{From: s.URL + "/", CAFile: caOf(t, s)}))(t)
		if got.Issuer != issuer || len(got.Keys) != 1 || got.Keys[0].KeyID != "15a95f48" || !got.Nomad {
			t.Errorf("got %+v", got)
		}
	}
	got := testkit.Must(ReadNomad(t.Context(), "cluster nomad", Nomad{From: of.JWKSFile, Issuer: "https://n"}))(t)
	if got.Issuer != "https://n" || len(got.Keys) != 1 || !got.Nomad {
		t.Errorf("of a file: %+v", got)
	}
}

func TestWhatIsNotNomadIsRefused(t *testing.T) {
	of := issuer(t, "a")
	keys := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(testkit.Must(os.ReadFile(of.JWKSFile))(t))
	}
	asked := false
	elsewhere := nomadServer(t, "", func(http.ResponseWriter, *http.Request) { asked = true })
	redirects := nomadServer(t, "", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	endless := nomadServer(t, "", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxAnswer+1)) })
	private := nomadServer(t, "", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"AAAA","kid":"a"}]}`))
	})
	untrusted := nomadServer(t, "", keys)
	for name, tc := range map[string]struct {
		from Nomad
		says string
	}{
		"plaintext":         {Nomad{From: "http://nomad.example:4646"}, "is not https"},
		"a query":           {Nomad{From: "https://nomad.example/?a=b"}, "is no address of an HTTP API"},
		"another scheme":    {Nomad{From: "ftp://nomad.example"}, "is not https"},
		"no file":           {Nomad{From: filepath.Join(t.TempDir(), "none")}, "--nomad: "},
		"an unknown CA":     {Nomad{From: untrusted.URL}, "--nomad-ca-file names a file with its CA"},
		"a redirect":        {Nomad{From: redirects.URL, CAFile: caOf(t, redirects)}, "HTTP 302"},
		"an endless answer": {Nomad{From: endless.URL, CAFile: caOf(t, endless)}, "longer than"},
		"a secret key":      {Nomad{From: private.URL, CAFile: caOf(t, private)}, "not a public key"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ReadNomad(t.Context(), "cluster nomad", tc.from); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %+v, %v; want an error with %q", got, err, tc.says)
			}
		})
	}
	if asked {
		t.Error("a redirect was followed")
	}
}

func TestRulesOfNomadAreKept(t *testing.T) {
	west, first, second := issuer(t, "west"), issuer(t, "first"), issuer(t, "second")
	keys := func(of *testkit.Issuer) *Tokens {
		tokens := served(t, of)
		tokens.Issuer, tokens.Nomad = "", true
		return tokens
	}
	want := Wanted{Name: "nomad", ControlPlane: "istio-system", Namespaces: []string{"shop"}}
	if _, err := Prepare(want, served(t, west), keys(first), nil); err == nil || !strings.Contains(err.Error(), "--nomad-rules is required") {
		t.Errorf("without rules: %v", err)
	}
	want.Rules = []clusterkeys.NomadRule{{Namespace: "default", Job: "x", Task: "y", Account: "istio-system/ca"}}
	if _, err := Prepare(want, served(t, west), keys(first), nil); err == nil || !strings.Contains(err.Error(), "control plane's namespace") {
		t.Errorf("the ca's account: %v", err)
	}
	want.Rules = someRules
	p := testkit.Must(Prepare(want, served(t, west), keys(first), nil))(t)
	out := &strings.Builder{}
	p.Print(out)
	for _, says := range []string{"nomad, of Nomad", "issuer      none", "task server of job web in Nomad's namespace default is shop/web"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("no %q in\n%s", says, out)
		}
	}
	written := corev1.ConfigMap{Data: p.Cluster.Data()}
	written.Name, written.Labels = p.ConfigMap, map[string]string{clusterkeys.Label: "true"}
	want.Rules, want.Namespaces = nil, nil
	p = testkit.Must(Prepare(want, served(t, west), keys(first), []corev1.ConfigMap{written}))(t)
	if p.Changes() {
		t.Errorf("the same again changes %+v", p.Cluster)
	}
	p = testkit.Must(Prepare(want, served(t, west), keys(second), []corev1.ConfigMap{written}))(t)
	if !slices.Equal(p.Cluster.Nomad, someRules) || !slices.Equal(p.Cluster.Namespaces, []string{"shop"}) ||
		p.states() != "second new, first old" {
		t.Errorf("after a rotation: %+v, %s", p.Cluster, p.states())
	}
	if _, err := Prepare(want, served(t, west), served(t, second), []corev1.ConfigMap{written}); err == nil ||
		!strings.Contains(err.Error(), "one of Nomad") {
		t.Errorf("a cluster of Kubernetes by the same name: %v", err)
	}
}
