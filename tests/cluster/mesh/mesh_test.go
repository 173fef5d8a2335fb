package mesh

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// The sample without a mesh: pods run, and find each other by short and full names of Services.
func TestPodsFindServicesByName(t *testing.T) {
	c := connect(t)
	const ns = "names"
	c.namespace(t, ns)
	began := time.Now()
	c.apply(t, program(ns, "ratings", "bookinfo", "ratings")+
		program(ns, "reviews", "bookinfo", "reviews", "--version=v3", "--ratings-url=http://ratings.names.svc.cluster.local:8080")+
		program(ns, "productpage", "bookinfo", "productpage", "--reviews-url=http://reviews:8080", "--details-url=http://details.names:8080"))
	c.available(t, ns, "ratings", "reviews", "productpage")
	t.Logf("three pods are ready after %.1f s", time.Since(began).Seconds())
	testkit.Eventually(t, patience, func() error {
		status, body, err := c.get(t.Context(), ns, "productpage", "/api/v1/products/0/reviews")
		if err != nil || status != http.StatusOK || !strings.Contains(body, `"stars"`) {
			return fmt.Errorf("the reviews come without stars: status %d, %s, %w", status, body, err)
		}
		return nil
	})
}

// The commands of deploy/README.md lead to a mesh, and a gateway follows objects that are written to Kubernetes alone.
func TestMeshFromKubernetesObjectsAlone(t *testing.T) {
	c := connect(t)
	const mesh, ns = "istio-system", "shop"
	names, err := kubeapi.ApplyCRDs(t.Context(), c.config, kubeapi.MeshCRDs(t))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=2m", "crd/"+names[0], "crd/"+names[len(names)-1])

	c.namespace(t, mesh)
	t.Cleanup(func() { c.try("delete", "-k", base, "--wait=false") })
	began := time.Now()
	c.kubectl(t, "apply", "-k", base)
	c.available(t, mesh, "ca", "config-watcher", "injector", "xds-server")
	t.Logf("kubectl apply -k deploy/kustomize/base: all ready after %.1f s", time.Since(began).Seconds())

	c.namespace(t, ns)
	c.reviewed(t, ns)
	c.apply(t, program(ns, "one", "echo", "one")+program(ns, "two", "echo", "two")+gateway)
	c.available(t, ns, "one", "two", "gateway")

	answers := func(want func(status int, version string) bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			status, body, err := c.get(t.Context(), ns, "gateway", "/x")
			if err != nil {
				return err
			}
			var seen struct{ Version string }
			_ = json.Unmarshal([]byte(body), &seen) // an answer of Envoy is no JSON
			if !want(status, seen.Version) {
				return fmt.Errorf("the gateway answers %d %s", status, body)
			}
			return nil
		})
	}
	by := func(version string) func(int, string) bool {
		return func(status int, got string) bool { return status == http.StatusOK && got == version }
	}
	c.apply(t, route("one"))
	answers(by("one"))
	began = time.Now()
	c.apply(t, route("two"))
	answers(by("two"))
	t.Logf("the gateway follows a changed VirtualService after %.2f s", time.Since(began).Seconds())

	// Endpoints of the Service, which nobody has applied.
	c.kubectl(t, "scale", "-n", ns, "deployment/two", "--replicas=0")
	answers(func(status int, _ string) bool { return status == http.StatusServiceUnavailable })
	c.kubectl(t, "scale", "-n", ns, "deployment/two", "--replicas=1")
	answers(by("two"))

	c.kubectl(t, "delete", "virtualservice", "-n", ns, "shop")
	answers(func(status int, _ string) bool { return status == http.StatusNotFound })
}

// reviewed waits until the API server asks config-watcher about objects, as deploy/ configures it, and lets no object
// in without. An object that is not valid is then refused with the field and the reason, and one that is passes.
func (c *cluster) reviewed(t *testing.T, namespace string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		found, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "fairlead-validator", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if hook := found.Webhooks[0]; *hook.FailurePolicy != registrationv1.Fail || len(hook.ClientConfig.CABundle) == 0 {
			return fmt.Errorf("failurePolicy %s, caBundle of %d bytes", *hook.FailurePolicy, len(hook.ClientConfig.CABundle))
		}
		return nil
	})
	file := filepath.Join(t.TempDir(), "route.yaml")
	apply := func(regex string) (string, error) {
		text := fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: reviewed, namespace: %s}, "+
			"spec: {hosts: [one], http: [{match: [{uri: {regex: %q}}], route: [{destination: {host: one}}]}]}}", namespace, regex)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := c.command(t.Context(), "apply", "-f", file).CombinedOutput()
		return string(out), err
	}
	// The API server learns of the change a moment later.
	testkit.Eventually(t, patience, func() error {
		if said, err := apply("("); err == nil || !strings.Contains(said, "spec.http[0].match[0].uri.regex") ||
			!strings.Contains(said, "missing closing )") {
			return fmt.Errorf("kubectl apply of a broken expression: %w: %s", err, said)
		}
		return nil
	})
	if said, err := apply("a+"); err != nil {
		t.Errorf("kubectl apply of a valid object: %v: %s", err, said)
	}
	c.kubectl(t, "delete", "-f", file)
}

// base is what `kubectl apply -k` gets.
const base = "../../../deploy/kustomize/base"

// route sends all requests at the gateway to a Service.
func route(to string) string {
	return `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: shop}
spec:
  selector: {app: gateway}
  servers:
    - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [shop]
  http:
    - route: [{destination: {host: ` + to + `, port: {number: 8080}}}]
`
}

// gateway is a proxy, as an owner of a mesh deploys one.
const gateway = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: gateway, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: gateway, namespace: shop}
spec: {selector: {app: gateway}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gateway, namespace: shop}
spec:
  selector: {matchLabels: {app: gateway}}
  template:
    metadata: {labels: {app: gateway}}
    spec:
      serviceAccountName: gateway
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 1337, runAsGroup: 1337, fsGroup: 1337, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: istio-proxy
          image: fairlead/proxy:dev
          imagePullPolicy: IfNotPresent
          args: [proxy, router, --state-dir=/var/lib/proxy/state]
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: INSTANCE_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: SERVICE_ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
          readinessProbe: {httpGet: {path: /healthz/ready, port: 15021}, periodSeconds: 1}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: state, mountPath: /var/lib/proxy}
            - {name: podinfo, mountPath: /etc/istio/pod}
            - {name: token, mountPath: /var/run/secrets/tokens}
            - {name: root-cert, mountPath: /var/run/secrets/istio}
      volumes:
        - {name: state, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
        - name: podinfo
          downwardAPI:
            items:
              - {path: labels, fieldRef: {fieldPath: metadata.labels}}
              - {path: annotations, fieldRef: {fieldPath: metadata.annotations}}
        - name: token
          projected: {sources: [{serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}}]}
        - {name: root-cert, configMap: {name: istio-ca-root-cert}}
---
`
