package describe_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/describe"
)

// mesh parses documents of YAML.
func mesh(t *testing.T, documents string) *describe.Mesh {
	t.Helper()
	m := &describe.Mesh{RootNamespace: "istio-system", Domain: "cluster.local"}
	for doc := range strings.SplitSeq(documents, "\n---\n") {
		js, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		o, err := describe.Parse(js, "")
		if err != nil {
			t.Fatal(err)
		}
		m.Objects = append(m.Objects, o)
	}
	return m
}

var web = describe.Workload{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web", "version": "v1"}}

func peer(namespace, name, created, spec string) string {
	return fmt.Sprintf("kind: PeerAuthentication\nmetadata: {name: %s, namespace: %s, creationTimestamp: %s}\nspec: %s", name, namespace,
		created, spec)
}

const older, newer = `"2026-01-01T00:00:00Z"`, `"2026-02-01T00:00:00Z"`

func TestTheNarrowestAndOldestPeerAuthenticationDecides(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []string
		want    string
	}{
		"none": {nil, "0 PERMISSIVE"},
		"mesh": {[]string{peer("istio-system", "all", older, "{mtls: {mode: STRICT}}")}, "0 STRICT istio-system/all"},
		"namespace before mesh": {
			[]string{peer("istio-system", "all", older, "{mtls: {mode: STRICT}}"), peer("shop", "ns", newer, "{mtls: {mode: DISABLE}}")},
			"0 DISABLE shop/ns",
		},
		"the oldest of a scope": {
			[]string{peer("shop", "b", older, "{mtls: {mode: STRICT}}"), peer("shop", "a", newer, "{mtls: {mode: DISABLE}}")},
			"0 STRICT shop/b",
		},
		"unset is inherited": {
			[]string{peer("istio-system", "all", older, "{mtls: {mode: STRICT}}"),
				peer("shop", "w", older, "{selector: {matchLabels: {app: web}}, mtls: {mode: UNSET}}")},
			"0 STRICT istio-system/all",
		},
		"another workload's": {[]string{peer("shop", "w", older, "{selector: {matchLabels: {app: api}}, mtls: {mode: STRICT}}")}, "0 PERMISSIVE"},
		"a selector in the root namespace is of its workloads": {
			[]string{peer("istio-system", "w", older, "{selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}}")}, "0 PERMISSIVE",
		},
		"by port": {
			[]string{
				peer("shop", "w", older, "{selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}, 9090: "+
					"{mode: UNSET}}}")},
			"8080 DISABLE shop/w, 9090 STRICT shop/w, 0 STRICT shop/w",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &describe.Mesh{RootNamespace: "istio-system"}
			if len(tc.objects) > 0 {
				m = mesh(t, strings.Join(tc.objects, "\n---\n"))
			}
			modes, _, err := m.Modes(web)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, mode := range modes {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s", mode.Port, mode.Mode, mode.From)))
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("%q, want %q", strings.Join(got, ", "), tc.want)
			}
		})
	}
}

func TestPoliciesThatApply(t *testing.T) {
	m := mesh(t, `
kind: Sidecar
metadata: {name: all, namespace: istio-system}
---
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {workloadSelector: {labels: {app: web}}}
---
kind: EnvoyFilter
metadata: {name: everywhere, namespace: istio-system}
spec: {workloadSelector: {labels: {app: web}}}
---
kind: EnvoyFilter
metadata: {name: elsewhere, namespace: bank}
---
kind: Telemetry
metadata: {name: ns, namespace: shop}
---
kind: AuthorizationPolicy
metadata: {name: api, namespace: shop}
spec: {selector: {matchLabels: {app: api}}}
`[1:])
	policies, err := m.Policies(web)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range policies {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s/%s of %s %s", p.Kind, p.Namespace, p.Name, p.Scope, p.Detail)))
	}
	want := []string{
		"Sidecar shop/web of workload", "Sidecar istio-system/all of mesh without effect: Sidecar shop/web counts",
		"EnvoyFilter istio-system/everywhere of workload",
		"Telemetry shop/ns of namespace",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestConflictsOfMutualTLS(t *testing.T) {
	for _, tc := range []struct {
		mode, client string
		sidecar      bool
		want         string
	}{
		{"STRICT", "", true, ""},
		{"STRICT", "ISTIO_MUTUAL", true, ""},
		{"STRICT", "DISABLE", true, "plain text"},
		{"STRICT", "SIMPLE", true, "no certificate"},
		{"PERMISSIVE", "DISABLE", true, ""},
		{"DISABLE", "ISTIO_MUTUAL", true, "plain text alone"},
		{"none", "ISTIO_MUTUAL", false, "no sidecar"},
		{"none", "SIMPLE", false, ""},
	} {
		if got := describe.Conflict(tc.mode, tc.client, tc.sidecar); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("server %s, client %s: %q, want %q", tc.mode, tc.client, got, tc.want)
		}
	}
	for mode, want := range map[string]string{"STRICT": "ISTIO_MUTUAL (automatic)", "DISABLE": "DISABLE (automatic)"} {
		if got := describe.ClientMode("", mode, true); got != want {
			t.Errorf("%s: %s", mode, got)
		}
	}
}

func TestTheWaysToAService(t *testing.T) {
	m := mesh(t, `
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http-api, port: 80, targetPort: 8080}, {name: x, port: 81}]}
---
kind: Gateway
metadata: {name: in, namespace: shop}
---
kind: VirtualService
metadata: {name: mirror, namespace: shop}
spec: {hosts: [a.example.com], gateways: [in, edge/gone, mesh], http: [{mirror: {host: web}, route: [{destination: {host: other}}]}]}
---
kind: VirtualService
metadata: {name: elsewhere, namespace: bank}
spec: {hosts: [b.example.com], gateways: [in], http: [{route: [{destination: {host: web}}]}]}
---
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}, portLevelSettings: [{port: {number: 81}, tls: {mode: DISABLE}}]}
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`[1:])
	services, err := m.Services("shop")
	if err != nil || len(services) != 1 || services[0].Host != "web.shop.svc.cluster.local" || !services[0].Selects(web) {
		t.Fatalf("%+v, %v", services, err)
	}
	if a, b := describe.Protocol(services[0].Ports[0]), describe.Protocol(services[0].Ports[1]); a != "HTTP" || b != "" {
		t.Errorf("protocols %q, %q", a, b)
	}
	ways, err := m.Exposures(services[0].Host)
	if err != nil || len(ways) != 2 || ways[0].Gateway != "shop/in" || ways[0].Missing || ways[1].Gateway != "edge/gone" || !ways[1].Missing {
		t.Errorf("%+v, %v", ways, err)
	}
	for port, want := range map[uint32]string{80: "ISTIO_MUTUAL", 81: "DISABLE"} {
		if mode, rule, err := m.ClientTLS([]string{"shop/web"}, port); err != nil || mode != want || rule != "shop/web" {
			t.Errorf("port %d: %s of %s, %v", port, mode, rule, err)
		}
	}
	if mode, _, _ := m.ClientTLS(nil, 80); mode != "" {
		t.Errorf("a rule that does not count decides: %s", mode)
	}
	subsets, err := m.Subsets([]string{"shop/web"}, []describe.Workload{web})
	if err != nil || len(subsets) != 2 || subsets[0].Pods != 1 || subsets[1].Pods != 0 {
		t.Errorf("%+v, %v", subsets, err)
	}
}

func TestAPortHasTheProtocolThatTheMeshUses(t *testing.T) {
	app := func(s string) *string { return &s }
	for _, c := range []struct {
		port corev1.ServicePort
		want string
	}{
		{corev1.ServicePort{Name: "http2-web", Port: 80}, "HTTP2"}, {corev1.ServicePort{Name: "grpc-web-x", Port: 80}, "GRPC-WEB"},
		{corev1.ServicePort{Name: "web", Port: 80}, ""}, {corev1.ServicePort{Name: "db", Port: 3306}, "TCP"},
		{corev1.ServicePort{Name: "http", Port: 80, AppProtocol: app("kubernetes.io/h2c")}, "HTTP2"},
		{corev1.ServicePort{Name: "http", Port: 80, AppProtocol: app("kubernetes.io/wss")}, "HTTPS"},
		{corev1.ServicePort{Name: "web", Port: 80, AppProtocol: app("tcp")}, "TCP"},
		{corev1.ServicePort{Name: "http", Port: 53, Protocol: "UDP"}, "UDP"},
	} {
		if got := describe.Protocol(c.port); got != c.want {
			t.Errorf("port %s %d: %q, want %q", c.port.Name, c.port.Port, got, c.want)
		}
	}
}
