package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// statusWrites counts the writes of statuses of a resource that the API server has answered.
func statusWrites(t *testing.T, s *kubeapi.Server, resource string) (n int) {
	t.Helper()
	raw := testkit.Must(s.Client(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := testkit.Must(parser.TextToMetricFamilies(strings.NewReader(string(raw))))(t)
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["resource"] == resource && labels["subresource"] == "status" && labels["verb"] != "GET" {
			n += int(m.GetCounter().GetValue())
		}
	}
	return n
}

// TestAHundredGatewaysAndThousandsOfRoutesAreNoStorm: one namespace makes a hundred Gateways and thousands of routes at
// once. What the API server is told of them is bounded, the Gateway of another namespace gets its status meanwhile, and
// so does its route.
func TestAHundredGatewaysAndThousandsOfRoutesAreNoStorm(t *testing.T) {
	const gateways, routes, writers = 100, 2000, 16
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	a := newAPI(t, s)
	s.Apply(t, edgeShop)
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: quiet}}\n---\n{apiVersion: v1, kind: Service, "+
		"metadata: {name: web, namespace: quiet}, spec: {ports: [{name: http, port: 80}]}}")
	a.has("gatewayclasses", "", "istio", "Accepted=True/Accepted 1")
	a.quiet()
	before := map[string]int{}
	for _, resource := range []string{"gateways", "httproutes"} {
		before[resource] = statusWrites(t, s, resource)
	}

	gateway := func(namespace, name string) string {
		return fmt.Sprintf("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s, namespace: %s}, spec: "+
			"{gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}}\n---\n", name, namespace)
	}
	var crowd errgroup.Group
	for w := range writers {
		crowd.Go(func() error {
			var text strings.Builder
			for i := w; i < gateways; i += writers {
				text.WriteString(gateway("shop", fmt.Sprint("crowd-", i)))
			}
			for i := w; i < routes; i += writers {
				text.WriteString(httpRoute(fmt.Sprint("route-", i), fmt.Sprint("crowd-", i%gateways), "web"))
			}
			objects, err := kubeapi.Decode([]byte(text.String()))
			return errors.Join(err, kubeapi.Apply(t.Context(), s.Config, objects...))
		})
	}
	testkit.NoError(t, crowd.Wait())
	s.Apply(t, gateway("quiet", "quiet")+strings.ReplaceAll(httpRoute("quiet", "quiet", "web"), "namespace: shop", "namespace: quiet"))
	took := a.has("gateways", "quiet", "quiet", "Accepted=True/Accepted 1", "http: attached 1")
	t.Logf("another namespace's Gateway has its status after %s", took.Round(time.Millisecond))
	if took > 15*time.Second {
		t.Error("want 15 s")
	}
	took = a.has("httproutes", "quiet", "quiet", "quiet: Accepted=True/Accepted 1")
	t.Logf("its route has its status %s later", took.Round(time.Millisecond))
	if took > 15*time.Second {
		t.Error("want 15 s")
	}
	for i := range gateways {
		a.has("gateways", "shop", fmt.Sprint("crowd-", i), fmt.Sprint("http: attached ", routes/gateways))
	}
	a.has("httproutes", "shop", fmt.Sprint("route-", routes-1), fmt.Sprintf("crowd-%d: Accepted=True/Accepted 1", (routes-1)%gateways))
	a.quiet()
	for resource, most := range map[string]int{"gateways": 20 * (gateways + 1), "httproutes": routes + 1 + routes/20} {
		n := statusWrites(t, s, resource) - before[resource]
		t.Logf("%d writes of the status of %s", n, resource)
		if n > most {
			t.Errorf("%d writes of the status of %s, want %d at most", n, resource, most)
		}
	}
}
