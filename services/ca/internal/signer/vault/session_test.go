package vault

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

// standing is an issuer with a clock that stands, and its log.
func standing(t *testing.T, cfg Config) (*Issuer, *testkit.Clock, *testkit.Buffer) {
	t.Helper()
	d := deps(t)
	c, log := testkit.NewClock(time.Now()), &testkit.Buffer{}
	d.Clock, d.Log = c, slog.New(slog.NewTextHandler(log, nil))
	return newTestIssuer(t, cfg, d), c, log
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if !ok() {
			return fmt.Errorf("%s has not come true", what)
		}
		return nil
	})
}

// TestARefusedLoginIsNotRepeated: Vault locks an AppRole out after five refused logins.
func TestARefusedLoginIsNotRepeated(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	testkit.WriteFile(t, cfg.Auth.AppRole.SecretIDFile, []byte("old"))
	i, c, _ := standing(t, cfg)
	logins := func() int { return f.count("auth/approle/login") }
	for range 20 {
		_, err := i.Issue(t.Context(), request(t))
		wantFault(t, err, signer.Refused, "auth.appRole.secretIDFile")
	}
	if logins() != 1 {
		t.Errorf("logged in %d times at one time", logins())
	}
	for range 600 {
		c.Advance(time.Second)
		_, err := i.Issue(t.Context(), request(t))
		wantFault(t, err, signer.Refused, "auth.appRole.secretIDFile")
	}
	if n := logins(); n < 10 || n > 18 {
		t.Errorf("logged in %d times in ten minutes", n)
	}
	testkit.WriteFile(t, cfg.Auth.AppRole.SecretIDFile, []byte(goodSecret))
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
}

func TestTokensAreRenewed(t *testing.T) {
	f := newFake(t)
	f.on("auth/approle/login", f.grant(600, true))
	f.on("auth/token/renew-self", f.authenticated(f.grant(600, true)))
	i, c, log := standing(t, f.config())
	testkit.Background(t, i.Run)
	renewals := func() int { return f.count("auth/token/renew-self") }
	c.WaitFor(t, 2)
	for n := range 5 {
		eventually(t, "a renewal", func() bool {
			if renewals() > n {
				return true
			}
			c.Advance(10 * time.Second)
			return false
		})
	}
	if n := f.count("auth/approle/login"); n != 1 {
		t.Errorf("logged in %d times", n)
	}
	// Near the longest life of the token a renewal grants less: the ca logs in anew.
	f.on("auth/token/renew-self", f.authenticated(f.grant(100, true)))
	eventually(t, "a second login", func() bool { c.Advance(10 * time.Second); return f.count("auth/approle/login") > 1 })
	// A renewal that is refused is replaced by a login.
	f.on("auth/token/renew-self", refuse(403, "permission denied"))
	logins := f.count("auth/approle/login")
	eventually(t, "a third login", func() bool { c.Advance(10 * time.Second); return f.count("auth/approle/login") > logins })
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("there are warnings:\n%s", log)
	}
	// While Vault is away the token lives on.
	f.on("auth/token/renew-self", refuse(503, "Vault is sealed"))
	f.on("auth/approle/login", refuse(503, "Vault is sealed"))
	eventually(t, "a warning", func() bool {
		c.Advance(10 * time.Second)
		return strings.Contains(log.String(), "unseal it")
	})
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	wantNoSecret(t, log.String())
}

// TestARevokedTokenIsReplaced within the request that finds it.
func TestARevokedTokenIsReplaced(t *testing.T) {
	f := newFake(t)
	i, c, _ := standing(t, f.config())
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	var revoked atomic.Bool
	f.on("auth/approle/login", func(w http.ResponseWriter, r *http.Request) {
		revoked.Store(false)
		f.own("auth/approle/login")(w, r)
	})
	for _, path := range []string{signPath, "auth/token/lookup-self"} {
		f.on(path, func(w http.ResponseWriter, r *http.Request) {
			if revoked.Load() {
				refuse(403, "permission denied", "invalid token")(w, r)
				return
			}
			f.own(path)(w, r)
		})
	}
	for n := range 3 {
		revoked.Store(true)
		c.Advance(2 * time.Second)
		testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
		if logins := f.count("auth/approle/login"); logins != n+2 {
			t.Errorf("logged in %d times", logins)
		}
	}
}

// TestAPolicyThatRefusesCausesNoLogins: the token is valid, and another would be refused too.
func TestAPolicyThatRefusesCausesNoLogins(t *testing.T) {
	f := newFake(t)
	f.on(signPath, refuse(403, "permission denied"))
	i, c, _ := standing(t, f.config())
	for range 50 {
		_, err := i.Issue(t.Context(), request(t))
		wantFault(t, err, signer.Refused, "have a policy")
		c.Advance(500 * time.Millisecond)
	}
	if n := f.count("auth/approle/login"); n != 1 {
		t.Errorf("logged in %d times", n)
	}
	if n := f.count("auth/token/lookup-self"); n > 26 {
		t.Errorf("asked %d times in 25 s whether the token is valid", n)
	}
	if n := f.count(signPath); n != 50 {
		t.Errorf("asked %d times for 50 leaves", n)
	}
}

func tokenConfig(f *fake, token string) (cfg Config, file string) {
	file = f.t.(*testing.T).TempDir() + "/token"
	testkit.WriteFile(f.t, file, []byte(token+"\n"))
	cfg = f.config()
	cfg.Auth = Auth{Token: &TokenAuth{File: file}}
	return cfg, file
}

func TestATokenFromAFile(t *testing.T) {
	f := newFake(t)
	cfg, file := tokenConfig(f, "hvs.not-any-more")
	i, c, log := standing(t, cfg)
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Refused, "auth.token.file", file, "write a valid token")
	testkit.Background(t, i.Run)
	c.WaitFor(t, 2)
	testkit.WriteFile(t, file, []byte(goodToken))
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	eventually(t, "a renewal", func() bool { c.Advance(10 * time.Second); return f.count("auth/token/renew-self") > 0 })

	// A token that is not valid: the one before lives on.
	testkit.WriteFile(t, file, []byte("hvs.mistyped"))
	for range 3 {
		testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	}
	if !strings.Contains(log.String(), "the token that it has is used until it ends") {
		t.Errorf("there is no warning:\n%s", log)
	}

	// The file is gone: the token lives on, and is renewed.
	cfg.Auth.Token.File = "/nonexistent"
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	n := f.count("auth/token/renew-self")
	eventually(t, "another renewal", func() bool { c.Advance(10 * time.Second); return f.count("auth/token/renew-self") > n })
	if n := f.count("auth/approle/login"); n != 0 {
		t.Errorf("logged in %d times by another method", n)
	}
	wantNoSecret(t, log.String())
}

func TestATokenThatCannotBeRenewed(t *testing.T) {
	f := newFake(t)
	f.on("auth/token/lookup-self", f.authenticated(say(200, map[string]any{"data": map[string]any{"ttl": 600, "renewable": false}})))
	cfg, file := tokenConfig(f, goodToken)
	i, c, log := standing(t, cfg)
	testkit.Background(t, i.Run)
	c.WaitFor(t, 2)
	eventually(t, "a warning", func() bool {
		c.Advance(10 * time.Second)
		return strings.Contains(log.String(), "cannot be renewed; write a new one into the file")
	})
	if n := f.count("auth/token/renew-self"); n != 0 {
		t.Errorf("tried %d times to renew it", n)
	}
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	// A token that ends within the second is none that does not end.
	f.on("auth/token/lookup-self", say(200, map[string]any{"data": map[string]any{"ttl": 0, "expire_time": "2026-11-27T21:44:26Z"}}))
	testkit.WriteFile(t, file, []byte("hvs.ends-now"))
	c.Advance(time.Hour)
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Refused, "it has ended", "write a valid token")
	// A root token does not end.
	f.on("auth/token/lookup-self", say(200, map[string]any{"data": map[string]any{"ttl": 0, "renewable": false}}))
	f.on(signPath, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Vault-Token", goodToken)
		f.own(signPath)(w, r)
	})
	testkit.WriteFile(t, file, []byte("hvs.root"))
	eventually(t, "the end of the warnings", func() bool {
		c.Advance(10 * time.Second)
		return strings.Contains(log.String(), "logged in at Vault again")
	})
	c.Advance(24 * time.Hour)
	testkit.NoError(t, issueAndCheck(t.Context(), i, requestFor(t, catest.Key(t), 30*time.Hour), f.root.Cert))
}
