package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

// firstDayWithin is how long all of it may take in an empty cluster.
const firstDayWithin = 3 * time.Minute

// bookinfo is the namespace of the sample.
const bookinfo = "bookinfo"

// steps prints how long each step has taken.
type steps struct {
	began, last time.Time
}

func (s *steps) done(t *testing.T, what string) {
	t.Helper()
	now := time.Now()
	t.Logf("%5.1f s  %s", now.Sub(s.last).Seconds(), what)
	s.last = now
}

// firstDay is what everyone does on the first day, in an empty cluster: install, label a namespace, apply Istio's
// sample as Istio publishes it, open it to the outside, split a service's traffic, and demand mutual TLS.
func (c *cluster) firstDay(t *testing.T) {
	sample := os.Getenv("ISTIO_SAMPLES")
	if sample == "" {
		t.Skip("ISTIO_SAMPLES names no directory with the samples of Istio's source: run `make test-cluster` or `make demo-cluster`")
	}
	sample = filepath.Join(sample, "bookinfo")
	apply := func(names ...string) {
		t.Helper()
		for _, name := range names {
			c.kubectl(t, "apply", "-n", bookinfo, "-f", filepath.Join(sample, name))
		}
	}
	s := &steps{began: time.Now(), last: time.Now()}
	c.fairlead(t, append([]string{"install", "-y"}, images...)...)
	s.done(t, "fairlead install -y: control plane and ingress gateway are ready")

	c.injectedNamespace(t, bookinfo, "istio-injection=enabled")
	apply("platform/kube/bookinfo.yaml")
	for _, d := range []string{"productpage-v1", "details-v1", "ratings-v1", "reviews-v1", "reviews-v2", "reviews-v3"} {
		c.available(t, bookinfo, d)
	}
	c.sidecars(t, bookinfo)
	s.done(t, "Istio's bookinfo.yaml in a namespace with istio-injection=enabled: six Pods with a sidecar each are ready")

	apply("networking/bookinfo-gateway.yaml")
	url := c.ingress(t)
	testkit.Eventually(t, patience, func() error { return load.Once(load.Config{URL: url + "/productpage"}) })
	s.done(t, "bookinfo-gateway.yaml: the ingress gateway serves /productpage")

	pods, err := c.CoreV1().Pods(bookinfo).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if err := plaintext(t.Context(), p); err != nil {
			t.Errorf("%s refuses a request without mutual TLS before it was told to: %v", p.Name, err)
		}
	}
	c.apply(t, strictMesh)
	apply("networking/destination-rule-all-mtls.yaml")
	for _, p := range pods.Items {
		testkit.Eventually(t, patience, func() error {
			if plaintext(t.Context(), p) == nil {
				return fmt.Errorf("%s answers without mutual TLS", p.Name)
			}
			return nil
		})
	}
	s.done(t, "PeerAuthentication STRICT: no server takes a request without mutual TLS")

	want := map[string]string{ // the caller that each server must see
		"productpage": "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account",
		"details":     "spiffe://cluster.local/ns/bookinfo/sa/bookinfo-productpage",
		"reviews":     "spiffe://cluster.local/ns/bookinfo/sa/bookinfo-productpage",
		"ratings":     "spiffe://cluster.local/ns/bookinfo/sa/bookinfo-reviews",
	}
	seen := map[string]string{}
	testkit.Eventually(t, patience, func() error {
		hops, err := chain(url)
		if err != nil {
			return err
		}
		for _, h := range hops {
			seen[h.Service] = h.Caller
		}
		if len(seen) < len(want) {
			return fmt.Errorf("only %v have answered yet", seen)
		}
		return nil
	})
	for server, caller := range want {
		if seen[server] != caller {
			t.Errorf("%s saw caller %q, want %q", server, seen[server], caller)
		}
		t.Logf("         %-12s is called by %s", server, seen[server])
	}
	s.done(t, "each server sees the identity of its caller")

	apply("networking/virtual-service-reviews-80-20.yaml")
	shares := func() (map[string]int, error) {
		n := map[string]int{}
		for range 200 {
			hops, err := chain(url)
			if err != nil {
				return nil, err
			}
			for _, h := range hops {
				if h.Service == "reviews" {
					n[h.Version]++
				}
			}
		}
		return n, nil
	}
	// Five standard deviations of a share of a fifth in 200 requests are 28.
	testkit.Eventually(t, patience, func() error {
		n, err := shares()
		if err == nil && (n["v3"] > 0 || n["v1"]+n["v2"] != 200 || n["v2"] < 12 || n["v2"] > 68) {
			err = fmt.Errorf("reviews answered as %v, want v1 and v2 by 80 to 20", n)
		}
		if err == nil {
			t.Logf("         reviews answered as %v", n)
		}
		return err
	})
	s.done(t, "virtual-service-reviews-80-20.yaml: v1 and v2 share the requests")

	apply("networking/virtual-service-reviews-v3.yaml")
	testkit.Eventually(t, patience, func() error {
		hops, err := chain(url)
		for _, h := range hops {
			if h.Service == "reviews" && h.Version != "v3" {
				err = fmt.Errorf("reviews answered as %s", h.Version)
			}
		}
		return err
	})
	s.done(t, "virtual-service-reviews-v3.yaml: all requests go to v3")
	t.Logf("%5.1f s  all", time.Since(s.began).Seconds())
	if took := time.Since(s.began); took > firstDayWithin {
		t.Errorf("the first day took %s, want %s at most", took, firstDayWithin)
	}
}

// hop is one server of a request's chain, as the sample tells it.
type hop struct{ Service, Version, Caller, Error string }

// chain asks the sample who has taken part in a request.
func chain(url string) ([]hop, error) {
	resp, err := (&http.Client{Timeout: time.Minute}).Get(url + "/api/v1/products/0/chain")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var a struct{ Hops []hop }
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return a.Hops, json.Unmarshal(body, &a)
}

// injectedNamespace makes a namespace with labels of injection, KEY=VALUE.
func (c *cluster) injectedNamespace(t *testing.T, name string, labels ...string) {
	t.Helper()
	c.namespace(t, name)
	c.kubectl(t, append([]string{"label", "namespace", name}, labels...)...)
}

// sidecars asserts that every Pod of a namespace has a proxy.
func (c *cluster) sidecars(t *testing.T, namespace string) {
	t.Helper()
	pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Errorf("namespace %s has no Pod", namespace)
	}
	for _, p := range pods.Items {
		if proxyOf(p) == nil {
			t.Errorf("Pod %s/%s has no sidecar", namespace, p.Name)
		}
	}
}

// proxyOf is a Pod's sidecar, native or not; nil if it has none.
func proxyOf(p corev1.Pod) *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == "istio-proxy" {
				return &list[i]
			}
		}
	}
	return nil
}

// plaintext sends a request without mutual TLS to a Pod of the sample; nil if there is any answer.
func plaintext(ctx context.Context, p corev1.Pod) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(p.Status.PodIP, "9080"), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// strictMesh demands mutual TLS of all servers.
const strictMesh = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
`
