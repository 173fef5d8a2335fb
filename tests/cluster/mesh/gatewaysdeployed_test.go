package mesh

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/load"
)

// edge is the namespace of Gateways of the Gateway API.
const edge = "edge"

// TestGatewaysOfTheGatewayAPI: an installation comes before the definitions of the Gateway API, and is well without.
// When they are there, Gateways become Pods of Envoy that serve their routes, with what overlays and infrastructure
// ask for; they go with the Gateway.
func TestGatewaysOfTheGatewayAPI(t *testing.T) {
	c := connect(t)
	before := c.objects(t)
	removed := false
	remove := func() {
		if !removed {
			removed = true
			c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
		}
	}
	defer remove()
	c.fairlead(t, append([]string{"install", "-y", "--set", "profile=minimal"}, images...)...)
	c.available(t, "istio-system", separate["istio-system"]...)
	if said := c.kubectl(t, "logs", "-n", "istio-system", "deployment/gateways"); strings.Contains(said, `"level":"WARN"`) ||
		strings.Contains(said, `"level":"ERROR"`) {
		t.Errorf("without the Gateway API fairlead-gateways says:\n%s", said)
	}
	c.gatewayAPI(t)
	for _, class := range []string{"istio", "fairlead", "istio-remote"} {
		testkit.Eventually(t, patience, func() error {
			return c.command(t.Context(), "wait", "--for=condition=Accepted", "--timeout=5s", "gatewayclass/"+class).Run()
		})
	}
	t.Run("Gateways run", func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				c.describe(t, "istio-system")
			}
		})
		c.gatewaysRun(t)
	})
	c.fairlead(t, "verify-install")
	remove()
	c.withoutGatewayAPI(t)
	testkit.Eventually(t, patience, func() error { return different(before, c.objects(t)) })
}

// gatewaysRun has a Gateway of each class in a namespace of its own.
func (c *cluster) gatewaysRun(t *testing.T) {
	c.namespace(t, edge)
	// That of class istio-remote comes first, so that what it would get would be there before what the others get.
	c.apply(t, deployed("far", "istio-remote", "")+program(edge, "one", "echo", "one")+deployed("plain", "fairlead", "")+`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: edge, name: options}
data:
  deployment: |
    spec: {template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: 10m, memory: 64Mi}}}]}}}
  horizontalPodAutoscaler: |
    spec: {minReplicas: 2, maxReplicas: 3}
  podDisruptionBudget: |
    spec: {minAvailable: 1}
---
`+deployed("web", "istio", `, infrastructure: {labels: {team: edge}, annotations: {example.com/owner: edge},
  parametersRef: {group: "", kind: ConfigMap, name: options}}`)+routeTo("one", "web", "plain"))
	for _, gw := range []string{"web-istio", "plain-fairlead"} {
		c.available(t, edge, gw)
		url := c.gatewayURL(t, gw)
		testkit.Eventually(t, patience, func() error { return load.Once(load.Config{URL: url}) })
	}
	// The Service of one is of type ClusterIP; the other waits for an address, which nobody gives in some clusters.
	c.kubectl(t, "wait", "-n", edge, "--for=condition=Programmed", "--timeout=2m", "gateway/plain")
	c.kubectl(t, "wait", "-n", edge, "--for=condition=Accepted", "--timeout=2m", "gateway/web")

	account, err := c.CoreV1().ServiceAccounts(edge).Get(t.Context(), "web-istio", metav1.GetOptions{})
	testkit.NoError(t, err)
	service, err := c.CoreV1().Services(edge).Get(t.Context(), "web-istio", metav1.GetOptions{})
	testkit.NoError(t, err)
	of := map[string]metav1.ObjectMeta{"ServiceAccount": account.ObjectMeta, "Service": service.ObjectMeta}
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		t.Errorf("the Service is of type %s", service.Spec.Type)
	}
	// The autoscaler brings the second Pod.
	testkit.Eventually(t, patience, func() error {
		pods, err := c.CoreV1().Pods(edge).List(t.Context(), metav1.ListOptions{LabelSelector: "gateway.networking.k8s.io/gateway-name=web"})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			of["Pod "+p.Name] = p.ObjectMeta
			if cpu := p.Spec.Containers[0].Resources.Requests.Cpu(); p.Spec.ServiceAccountName != "web-istio" || cpu.MilliValue() != 10 {
				t.Errorf("Pod %s has account %s and asks for %s", p.Name, p.Spec.ServiceAccountName, cpu)
			}
		}
		budget, err := c.PolicyV1().PodDisruptionBudgets(edge).Get(t.Context(), "web-istio", metav1.GetOptions{})
		if err == nil && (len(pods.Items) != 2 || budget.Status.CurrentHealthy != 2) {
			err = fmt.Errorf("%d Pods, of which the budget sees %d", len(pods.Items), budget.Status.CurrentHealthy)
		}
		return err
	})
	for what, meta := range of {
		if meta.Labels["team"] != edge || meta.Annotations["example.com/owner"] != edge {
			t.Errorf("%s has labels %v and annotations %v", what, meta.Labels, meta.Annotations)
		}
	}
	if made := c.kubectl(t, "get", "serviceaccounts,deployments,services", "-n", edge, "-o", "name"); strings.Contains(made, "far") {
		t.Errorf("for a Gateway of class istio-remote there is something among\n%s", made)
	}

	c.kubectl(t, "delete", "gateway", "web", "-n", edge)
	testkit.Eventually(t, patience, func() error {
		left := c.kubectl(t, "get", "serviceaccounts,deployments,services,horizontalpodautoscalers,poddisruptionbudgets,pods", "-n", edge, "-o", "name")
		if slices.ContainsFunc(strings.Fields(left), func(name string) bool { return strings.Contains(name, "/web-istio") }) {
			return fmt.Errorf("of a Gateway that is gone there are left\n%s", left)
		}
		return nil
	})
}

// gatewayAPI gives the cluster the definitions of the Gateway API, until the test ends.
func (c *cluster) gatewayAPI(t *testing.T) {
	t.Helper()
	names, err := kubeapi.ApplyCRDs(t.Context(), c.config, kubeapi.GatewayAPICRDs(t, "standard"))
	testkit.NoError(t, err)
	t.Cleanup(func() { c.withoutGatewayAPI(t) })
	for _, name := range names {
		c.kubectl(t, "wait", "--for=condition=Established", "--timeout=2m", "crd/"+name)
	}
}

func (c *cluster) withoutGatewayAPI(t *testing.T) {
	t.Helper()
	if out, err := c.command(context.Background(), "delete", "--ignore-not-found", "-k", kubeapi.GatewayAPICRDs(t, "standard")).
		CombinedOutput(); err != nil {
		t.Errorf("the definitions of the Gateway API stay: %v\n%s", err, out)
	}
}

// gatewayURL is where a Gateway's Service listens; "" while there is none.
func (c *cluster) gatewayURL(t *testing.T, service string) string {
	t.Helper()
	s, err := c.CoreV1().Services(edge).Get(t.Context(), service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	testkit.NoError(t, err)
	return "http://" + s.Spec.ClusterIP + "/x"
}

// deployed is a Gateway of a class in the namespace edge, whose spec has more. Those of class fairlead have a Service
// of type ClusterIP.
func deployed(name, class, more string) string {
	annotations := ""
	if class == "fairlead" {
		annotations = "networking.istio.io/service-type: ClusterIP"
	}
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: edge, name: %s, annotations: {%s}}
spec: {gatewayClassName: %s, listeners: [{name: http, port: 80, protocol: HTTP}]%s}
---
`, name, annotations, class, more)
}

// routeTo sends all requests at Gateways of the namespace edge to a Service.
func routeTo(service string, gateways ...string) string {
	var parents []string
	for _, name := range gateways {
		parents = append(parents, "{name: "+name+"}")
	}
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: edge, name: %[1]s}
spec: {parentRefs: [%[2]s], rules: [{backendRefs: [{name: %[1]s, port: 8080}]}]}
---
`, service, strings.Join(parents, ", "))
}
