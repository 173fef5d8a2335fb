package mesh

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
)

// canary brings a second control plane beside the first, moves a namespace to it and back by revision and by a tag, and
// removes the first.
func (c *cluster) canary(t *testing.T) {
	const ns, canary, tag = shop, "canary", "prod"
	l := c.loaded(t)
	// move restarts the Pods, which are then of a revision, with its proxy.
	move := func(t *testing.T, revision, version string) {
		t.Helper()
		c.kubectl(t, "rollout", "restart", "-n", ns, "deployment/one")
		c.available(t, ns, "one")
		c.settled(t, ns)
		c.runs(t, ns, revision, version)
	}
	label := func(t *testing.T, labels ...string) {
		t.Helper()
		c.kubectl(t, append([]string{"label", "namespace", ns, "--overwrite"}, labels...)...)
	}
	l.Holds(t, "fairlead install --revision canary beside the first", aftermath, func(t *testing.T) {
		c.fairlead(t, "install", "-y", "--revision", canary, "--set", "hub=fairlead", "--set", "tag="+next, "--set", twoGateways)
		c.available(t, "istio-system", "config-watcher", "config-watcher-"+canary, "xds-server", "xds-server-"+canary, "istio-ingressgateway")
		c.runs(t, ns, "default", "dev")
	})
	if long() {
		l.Holds(t, "a namespace moves to the revision", aftermath, func(t *testing.T) {
			label(t, "istio-injection-", "istio.io/rev="+canary)
			move(t, canary, next)
		})
		l.Holds(t, "a namespace moves back to the revision before", aftermath, func(t *testing.T) {
			label(t, "istio.io/rev=default")
			move(t, "default", "dev")
		})
	}
	l.Holds(t, "a tag stands for the old revision, and its namespace stays there", aftermath, func(t *testing.T) {
		c.fairlead(t, "tag", "set", tag, "--revision", "default")
		label(t, "istio-injection-", "istio.io/rev="+tag)
		move(t, "default", "dev")
	})
	l.Holds(t, "the tag moves, and its namespace with it", aftermath, func(t *testing.T) {
		c.fairlead(t, "tag", "set", tag, "--revision", canary, "--overwrite")
		move(t, canary, next)
	})
	l.Holds(t, "the tag moves back", aftermath, func(t *testing.T) {
		c.fairlead(t, "tag", "set", tag, "--revision", "default", "--overwrite")
		move(t, "default", "dev")
	})
	l.Holds(t, "the tag moves again, and the first control plane is removed", aftermath, func(t *testing.T) {
		c.fairlead(t, "tag", "set", tag, "--revision", canary, "--overwrite")
		move(t, canary, next)
		c.fairlead(t, "uninstall", "-y", "--revision", "default")
		c.settled(t, "istio-system")
	})
	t.Run("the second one serves alone", func(t *testing.T) {
		for _, p := range c.pods(t, "istio-system") {
			if strings.HasPrefix(p, "xds-server-") && !strings.HasPrefix(p, "xds-server-"+canary) {
				t.Errorf("Pod %s runs", p)
			}
		}
		c.apply(t, strings.Replace(shopRoute, "port: {number: 8080}}}]", "port: {number: 8080}}}]\n      headers: {response: {set: {x-by: "+
			canary+"}}}", 1))
		testkit.Eventually(t, patience, func() error { return answersWith(c.requests(t).URL, "X-By", canary) })
	})
	l.Stop()
}

// runs asserts that the proxies of a namespace are of a revision, and their images of a tag.
func (c *cluster) runs(t *testing.T, namespace, revision, tag string) {
	t.Helper()
	pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		proxy := proxyOf(p)
		switch {
		case proxy == nil:
			t.Errorf("Pod %s has no sidecar", p.Name)
		case p.Annotations["istio.io/rev"] != revision || !strings.HasSuffix(proxy.Image, ":"+tag):
			t.Errorf("Pod %s is of revision %s with %s, want revision %s with tag %s", p.Name, p.Annotations["istio.io/rev"], proxy.Image, revision,
				tag)
		}
	}
	if len(pods.Items) == 0 {
		t.Errorf("namespace %s has no Pod", namespace)
	}
}

// app is a Deployment with a Service of its name on port 8080, which injection gives sidecars. Its Pods serve for a
// moment after they are told to end, as every server should that is replaced while it is used: until then not all
// clients have heard of it. annotations of its Pods are in YAML's flow form; program is an image and its arguments, by
// default that of echo.
func app(namespace, name string, replicas int, annotations string, program ...string) string {
	if program == nil {
		program = []string{"fairlead/echo:dev", name}
	}
	// The node of the test cluster has two processors, of which Istio's default takes a tenth for each sidecar.
	annotations = strings.TrimPrefix(annotations+", sidecar.istio.io/proxyCPU: 20m, sidecar.istio.io/proxyMemory: 64Mi", ", ")
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}, annotations: {%[4]s}}
    spec:
      containers:
        - name: app
          image: %[5]s
          imagePullPolicy: IfNotPresent
          args: [%[6]s]
          securityContext: {runAsUser: 1000, runAsGroup: 1000}
          resources: {requests: {cpu: 20m, memory: 64Mi}}
          env:
            - {name: HOST, value: 0.0.0.0}
            - {name: PORT, value: "8080"}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          lifecycle: {preStop: {sleep: {seconds: 3}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 5}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {selector: {app: %[2]s}, ports: [{name: http, port: 8080}]}
---
`, namespace, name, replicas, annotations, program[0], strings.Join(program[1:], ", "))
}
