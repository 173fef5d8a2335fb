package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// An Ingress is written, shown and explained like any other object: its gateway's routes lead back to it, and it has a
// status.
func TestIngressOfTheConfigurationAPI(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml", "testdata/ingress.yaml"}})
	m.WaitReady(t)
	apply(t, m, `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop, namespace: apps, annotations: {kubernetes.io/ingress.class: istio}}
spec:
  rules:
  - host: shop.example.com
    http: {paths: [{path: /a, pathType: Prefix, backend: {service: {name: server, port: {name: http}}}}]}
`)
	r := why(t, m, "ingress-0.istio-system", "http.8080", "--type", "routes")
	if o := r.from("Ingress", "shop"); o == nil || o.Generation != 1 || o.Source == "" || r.Problem != "" {
		t.Errorf("the routes were made from %+v: %s", r.MadeFrom, r.Problem)
	}
	for _, kind := range []string{"ingress", "ingresses", "ing"} {
		testkit.Eventually(t, testkit.Patience, func() error {
			code, out, errOut := m.CLI(t, "config", "get", kind, "shop", "-n", "apps", "-o", "yaml")
			if code != 0 || !strings.Contains(out, "203.0.113.9") {
				return fmt.Errorf("exit code %d, no address in the status: %s%s", code, out, errOut)
			}
			return nil
		})
	}
	if code, out, errOut := m.CLI(t, "config", "delete", "ingress", "shop", "-n", "apps"); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if code, _, _ := m.CLI(t, "why", "ingress-0.istio-system", "http.8080", "--type", "routes"); code == 0 {
			return errors.New("the routes are still there")
		}
		return nil
	})
}
