package mesh

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
)

const deployedGateway = `
apiVersion: v1
kind: ConfigMap
metadata: {namespace: edge, name: options}
data:
  deployment: |
    spec: {replicas: 2, template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: %s}}}]}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: edge, name: web}
spec:
  gatewayClassName: istio
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: options}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
`

// TestAGatewayOfTheGatewayAPIRuns: a Gateway becomes Pods of Envoy that are ready by the control plane's configuration,
// their Service leads to them, a change of them fails no request, and they go with the Gateway.
func TestAGatewayOfTheGatewayAPIRuns(t *testing.T) {
	c := connect(t)
	c.fairlead(t, append([]string{"install", "-y", "--set", "profile=minimal"}, images...)...)
	defer c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
	c.available(t, "istio-system", separate["istio-system"]...)
	const ns = "edge"
	c.namespace(t, ns)
	c.apply(t, fmt.Sprintf(deployedGateway, "10m"))
	ask := func(ctx context.Context) error {
		if _, err := c.CoreV1().Services(ns).ProxyGet("http", "web-istio", "15021", "/healthz/ready", nil).DoRaw(ctx); err != nil {
			return fmt.Errorf("the gateway does not answer that it is ready: %w", err)
		}
		return nil
	}
	testkit.Eventually(t, patience, func() error { return ask(t.Context()) })
	c.available(t, ns, "web-istio")

	// Others take the place of its Pods, and somebody asks meanwhile.
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asked := 0
	asking.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-tick.C:
				if err := ask(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("while its Pods are replaced: %v", err)
				}
				asked++
			}
		}
	})
	before := c.pods(t, ns)
	c.apply(t, fmt.Sprintf(deployedGateway, "11m"))
	testkit.Eventually(t, patience, func() error {
		now := map[string]bool{}
		for _, pod := range c.pods(t, ns) {
			now[pod] = true
		}
		for _, pod := range before {
			if now[pod] {
				return fmt.Errorf("pod %s is still there", pod)
			}
		}
		return nil
	})
	c.available(t, ns, "web-istio")
	stop()
	asking.Wait()
	if asked < 10 {
		t.Errorf("%d requests are no load", asked)
	}

	c.kubectl(t, "delete", "gateway", "web", "-n", ns)
	testkit.Eventually(t, patience, func() error {
		_, err := c.AppsV1().Deployments(ns).Get(t.Context(), "web-istio", metav1.GetOptions{})
		if !errors.IsNotFound(err) {
			return fmt.Errorf("its Deployment is still there (%v)", err)
		}
		return nil
	})
}
