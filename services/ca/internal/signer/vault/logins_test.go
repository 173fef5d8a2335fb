package vault

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
)

// method is a login that a real Vault has been given. Its tokens live for ttl seconds, and for most with renewals.
type method struct {
	auth Auth
	// spoil makes the files of auth wrong, restore right again.
	spoil, restore func()
	// says is what the refusal says.
	says string
}

func (s *server) enable(t *testing.T, kind string) (mount string) {
	t.Helper()
	mount = kind + "-" + unique()
	testkit.NoError(t, s.root.Sys().EnableAuthWithOptionsWithContext(t.Context(), mount, &api.EnableAuthOptions{Type: kind}))
	return mount
}

func (s *server) appRole(t *testing.T, policy, ttl, most string) method {
	t.Helper()
	mount := s.enable(t, "approle")
	role := "auth/" + mount + "/role/ca"
	s.write(t, role, map[string]any{"token_policies": policy, "token_ttl": ttl, "token_max_ttl": most})
	answer, err := s.root.Logical().ReadWithContext(t.Context(), role+"/role-id")
	testkit.NoError(t, err)
	dir := t.TempDir()
	roleFile, secretFile := filepath.Join(dir, "role-id"), filepath.Join(dir, "secret-id")
	testkit.WriteFile(t, roleFile, []byte(answer.Data["role_id"].(string)))
	restore := func() {
		testkit.WriteFile(t, secretFile, []byte(s.write(t, role+"/secret-id", nil)["secret_id"].(string)))
	}
	restore()
	return method{
		auth:  Auth{AppRole: &AppRoleAuth{Mount: mount, RoleIDFile: roleFile, SecretIDFile: secretFile}},
		spoil: func() { testkit.WriteFile(t, secretFile, []byte("wrong")) }, restore: restore, says: "auth.appRole.secretIDFile",
	}
}

// kubernetes has Vault ask a stand-in for Kubernetes' TokenReview API, which knows the tokens that the test made.
func (s *server) kubernetes(t *testing.T, policy, ttl, most string) method {
	t.Helper()
	mount, issuer := s.enable(t, "kubernetes"), testkit.NewIssuer(t)
	var mu sync.Mutex
	known := map[string]string{}
	host := reviews(t, func(token string) string {
		mu.Lock()
		defer mu.Unlock()
		return known[token]
	})
	s.write(t, "auth/"+mount+"/config", map[string]any{
		"kubernetes_host": "https://" + host.Listener.Addr().String(), "kubernetes_ca_cert": string(testkit.CertPEM(host.Certificate())),
		"token_reviewer_jwt": issuer.Token("vault", "vault", "kubernetes"), "disable_local_ca_jwt": true,
	})
	s.write(t, "auth/"+mount+"/role/ca", map[string]any{
		"bound_service_account_names": "ca", "bound_service_account_namespaces": "istio-system", "token_policies": policy, "token_ttl": ttl,
		"token_max_ttl": most, "audience": "vault",
	})
	file := filepath.Join(t.TempDir(), "token")
	use := func(account string) {
		token := issuer.Sign(map[string]any{
			"iss": "https://issuer.test", "sub": "system:serviceaccount:istio-system:" + account, "aud": []string{"vault"},
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "jti": unique(),
			"kubernetes.io": map[string]any{"namespace": "istio-system", "serviceaccount": map[string]any{"name": account, "uid": "uid-" + account}},
		})
		mu.Lock()
		known[token] = account
		mu.Unlock()
		testkit.WriteFile(t, file, []byte(token))
	}
	use("ca")
	return method{
		auth:  Auth{Kubernetes: &KubernetesAuth{Mount: mount, Role: "ca", TokenFile: file}},
		spoil: func() { use("other") }, restore: func() { use("ca") }, says: "bound_service_account_names",
	}
}

// reviews answers TokenReviews as Kubernetes does.
func reviews(t *testing.T, account func(token string) string) *httptest.Server {
	t.Helper()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string         `json:"apiVersion"`
			Kind       string         `json:"kind"`
			Metadata   map[string]any `json:"metadata"`
			Spec       struct {
				Token     string   `json:"token"`
				Audiences []string `json:"audiences"`
			} `json:"spec"`
			Status map[string]any `json:"status"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		name := account(review.Spec.Token)
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		review.Status = map[string]any{"authenticated": name != "", "audiences": review.Spec.Audiences, "user": map[string]any{
			"username": "system:serviceaccount:istio-system:" + name, "uid": "uid-" + name,
			"groups": []string{"system:serviceaccounts", "system:serviceaccounts:istio-system", "system:authenticated"},
		}}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	})
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	return server
}

func (s *server) cert(t *testing.T, policy, ttl, most string) method {
	t.Helper()
	mount, ca := s.enable(t, "cert"), testkit.PKI(t)
	s.write(t, "auth/"+mount+"/certs/ca", map[string]any{
		"certificate": string(ca.RootPEM), "allowed_common_names": "ca.mesh", "token_policies": policy, "token_ttl": ttl, "token_max_ttl": most,
	})
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	use := func(ca *testkit.CA, name string) {
		chain, key := ca.NewServer(name)
		testkit.WriteFile(t, certFile, chain)
		testkit.WriteFile(t, keyFile, key)
	}
	use(ca, "ca.mesh")
	return method{
		auth:  Auth{TLS: &TLSAuth{Mount: mount, CertFile: certFile, KeyFile: keyFile, Name: "ca"}},
		spoil: func() { use(testkit.PKI(t), "ca.mesh") }, restore: func() { use(ca, "ca.mesh") }, says: "auth.tls.certFile's certificate",
	}
}

func (s *server) methods(t *testing.T, policy, ttl, most string) map[string]method {
	return map[string]method{
		"appRole": s.appRole(t, policy, ttl, most), "kubernetes": s.kubernetes(t, policy, ttl, most), "tls": s.cert(t, policy, ttl, most),
	}
}

// currentToken is the one with which the ca is logged in.
func currentToken(i *Issuer) string {
	i.engine.session.mu.Lock()
	defer i.engine.session.mu.Unlock()
	return i.engine.session.current.token
}

// TestRealLogins: a token that is revoked is replaced within the request; wrong credentials are refused, and right ones
// are taken as soon as they are there.
func TestRealLogins(t *testing.T) {
	s := sharedServer(t)
	mount, root := s.pki(t, "ec")
	s.role(t, mount, nil)
	for name, m := range s.methods(t, s.policy(t, mount), "1h", "2h") {
		t.Run(name, func(t *testing.T) {
			cfg := *s.config()
			cfg.Mount, cfg.Role, cfg.Auth = mount, "mesh", m.auth
			cfg.Timeout.Duration = 30 * time.Second
			i := newTestIssuer(t, cfg, deps(t))
			testkit.NoError(t, i.Probe(t.Context(), probe))
			for range 2 {
				time.Sleep(1100 * time.Millisecond)
				testkit.NoError(t, s.root.Auth().Token().RevokeOrphanWithContext(t.Context(), currentToken(i)))
				testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
			}
			m.spoil()
			// The token lives on.
			testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
			time.Sleep(1100 * time.Millisecond)
			testkit.NoError(t, s.root.Auth().Token().RevokeOrphanWithContext(t.Context(), currentToken(i)))
			_, err := i.Issue(t.Context(), request(t))
			wantFault(t, err, signer.Refused, "log in", m.says)
			m.restore()
			testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
		})
	}
}

// TestRealShortTokens: tokens that live for three seconds, and for six with renewals, end no request.
func TestRealShortTokens(t *testing.T) {
	s := sharedServer(t)
	mount, root := s.pki(t, "ec")
	s.role(t, mount, nil)
	var all sync.WaitGroup
	for name, m := range s.methods(t, s.policy(t, mount), "6s", "12s") {
		cfg := *s.config()
		cfg.Mount, cfg.Role, cfg.Auth = mount, "mesh", m.auth
		cfg.Timeout.Duration = 30 * time.Second
		i := newTestIssuer(t, cfg, deps(t))
		testkit.Background(t, i.Run)
		all.Go(func() {
			tokens := map[string]bool{}
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
				if err := issueAndCheck(context.Background(), i, request(t), root); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				tokens[currentToken(i)] = true
				time.Sleep(20 * time.Millisecond)
			}
			if n := len(tokens); n < 2 || n > 8 {
				t.Errorf("%s: %d tokens in 20 s", name, n)
			}
		})
	}
	all.Wait()
}

// TestRealTokenFile: a token of a file is renewed, is exchanged by a write to the file, and says when it has ended.
func TestRealTokenFile(t *testing.T) {
	s := sharedServer(t)
	mount, root := s.pki(t, "ec")
	s.role(t, mount, nil)
	cfg, token := s.newToken(t, mount, api.TokenCreateRequest{Period: "4s"})
	i := newTestIssuer(t, cfg, deps(t))
	testkit.Background(t, i.Run)
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
	}
	testkit.NoError(t, s.root.Auth().Token().RevokeTreeWithContext(t.Context(), token))
	time.Sleep(1100 * time.Millisecond)
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Refused, "auth.token.file", "write a valid token")
	_, other := s.newToken(t, mount, api.TokenCreateRequest{TTL: "3s", Renewable: new(bool)})
	testkit.WriteFile(t, cfg.Auth.Token.File, []byte(other))
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
	time.Sleep(3100 * time.Millisecond)
	_, err = i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Refused, "auth.token.file", "write a valid token")
}
