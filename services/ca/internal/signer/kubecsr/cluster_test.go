package kubecsr

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

const domain = "signers.example.com"

// rules are what the chart must grant the ca.
var rules = []rbacv1.PolicyRule{
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"},
		Verbs: []string{"create", "get", "list", "watch", "delete"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests/approval"}, Verbs: []string{"update"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{domain + "/*"}, Verbs: []string{"approve"}},
}

// readConfigMap is what it needs besides if the roots are in a ConfigMap.
var readConfigMap = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"signer-roots"},
	Verbs: []string{"get"}}

// controller signs CertificateSigningRequests as a user's signer does. The name of the signer says how.
type controller struct {
	t      testing.TB
	client *kubernetes.Clientset
	root   *kubetest.Authority
	middle *kubetest.Authority
	// delay is how long it thinks before it signs, in nanoseconds.
	delay atomic.Int64
	// seen counts the requests by the names of signers.
	pending chan *certificatesv1.CertificateSigningRequest
}

// startController runs until the test ends.
func startController(t testing.TB, s *kubetest.Server) *controller {
	t.Helper()
	root := kubetest.NewAuthority(t, "root of the signer", nil)
	c := &controller{t: t, client: s.Client(t), root: root, middle: kubetest.NewAuthority(t, "intermediate", root),
		pending: make(chan *certificatesv1.CertificateSigningRequest, 10000)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	watched := cache.NewListWatchFromClient(c.client.CertificatesV1().RESTClient(), "certificatesigningrequests", "", fields.Everything())
	queue := func(o any) {
		if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok && strings.HasPrefix(csr.Spec.SignerName, domain+"/") {
			c.pending <- csr
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: watched,
		ObjectType: &certificatesv1.CertificateSigningRequest{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: queue, UpdateFunc: func(_, o any) { queue(o) }}})
	go informer.RunWithContext(ctx)
	for range 32 {
		go func() {
			for {
				select {
				case csr := <-c.pending:
					c.handle(ctx, csr.DeepCopy())
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return c
}

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

func (c *controller) handle(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) {
	requests := c.client.CertificatesV1().CertificateSigningRequests()
	how := strings.TrimPrefix(csr.Spec.SignerName, domain+"/")
	condition := func(kind certificatesv1.RequestConditionType) {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind,
			Status: corev1.ConditionTrue, Reason: "Policy", Message: "not on a Friday"})
	}
	switch {
	case how == "deny" && !has(csr, "Denied") && !has(csr, "Approved"):
		condition(certificatesv1.CertificateDenied)
		_, _ = requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		return
	case how == "removed":
		_ = requests.Delete(ctx, csr.Name, metav1.DeleteOptions{})
		return
	case how == "silent" || !has(csr, certificatesv1.CertificateApproved) || len(csr.Status.Certificate) > 0 || has(csr, "Failed"):
		return
	case how == "fail":
		condition(certificatesv1.CertificateFailed)
		_, _ = requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
		return
	}
	time.Sleep(time.Duration(c.delay.Load()))
	by, ttl := c.middle, time.Duration(*csr.Spec.ExpirationSeconds)*time.Second
	var change func(*x509.Certificate)
	switch how {
	case "other-key":
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		change = func(t *x509.Certificate) { t.PublicKey = key.Public() }
	case "other-name":
		change = func(t *x509.Certificate) {
			t.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/kube-system/sa/admin"}}
		}
	case "longer":
		ttl += 24 * time.Hour
	case "other-root":
		by = kubetest.NewAuthority(c.t, "root of the signer", nil)
	case "authority":
		change = func(t *x509.Certificate) { t.IsCA, t.KeyUsage = true, t.KeyUsage|x509.KeyUsageCertSign }
	}
	cert, err := by.SignCSR(csr.Spec.Request, ttl, change)
	if err != nil {
		c.t.Error(err)
		return
	}
	csr.Status.Certificate = append(append(cert, c.middle.PEM...), c.root.PEM...)
	if how == "huge" {
		for range 100 {
			csr.Status.Certificate = append(csr.Status.Certificate, c.middle.PEM...)
		}
	}
	_, _ = requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
}

// config is of an issuer that knows a profile for each behaviour of the controller.
func config(t testing.TB, c *controller) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "roots.pem")
	testkit.WriteFile(t, file, c.root.PEM)
	cfg := Config{Domain: domain, Signer: "ok", Roots: kuberequest.Roots{File: file}, Approve: true}
	for _, p := range []string{"deny", "removed", "silent", "fail", "other-key", "other-name", "longer", "other-root", "authority", "huge"} {
		cfg.Profiles = append(cfg.Profiles, Profile{Name: p, Namespaces: []string{"shop"}})
	}
	cfg.Profiles = append(cfg.Profiles, Profile{Name: "gold", Namespaces: []string{"bank"}})
	return cfg
}

// start runs an issuer until the test ends, or the returned function is called.
func start(t testing.TB, s *kubetest.Server, cfg Config, clk clock.Clock) (*kuberequest.Issuer, func()) {
	t.Helper()
	return startWith(t, s.Config("ca"), cfg, clk)
}

func startWith(t testing.TB, cluster *rest.Config, cfg Config, clk clock.Clock) (*kuberequest.Issuer, func()) {
	t.Helper()
	i, err := New(cfg, signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString(testkit.TrustDomain), Clock: clk,
		Log: testkit.Logger(t)}, cluster)
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	ended := false
	stop := func() {
		cancel()
		if !ended {
			ended = true
			testkit.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return i, stop
}

// known waits until an issuer has roots.
func known(t testing.TB, i signer.Issuer) *signer.Authorities {
	t.Helper()
	var a *signer.Authorities
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ = i.Authorities(); a == nil {
			return errors.New("no authorities yet")
		}
		return nil
	})
	return a
}

// names lists the objects of the cluster.
func (c *controller) names(t testing.TB) []string {
	t.Helper()
	list, err := c.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	testkit.NoError(t, err)
	var names []string
	for _, o := range list.Items {
		names = append(names, o.Name)
	}
	return names
}

// empty waits until no object is left.
func (c *controller) empty(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if left := c.names(t); len(left) > 0 {
			return fmt.Errorf("left are %q", left)
		}
		return nil
	})
}

func pool(a *signer.Authorities) *x509.CertPool {
	p := x509.NewCertPool()
	for _, r := range a.Roots {
		p.AddCert(r)
	}
	return p
}
