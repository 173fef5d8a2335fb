package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// ingressMesh is what a cluster with a gateway has before its first Ingress: %d are the ports of the gateway's
// listeners for HTTP and HTTPS. The backend runs on this machine, which no Pod's address may be, but a WorkloadEntry's.
// No agent gives the gateway a certificate for mutual TLS.
const ingressMesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: apps}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "enableAutoMtls: false"}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: gateway, namespace: istio-system}}
---
{apiVersion: v1, kind: Service, metadata: {name: istio-ingressgateway, namespace: istio-system},
 spec: {type: LoadBalancer, selector: {istio: ingressgateway}, ports: [{name: http2, port: 80, targetPort: %d}, {name: https, port: 443, targetPort: %d}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: gateway-0, namespace: istio-system, labels: {istio: ingressgateway}},
 spec: {serviceAccountName: gateway, nodeName: n1, containers: [{name: istio-proxy, image: proxy}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: server, namespace: apps}, spec: {selector: {app: server}, ports: [{name: http-web, port: 8080, targetPort: %d}]}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: server, namespace: apps}, spec: {address: 127.0.0.1, labels: {app: server}}}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: mesh}, spec: {controller: istio.io/ingress-controller}}
`

// shopIngress is an Ingress by the name of a class, with a backend by the name of a port.
const shopIngress = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: shop, namespace: apps}, spec: {ingressClassName: %s,
 tls: [{hosts: [shop.example.com], secretName: shop-cert}],
 rules: [{host: shop.example.com, http: {paths: [{path: /a, pathType: Prefix, backend: {service: {name: server, port: {name: http-web}}}}]}}]}}
`

// podReady writes the status that a kubelet would write.
func podReady(t testing.TB, client kubernetes.Interface, namespace, name, ip string) {
	t.Helper()
	pod, err := client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// freePort is a port that is free on every address: a gateway listens on all.
func freePort(t testing.TB) int {
	t.Helper()
	lis, err := net.Listen("tcp", ":0") //nolint:noctx,gosec // nothing is accepted
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close() //nolint:errcheck // a test
	return lis.Addr().(*net.TCPAddr).Port
}

// ask sends a request for shop.example.com to the gateway and returns its status and body.
func ask(t testing.TB, scheme string, gateway int, path string, roots *x509.CertPool) (string, error) {
	to := net.Dialer{}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return to.DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", gateway))
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://shop.example.com"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, text), err
}

// An Ingress of the API server reaches a real Envoy with its certificate, shows the gateway's addresses in its status,
// and ends when its class is another controller's.
func TestIngressFromTheAPIServerToAGateway(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	definitions, err := filepath.Glob("../../services/installer/manifests/charts/base/files/crds/*.*.*.yaml")
	if err != nil || len(definitions) == 0 {
		t.Fatalf("definitions %v, %v", definitions, err)
	}
	s.ApplyCRDs(t, definitions...)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "server got ", r.URL.Path) }))
	t.Cleanup(backend.Close)
	plain, secure := freePort(t), freePort(t)
	s.Apply(t, fmt.Sprintf(ingressMesh, plain, secure, backend.Listener.Addr().(*net.TCPAddr).Port))
	client := s.Client(t)
	podReady(t, client, "istio-system", "gateway-0", "198.18.0.9")

	w := startWatcher(t, s.Kubeconfig)
	startGateway(t, w, startXDSServer(t, w), "gateway-0", "198.18.0.9", "gateway")
	answers := func(want, scheme string, port int, path string, roots *x509.CertPool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			got, err := ask(t, scheme, port, path, roots)
			if err == nil && !strings.HasPrefix(got, want) {
				err = fmt.Errorf("%s %s is answered %q, not %q", scheme, path, got, want)
			}
			return err
		})
	}
	// The status as others read it: "ip 203.0.113.7".
	shows := func(want string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			in, err := client.NetworkingV1().Ingresses("apps").Get(t.Context(), "shop", metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, a := range in.Status.LoadBalancer.Ingress {
				got = append(got, strings.TrimSpace(a.IP+" "+a.Hostname))
			}
			if text := strings.Join(got, ", "); text != want {
				return fmt.Errorf("the status shows %q, not %q", text, want)
			}
			return nil
		})
	}
	balancer := func(in ...corev1.LoadBalancerIngress) {
		t.Helper()
		svc, err := client.CoreV1().Services("istio-system").Get(t.Context(), "istio-ingressgateway", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc.Status.LoadBalancer.Ingress = in
		if _, err := client.CoreV1().Services("istio-system").UpdateStatus(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	setStatus := func(in ...networkingv1.IngressLoadBalancerIngress) {
		t.Helper()
		o, err := client.NetworkingV1().Ingresses("apps").Get(t.Context(), "shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Status.LoadBalancer.Ingress = in
		if _, err := client.NetworkingV1().Ingresses("apps").UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	balancer(corev1.LoadBalancerIngress{IP: "203.0.113.7"})
	s.Apply(t, fmt.Sprintf(shopIngress, "mesh"))
	answers("200 server got /a/b", "http", plain, "/a/b", nil)
	answers("404", "http", plain, "/ab", nil)
	shows("203.0.113.7")
	balancer(corev1.LoadBalancerIngress{IP: "203.0.113.7"}, corev1.LoadBalancerIngress{Hostname: "lb.example.com"})
	shows("203.0.113.7, lb.example.com")
	setStatus() // what others write over it is mended
	shows("203.0.113.7, lb.example.com")

	// Its Secret is read because the Ingress names it, although it came later than the Ingress.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	chain := w.ca.Sign(w.ca.ID("istio-system", "shop"), key.Public(), func(c *x509.Certificate) { c.DNSNames = []string{"shop.example.com"} })
	roots.AppendCertsFromPEM(chain)
	s.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: shop-cert, namespace: istio-system}, type: kubernetes.io/tls, "+
		"data: {tls.crt: %s, tls.key: %s}}",
		base64.StdEncoding.EncodeToString(chain), base64.StdEncoding.EncodeToString(testkit.KeyPEM(t, key))))
	answers("200 server got /a", "https", secure, "/a", roots)

	// An Ingress of another controller is not served.
	s.Apply(t, "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: other}, spec: {controller: example.com/other}}")
	s.Apply(t, fmt.Sprintf(shopIngress, "other"))
	testkit.Eventually(t, patience, func() error {
		if got, err := ask(t, "http", plain, "/a", nil); err == nil {
			return fmt.Errorf("still answered: %s", got)
		}
		return nil
	})
	shows("203.0.113.7, lb.example.com") // the other controller's to change
	setStatus(networkingv1.IngressLoadBalancerIngress{Hostname: "other.example.com"})
	s.Apply(t, fmt.Sprintf(shopIngress, "mesh"))
	answers("200 server got /a", "http", plain, "/a", nil)
	shows("203.0.113.7, lb.example.com")
}
