package vault

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

const signPath = "pki/issuer/default/sign/mesh"

func TestIssue(t *testing.T) {
	f := newFake(t)
	i := newTestIssuer(t, f.config(), deps(t))
	for range 3 {
		testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), f.root.Cert))
	}
	if n := f.count("auth/approle/login"); n != 1 {
		t.Errorf("logged in %d times for three leaves", n)
	}
}

// TestTheEnvironmentChangesNothing: the library of Vault reads variables that its command line reads.
func TestTheEnvironmentChangesNothing(t *testing.T) {
	f := newFake(t)
	f.on(signPath, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Vault-Namespace", "X-Other"} {
			if v := r.Header.Get(name); v != "" {
				t.Errorf("%s: %s was sent", name, v)
			}
		}
		f.own(signPath)(w, r)
	})
	for name, value := range map[string]string{
		"VAULT_ADDR": "https://127.0.0.1:1", "VAULT_TOKEN": "hvs.other", "VAULT_NAMESPACE": "other", "VAULT_SKIP_VERIFY": "true",
		"VAULT_HEADERS": `{"X-Other": "x"}`, "VAULT_TLS_SERVER_NAME": "other", "VAULT_PROXY_ADDR": "http://127.0.0.1:1",
		"HTTPS_PROXY": "http://127.0.0.1:1", "VAULT_MAX_RETRIES": "5", "VAULT_CLIENT_TIMEOUT": "1ns",
	} {
		t.Setenv(name, value)
	}
	testkit.NoError(t, issueAndCheck(t.Context(), newTestIssuer(t, f.config(), deps(t)), request(t), f.root.Cert))
	cfg := f.config()
	cfg.CAFile = testkit.PKI(t).WriteRoot(t.TempDir())
	_, err := newTestIssuer(t, cfg, deps(t)).Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "does not verify", "caFile")
}

// answered is how the fake answers, for a table.
type answered func(*fake) http.HandlerFunc

func always(h http.HandlerFunc) answered { return func(*fake) http.HandlerFunc { return h } }

// signing signs what is asked for with changes.
func signing(change func(*x509.Certificate), edit func(map[string]any)) answered {
	return func(f *fake) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			data := f.sign(r, change)
			if edit != nil {
				edit(data)
			}
			say(200, map[string]any{"data": data})(w, r)
		}
	}
}

func TestIssueSaysWhatWentWrong(t *testing.T) {
	const login = "auth/approle/login"
	big := strings.Repeat("x", maxAnswer)
	refused := func(status int, says ...string) answered { return always(refuse(status, says...)) }
	for name, tc := range map[string]struct {
		path  string
		h     answered
		fault signer.Fault
		says  []string
	}{
		"sealed":          {signPath, refused(503, "Vault is sealed"), signer.Away, []string{"unseal it"}},
		"sealed at login": {login, refused(503, "Vault is sealed"), signer.Away, []string{"log in", "unseal it"}},
		"an inner error":  {signPath, refused(500, "internal error"), signer.Away, []string{"status 500", "internal error"}},
		"a quota":         {signPath, refused(429, "request path quota exceeded"), signer.Busy, []string{"quota"}},
		"a policy": {signPath, refused(403, "1 error occurred:\n\t* permission denied\n\n"), signer.Refused,
			[]string{"policy of the login", "role mesh"}},
		"no such mount": {signPath, refused(404, "no handler for route"), signer.Refused, []string{"compare mount, issuerRef"}},
		"a foreign domain": {signPath, refused(400, "URI Subject Alternative Names were provided via the API which are not valid for this role"),
			signer.Refused, []string{"allowed_uri_sans"}},
		"long words": {signPath, refused(400, "0123456789"+big[:5000]), signer.Refused, []string{"0123456789xxx"}},
		"words with the token": {signPath, refused(400, "your token "+goodToken+"\x1b[31m is odd"), signer.Refused,
			[]string{`your token [secret]\x1b[31m is odd`}},
		"words with the secret id": {login, refused(400, "no role for "+goodSecret), signer.Refused, []string{"no role for [secret]"}},
		"a huge answer":            {signPath, always(say(200, `{"data": {"certificate": "`+big+`"}}`)), signer.Lied, []string{"too large"}},
		"a huge refusal":           {signPath, refused(400, big), signer.Lied, []string{"too large"}},
		"a huge login":             {login, always(say(200, `{"auth": "`+big+`"}`)), signer.Lied, []string{"too large"}},
		"no JSON":                  {signPath, always(say(200, "<html>")), signer.Lied, []string{"not one of Vault's"}},
		"other JSON":               {signPath, always(say(200, `{"data": "x"}`)), signer.Lied, []string{"not one of Vault's"}},
		"half of the JSON":         {signPath, always(say(200, `{"data": {"certificate": "`)), signer.Lied, []string{"not one of Vault's"}},
		"nothing":                  {signPath, always(say(200, "")), signer.Lied, []string{"empty"}},
		"no certificate":           {signPath, always(say(200, `{"data": {}}`)), signer.Lied, []string{"certificate is no certificate"}},
		"no login":                 {login, always(say(200, `{}`)), signer.Lied, []string{"not one of Vault's"}},
		"another name":             {signPath, signing(func(c *x509.Certificate) { c.URIs = nil }, nil), signer.Lied, []string{"has the URIs"}},
		"many certificates": {signPath, signing(nil, func(data map[string]any) {
			data["ca_chain"] = make([]string, maxCertificates+1)
		}), signer.Lied, []string{"11 entries"}},
		"a common name": {signPath, signing(func(c *x509.Certificate) { c.Subject.CommonName = "admin" }, nil), signer.Refused,
			[]string{`common name "admin"`, "use_csr_common_name=false"}},
		"two certificates": {signPath, signing(nil, func(data map[string]any) {
			data["certificate"] = data["certificate"].(string) + data["issuing_ca"].(string)
		}), signer.Lied, []string{"not one of Vault's"}},
		"a redirect in the clear": {signPath, always(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}), signer.Away, []string{"protocol downgrade"}},
		"a cut connection": {signPath, always(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			signer.Away, []string{"connection ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(tc.path, tc.h(f))
			err := issueAndCheck(t.Context(), newTestIssuer(t, f.config(), deps(t)), request(t), f.root.Cert)
			wantFault(t, err, tc.fault, tc.says...)
			if err != nil && len(err.Error()) > 2*maxWords {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestIssueIsBoundedInTime(t *testing.T) {
	f := newFake(t)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	f.on(signPath, func(w http.ResponseWriter, _ *http.Request) {
		// A drip, so that there is always news of the answer.
		for {
			_, _ = w.Write([]byte(" "))
			w.(http.Flusher).Flush()
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	cfg := f.config()
	cfg.Timeout.Duration = 300 * time.Millisecond
	began := time.Now()
	_, err := newTestIssuer(t, cfg, deps(t)).Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "no answer in time")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newTestIssuer(t, cfg, deps(t)).Issue(ctx, request(t))
	wantFault(t, err, signer.Away, "given up by the caller")
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	empty, words, large := dir+"/empty", dir+"/words", dir+"/large"
	testkit.WriteFile(t, empty, nil)
	testkit.WriteFile(t, words, []byte(goodSecret+"\n"+goodToken))
	testkit.WriteFile(t, large, []byte(strings.Repeat("x", maxSecret+1)))
	f := newFake(t)
	for name, tc := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"no CA file":       {func(c *Config) { c.CAFile = dir + "/none" }, []string{"caFile: ", dir + "/none"}},
		"an empty CA file": {func(c *Config) { c.CAFile = empty }, []string{"caFile " + empty}},
		"no secret id":     {func(c *Config) { c.Auth.AppRole.SecretIDFile = dir + "/none" }, []string{"auth.appRole.secretIDFile: "}},
		"an empty role id": {func(c *Config) { c.Auth.AppRole.RoleIDFile = empty }, []string{"auth.appRole.roleIDFile: ", "is empty"}},
		"two secrets":      {func(c *Config) { c.Auth.AppRole.SecretIDFile = words }, []string{"auth.appRole.secretIDFile: ", "more than one word"}},
		"a large secret":   {func(c *Config) { c.Auth.AppRole.SecretIDFile = large }, []string{"auth.appRole.secretIDFile: "}},
		"a directory":      {func(c *Config) { c.Auth.AppRole.SecretIDFile = dir }, []string{"auth.appRole.secretIDFile: "}},
		"no token":         {func(c *Config) { c.Auth = Auth{Token: &TokenAuth{File: empty}} }, []string{"auth.token.file: ", "is empty"}},
		"no client key": {func(c *Config) { c.Auth = Auth{TLS: &TLSAuth{CertFile: f.caFile, KeyFile: dir + "/none"}} },
			[]string{"auth.tls.keyFile: "}},
		"no pair": {func(c *Config) { c.Auth = Auth{TLS: &TLSAuth{CertFile: f.caFile, KeyFile: words}} },
			[]string{"auth.tls: ", "no certificate with its key"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := f.config()
			tc.change(&cfg)
			_, err := newTestIssuer(t, cfg, deps(t)).Issue(t.Context(), request(t))
			wantFault(t, err, signer.Away, tc.says...)
		})
	}
}

func TestWhatVaultCannotDo(t *testing.T) {
	f := newFake(t)
	i := newTestIssuer(t, f.config(), deps(t))
	r := request(t)
	r.Profile = "other"
	_, err := i.Issue(t.Context(), r)
	wantFault(t, err, signer.Unsuitable, "other", "without CertSigner")
	r = request(t)
	r.CSR = nil
	_, err = i.Issue(t.Context(), r)
	wantFault(t, err, signer.Unsuitable, "only CSRs")
	if n := f.count(signPath); n != 0 {
		t.Errorf("Vault was asked %d times", n)
	}
	if _, err := NewIssuer(Config{}, deps(t)); err == nil || !strings.Contains(err.Error(), "role: is required") ||
		!strings.Contains(err.Error(), "address: is required") {
		t.Errorf("got %v", err)
	}
	if _, err := NewMinter(MinterConfig(f.config()), deps(t)); err == nil || !strings.Contains(err.Error(), "role: ") {
		t.Errorf("got %v", err)
	}
}

// TestMaxTTLOfTheRole: Vault does not hold not_after against max_ttl.
func TestMaxTTLOfTheRole(t *testing.T) {
	f := newFake(t)
	role := goodRole()
	role["max_ttl"] = 1800
	f.on("pki/roles/mesh", say(200, map[string]any{"data": role}))
	i := newTestIssuer(t, f.config(), deps(t))
	testkit.Background(t, i.Run)
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := i.Issue(t.Context(), request(t))
		if err == nil {
			return fmt.Errorf("a leaf of an hour was issued")
		}
		wantFault(t, err, signer.Refused, "max_ttl is 30m0s", "raise it")
		return nil
	})
	testkit.NoError(t, issueAndCheck(t.Context(), i, requestFor(t, catest.Key(t), 30*time.Minute), f.root.Cert))
}

func TestRunAnnouncesChanges(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.RefreshInterval.Duration, cfg.CRL = 10*time.Minute, true
	c := testkit.NewClock(time.Now())
	d := deps(t)
	d.Clock = c
	i := newTestIssuer(t, cfg, d)
	a, changed := i.Authorities()
	if a != nil {
		t.Fatal("authorities are known before Run")
	}
	testkit.Background(t, i.Run)
	<-changed
	a, changed = i.Authorities()
	if len(a.Roots) != 1 || !a.Roots[0].Equal(f.root.Cert) || len(a.Intermediates) != 0 || len(a.CRLs) != 1 ||
		!a.NotAfter.Equal(f.root.Cert.NotAfter) {
		t.Fatalf("got %+v", a)
	}

	// A CRL of somebody else is not announced, and the last good one stays.
	other := testkit.PKI(t)
	crl := func(text []byte) http.HandlerFunc {
		return say(200, map[string]any{"data": map[string]any{"crl": string(text)}})
	}
	f.on("pki/issuer/default/crl", crl(other.Revoke()))
	again := func(path string) {
		t.Helper()
		c.WaitFor(t, 2)
		before := f.count(path)
		c.Advance(10 * time.Minute)
		testkit.Eventually(t, testkit.Patience, func() error {
			if f.count(path) == before {
				return fmt.Errorf("%s was not asked for", path)
			}
			return nil
		})
	}
	again("pki/roles/mesh")
	if now, _ := i.Authorities(); now != a {
		t.Error("a foreign CRL changed the authorities")
	}

	// Another root: what it signs is not returned before the ca knows of it.
	f.mu.Lock()
	f.root = other
	f.mu.Unlock()
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "another root", "swap")
	<-changed
	if a, _ = i.Authorities(); !a.Roots[0].Equal(other.Cert) {
		t.Errorf("got %+v", a)
	}
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), other.Cert))
}

// TestProblem: what Run meets is told while the issuer goes on.
func TestProblem(t *testing.T) {
	f := newFake(t)
	role := goodRole()
	role["use_csr_sans"] = true
	f.on("pki/roles/mesh", say(200, map[string]any{"data": role}))
	cfg := f.config()
	cfg.RefreshInterval.Duration = time.Second
	i := newTestIssuer(t, cfg, deps(t))
	testkit.Background(t, i.Run)
	problem := func(says string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			err := i.Problem()
			if says == "" && err == nil || says != "" && err != nil && strings.Contains(err.Error(), says) {
				return nil
			}
			return fmt.Errorf("the problem is %w, want %q", err, says)
		})
	}
	problem("use_csr_sans=false")
	f.on("pki/roles/mesh", nil)
	problem("")
	f.on("pki/issuer/default/json", refuse(503, "Vault is sealed"))
	problem("unseal it")
}

// TestOneLoginForAll: callers that wait for a login share it.
func TestOneLoginForAll(t *testing.T) {
	f := newFake(t)
	f.on("auth/approle/login", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond)
		f.own("auth/approle/login")(w, r)
	})
	i := newTestIssuer(t, f.config(), deps(t))
	var all sync.WaitGroup
	for range 32 {
		r := request(t)
		all.Go(func() {
			if err := issueAndCheck(t.Context(), i, r, f.root.Cert); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := f.count("auth/approle/login"); n != 1 {
		t.Errorf("logged in %d times", n)
	}
}
