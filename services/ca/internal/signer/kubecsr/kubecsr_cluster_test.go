package kubecsr

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

// TestAgainstKubernetes runs all that needs an API server with one of them.
func TestAgainstKubernetes(t *testing.T) {
	s := kubetest.Start(t, "ca")
	c := startController(t, s)
	s.Grant(t, "ca", append(rules, readConfigMap)...)
	i, _ := start(t, s, config(t, c), clock.Real())
	known(t, i)
	t.Run("issued", func(t *testing.T) { issued(t, c, i) })
	t.Run("refused and lied", func(t *testing.T) { refusedAndLied(t, c, i) })
	t.Run("approved by others", func(t *testing.T) { approvedByOthers(t, s, c) })
	t.Run("the caller goes away", func(t *testing.T) { callerGone(t, c, i) })
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
		})
	}
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
	write(map[string]string{"root-cert.pem": "half"})
	times.Advance(time.Minute)
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

// killed kills a process with kill -9 while its objects are in the cluster; another one deletes them, and not its own.
func killed(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	file := filepath.Join(t.TempDir(), "config.json")
	cluster := s.Config("ca")
	text, err := json.Marshal(map[string]any{"config": cfg, "host": cluster.Host, "ca": cluster.CAFile, "requests": 5})
	testkit.NoError(t, err)
	testkit.WriteFile(t, file, text)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestChild$", "-test.v")
	child.Env = append(os.Environ(), childVariable+"="+file)
	var output testkit.Buffer
	child.Stdout, child.Stderr = &output, &output
	testkit.NoError(t, child.Start())
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := len(c.names(t)); n != 5 {
			return fmt.Errorf("%d objects: %s", n, output.String())
		}
		return nil
	})
	testkit.NoError(t, child.Process.Kill())
	_ = child.Wait()

	times := testkit.NewClock(time.Now())
	i, _ := start(t, s, cfg, times)
	known(t, i)
	r := kubetest.Request(t, "shop", "web", nil)
	r.Profile = "silent"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := i.Issue(ctx, r)
		done <- err
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		times.Advance(10 * time.Second) // the roots are read every 10 s; orphans are those of 5 min
		if n := len(c.names(t)); n != 1 {
			return fmt.Errorf("%d objects, wanted that of the request under way", n)
		}
		return nil
	})
	select {
	case err := <-done:
		t.Errorf("the request under way ended: %v", err)
	default:
	}
	cancel()
	<-done
	c.empty(t)
}

// childVariable names the file that TestChild runs with.
const childVariable = "KUBECSR_TEST_CHILD"

// TestChild is the process that killed kills.
func TestChild(t *testing.T) {
	text, err := os.ReadFile(os.Getenv(childVariable))
	if err != nil {
		t.Skip("it runs as a child of TestAgainstKubernetes alone")
	}
	var file struct {
		Config   Config
		Host, CA string
		Requests int
	}
	testkit.NoError(t, json.Unmarshal(text, &file))
	file.Config.Timeout.Duration = time.Minute
	i, err := New(file.Config, signer.Deps{Clock: clock.Real(), Log: testkit.Logger(t)}, &rest.Config{Host: file.Host, BearerToken: "ca",
		TLSClientConfig: rest.TLSClientConfig{CAFile: file.CA, ServerName: "kubernetes"}})
	testkit.NoError(t, err)
	go func() { _ = i.Run(t.Context()) }()
	known(t, i)
	var running sync.WaitGroup
	for range file.Requests {
		r := kubetest.Request(t, "shop", "web", nil)
		r.Profile = "silent"
		running.Go(func() { _, _ = i.Issue(t.Context(), r) })
	}
	running.Wait()
}

// counter counts requests and watches by a client.
type counter struct {
	next              http.RoundTripper
	requests, watches atomic.Int64
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		c.watches.Add(1)
	} else {
		c.requests.Add(1)
	}
	return c.next.RoundTrip(r)
}

// burst sends 500 requests at once, with the default limits.
func burst(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	cfg.Timeout.Duration = time.Minute
	count := &counter{}
	cluster := s.Config("ca")
	cluster.Wrap(func(next http.RoundTripper) http.RoundTripper { count.next = next; return count })
	i, _ := startWith(t, cluster, cfg, clock.Real())
	known(t, i)
	const n = 500
	var mu sync.Mutex
	var took []time.Duration
	most := 0
	watching, stop := context.WithCancel(t.Context())
	var running, looking sync.WaitGroup
	looking.Go(func() {
		for watching.Err() == nil {
			most = max(most, len(c.names(t)))
			time.Sleep(50 * time.Millisecond)
		}
	})
	requests := make([]*signer.Request, n)
	for k := range requests {
		requests[k] = kubetest.Request(t, "shop", fmt.Sprint("web-", k), nil)
	}
	began := time.Now()
	for _, r := range requests {
		running.Go(func() {
			chain, err := i.Issue(t.Context(), r)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			if err != nil {
				t.Error(err)
			} else if chain[0].URIs[0].String() != r.Identity.String() {
				t.Errorf("%s got the certificate of %s", r.Identity, chain[0].URIs[0])
			}
		})
	}
	running.Wait()
	all := time.Since(began)
	c.empty(t)
	stop()
	looking.Wait()
	slices.Sort(took)
	t.Logf("%d leaves in %s: half in %s, 99%% in %s; %d requests and %d watches, %d objects at most; none is left after %s", n, all,
		took[n/2], took[n*99/100], count.requests.Load(), count.watches.Load(), most, time.Since(began))
	// The API server ends a watch that does not keep up, and a new one goes on where it was.
	if w := count.watches.Load(); w > n/10 {
		t.Errorf("%d watches, wanted one at a time", w)
	}
	if most > 100 {
		t.Errorf("%d objects at once, wanted at most 100", most)
	}
}

// away kills the API server while a request is under way, which is answered when it is back, as are later ones.
func away(t *testing.T, s *kubetest.Server, c *controller, i signer.Issuer) {
	cfg := config(t, c)
	cfg.Timeout.Duration = time.Minute
	patient, _ := start(t, s, cfg, clock.Real())
	known(t, patient)
	c.delay.Store(int64(2 * time.Second))
	slow := make(chan error, 1)
	go func() {
		_, err := patient.Issue(t.Context(), kubetest.Request(t, "shop", "slow", nil))
		slow <- err
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		list, err := c.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(list.Items) == 0 || len(list.Items[0].Status.Conditions) == 0) {
			err = errors.New("no approved object yet")
		}
		return err
	})
	s.Kill()
	c.delay.Store(0)
	_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Away, "create a CertificateSigningRequest: the API server does not answer")
	fresh, _ := start(t, s, cfg, clock.Real())
	known(t, fresh) // roots are in a file
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = fresh.Issue(ctx, kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Away, "watch certificatesigningrequests.certificates.k8s.io")
	s.Resume(t)
	began := time.Now()
	for _, i := range []signer.Issuer{i, fresh} {
		testkit.Eventually(t, testkit.Patience, func() error {
			_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
			return err
		})
	}
	t.Logf("issued %s after the API server was ready", time.Since(began))
	if err := <-slow; err != nil {
		t.Errorf("the request that was under way: %v", err)
	}
	c.empty(t)
}
