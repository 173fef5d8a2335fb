package kuberequest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

var now = time.Now()

// authority makes a self-signed CA certificate. change may change it.
func authority(t testing.TB, name string, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	testkit.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	return cert
}

func pemOf(certs ...*x509.Certificate) []byte {
	var text []byte
	for _, c := range certs {
		text = append(text, testkit.CertPEM(c)...)
	}
	return text
}

func TestRootsMustBeUsable(t *testing.T) {
	good := authority(t, "good", nil)
	expired := authority(t, "expired", func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) })
	future := authority(t, "future", func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) })
	lists := authority(t, "lists", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
	leaf := authority(t, "leaf", func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	for name, tc := range map[string]struct {
		text  []byte
		roots int
		says  string
	}{
		"one":                         {text: pemOf(good), roots: 1},
		"the same twice":              {text: pemOf(good, good), roots: 1},
		"one that has expired, too":   {text: pemOf(expired, good), roots: 1},
		"one for later, too":          {text: pemOf(good, future), roots: 1},
		"expired":                     {text: pemOf(expired), says: "certificate 1 (CN=expired) is valid from"},
		"not valid yet":               {text: pemOf(future), says: "mend the clock"},
		"none":                        {text: nil, says: "no certificate in PEM; write the signer's roots there"},
		"no PEM":                      {text: []byte("half"), says: "no certificate in PEM"},
		"half of one":                 {text: pemOf(good)[:200], says: "no certificate in PEM"},
		"a leaf":                      {text: pemOf(good, leaf), says: "entry 2 (CN=leaf) is not a certificate authority's"},
		"a key":                       {text: []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"), says: `entry 1 is a "PRIVATE KEY"`},
		"more than can be":            {text: make([]byte, maxRootBytes+1), says: "the limit is"},
		"one that may sign no others": {text: pemOf(lists), says: "may not sign"},
	} {
		t.Run(name, func(t *testing.T) {
			roots, err := parseRoots(tc.text, now)
			if len(roots) != tc.roots || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) || tc.says == "" && err != nil {
				t.Errorf("got %d roots and %v, want %d and %q", len(roots), err, tc.roots, tc.says)
			}
		})
	}
}

func TestAnswersAreBounded(t *testing.T) {
	root, leaf, middle := authority(t, "root", nil), authority(t, "leaf", nil), authority(t, "self-signed", nil)
	for name, tc := range map[string]struct {
		text []byte
		want int
		says string
	}{
		"a leaf":                {text: pemOf(leaf), want: 1},
		"roots behind the leaf": {text: pemOf(leaf, middle, root), want: 1},
		"words between":         {text: append([]byte("subject: x\n"), pemOf(leaf)...), want: 1},
		"nothing":               {says: "no certificate in PEM"},
		"DER":                   {text: leaf.Raw, says: "no certificate in PEM"},
		"a key":                 {text: []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"), says: "no chain of certificates"},
		"too many":              {text: pemOf(leaf, leaf, leaf, leaf, leaf, leaf, leaf, leaf, leaf, leaf, leaf), says: "11 PEM blocks, the limit is 10"},
		"too long":              {text: make([]byte, maxAnswerBytes+1), says: "the limit is"},
	} {
		t.Run(name, func(t *testing.T) {
			chain, err := parseChain(tc.text, []*x509.Certificate{root})
			if len(chain) != tc.want || tc.says != "" && (err == nil || err.Fault != signer.Lied || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %d certificates and %v, want %d and %q", len(chain), err, tc.want, tc.says)
			}
		})
	}
}

func TestTheHintNamesTheRootThatAnIssuerClaims(t *testing.T) {
	root, other := authority(t, "root", nil), authority(t, "other\nroot", nil)
	if got := hint(Status{CA: pemOf(other)}, []*x509.Certificate{root}); !strings.Contains(got, "add it there if it is yours") {
		t.Errorf("got %q", got)
	}
	for _, s := range []Status{{}, {CA: pemOf(root)}, {CA: []byte("x")}, {CA: make([]byte, maxAnswerBytes+1)}} {
		if got := hint(s, []*x509.Certificate{root}); got != "" {
			t.Errorf("got %q", got)
		}
	}
}

// request is one with a CSR that changes as a test wants.
func request(t testing.TB, change func(*x509.Certificate, *x509.CertificateRequest)) *signer.Request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	id, err := url.Parse("spiffe://cluster.local/ns/shop/sa/web")
	testkit.NoError(t, err)
	template := &x509.Certificate{PublicKey: key.Public(), URIs: []*url.URL{id}}
	csr := &x509.CertificateRequest{URIs: template.URIs}
	if change != nil {
		change(template, csr)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, csr, key)
	testkit.NoError(t, err)
	return &signer.Request{Template: template, CSR: der}
}

func TestTheCSRMustAskForWhatWasDecided(t *testing.T) {
	other := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/kube-system/sa/admin"}
	for name, tc := range map[string]struct {
		change func(*x509.Certificate, *x509.CertificateRequest)
		says   string
	}{
		"the URI alone": {},
		"names in another order": {change: func(c *x509.Certificate, r *x509.CertificateRequest) {
			c.DNSNames, r.DNSNames = []string{"a.example", "b.example"}, []string{"b.example", "a.example"}
			c.IPAddresses, r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}, []net.IP{net.IPv4(10, 0, 0, 1).To4()}
		}},
		"an empty organization, as Istio's agent": {change: func(_ *x509.Certificate, r *x509.CertificateRequest) {
			r.Subject = pkix.Name{Organization: []string{""}}
		}},
		"no URI":        {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.URIs = nil }, "the CSR has the URI []"},
		"two URIs":      {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.URIs = append(r.URIs[:1:1], other) }, "the CSR has the URI"},
		"another URI":   {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.URIs = []*url.URL{other} }, "the CSR has the URI"},
		"a DNS name":    {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.DNSNames = []string{"istiod"} }, "the CSR has the DNS names"},
		"no DNS name":   {func(c *x509.Certificate, _ *x509.CertificateRequest) { c.DNSNames = []string{"ca"} }, "the CSR has the DNS names []"},
		"an IP address": {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{1, 2, 3, 4}} }, "IP addresses"},
		"an email":      {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b.c"} }, "email"},
		"a subject": {func(_ *x509.Certificate, r *x509.CertificateRequest) {
			r.Subject.Organization = []string{"system:masters"}
		}, "a CSR without a subject"},
		"a common name": {func(_ *x509.Certificate, r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }, "a CSR without a subject"},
		"another's key": {func(c *x509.Certificate, _ *x509.CertificateRequest) {
			c.PublicKey = &rsa.PublicKey{N: big.NewInt(5), E: 3}
		}, "another key"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := checkCSR(request(t, tc.change), "CertificateRequest")
			if tc.says == "" && err != nil ||
				tc.says != "" && (err == nil || err.Fault != signer.Unsuitable || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			if block, _ := pem.Decode(text); tc.says == "" && (block == nil || block.Type != "CERTIFICATE REQUEST") {
				t.Errorf("got %q", text)
			}
		})
	}
	for _, der := range [][]byte{nil, []byte("x")} {
		r := request(t, nil)
		r.CSR = der
		if _, err := checkCSR(r, "CertificateRequest"); err == nil || err.Fault != signer.Unsuitable {
			t.Errorf("got %v", err)
		}
	}
}

func TestErrorsOfTheAPIServer(t *testing.T) {
	gr := schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	for name, tc := range map[string]struct {
		err   error
		fault signer.Fault
		says  string
	}{
		"forbidden":    {apierrors.NewForbidden(gr, "x", errors.New("no")), signer.Refused, "do it: the ca may not"},
		"unauthorized": {apierrors.NewUnauthorized("no"), signer.Refused, "does not know the ca"},
		"busy":         {apierrors.NewTooManyRequests("later", 3), signer.Busy, "FlowSchema"},
		"throttled": {errors.New("client rate limiter Wait returned an error: context deadline exceeded"), signer.Busy,
			"limits.requestsPerSecond"},
		"no such kind": {apierrors.NewNotFound(gr, ""), signer.Refused, "custom resource definition"},
		"timeout":      {apierrors.NewTimeoutError("slow", 1), signer.Away, "slow"},
		"invalid":      {apierrors.NewBadRequest("spec.x"), signer.Refused, "refuses the object: spec.x"},
		"internal":     {apierrors.NewInternalError(errors.New("etcd")), signer.Away, "does not answer"},
		"no answer":    {context.DeadlineExceeded, signer.Away, "does not answer"},
		"half a page": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: strings.Repeat("long ", 1000) + "\x1b"}},
			signer.Refused, "lo…"},
	} {
		t.Run(name, func(t *testing.T) {
			e := apiError(tc.err, "do it", "the right")
			if e.Fault != tc.fault || !strings.Contains(e.Error(), tc.says) || e.Fault != signer.Busy && !errors.Is(e, tc.err) ||
				len(e.Error()) > 2*maxWords {
				t.Errorf("got fault %d, %v", e.Fault, e)
			}
		})
	}
	if e := apiError(apierrors.NewTooManyRequests("later", 3), "", ""); e.RetryAfter != 3*time.Second {
		t.Errorf("retry after %s", e.RetryAfter)
	}
}

// object is what the watch brings.
func object(name, uid string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetName(name)
	o.SetUID(types.UID(uid))
	return o
}

// Whoever makes an object of a name that the ca has chosen has no say in the ca's request.
func TestObjectsOfOthersWithTheSameNameDoNotCount(t *testing.T) {
	h := newHub(nil)
	w := h.expect("a")
	look := func(uid string, gone, unsure bool) {
		t.Helper()
		last, isGone, isUnsure := h.look(w)
		got := ""
		if last != nil {
			got = string(last.GetUID())
		}
		if got != uid || isGone != gone || isUnsure != unsure {
			t.Errorf("got %q, gone %t, unsure %t; want %q, %t, %t", got, isGone, isUnsure, uid, gone, unsure)
		}
	}
	testkit.NoError(t, h.Add(object("a", "theirs")))
	testkit.NoError(t, h.Delete(object("a", "theirs")))
	h.identify(w, "ours")
	look("", false, false)
	testkit.NoError(t, h.Add(object("a", "ours")))
	testkit.NoError(t, h.Update(object("a", "theirs")))
	testkit.NoError(t, h.Delete(object("a", "theirs")))
	testkit.NoError(t, h.Add(object("b", "ours")))
	look("ours", false, false)
	testkit.NoError(t, h.Replace([]any{object("a", "ours")}, "1"))
	look("ours", false, false)
	testkit.NoError(t, h.Replace(nil, "2"))
	look("ours", false, true)
	look("ours", false, false)
	testkit.NoError(t, h.Delete(object("a", "ours")))
	look("ours", true, false)
	h.forget(w)
	testkit.NoError(t, h.Add(object("a", "ours")))
	if len(h.waiting) != 0 {
		t.Error("a request that has ended is still known")
	}
}

func TestLimitsAreChecked(t *testing.T) {
	testkit.NoError(t, Config{}.Check())
	err := Config{Timeout: metav1.Duration{Duration: time.Hour}, Limits: Limits{InFlight: -1, RequestsPerSecond: 10000, Burst: -5}}.Check()
	for _, want := range []string{"timeout: is 1h0m0s; write 1s to 1m0s", "limits.inFlight: is -1",
		"limits.requestsPerSecond: is 10000; write 1 to", "limits.burst: is -5"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if c := (Config{Limits: Limits{RequestsPerSecond: 1000}}).complete(); c.Limits.Burst != 1000 || c.Limits.InFlight != 100 {
		t.Errorf("completed to %+v", c)
	}
}

func TestRootsAreChecked(t *testing.T) {
	for want, r := range map[string]Roots{
		"roots: has 0 sources, wanted one":     {},
		"roots: has 2 sources, wanted one":     {File: "x", ConfigMap: &Object{Namespace: "a", Name: "b"}},
		"is what the ca itself writes":         {ConfigMap: &Object{Namespace: "istio-system", Name: "istio-ca-root-cert"}},
		`roots.configMap.namespace: "" is`:     {ConfigMap: &Object{Name: "b"}},
		`roots.configMap.name: "B" is`:         {ConfigMap: &Object{Namespace: "a", Name: "B"}},
		`roots.configMap.key: "a/b" cannot be`: {ConfigMap: &Object{Namespace: "a", Name: "b", Key: "a/b"}},
		"roots.secret: is for cert-manager's":  {Secret: &Object{Namespace: "a", Name: "b"}},
	} {
		if err := r.Check("roots", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	testkit.NoError(t, Roots{Secret: &Object{Namespace: "a", Name: "b"}}.Check("roots", true))
}

// A new path is what the last leaf was signed with; a signer that changes it all the time is noticed once a minute.
func TestThePathOfTheLastLeafIsLearned(t *testing.T) {
	var u trust
	root := kubetest.NewAuthority(t, "root", nil)
	if changed, news := u.set(nil, signer.Errorf(signer.Refused, "no")); changed || !news {
		t.Error("a problem is news, and no change")
	}
	if _, news := u.set(nil, signer.Errorf(signer.Refused, "no")); news {
		t.Error("the same problem is no news")
	}
	if _, _, err := u.trusted(); err == nil || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
	if changed, _ := u.set([]*x509.Certificate{root.Cert}, nil); !changed {
		t.Error("the first roots are a change")
	}
	u.set(nil, signer.Errorf(signer.Refused, "no"))
	_, pool, err := u.trusted()
	if err != nil {
		t.Errorf("the roots read last do not stay: %v", err)
	}
	chain := func(by *kubetest.Authority) []*x509.Certificate {
		r := kubetest.Request(t, "shop", "web", nil)
		template := *r.Template
		leaf, err := by.Sign(&template, template.PublicKey)
		testkit.NoError(t, err)
		return []*x509.Certificate{leaf, by.Cert}
	}
	first, second := kubetest.NewAuthority(t, "first", root), kubetest.NewAuthority(t, "second", root)
	for n, step := range []struct {
		by    *kubetest.Authority
		after time.Duration
		news  bool
	}{{first, 0, true}, {first, time.Second, false}, {second, 2 * time.Second, false}, {second, 2 * time.Minute, true}} {
		if got := u.learn(chain(step.by), pool, now.Add(step.after)); got != step.news {
			t.Errorf("step %d: news %t", n, got)
		}
	}
	if len(u.path) != 2 || !u.path[0].Equal(second.Cert) || !u.path[1].Equal(root.Cert) {
		t.Errorf("the path has %d certificates", len(u.path))
	}
	if u.set([]*x509.Certificate{authority(t, "another", nil)}, nil); u.path != nil {
		t.Error("a path to a root that is none any more stays")
	}
}

// Before the first leaf nobody knows which of the roots counts; afterwards the path of that leaf does, and a profile's
// bounds nobody else's leaves.
func TestAuthoritiesAreAnnouncedTogether(t *testing.T) {
	old := authority(t, "old", func(c *x509.Certificate) { c.NotAfter = now.Add(time.Minute) })
	fresh, other := authority(t, "new", nil), authority(t, "other", func(c *x509.Certificate) { c.NotAfter = now.Add(time.Second) })
	i := &Issuer{kind: Kind{MinSeconds: 60}, deps: signer.Deps{Clock: testkit.NewClock(now)},
		targets: []*target{{}, {Target: Target{Profile: "gold", Signer: "the signer gold"}}}}
	i.announce()
	if a, _ := i.Authorities(); a != nil {
		t.Error("there are authorities before there are roots")
	}
	_, changed := i.Authorities()
	i.targets[0].set([]*x509.Certificate{old, fresh}, nil)
	i.targets[1].set([]*x509.Certificate{fresh, other}, nil)
	i.announce()
	<-changed
	a, _ := i.Authorities()
	if len(a.Roots) != 3 || !a.NotAfter.Equal(fresh.NotAfter) || a.Intermediates != nil {
		t.Errorf("%d roots until %s, %d intermediates", len(a.Roots), a.NotAfter, len(a.Intermediates))
	}
	i.targets[0].path = []*x509.Certificate{fresh, old}
	i.targets[1].path = []*x509.Certificate{other}
	i.announce()
	if a, _ = i.Authorities(); !a.NotAfter.Equal(old.NotAfter) || len(a.Intermediates) != 1 {
		t.Errorf("until %s, %d intermediates", a.NotAfter, len(a.Intermediates))
	}
	// The signer may have other certificates when what it signed with comes to its end: then it must be asked.
	if !i.targets[0].age(now) || i.targets[0].age(now) {
		t.Error("a path that ends in a minute is stale, and that is news once")
	}
	i.announce()
	if a, _ = i.Authorities(); !a.NotAfter.Equal(fresh.NotAfter) || a.Intermediates != nil {
		t.Errorf("until %s, %d intermediates", a.NotAfter, len(a.Intermediates))
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	r := &signer.Request{Template: &x509.Certificate{NotAfter: now.Add(time.Hour)}}
	if _, err := i.lifetime(ctx, r, i.targets[1]); err == nil || err.Fault != signer.Refused ||
		!strings.Contains(err.Error(), "the certificates of the signer gold expire in") {
		t.Errorf("got %v", err)
	}
	i.targets[1].path[0] = fresh
	if seconds, err := i.lifetime(ctx, r, i.targets[1]); err != nil || seconds < 3500 || seconds > 3600 {
		t.Errorf("got %d s, %v", seconds, err)
	}
}

func FuzzAnswer(f *testing.F) {
	cert := pemOf(authority(f, "seed", nil))
	f.Add(cert, cert)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"), []byte{})
	f.Fuzz(func(t *testing.T, answer, ca []byte) {
		chain, err := parseChain(answer, nil)
		if (err == nil) != (len(chain) > 0) || len(chain) > maxCertificates {
			t.Errorf("%d certificates and %v", len(chain), err)
		}
		if text := hint(Status{CA: ca}, nil); len(text) > 1024 {
			t.Errorf("a hint of %d bytes", len(text))
		}
		if roots, err := parseRoots(answer, now); (err == nil) != (len(roots) > 0) {
			t.Errorf("%d roots and %v", len(roots), err)
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte(`{"status":{"conditions":[{"type":"Approved","status":"True","reason":"x","message":"y"}],"certificate":"AAAA"}}`))
	f.Add([]byte(`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Pending"}],"certificate":1}}`))
	f.Add([]byte(`{"status":[]}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		var o unstructured.Unstructured
		if o.UnmarshalJSON([]byte(fmt.Sprintf(`{"kind":"X","apiVersion":"v1","x":%s}`, text))) != nil {
			return
		}
		inner, _ := o.Object["x"].(map[string]any)
		s, err := readStatus(&unstructured.Unstructured{Object: inner})
		if err == nil {
			_ = s.Condition("Ready").Words()
		}
	})
}
