package kubecsr

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

// TestAgainstKubernetes runs all that needs an API server with one of them.
func TestAgainstKubernetes(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		child(t)
		return
	}
	s := kubetest.Start(t, "ca")
	c := startController(t, s)
	s.Grant(t, "ca", append(rules, readConfigMap)...)
	i, _ := start(t, s, config(t, c), clock.Real())
	known(t, i)
	t.Run("issued", func(t *testing.T) { issued(t, c, i) })
	t.Run("refused and lied", func(t *testing.T) { refusedAndLied(t, c, i) })
	t.Run("approved by others", func(t *testing.T) { approvedByOthers(t, s, c) })
	t.Run("the caller goes away", func(t *testing.T) { callerGone(t, c, i) })
	t.Run("too many", func(t *testing.T) { tooMany(t, s, c) })
	t.Run("rights", func(t *testing.T) { rights(t, s, c) })
	t.Run("roots", func(t *testing.T) { roots(t, s, c) })
	t.Run("a killed ca", func(t *testing.T) { killed(t, s, c) })
	t.Run("a burst", func(t *testing.T) { burst(t, s, c) })
	t.Run("the API server is away", func(t *testing.T) { away(t, s, c, i) })
}

func issued(t *testing.T, c *controller, i signer.Issuer) {
	r := kubetest.Request(t, "shop", "web", nil)
	began := time.Now()
	chain, err := i.Issue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("issued in %s", time.Since(began))
	a := known(t, i)
	if err := signer.Check(r, i.Capabilities(), chain, pool(a), time.Now()); err != nil {
		t.Error(err)
	}
	if len(chain) != 2 || !chain[1].Equal(c.middle.Cert) {
		t.Errorf("the chain has %d certificates, wanted the leaf and the intermediate without the root", len(chain))
	}
	if len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(c.middle.Cert) || !a.NotAfter.Equal(c.middle.Cert.NotAfter) {
		t.Errorf("authorities have the intermediates %v until %s", a.Intermediates, a.NotAfter)
	}
	if short := r.Template.NotAfter.Sub(chain[0].NotAfter); short < 0 || short > 20*time.Second {
		t.Errorf("the leaf ends %s before what was asked for", short)
	}
	probe := signer.Probe{Identity: spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca"),
		DNSNames: []string{"ca.istio-system.svc"}, TTL: time.Hour}
	if err := probe.Try(t.Context(), i, time.Now()); err != nil {
		t.Errorf("probe: %v", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testkit.NoError(t, err)
	r = kubetest.RequestWith(t, key, spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/rsa"), nil)
	if _, err := i.Issue(t.Context(), r); err != nil {
		t.Errorf("RSA: %v", err)
	}
	// As Istio's documentation has it, by the full name too.
	r = kubetest.Request(t, "bank", "vault", nil)
	for _, r.Profile = range []string{"gold", domain + "/gold"} {
		if _, err := i.Issue(t.Context(), r); err != nil {
			t.Errorf("by %s: %v", r.Profile, err)
		}
	}
	c.empty(t)
}

func refusedAndLied(t *testing.T, c *controller, i signer.Issuer) {
	for name, tc := range map[string]struct {
		namespace, profile string
		change             func(*x509.Certificate, *x509.CertificateRequest)
		fault              signer.Fault
		says               string
	}{
		"failed":                       {profile: "fail", fault: signer.Refused, says: "failed the CertificateSigningRequest: Policy: not on a Friday"},
		"removed":                      {profile: "removed", fault: signer.Away, says: "deleted before"},
		"another key":                  {profile: "other-key", fault: signer.Lied, says: "another key"},
		"another name":                 {profile: "other-name", fault: signer.Lied, says: "has the URIs"},
		"a longer life":                {profile: "longer", fault: signer.Lied, says: "longer than"},
		"another root":                 {profile: "other-root", fault: signer.Lied, says: "does not verify"},
		"an authority":                 {profile: "authority", fault: signer.Lied, says: "authority"},
		"a huge answer":                {profile: "huge", fault: signer.Lied, says: "the limit is"},
		"a profile of another's":       {profile: "gold", fault: signer.Unsuitable, says: `namespace shop may not use`},
		"the same for everybody else":  {namespace: "bank", profile: "deny", fault: signer.Unsuitable, says: `namespace bank may not use; name one of ["gold"]`},
		"a profile that is not there":  {profile: "platinum", fault: signer.Unsuitable, says: `"platinum"`},
		"a signer of a foreign domain": {profile: "example.org/ok", fault: signer.Unsuitable, says: `"example.org/ok"`},
		"no URI": {fault: signer.Unsuitable, says: "send a CSR with these subject alternative names",
			change: func(_ *x509.Certificate, r *x509.CertificateRequest) { r.URIs = nil }},
		"a lifetime that is too short": {fault: signer.Unsuitable, says: "ask for a longer lifetime",
			change: func(c *x509.Certificate, _ *x509.CertificateRequest) { c.NotAfter = time.Now().Add(10 * time.Minute) }},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.namespace == "" {
				tc.namespace = "shop"
			}
			r := kubetest.Request(t, tc.namespace, "web", tc.change)
			r.Profile = tc.profile
			_, err := i.Issue(t.Context(), r)
			wantError(t, err, tc.fault, tc.says)
		})
	}
	c.empty(t)
}

func wantError(t *testing.T, err error, fault signer.Fault, says string) {
	t.Helper()
	var e *signer.Error
	if !errors.As(err, &e) || e.Fault != fault || !strings.Contains(e.Error(), says) {
		t.Errorf("got %v, want fault %d with %q", err, fault, says)
		return
	}
	t.Logf("%v", err)
}

// approvedByOthers has an issuer that approves nothing itself.
func approvedByOthers(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	cfg.Approve, cfg.Timeout.Duration = false, 5*time.Second
	i, _ := start(t, s, cfg, clock.Real())
	known(t, i)
	r := kubetest.Request(t, "shop", "web", nil)
	r.Profile = "deny"
	_, err := i.Issue(t.Context(), r)
	wantError(t, err, signer.Refused, "was denied: Policy: not on a Friday")
	r.Profile = "silent"
	_, err = i.Issue(t.Context(), r)
	wantError(t, err, signer.Away, "was not approved within 5s")
	cfg.Approve = true
	i, _ = start(t, s, cfg, clock.Real())
	known(t, i)
	_, err = i.Issue(t.Context(), r)
	wantError(t, err, signer.Away, "did not sign it within 5s")
	c.delay.Store(int64(8 * time.Second))
	defer c.delay.Store(0)
	r.Profile = ""
	_, err = i.Issue(t.Context(), r)
	wantError(t, err, signer.Away, "did not sign it within 5s")
	c.empty(t)
}

func callerGone(t *testing.T, c *controller, i signer.Issuer) {
	ctx, cancel := context.WithCancel(t.Context())
	r := kubetest.Request(t, "shop", "web", nil)
	r.Profile = "silent"
	go func() {
		testkit.Eventually(t, testkit.Patience, func() error {
			if len(c.names(t)) == 0 {
				return errors.New("no object yet")
			}
			return nil
		})
		cancel()
	}()
	_, err := i.Issue(ctx, r)
	wantError(t, err, signer.Away, "the caller has not waited")
	c.empty(t)
}

// tooMany has one place, ten requests that wait for it, and one more.
func tooMany(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	cfg.Limits.InFlight, cfg.Timeout.Duration = 1, 10*time.Second
	i, stop := start(t, s, cfg, clock.Real())
	known(t, i)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, 20)
	for range 12 {
		r := kubetest.Request(t, "shop", "web", nil)
		r.Profile = "silent"
		go func() {
			_, err := i.Issue(ctx, r)
			errs <- err
		}()
	}
	err := <-errs
	wantError(t, err, signer.Busy, "limits.inFlight (1) requests wait for the signer already")
	var e *signer.Error
	if errors.As(err, &e) && e.RetryAfter != cfg.Timeout.Duration {
		t.Errorf("retry after %s", e.RetryAfter)
	}
	if n := len(c.names(t)); n > 1 {
		t.Errorf("%d objects, wanted one at most", n)
	}
	cancel()
	for range 11 {
		<-errs
	}
	stop() // it waits until all objects are deleted
	if left := c.names(t); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	_, err = i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Away, "not used any more")
}

// rights takes one right after the other from the ca.
func rights(t *testing.T, s *kubetest.Server, c *controller) {
	without := func(rule int, verb string) []rbacv1.PolicyRule {
		var left []rbacv1.PolicyRule
		for n, r := range rules {
			if n == rule {
				r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == verb })
			}
			if len(r.Verbs) > 0 {
				left = append(left, r)
			}
		}
		return left
	}
	defer s.Grant(t, "ca", append(rules, readConfigMap)...)
	for _, tc := range []struct {
		rule       int
		verb, says string
	}{
		{0, "create", "create a CertificateSigningRequest: the ca may not"},
		{0, "watch", "watch certificatesigningrequests.certificates.k8s.io: the ca may not"},
		{1, "update", "grant its service account the verb update on certificatesigningrequests/approval"},
		{2, "approve", "approve on signers of certificates.k8s.io with resourceNames such as signers.example.com/*"},
	} {
		t.Run(tc.verb, func(t *testing.T) {
			s.Grant(t, "ca", without(tc.rule, tc.verb)...)
			i, _ := start(t, s, config(t, c), clock.Real())
			known(t, i)
			_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
			wantError(t, err, signer.Refused, tc.says)
			if problem := i.Problem(); tc.verb == "watch" && (problem == nil || !strings.Contains(problem.Error(), tc.says)) {
				t.Errorf("the problem is %v", problem)
			}
		})
	}
	t.Run("no account", func(t *testing.T) {
		cluster := s.Config("nobody")
		i, _ := startWith(t, cluster, config(t, c), clock.Real())
		known(t, i)
		_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
		wantError(t, err, signer.Refused, "the API server does not know the ca")
	})
	t.Run("delete", func(t *testing.T) {
		s.Grant(t, "ca", without(0, "delete")...)
		cfg := config(t, c)
		cfg.Limits.InFlight, cfg.Timeout.Duration = 2, 5*time.Second
		i, _ := start(t, s, cfg, clock.Real())
		known(t, i)
		for range cfg.Limits.InFlight {
			if _, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
		wantError(t, err, signer.Refused, "the verb delete on certificatesigningrequests.certificates.k8s.io")
		if problem := i.Problem(); problem == nil || !strings.Contains(problem.Error(), "the verb delete on") {
			t.Errorf("the problem is %v", problem)
		}
		s.Grant(t, "ca", rules...)
		c.empty(t)
		testkit.Eventually(t, testkit.Patience, func() error {
			_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
			return err
		})
	})
	c.empty(t)
}

// roots come from a ConfigMap here; what is wrong with it is said, and the last good ones stay.
func roots(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	cfg.Roots = kuberequest.Roots{ConfigMap: &kuberequest.Object{Namespace: "default", Name: "signer-roots"}}
	times := testkit.NewClock(time.Now())
	i, _ := start(t, s, cfg, times)
	maps := s.Client(t).CoreV1().ConfigMaps("default")
	issue := func(fault signer.Fault, says string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			times.Advance(5 * time.Second)
			_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
			var e *signer.Error
			if fault == 0 && err != nil || fault != 0 && (!errors.As(err, &e) || e.Fault != fault || !strings.Contains(e.Error(), says)) {
				return fmt.Errorf("got %w, want fault %d with %q", err, fault, says)
			}
			return nil
		})
	}
	issue(signer.Refused, "ConfigMap default/signer-roots does not exist; make it")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "signer-roots"}, Data: map[string]string{"ca.crt": string(c.root.PEM)}}
	write := func(data map[string]string) {
		t.Helper()
		object.Data = data
		_, err := maps.Update(t.Context(), object, metav1.UpdateOptions{})
		testkit.NoError(t, err)
	}
	_, err := maps.Create(t.Context(), object, metav1.CreateOptions{})
	testkit.NoError(t, err)
	issue(signer.Refused, "has no entry root-cert.pem")
	write(map[string]string{"root-cert.pem": "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----"})
	issue(signer.Refused, "ConfigMap default/signer-roots, root-cert.pem: entry 1")
	write(map[string]string{"root-cert.pem": string(c.root.PEM)})
	issue(0, "")
	if problem := i.Problem(); problem != nil {
		t.Errorf("the problem is %v", problem)
	}
	write(map[string]string{"root-cert.pem": "half"})
	testkit.Eventually(t, testkit.Patience, func() error {
		times.Advance(10 * time.Second)
		if problem := i.Problem(); problem == nil || !strings.Contains(problem.Error(), "no certificate in PEM") {
			return fmt.Errorf("the problem is %w", problem)
		}
		return nil
	})
	issue(0, "")
	other := kubetest.NewAuthority(t, "another", nil)
	_, changed := i.Authorities()
	write(map[string]string{"root-cert.pem": string(other.PEM) + string(c.root.PEM)})
	times.Advance(time.Minute)
	<-changed
	if a, _ := i.Authorities(); len(a.Roots) != 2 || !a.Roots[0].Equal(other.Cert) {
		t.Errorf("roots %v", a.Roots)
	}
	issue(0, "")
	write(map[string]string{"root-cert.pem": string(other.PEM)})
	issue(signer.Lied, "does not verify")
	c.empty(t)
}
