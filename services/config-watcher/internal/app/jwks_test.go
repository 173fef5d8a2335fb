package app

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/resource"
)

const tokensOf = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  jwtRules: [{issuer: "https://issuer.example.com", jwksUri: %q}]
`

// The keys are in the same revision as the object that names them, and in the first one after a restart although the
// server is away.
func TestKeysComeWithTheObjectThatNamesThem(t *testing.T) {
	f := newFixture(t)
	document := testkit.Must(os.ReadFile(f.issuer.JWKSFile))(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(document) }))
	t.Cleanup(server.Close)
	o := f.options()
	o.StateDir, o.JWKSAllow = filepath.Join(f.dir, "state"), []string{"127.0.0.0/8"}
	want := string(testkit.Must(jwks.Parse(document))(t).Keys)
	source := contract.KeySourceOf(server.URL, "https://issuer.example.com")
	check := func(s *subscriber) {
		t.Helper()
		if s.get("RequestAuthentication", "shop", "tokens") == nil {
			t.Error("the RequestAuthentication is not there")
		}
		if got := s.get(resource.KindJwks, "", source.Name()).GetJwks(); string(got.GetKeys()) != want || got.GetUri() != server.URL {
			t.Errorf("the keys are %v", got)
		}
	}
	condition := func(r *running, want string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			res, err := r.store().Status(t.Context(), &configv1.StatusRequest{Kind: "RequestAuthentication", Namespace: "shop"})
			if err != nil || len(res.GetObjects()) != 1 {
				return fmt.Errorf("%v, %w", res, err)
			}
			for _, c := range res.GetObjects()[0].GetConditions() {
				if c.GetType() == "ResolvedRefs" && strings.Contains(c.GetStatus()+" "+c.GetReason()+" "+c.GetMessage(), want) {
					return nil
				}
			}
			return fmt.Errorf("%v lacks %q", res.GetObjects()[0].GetConditions(), want)
		})
	}

	r := f.start(o)
	s := r.subscribe(nil, nil)
	s.next()
	s.until(r.apply(fmt.Sprintf(tokensOf, server.URL)).GetRevision())
	check(s)
	condition(r, "True Resolved")
	if page := r.body(t, "/debug/jwks", f.admin()); !strings.Contains(page, server.URL) || !strings.Contains(page, `"fresh"`) {
		t.Errorf("/debug/jwks: %s", page)
	}
	r.Stop()

	server.Close()
	r = f.start(o)
	s = r.subscribe(nil, nil)
	s.next()
	check(s)
	condition(r, "True KeysStale")
	condition(r, "does not answer config-watcher as it should")

	// Without the flag, no address of the own machine is asked.
	r.Stop()
	testkit.NoError(t, os.RemoveAll(o.StateDir))
	o.JWKSAllow = nil
	r = f.start(o)
	condition(r, "False KeysMissing")
	condition(r, "--jwks-allow-addresses")

	// Keys in the object count as little if none can be used.
	r.apply(strings.Replace(fmt.Sprintf(tokensOf, "x"), `jwksUri: "x"`, `jwks: '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'`, 1))
	condition(r, "False KeysMissing no key in spec.jwtRules[0].jwks")
}

func TestAFileOfRootsMustBeThere(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.JWKSCAFile = filepath.Join(f.dir, "none.pem")
	_, err := open(t.Context(), &o, f.deps(f.ca.RootsOnly()))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "--jwks-ca-file") {
		t.Errorf("got %v", err)
	}
}
