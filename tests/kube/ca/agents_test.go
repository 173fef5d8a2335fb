package ca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	security "istio.io/api/security/v1alpha1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

const (
	// deadline is what a request has, with all its repetitions.
	deadline = 10 * time.Second
	// attempt is what each has of it, and firstPause the pause after the first, which then doubles, as in pkg/svid.
	attempt    = 5 * time.Second
	firstPause = 200 * time.Millisecond
)

// agent asks for certificates of one Pod, and knows the roots of the answers that it got, as Istio's own agents do.
type agent struct {
	name  string
	key   *ecdsa.PrivateKey
	csr   string
	token string
	conn  *grpc.ClientConn

	mu    sync.Mutex
	roots *x509.CertPool
	// answered numbers the request whose roots these are.
	answered int64
}

// agents ask a ca for certificates, at a rate.
type agents struct {
	all []*agent

	next, issued, repeated atomic.Int64
	slowest                atomic.Int64
	mu                     sync.Mutex
	failed                 []error
}

// newAgents makes Pods, of ten to a service account, with an agent each.
func newAgents(t *testing.T, c *replicatedCA, n int) *agents {
	t.Helper()
	client := c.api.Client(t).CoreV1()
	text := testkit.Must(os.ReadFile(c.replicas[0].roots))(t)
	a := &agents{}
	for i := range n {
		account, name := fmt.Sprint("web-", i/10), fmt.Sprint("web-", i/10, "-", i%10)
		if i%10 == 0 {
			c.api.ServiceAccount(t, "shop", account)
		}
		pod := testkit.Must(client.Pods("shop").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{}))(t)
		asks := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
			Audiences:      []string{contract.TokenAudience},
			BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: pod.UID},
		}}
		token := testkit.Must(client.ServiceAccounts("shop").CreateToken(t.Context(), account, asks, metav1.CreateOptions{}))(t).Status.Token
		g := &agent{name: name, token: token, roots: x509.NewCertPool(), key: testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
		g.roots.AppendCertsFromPEM(text)
		der := testkit.Must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, g.key))(t)
		g.csr = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		g.dial(t, c)
		a.all = append(a.all, g)
	}
	return a
}

// dial connects with all replicas, which take turns.
func (g *agent) dial(t *testing.T, c *replicatedCA) {
	t.Helper()
	names := manual.NewBuilderWithScheme("replicas")
	var addresses []resolver.Address
	for _, r := range c.replicas {
		addresses = append(addresses, resolver.Address{Addr: r.grpc})
	}
	names.InitialState(resolver.State{Addresses: addresses})
	verify := func(s tls.ConnectionState) error {
		g.mu.Lock()
		roots := g.roots
		g.mu.Unlock()
		between := x509.NewCertPool()
		for _, cert := range s.PeerCertificates[1:] {
			between.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: caName})
		return err
	}
	conn, err := grpc.NewClient("replicas:///ca", grpc.WithResolvers(names),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoffOfAgents, MinConnectTimeout: time.Second}),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, ServerName: caName, VerifyConnection: verify,
			InsecureSkipVerify: true, //nolint:gosec // verify does it, with the roots of now
		})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	g.conn = conn
}

// ask makes one request until it is answered, and returns how often it was made.
func (g *agent) ask(ctx context.Context, number int64) (attempts int, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+g.token)
	var errs []error
	for pause := firstPause; ; pause *= 2 {
		attempts++
		try, done := context.WithTimeout(ctx, attempt)
		answer, err := security.NewIstioCertificateServiceClient(g.conn).CreateCertificate(try,
			&security.IstioCertificateRequest{Csr: g.csr, ValidityDuration: 3600})
		done()
		if err == nil {
			return attempts, g.take(answer.GetCertChain(), number)
		}
		errs = append(errs, err)
		select {
		case <-ctx.Done():
			return attempts, errors.Join(errs...)
		case <-time.After(pause):
		}
	}
}

// take checks an answer as a peer would, and takes its roots.
func (g *agent) take(chain []string, number int64) error {
	if len(chain) < 2 {
		return fmt.Errorf("a chain of %d", len(chain))
	}
	var certs []*x509.Certificate
	for _, text := range chain[:len(chain)-1] {
		block, _ := pem.Decode([]byte(text))
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		certs = append(certs, cert)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(chain[len(chain)-1]))
	for _, cert := range certs[1:] {
		between.AddCert(cert)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: usages}); err != nil {
		return err
	}
	if !g.key.PublicKey.Equal(certs[0].PublicKey) || !strings.HasPrefix(g.name, strings.TrimPrefix(certs[0].URIs[0].Path, "/ns/shop/sa/")) {
		return fmt.Errorf("a certificate of %s for another key or identity", certs[0].URIs[0])
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if number > g.answered {
		g.roots, g.answered = roots, number
	}
	return nil
}

// run makes requests at a rate until stop is called, which returns when the last is answered.
func (a *agents) run(ctx context.Context, rate int) (stop func()) {
	ending := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		began := time.Now()
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ending:
				return
			case <-ticker.C:
			}
			for due := int64(time.Since(began).Seconds() * float64(rate)); a.next.Load() < due; {
				number := a.next.Add(1)
				asking.Go(func() { a.one(ctx, number) })
			}
		}
	})
	return sync.OnceFunc(func() { close(ending); asking.Wait() })
}

func (a *agents) one(ctx context.Context, number int64) {
	began := time.Now()
	g := a.all[number%int64(len(a.all))]
	attempts, err := g.ask(ctx, number)
	a.repeated.Add(int64(attempts - 1))
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.failed = append(a.failed, fmt.Errorf("%s, request %d, %d attempts in %s: %w", g.name, number, attempts, time.Since(began), err))
		return
	}
	a.issued.Add(1)
	for took := int64(time.Since(began)); ; {
		if before := a.slowest.Load(); took <= before || a.slowest.CompareAndSwap(before, took) {
			return
		}
	}
}

// check fails the test if a request did not end with a certificate.
func (a *agents) check(t *testing.T, took time.Duration) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("%d requests in %s (%.0f/s), %d issued, %d repetitions, the slowest took %s", a.next.Load(), took.Round(time.Second),
		float64(a.next.Load())/took.Seconds(), a.issued.Load(), a.repeated.Load(), time.Duration(a.slowest.Load()).Round(time.Millisecond))
	for i, err := range a.failed[:min(len(a.failed), 5)] {
		t.Errorf("failure %d of %d: %v", i+1, len(a.failed), err)
	}
	if a.issued.Load() != a.next.Load() {
		t.Errorf("%d of %d requests ended with a certificate", a.issued.Load(), a.next.Load())
	}
}
