package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestGatewayAPI uses the Gateway API without Kubernetes, as its guides do: the sample's Gateway and route are served
// beside Istio's, and described; and what `fairlead migrate gateway-api` makes of Istio's answers as that did.
func TestGatewayAPI(t *testing.T) {
	const samples = "../../samples/bookinfo/"
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{samples + "mesh.yaml"}})
	m.WaitReady(t)
	status := func(method, host, path string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, m.URL(t)+path, nil)
		if err != nil {
			return 0, err
		}
		r.Host = host
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	is := func(host, path string, want int) {
		t.Helper()
		m.Eventually(t, takesEffect, func() error {
			got, err := status(http.MethodGet, host, path)
			if err == nil && got != want {
				err = fmt.Errorf("%s%s: status %d, want %d", host, path, got, want)
			}
			return err
		})
	}
	does := func(args ...string) string {
		t.Helper()
		code, out, errOut := m.CLI(t, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s%s", args, code, out, errOut)
		}
		return out
	}
	is("any.org", "/productpage", http.StatusOK)

	does("config", "apply", "-f", samples+"gateway-api.yaml", "--wait")
	does("wait", "gtw/books", "-n", "istio-system")
	does("wait", "httproute/books")
	is("books.example.com", "/reviews/0", http.StatusOK)
	is("other.example.com", "/productpage", http.StatusNotFound)
	is("any.org", "/productpage", http.StatusOK)
	for object, want := range map[string]string{
		"gateway/books.istio-system": "HTTPRoute default/books, attached\n", "httproute/books": "to Service default/reviews, port 9080\n",
		"pod/istio-ingressgateway-0.istio-system": "serves Gateway istio-system/books of the Gateway API",
	} {
		if out := does("describe", object); !strings.Contains(out, want) {
			t.Errorf("describe %s lacks %q:\n%s", object, want, out)
		}
	}
	does("config", "delete", "httproute/books")
	does("config", "delete", "gtw/books", "-n", "istio-system")

	answers := func() (list []string) {
		for _, path := range []string{"/", "/productpage", "/productpagex", "/static", "/static/x", "/login", "/api/v1/products/0", "/nothing"} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				code, err := status(method, "any.org", path)
				list = append(list, fmt.Sprint(method, " ", path, " ", code, err))
			}
		}
		return list
	}
	before := strings.Join(answers(), "\n")
	moved := filepath.Join(t.TempDir(), "moved.yaml")
	testkit.WriteFile(t, moved, []byte(does("migrate", "gateway-api", "-f", samples+"mesh.yaml")))
	does("config", "apply", "-f", moved, "--wait")
	old, err := os.ReadFile(samples + "mesh.yaml")
	testkit.NoError(t, err)
	var rest []string
	for _, document := range strings.Split(string(old), "\n---\n") {
		if !strings.Contains(document, "kind: Gateway\n") && !strings.Contains(document, "kind: VirtualService\nmetadata:\n  name: bookinfo\n") {
			rest = append(rest, document)
		}
	}
	m.WriteConfig(t, "mesh.yaml", strings.Join(rest, "\n---\n"))
	does("wait", "vs/bookinfo", "--for", "deleted")
	does("wait", "gateway/bookinfo-gateway", "--for", "deleted")
	if out := does("describe", "gateway/istio-ingressgateway.istio-system", "--request", "GET any.org/productpage"); !strings.Contains(out,
		"answers:  HTTPRoute default/bookinfo rule 1") {
		t.Errorf("%s", out)
	}
	if after := strings.Join(answers(), "\n"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	m.AssertNothingRejected(t)
}
