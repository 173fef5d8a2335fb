package kube

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// grantsMesh is a Gateway whose backend and key are in two other namespaces. %[1]d and %[2]d are the ports of its
// listeners for HTTP and HTTPS, %[3]d is that of the backend on this machine.
const grantsMesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: apps}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: keys}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "enableAutoMtls: false"}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: edge, namespace: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: edge-1, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}},
 spec: {serviceAccountName: edge, containers: [{name: istio-proxy, image: proxy}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: server, namespace: apps}, spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: %[3]d}]}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: server, namespace: apps}, spec: {address: 127.0.0.1, labels: {app: server}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: %[1]d, protocol: HTTP}
  - {name: https, port: %[2]d, protocol: HTTPS, tls: {certificateRefs: [{name: wildcard, namespace: keys}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.example.com]
  rules: [{backendRefs: [{name: server, namespace: apps, port: 80}]}]
---
`

const backendGrant = "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: edge, namespace: apps}, " +
	"spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: '', kind: Service}]}}"

// passing asks again and again, and knows when the last request began that has passed.
type passing struct {
	mu   sync.Mutex
	last time.Time
	said map[string]int
}

// keepAsking asks by several callers at once until the test ends. ask returns "" for a request that has passed, else
// what was said instead.
func keepAsking(t *testing.T, callers int, caller func() (ask func() string)) *passing {
	t.Helper()
	p := &passing{said: map[string]int{}}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range callers {
		ask := caller()
		all.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				began := time.Now()
				said := ask()
				p.mu.Lock()
				if p.said[said]++; said == "" && began.After(p.last) {
					p.last = began
				}
				p.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		all.Wait()
	})
	return p
}

// passes waits until requests pass.
func (p *passing) passes(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if time.Since(p.last) > 100*time.Millisecond {
			return fmt.Errorf("no request passes: %v", p.said)
		}
		p.said = map[string]int{}
		return nil
	})
}

// ended waits until no request has passed for a second, and returns when the last one began, after a moment.
func (p *passing) ended(t *testing.T, after time.Time) time.Duration {
	t.Helper()
	var took time.Duration
	testkit.Eventually(t, patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if time.Since(p.last) < time.Second {
			return fmt.Errorf("requests pass %s later", time.Since(after))
		}
		took = p.last.Sub(after)
		return nil
	})
	return took
}

// answers are what was said since passes, and how often.
func (p *passing) answers() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said
}

// asker asks the gateway for shop.example.com, over a connection that it keeps, of TLS if there is a configuration.
func asker(port int, config *tls.Config) func() string {
	client, scheme := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}, "http"
	if config != nil {
		scheme = "https"
	}
	return func() string {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s://127.0.0.1:%d/", scheme, port), http.NoBody)
		if err != nil {
			return err.Error()
		}
		req.Host = "shop.example.com"
		resp, err := client.Do(req)
		if err != nil {
			return "no answer"
		}
		defer resp.Body.Close() //nolint:errcheck // a test
		if resp.StatusCode != http.StatusOK {
			return fmt.Sprint(resp.StatusCode)
		}
		return ""
	}
}

// TestARemovedGrantEndsRequestsWithinASecond: with a real Envoy under load, and while many other routes change.
// Requests for a backend of another namespace are answered with 500 then, and the key of another namespace is not used
// any more. Both are in the audit log.
func TestARemovedGrantEndsRequestsWithinASecond(t *testing.T) {
	const rounds, others = 3, 300
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(backend.Close)
	plain, secure := freePort(t), freePort(t)
	s.Apply(t, fmt.Sprintf(grantsMesh, plain, secure, backend.Listener.Addr().(*net.TCPAddr).Port))
	podReady(t, s.Client(t), "shop", "edge-1", "198.18.0.9")
	var text strings.Builder
	for i := range others {
		text.WriteString(httpRoute(fmt.Sprint("other-", i), "edge", "nowhere"))
	}
	s.Apply(t, text.String())
	a := newAPI(t, s)
	chain, key := a.watcher.ca.NewServer("shop.example.com")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(testkit.Must(os.ReadFile(a.watcher.ca.WriteRoot(t.TempDir())))(t))
	s.Apply(t, secret("keys", "wildcard", chain, key)+"\n---\n"+backendGrant+"\n---\n"+secretGrant)
	startGatewayOf(t, a.watcher, startXDSServer(t, a.watcher), "shop", "edge-1", "198.18.0.9", "edge")

	requests := keepAsking(t, 4, func() func() string { return asker(plain, nil) })
	kept := keepAsking(t, 2, func() func() string {
		return asker(secure, &tls.Config{RootCAs: roots, ServerName: "shop.example.com", MinVersion: tls.VersionTLS12})
	})
	handshakes := keepAsking(t, 2, func() func() string {
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "shop.example.com", MinVersion: tls.VersionTLS12}}
		return func() string {
			conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", secure))
			if err != nil {
				return "no handshake"
			}
			_ = conn.Close() // it was for the handshake
			return ""
		}
	})
	requests.passes(t)
	handshakes.passes(t)
	a.churn(t, others)

	grant := func(namespace string) (removed time.Time) {
		t.Helper()
		removed = time.Now()
		testkit.NoError(t, a.resource("referencegrants", namespace).Delete(t.Context(), "edge", metav1.DeleteOptions{}))
		return removed
	}
	within := func(what string, took time.Duration) {
		t.Helper()
		t.Logf("%s: the last one passes %s after the grant is removed", what, took.Round(time.Millisecond))
		if took > time.Second {
			t.Errorf("%s pass for %s", what, took)
		}
	}
	for range rounds {
		requests.passes(t)
		removed := grant("apps")
		within("requests for the backend", requests.ended(t, removed))
		for said := range requests.answers() {
			if said != "" && said != "500" {
				t.Errorf("a request for a backend without a grant is answered with %s", said)
			}
		}
		a.audited(t, removed, "HTTPRoutes of namespace shop", "Service", "apps", "server")
		s.Apply(t, backendGrant)
	}
	for range rounds {
		handshakes.passes(t)
		kept.passes(t)
		removed := grant("keys")
		within("handshakes", handshakes.ended(t, removed))
		within("requests by connections that were made with the key", kept.ended(t, removed))
		a.audited(t, removed, a.watcher.ca.ID("shop", "edge").String(), "Secret", "keys", "wildcard")
		s.Apply(t, secretGrant)
	}
	requests.passes(t)
}

// churn changes routes of httpRoute, one after another, until the test ends.
func (a *api) churn(t *testing.T, routes int) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			name, patch := fmt.Sprint("other-", i%routes), fmt.Sprintf(`{"spec":{"hostnames":["h%d.example.com"]}}`, i)
			_, err := a.resource("httproutes", "shop").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
		}
	}()
}

// audited waits for the line that the access of an identity to an object has ended after a moment.
func (a *api) audited(t *testing.T, after time.Time, identity, kind, namespace, name string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		f := testkit.Must(os.Open(a.audit))(t)
		defer f.Close() //nolint:errcheck // it is read
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			type object struct{ Verb, Kind, Namespace, Name string }
			var e struct {
				Time     time.Time
				Identity string
				Objects  []object
			}
			_, line, _ := strings.Cut(lines.Text(), " ") // after its hash
			testkit.NoError(t, json.Unmarshal([]byte(line), &e))
			if e.Time.After(after) && e.Identity == identity && slices.Contains(e.Objects, object{"end access", kind, namespace, name}) {
				return nil
			}
		}
		return fmt.Errorf("no line of the audit log says that %s has lost its access to %s %s/%s", identity, kind, namespace, name)
	})
}
