package mesh

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

const (
	// rate is how many requests come through the ingress gateway every second.
	rate = 220
	// aftermath is how long the load goes on after each step.
	aftermath = 3 * time.Second
	// next is a second tag of every image of cluster-load.
	next = "next"
	// shop is the namespace of applications.
	shop = "shop"
)

// long tells whether tests run in their long form, in which every service takes its turn.
func long() bool { return os.Getenv("LONG") != "" }

// twoGateways is a setting for those who delete a Pod of the gateway: another one must be there.
const twoGateways = "values.gateways.istio-ingressgateway.autoscaleMin=2"

// controlPlane lists the Deployments of an installation, the gateway last.
var controlPlane = []string{"ca", "config-watcher", "xds-server", "injector", "istio-ingressgateway"}

// TestInstalledMesh is what every user of a mesh does: on the first day, and on all days after it, when no request may
// fail. The parts go on with one installation.
func TestInstalledMesh(t *testing.T) {
	c := connect(t)
	before := c.objects(t)
	defer func() {
		c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
		testkit.Eventually(t, patience, func() error { return different(before, c.objects(t)) })
	}()
	parts := []struct {
		name string
		run  func(*cluster, *testing.T)
	}{
		{"first day", (*cluster).firstDay},
		{"life of injected Pods", (*cluster).lifeOfPods},
		{"restarts and scaling under load", (*cluster).restarts},
		{"rolling updates, upgrade in place and rollback under load", (*cluster).upgradeInPlace},
		{"drain of nodes under load", (*cluster).drain},
		{"canary upgrade and rollback under load", (*cluster).canary},
		{"removals under load", (*cluster).removals},
	}
	const always = 2
	for i, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			if by := os.Getenv("SAMPLE_BY"); by != "" && i >= always && !long() && i-always != chosen(by, len(parts)-always) {
				t.Skip("another commit runs it, or LONG=1")
			}
			t.Cleanup(func() {
				if t.Failed() {
					c.describe(t, "istio-system")
				}
			})
			p.run(c, t)
		})
	}
}

// chosen is one of n, by a text.
func chosen(by string, n int) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(by)) // never fails
	return int(hash.Sum32() % uint32(n))
}

// loaded installs a mesh unless it is there, and sends requests through its ingress gateway to Service one of a
// namespace with injection, until the test ends.
func (c *cluster) loaded(t *testing.T) *load.Load {
	t.Helper()
	c.fairlead(t, append([]string{"install", "-y", "--set", twoGateways}, images...)...)
	c.available(t, "istio-system", controlPlane...)
	c.injectedNamespace(t, shop, "istio-injection=enabled")
	c.apply(t, strictMesh+app(shop, "one", 2, "")+shopRoute)
	c.available(t, shop, "one")
	c.runs(t, shop, "default", "dev")
	requests := c.requests(t)
	testkit.Eventually(t, patience, func() error { return load.Once(requests) })
	l := load.Start(t, requests)
	l.Holds(t, "nothing happens", aftermath, func(*testing.T) {})
	return l
}

func (c *cluster) requests(t *testing.T) load.Config {
	t.Helper()
	return load.Config{Rate: rate, URL: c.ingress(t) + "/x"}
}

// restarts is about Pods that go and come.
func (c *cluster) restarts(t *testing.T) {
	l := c.loaded(t)
	// A new gateway needs the others to start.
	groups := [][]string{controlPlane[:4], controlPlane[4:]}
	if long() {
		groups = nil
		for _, name := range controlPlane {
			groups = append(groups, []string{name})
		}
	}
	for _, names := range groups {
		l.Holds(t, "rolling restart of "+strings.Join(names, ", "), aftermath, func(t *testing.T) {
			for _, name := range names {
				c.kubectl(t, "rollout", "restart", "-n", "istio-system", "deployment/"+name)
			}
			c.available(t, "istio-system", names...)
			c.settled(t, "istio-system")
		})
	}
	for _, names := range groups {
		l.Holds(t, "each Pod is deleted of "+strings.Join(names, ", "), aftermath,
			func(t *testing.T) { c.deletePods(t, "istio-system", names...) })
	}
	l.Holds(t, "xds-server is scaled from 1 to 3 to 1, and a Deployment from 2 to 6 to 2", aftermath, func(t *testing.T) {
		// The autoscaler would have its own number.
		c.kubectl(t, "delete", "hpa", "-n", "istio-system", "xds-server", "--ignore-not-found")
		for _, n := range []struct{ servers, apps string }{{"1", "2"}, {"3", "6"}, {"1", "2"}} {
			c.kubectl(t, "scale", "-n", "istio-system", "deployment/xds-server", "--replicas="+n.servers)
			c.kubectl(t, "scale", "-n", shop, "deployment/one", "--replicas="+n.apps)
			c.available(t, "istio-system", "xds-server")
			c.available(t, shop, "one")
			c.settled(t, shop)
			c.settled(t, "istio-system")
		}
	})
	l.Stop()
}

// upgradeInPlace is about new versions, of an application and of the mesh.
func (c *cluster) upgradeInPlace(t *testing.T) {
	l := c.loaded(t)
	times := 2
	if long() {
		times = 20
	}
	l.Holds(t, fmt.Sprintf("a Deployment is rolled %d times", times), aftermath, func(t *testing.T) {
		for range times {
			c.kubectl(t, "rollout", "restart", "-n", shop, "deployment/one")
			c.available(t, shop, "one")
		}
	})
	l.Holds(t, "fairlead install with other images and settings", aftermath, func(t *testing.T) {
		c.fairlead(t, "install", "-y", "--set", "hub=fairlead", "--set", "tag="+next, "--set", "meshConfig.enableTracing=true", "--set",
			twoGateways)
		c.available(t, "istio-system", controlPlane...)
		c.settled(t, "istio-system")
		c.runsImages(t, next)
	})
	l.Holds(t, "fairlead rollback", aftermath, func(t *testing.T) {
		c.fairlead(t, "rollback", "-y")
		c.available(t, "istio-system", controlPlane...)
		c.settled(t, "istio-system")
		c.runsImages(t, "dev")
	})
	l.Stop()
}

// runsImages asserts that all containers of the control plane and its gateway are of a tag.
func (c *cluster) runsImages(t *testing.T, tag string) {
	t.Helper()
	pods, err := c.CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, container := range p.Spec.Containers {
			if !strings.HasSuffix(container.Image, ":"+tag) {
				t.Errorf("container %s of Pod %s runs %s, want tag %s", container.Name, p.Name, container.Image, tag)
			}
		}
	}
	if len(pods.Items) < len(controlPlane) {
		t.Errorf("%d Pods, want at least %d", len(pods.Items), len(controlPlane))
	}
}

// deletePods deletes every Pod of Deployments. Of each one Pod after the other goes, when all are ready again.
func (c *cluster) deletePods(t *testing.T, namespace string, names ...string) {
	t.Helper()
	left := map[string][]string{}
	for _, name := range names {
		pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) == 0 {
			t.Fatalf("no Pod has the label app=%s", name)
		}
		for _, p := range pods.Items {
			left[name] = append(left[name], p.Name)
		}
	}
	for len(left) > 0 {
		var now []string
		for name, pods := range left {
			now = append(now, pods[0])
			if left[name] = pods[1:]; len(pods) == 1 {
				delete(left, name)
			}
		}
		c.kubectl(t, append([]string{"delete", "pod", "-n", namespace}, now...)...)
		c.available(t, namespace, names...)
	}
}

// settled waits until no Pod of a namespace is about to end.
func (c *cluster) settled(t *testing.T, namespace string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				return fmt.Errorf("Pod %s still ends", p.Name)
			}
		}
		return nil
	})
}

// ingress is the URL of the ingress gateway's Service, as a machine of the cluster's network reaches it.
func (c *cluster) ingress(t *testing.T) string {
	t.Helper()
	s, err := c.CoreV1().Services("istio-system").Get(t.Context(), "istio-ingressgateway", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + s.Spec.ClusterIP
}

// shopRoute sends requests at the ingress gateway to the Service that their path names, and all others to Service one.
const shopRoute = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers:
    - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [shop]
  http:
    - {match: [{uri: {prefix: /long}}], route: [{destination: {host: long}}]}
    - {match: [{uri: {prefix: /short}}], route: [{destination: {host: short}}]}
    - {match: [{uri: {prefix: /native}}], route: [{destination: {host: native}}]}
    - {match: [{uri: {prefix: /reviews}}], route: [{destination: {host: stock}}]}
    - route: [{destination: {host: one, port: {number: 8080}}}]
---
`

// answersWith is nil if an answer has a header with a value.
func answersWith(url, header, want string) error {
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if got := resp.Header.Get(header); got != want {
		return fmt.Errorf("%s: %s, header %s is %q, want %q", url, resp.Status, header, got, want)
	}
	return nil
}
