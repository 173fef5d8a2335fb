package mesh

import (
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

// TestGatewaysOfTheGatewayAPIUnderLoad changes the Deployment of a Gateway, the control plane, and the revision that
// deploys the Gateway, while requests go through it, of which none may fail. The cluster has the Gateway API before the
// mesh.
func TestGatewaysOfTheGatewayAPIUnderLoad(t *testing.T) {
	c := connect(t)
	c.gatewayAPI(t)
	defer c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
	c.fairlead(t, append([]string{"install", "-y", "--set", "profile=minimal"}, images...)...)
	c.available(t, "istio-system", separate["istio-system"]...)
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t, "istio-system")
		}
	})
	c.namespace(t, edge)
	c.apply(t, app(edge, "one", 2, "")+c.options("10m", 2)+deployed("web", "istio", withOptions)+routeTo("one", "web"))
	c.available(t, edge, "one", "web-istio")
	requests := load.Config{Rate: rate, URL: c.gatewayURL(t, "web-istio")}
	testkit.Eventually(t, patience, func() error { return load.Once(requests) })
	l := load.Start(t, requests)
	l.Holds(t, "nothing happens", aftermath, func(*testing.T) {})

	parts := []struct {
		name string
		run  func(*cluster, *testing.T, *load.Load)
	}{
		{"its Deployment", (*cluster).changeGateway}, {"the control plane", (*cluster).changeBelowGateway},
		{"the revision", (*cluster).moveGateway},
	}
	for i, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			if by := os.Getenv("SAMPLE_BY"); by != "" && !long() && i != chosen(by, len(parts)) {
				t.Skip("another commit runs it, or LONG=1")
			}
			p.run(c, t, l)
		})
	}
	l.Stop()
}

const withOptions = `, infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: options}}`

// options are the overlays of the Gateway.
func (c *cluster) options(cpu string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: edge, name: options}
data:
  deployment: |
    spec: {replicas: %d, template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: %s, memory: 64Mi}}}]}}}
---
`, replicas, cpu)
}

// changeGateway changes what the overlays and the infrastructure of the Gateway say of its Pods.
func (c *cluster) changeGateway(t *testing.T, l *load.Load) {
	l.Holds(t, "a ConfigMap changes the resources of its Pods", aftermath, func(t *testing.T) {
		c.replaced(t, func() { c.apply(t, c.options("11m", 2)) })
	})
	l.Holds(t, "the infrastructure gets a label", aftermath, func(t *testing.T) {
		c.replaced(t, func() {
			c.apply(t, deployed("web", "istio", strings.Replace(withOptions, "{parametersRef", "{labels: {team: edge}, parametersRef", 1)))
		})
	})
	l.Holds(t, "from 2 Pods to 4 to 1 to 2", aftermath, func(t *testing.T) {
		for _, n := range []int{4, 1, 2} {
			c.apply(t, c.options("11m", n))
			testkit.Eventually(t, patience, func() error {
				if got := c.gatewayPods(t); len(got) != n {
					return fmt.Errorf("%d Pods, want %d", len(got), n)
				}
				return nil
			})
			c.available(t, edge, "web-istio")
			c.settled(t, edge)
		}
	})
}

// changeBelowGateway restarts the control plane, upgrades it and with it the gateway's proxies, and goes back.
func (c *cluster) changeBelowGateway(t *testing.T, l *load.Load) {
	names := separate["istio-system"]
	l.Holds(t, "the control plane is restarted", aftermath, func(t *testing.T) {
		for _, name := range names {
			c.kubectl(t, "rollout", "restart", "-n", "istio-system", "deployment/"+name)
		}
		c.available(t, "istio-system", names...)
		c.settled(t, "istio-system")
	})
	l.Holds(t, "fairlead install with other images", aftermath, func(t *testing.T) {
		c.fairlead(t, "install", "-y", "--set", "profile=minimal", "--set", "hub=fairlead", "--set", "tag="+next)
		c.available(t, "istio-system", names...)
		c.gatewayRuns(t, "default", next)
	})
	l.Holds(t, "fairlead rollback", aftermath, func(t *testing.T) {
		c.fairlead(t, "rollback", "-y")
		c.available(t, "istio-system", names...)
		c.gatewayRuns(t, "default", "dev")
	})
}

// moveGateway moves the Gateway to a second control plane by its namespace's label, back, and there again by its own
// label, and removes the first.
func (c *cluster) moveGateway(t *testing.T, l *load.Load) {
	const canary = "canary"
	l.Holds(t, "fairlead install --revision canary beside the first", aftermath, func(t *testing.T) {
		c.fairlead(t, "install", "-y", "--revision", canary, "--set", "profile=minimal", "--set", "hub=fairlead", "--set", "tag="+next)
		c.available(t, "istio-system", "config-watcher-"+canary, "xds-server-"+canary, "gateways-"+canary)
		c.gatewayRuns(t, "default", "dev")
	})
	for _, step := range []struct{ what, object, label, revision, version string }{
		{"its namespace moves to the revision", "namespace/" + edge, "istio.io/rev=" + canary, canary, next},
		{"its namespace moves back", "namespace/" + edge, "istio.io/rev-", "default", "dev"},
		{"it moves to the revision itself", "gateway/web", "istio.io/rev=" + canary, canary, next},
	} {
		l.Holds(t, step.what, aftermath, func(t *testing.T) {
			c.kubectl(t, "label", "-n", edge, step.object, step.label)
			c.gatewayRuns(t, step.revision, step.version)
		})
	}
	l.Holds(t, "the first control plane is removed", aftermath, func(t *testing.T) {
		c.fairlead(t, "uninstall", "-y", "--revision", "default")
		c.settled(t, "istio-system")
	})
	t.Run("the second one serves alone", func(t *testing.T) {
		c.apply(t, strings.Replace(routeTo("one", "web"), "rules: [{", "rules: [{filters: [{type: ResponseHeaderModifier, "+
			"responseHeaderModifier: {set: [{name: x-by, value: "+canary+"}]}}], ", 1))
		testkit.Eventually(t, patience, func() error { return answersWith(l.URL, "X-By", canary) })
	})
}

// gatewayPods are the names of the Gateway's Pods, without those that end.
func (c *cluster) gatewayPods(t *testing.T) (names []string) {
	t.Helper()
	pods, err := c.CoreV1().Pods(edge).List(t.Context(), metav1.ListOptions{LabelSelector: "gateway.networking.k8s.io/gateway-name=web"})
	testkit.NoError(t, err)
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			names = append(names, pods.Items[i].Name)
		}
	}
	return names
}

// replaced waits until all Pods of the Gateway are others than before a change.
func (c *cluster) replaced(t *testing.T, change func()) {
	t.Helper()
	before := map[string]bool{}
	for _, name := range c.gatewayPods(t) {
		before[name] = true
	}
	change()
	testkit.Eventually(t, patience, func() error {
		for _, name := range c.gatewayPods(t) {
			if before[name] {
				return fmt.Errorf("Pod %s is still there", name)
			}
		}
		return nil
	})
	c.available(t, edge, "web-istio")
	c.settled(t, edge)
}

// gatewayRuns waits until all Pods of the Gateway are of a revision, and their image of a tag.
func (c *cluster) gatewayRuns(t *testing.T, revision, tag string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		pods, err := c.CoreV1().Pods(edge).List(t.Context(), metav1.ListOptions{LabelSelector: "gateway.networking.k8s.io/gateway-name=web"})
		if err == nil && len(pods.Items) == 0 {
			err = fmt.Errorf("there is no Pod")
		}
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if image := p.Spec.Containers[0].Image; p.Labels["istio.io/rev"] != revision || !strings.HasSuffix(image, ":"+tag) {
				return fmt.Errorf("Pod %s is of revision %s with %s, want revision %s with tag %s", p.Name, p.Labels["istio.io/rev"], image,
					revision, tag)
			}
		}
		return nil
	})
	c.available(t, edge, "web-istio")
	c.settled(t, edge)
}
