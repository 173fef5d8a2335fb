package certmanager

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kubecsr"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

// TestAgainstCertManager runs all that needs cert-manager with one API server.
func TestAgainstCertManager(t *testing.T) {
	c := startCluster(t)
	c.Grant(t, "ca", rules...)
	t.Run("not installed", c.notInstalled)
	c.define(t)
	t.Run("no namespace", c.noNamespace)
	c.issuers(t)
	stop := c.Run(t, "certmanager", kubetest.Program(t, binVariable, "certmanager", "certmanager"))
	c.foreignIssuer(t)
	i := c.start(t, c.config(t))
	known(t, i)
	c.ready(t, i, "")
	t.Run("issued", func(t *testing.T) { c.issued(t, i) })
	t.Run("refused", func(t *testing.T) { c.refused(t, i) })
	t.Run("other roots", c.otherRoots)
	t.Run("rights", c.rights)
	t.Run("many", func(t *testing.T) { c.many(t, i) })
	t.Run("by CertificateSigningRequests", c.byCertificateSigningRequests)
	stop()
	c.Run(t, "certmanager", kubetest.Program(t, binVariable, "certmanager", "certmanager"), "-approve")
	t.Run("approved by others", c.approvedByOthers)
}

func (c *cluster) notInstalled(t *testing.T) {
	cfg := c.config(t)
	cfg.Roots = *cfg.Profiles[0].Roots
	i := c.start(t, cfg)
	known(t, i)
	testkit.Eventually(t, testkit.Patience, func() error { // the watch must have failed once
		_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
		if e, ok := err.(*signer.Error); !ok || e.Fault != signer.Refused { //nolint:errorlint // Issue returns this type
			return err
		}
		wantError(t, err, signer.Refused, "and the custom resource definition if it is one")
		return nil
	})
}

func (c *cluster) noNamespace(t *testing.T) {
	cfg := c.config(t)
	cfg.Roots = *cfg.Profiles[0].Roots
	i := c.start(t, cfg)
	known(t, i)
	_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Refused, `namespaces "istio-system" not found; see that the namespace exists`)
}

func (c *cluster) issued(t *testing.T, i signer.Issuer) {
	for profile, length := range map[string]int{"": 1, "mesh-intermediate": 2, "mesh-cluster": 2} {
		c.ready(t, i, profile)
		r := kubetest.Request(t, "shop", "web", nil)
		r.Profile = profile
		began := time.Now()
		chain, err := i.Issue(t.Context(), r)
		if err != nil {
			t.Errorf("%q: %v", profile, err)
			continue
		}
		t.Logf("%q issued in %s", profile, time.Since(began))
		pool := x509.NewCertPool()
		pool.AddCert(c.root.Cert)
		if err := signer.Check(r, i.Capabilities(), chain, pool, time.Now()); err != nil {
			t.Error(err)
		}
		if len(chain) != length {
			t.Errorf("%q: the chain has %d certificates, wanted %d", profile, len(chain), length)
		}
	}
	probe := signer.Probe{Identity: spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca"),
		DNSNames: []string{"ca.istio-system.svc"}, TTL: time.Hour}
	if err := probe.Try(t.Context(), i, time.Now()); err != nil {
		t.Errorf("probe: %v", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testkit.NoError(t, err)
	r := kubetest.RequestWith(t, key, spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/rsa"), nil)
	if _, err := i.Issue(t.Context(), r); err != nil {
		t.Errorf("RSA: %v", err)
	}
	c.empty(t)
}

func (c *cluster) refused(t *testing.T, i signer.Issuer) {
	brief := c.config(t)
	brief.Timeout.Duration = 5 * time.Second
	impatient := c.start(t, brief)
	brief.Approve = false
	approvesNothing := c.start(t, brief)
	known(t, impatient)
	known(t, approvesNothing)
	for _, tc := range []struct {
		profile string
		by      signer.Issuer
		fault   signer.Fault
		says    string
	}{
		{"denies", approvesNothing, signer.Refused, "was denied: policy.cert-manager.io: not on a Friday"},
		{"finds-invalid", i, signer.Refused, "is invalid: NoURI: no URIs here"},
		{"fails", i, signer.Refused, "refused the CertificateRequest: Failed: the HSM is on fire"},
		{"is-pending", impatient, signer.Away, "(Pending: waiting for a person)"},
		{"has-nothing", i, signer.Lied, "is Ready and has no certificate"},
		{"removes", i, signer.Away, "was deleted before"},
		{"answers-nonsense", i, signer.Lied, "no certificate in PEM"},
		{"missing", impatient, signer.Away, "did not sign it within 5s"},
		{"", approvesNothing, signer.Away, "was not approved within 5s"},
		{"platinum", i, signer.Unsuitable, `names the signer "platinum"`},
	} {
		t.Run(tc.profile, func(t *testing.T) {
			r := kubetest.Request(t, "shop", "web", nil)
			r.Profile = tc.profile
			_, err := tc.by.Issue(t.Context(), r)
			wantError(t, err, tc.fault, tc.says)
		})
	}
	r := kubetest.Request(t, "bank", "web", nil)
	r.Profile = "mesh-cluster"
	_, err := i.Issue(t.Context(), r)
	wantError(t, err, signer.Unsuitable, "which namespace bank may not use")
	c.empty(t)
}

// otherRoots has roots that are not the issuer's: what the issuer says of itself does not count.
func (c *cluster) otherRoots(t *testing.T) {
	cfg := c.config(t)
	cfg.Roots = kuberequest.Roots{File: filepath.Join(t.TempDir(), "other.pem")}
	testkit.WriteFile(t, cfg.Roots.File, kubetest.NewAuthority(t, "another", nil).PEM)
	i := c.start(t, cfg)
	known(t, i)
	_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Lied, `the issuer says that its root is "CN=root of the issuer"`)
}

func (c *cluster) rights(t *testing.T) {
	defer c.Grant(t, "ca", rules...)
	for name, tc := range map[string]struct {
		without int
		says    string
	}{
		"requests": {0, "grant its service account the verbs get, list and watch on certificaterequests.cert-manager.io in namespace " +
			"istio-system"},
		"approval": {2, "grant its service account the verb update on certificaterequests/status in namespace istio-system"},
		"roots":    {3, "grant its service account the verb get on secrets with resourceNames mesh-ca in namespace istio-system"},
	} {
		t.Run(name, func(t *testing.T) {
			c.Grant(t, "ca", slices.Delete(slices.Clone(rules), tc.without, tc.without+1)...)
			i := c.start(t, c.config(t))
			known(t, i) // of the profiles
			var err error
			testkit.Eventually(t, testkit.Patience, func() error {
				_, err = i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
				if e, ok := err.(*signer.Error); !ok || e.Fault != signer.Refused { //nolint:errorlint // Issue returns this type
					return err
				}
				return nil
			})
			wantError(t, err, signer.Refused, tc.says)
		})
	}
	c.Grant(t, "ca", rules...)
	c.empty(t)
}

// many sends more requests at once than there are places.
func (c *cluster) many(t *testing.T, _ signer.Issuer) {
	cfg := c.config(t)
	cfg.Timeout.Duration = time.Minute
	i := c.start(t, cfg)
	known(t, i)
	const n = 200
	requests := make([]*signer.Request, n)
	for k := range requests {
		requests[k] = kubetest.Request(t, "shop", "web", nil)
	}
	var mu sync.Mutex
	var took []time.Duration
	var running sync.WaitGroup
	began := time.Now()
	for _, r := range requests {
		running.Go(func() {
			_, err := i.Issue(t.Context(), r)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	slices.Sort(took)
	t.Logf("%d leaves at once: half in %s, all in %s", n, took[n/2], took[n-1])
	c.empty(t)
}

// byCertificateSigningRequests is what Istio's documentation describes: cert-manager signs Kubernetes'
// CertificateSigningRequests whose signer's name is that of a ClusterIssuer.
func (c *cluster) byCertificateSigningRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	testkit.WriteFile(t, file, c.root.PEM)
	i, err := kubecsr.New(kubecsr.Config{Domain: "clusterissuers.cert-manager.io", Signer: "mesh-cluster", Approve: true,
		Roots: kuberequest.Roots{File: file}}, signer.Deps{Clock: clock.Real(), Log: testkit.Logger(t)}, c.Admin())
	testkit.NoError(t, err)
	run(t, i)
	known(t, i)
	r := kubetest.Request(t, "shop", "web", nil)
	began := time.Now()
	chain, err := i.Issue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("issued in %s", time.Since(began))
	if len(chain) != 2 || !chain[1].Equal(c.middle.Cert) {
		t.Errorf("the chain has %d certificates", len(chain))
	}
}

// approvedByOthers has cert-manager's own approver.
func (c *cluster) approvedByOthers(t *testing.T) {
	cfg := c.config(t)
	cfg.Approve = false
	c.Grant(t, "ca", rules[0], rules[3])
	i := c.start(t, cfg)
	known(t, i)
	c.ready(t, i, "")
	// With both, whoever comes second finds it decided.
	cfg.Approve = true
	c.Grant(t, "ca", rules...)
	i = c.start(t, cfg)
	known(t, i)
	for range 10 {
		if _, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil)); err != nil {
			t.Error(err)
		}
	}
	c.empty(t)
}
