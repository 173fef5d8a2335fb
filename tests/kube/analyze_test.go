package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// analysis is what `config-watcher analyze` says of an API server.
type analysis struct {
	// told lists the messages as "name Kind namespace/object".
	told []string
	// said is what stands beside them.
	said string
	code int
}

func (a analysis) tells(message string) bool { return slices.Contains(a.told, message) }

func analyzeKube(t *testing.T, kubeconfig string, args ...string) analysis {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binaries.Built(t, "config-watcher"),
		append([]string{"analyze", "--kube", "--kubeconfig", kubeconfig, "-o", "json"}, args...)...)
	a := process.MustAsk(t, cmd)
	out := analysis{said: a.Said, code: a.Code}
	var list []struct{ Name, Origin string }
	if a.Out != "" {
		if err := json.Unmarshal([]byte(a.Out), &list); err != nil {
			t.Fatalf("%v in %.300q", err, a.Out)
		}
	}
	for _, m := range list {
		out.told = append(out.told, strings.TrimSpace(m.Name+" "+m.Origin))
	}
	return out
}

const analyzedMesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: enabled}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: web, image: web}, {name: istio-proxy, image: proxy}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], http: [{route: [{destination: {host: nowhere}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: twice, namespace: shop}, spec: {hosts: [b.example.com], http: [{match: [{uri: {prefix: /a}}, {uri: {prefix: /a}}], route: [{destination: {host: web}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: front, namespace: shop}, spec: {selector: {app: web}, servers: [{port: {number: 80, name: http, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialName: pair}}]}}
`

const analyzedIngress = `
{apiVersion: v1, kind: Namespace, metadata: {name: edge, labels: {istio-injection: enabled}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: edge}, spec: {selector: {istio: ingressgateway}, ports: [{name: http, port: 80}, {name: https, port: 443}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: edge, namespace: edge, labels: {istio: ingressgateway}}, spec: {containers: [{name: istio-proxy, image: proxy}]}}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: mesh}, spec: {controller: istio.io/ingress-controller}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: missing, namespace: edge}, spec: {ingressClassName: mesh, tls: [{secretName: missing}], defaultBackend: {service: {name: web, port: {number: 80}}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: broken, namespace: edge}, spec: {ingressClassName: mesh, tls: [{secretName: broken}], defaultBackend: {service: {name: web, port: {number: 80}}}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: broken, namespace: edge}, stringData: {tls.crt: x, tls.key: x}}
`

// readable are the rules of a user who may do what `fairlead analyze --kube` needs.
func readable() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		kubeapi.Rule("", []string{"namespaces", "services", "pods"}, "list"),
		kubeapi.Rule("", []string{"configmaps", "secrets"}, "get"),
		kubeapi.Rule("apps", []string{"deployments", "statefulsets", "daemonsets"}, "list"),
		kubeapi.Rule("admissionregistration.k8s.io", []string{"*"}, "list"),
		kubeapi.Rule("apiextensions.k8s.io", []string{"customresourcedefinitions"}, "list"),
		kubeapi.Rule("gateway.networking.k8s.io", []string{"*"}, "list"),
		kubeapi.Rule("networking.k8s.io", []string{"ingresses", "ingressclasses"}, "list"),
		kubeapi.Rule("networking.istio.io", []string{"*"}, "list"), kubeapi.Rule("security.istio.io", []string{"*"}, "list"),
		kubeapi.Rule("telemetry.istio.io", []string{"*"}, "list"), kubeapi.Rule("extensions.istio.io", []string{"*"}, "list"),
	}
}

func TestAnalyzeReadsAnAPIServer(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	s.Apply(t, analyzedMesh)
	const route, secret = "HostNotFound VirtualService shop/web", "CredentialNotFound Gateway shop/front"

	t.Run("and tells what is wrong in it", func(t *testing.T) {
		a := analyzeKube(t, s.Kubeconfig, "-n", "shop")
		if !a.tells(route) || !a.tells(secret) || a.code != 79 || strings.Contains(a.said, "not read") {
			t.Errorf("%+v", a)
		}
		if a = analyzeKube(t, s.Kubeconfig); a.tells(route) || a.code != 0 {
			t.Errorf("of namespace default it tells %v", a.told)
		}
	})

	t.Run("and files take the place of its objects", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "change.yaml")
		change := "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], " +
			"http: [{route: [{destination: {host: web}}]}]}}"
		if err := os.WriteFile(file, []byte(change), 0o600); err != nil {
			t.Fatal(err)
		}
		if a := analyzeKube(t, s.Kubeconfig, "-A", file); a.tells(route) || !a.tells(secret) ||
			slices.ContainsFunc(a.told, func(m string) bool { return strings.HasPrefix(m, "ObjectTwice") }) {
			t.Errorf("with a file that mends the route: %+v", a)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(change, "name: web,", "name: other,")+
			"\n---\n{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: r, namespace: shop}, spec: {host: nobody}}"),
			0o600); err != nil {
			t.Fatal(err)
		}
		if a := analyzeKube(t, s.Kubeconfig, file); !a.tells("RuleHostNotFound DestinationRule shop/r") || a.tells(route) {
			t.Errorf("of a file, with the context's namespace default: %+v", a)
		}
	})

	t.Run("and of the Secrets that Ingresses name", func(t *testing.T) {
		s.Apply(t, analyzedIngress)
		const missing, unusable = "CredentialNotFound Ingress edge/missing", "CredentialUnusable Ingress edge/broken"
		if a := analyzeKube(t, s.Kubeconfig, "-n", "edge"); !a.tells(missing) || !a.tells(unusable) ||
			!a.tells("ObjectRefused Secret edge/broken") || len(a.told) != 4 {
			t.Errorf("%+v", a)
		}
		chain, key := testkit.PKI(t).NewServer("a.example.com")
		s.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: missing, namespace: edge}, stringData: {tls.crt: %q, tls.key: "+
			"%q}}", chain, key))
		if a := analyzeKube(t, s.Kubeconfig, "-n", "edge"); a.tells(missing) || !a.tells(unusable) {
			t.Errorf("with the Secret: %+v", a)
		}
	})

	t.Run("and says that a namespace is not there", func(t *testing.T) {
		if a := analyzeKube(t, s.Kubeconfig, "-n", "shoop"); a.code != 1 || !strings.Contains(a.said, `namespace "shoop": no object is in it`) {
			t.Errorf("%+v", a)
		}
	})

	t.Run("with the rights to list kinds and to get the Secrets that are named", func(t *testing.T) {
		kubeconfig := s.User(t, "reader")
		s.Grant(t, kubeapi.UserSubject("reader"), readable()...)
		testkit.Eventually(t, testkit.Patience, func() error {
			if a := analyzeKube(t, kubeconfig, "-A"); strings.Contains(a.said, "not read") || !a.tells(route) || !a.tells(secret) {
				return fmt.Errorf("%+v", a)
			}
			return nil
		})
	})

	t.Run("and names the kinds that are forbidden", func(t *testing.T) {
		kubeconfig := s.User(t, "guest")
		without := readable()
		without[0] = kubeapi.Rule("", []string{"namespaces", "pods"}, "list")
		without[1] = kubeapi.Rule("", []string{"configmaps"}, "get")
		s.Grant(t, kubeapi.UserSubject("guest"), without...)
		testkit.Eventually(t, testkit.Patience, func() error {
			a := analyzeKube(t, kubeconfig, "-A")
			if !strings.Contains(a.said, "not read: Service: ") || !strings.Contains(a.said, "not read: Secret: ") ||
				strings.Contains(a.said, "not read: Pod") {
				return fmt.Errorf("%+v", a)
			}
			if a.tells(route) || a.tells(secret) || !strings.Contains(a.said, "HostNotFound") {
				t.Errorf("told what cannot be known: %+v", a)
			}
			return nil
		})
	})

	t.Run("and makes do with one namespace", func(t *testing.T) {
		kubeconfig := s.User(t, "local")
		s.Apply(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: local, namespace: shop}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: [list, get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: local, namespace: shop}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: local}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: local}]}
`)
		testkit.Eventually(t, testkit.Patience, func() error {
			a := analyzeKube(t, kubeconfig, "-n", "shop")
			if !strings.Contains(a.said, "not read: Service of other namespaces: ") || !strings.Contains(a.said, "not read: Namespace: ") ||
				!a.tells("MatchUnused VirtualService shop/twice") {
				return fmt.Errorf("%+v", a)
			}
			if a.tells(route) {
				t.Errorf("told what may be in another namespace: %+v", a)
			}
			return nil
		})
	})

	t.Run("and says that it is away", func(t *testing.T) {
		s.Stop(t)
		defer s.Resume(t)
		if a := analyzeKube(t, s.Kubeconfig, "--timeout", "5s"); a.code != 1 || !strings.Contains(a.said, "API server") {
			t.Errorf("%+v", a)
		}
	})
}

const analyzedGateways = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: bad, namespace: istio-system, labels: {gateway.istio.io/defaults-for-class: fairlead}}, data: {deployment: "spec: {template: {spec: {hostNetwork: true}}}"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: good, namespace: shop}, data: {deployment: "spec: {replicas: 2}"}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: own, namespace: shop}, spec: {gatewayClassName: istio, infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: good}}, listeners: [{name: http, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: other, namespace: shop}, spec: {gatewayClassName: fairlead, listeners: [{name: http, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: all, namespace: shop}, spec: {parentRefs: [{name: own}], hostnames: [a.com], rules: [{backendRefs: [{name: web, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: lost, namespace: shop}, spec: {parentRefs: [{name: own, sectionName: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
`

// TestAnalyzeReadsTheGatewayAPI: of an API server all kinds of the Gateway API are read, with what they refer to.
func TestAnalyzeReadsTheGatewayAPI(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	s.Apply(t, analyzedGateways)
	kubeconfig := s.User(t, "reader")
	s.Grant(t, kubeapi.UserSubject("reader"), append(readable(), kubeapi.Rule("", []string{"configmaps"}, "list"))...)
	file := filepath.Join(t.TempDir(), "change.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: new, namespace: shop}, "+
		"spec: {parentRefs: [{name: own}], hostnames: [a.com], rules: [{matches: [{path: {type: PathPrefix, value: /x}}], "+
		"backendRefs: [{name: web, port: 80}]}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"AttachedRouteTakes HTTPRoute shop/new", "GatewayNotAccepted Gateway shop/other",
		"NamespaceNotInjected Namespace shop", "RouteNotAttached HTTPRoute shop/lost"}
	testkit.Eventually(t, testkit.Patience, func() error { // grants take a moment
		a := analyzeKube(t, kubeconfig, "-n", "shop", file)
		slices.Sort(a.told)
		if !slices.Equal(a.told, want) || strings.Contains(a.said, "not read") {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
}

// TestAnalyzeReadsTenThousandObjects: lists come in pages, and the whole takes seconds.
func TestAnalyzeReadsTenThousandObjects(t *testing.T) {
	const services = 10_000
	s := kubeapi.Start(t, kubeapi.Options{})
	client := s.Client(t)
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var makers sync.WaitGroup
	numbers := make(chan int)
	for range 16 {
		makers.Go(func() {
			for i := range numbers {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i)},
					Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "unknown", Port: 80}}}}
				if _, err := client.CoreV1().Services("shop").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range services {
		numbers <- i
	}
	close(numbers)
	makers.Wait()
	testkit.Quick(t, 10*time.Second, func() time.Duration {
		began := time.Now()
		a := analyzeKube(t, s.Kubeconfig, "-n", "shop")
		took := time.Since(began)
		found := 0
		for _, m := range a.told {
			if strings.HasPrefix(m, "PortWithoutProtocol Service shop/") {
				found++
			}
		}
		if found != services {
			t.Errorf("%d of %d Services were read: %s", found, services, a.said)
		}
		t.Logf("%d Services of an API server are analyzed in %.1f s", services, took.Seconds())
		return took
	})
}
