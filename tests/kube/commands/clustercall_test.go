package commands

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// injected starts an API server with a webhook that gives Pods with the label a sidecar, as an injector does.
func injected(t *testing.T) *kubeapi.Server {
	t.Helper()
	s := kubeapi.Start(t, kubeapi.Options{Args: []string{"--disable-admission-plugins=ServiceAccount"}})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind,
			Patch: []byte(`[{"op": "add", "path": "/spec/containers/-", "value": {"name": "istio-proxy", "image": "hub/node-agent:1"}}]`)}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(&review)
	}))
	t.Cleanup(hook.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	s.Apply(t, fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: inject},
webhooks: [{name: inject.example.com, admissionReviewVersions: [v1], sideEffects: None,
objectSelector: {matchLabels: {sidecar.istio.io/inject: "true"}},
clientConfig: {url: "%s/", caBundle: %s}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE],
resources: [pods]}]}]}`, hook.URL, testkit.Must(json.Marshal(bundle))(t)))
	return s
}

// ends plays the kubelet for the Pods of the check: the container that calls ends with a code and its last words. It
// returns what was made.
func ends(t *testing.T, s *kubeapi.Server, code int32, said string) (made func() []string) {
	t.Helper()
	client := s.Client(t).CoreV1()
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=clusters-check"}
	watch := testkit.Must(client.Pods("default").Watch(t.Context(), ours))(t)
	t.Cleanup(watch.Stop)
	var mu sync.Mutex
	var seen []string
	go func() {
		for e := range watch.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type != "ADDED" {
				continue
			}
			mu.Lock()
			seen = append(seen, fmt.Sprint(p.Spec.Containers[0].Image, " ", p.Spec.Containers[0].Command))
			mu.Unlock()
			if code < 0 {
				continue // it hangs
			}
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "call", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: said}}}}
			_, _ = client.Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// TestClustersCallEachOther: a Pod of each cluster calls what only the other has, and is gone afterwards, also after
// Ctrl-C.
func TestClustersCallEachOther(t *testing.T) {
	west, east := injected(t), injected(t)
	kubeconfig := contexts(t, map[string]string{"west": west.Kubeconfig, "east": east.Kubeconfig})
	for _, s := range []*kubeapi.Server{west, east} {
		s.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: pay, namespace: shop}, spec: {ports: [{name: http-pay, port: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: both, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}`)
	}
	has := func(s *kubeapi.Server, service string) {
		s.Apply(t, fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, namespace: shop, labels: {
kubernetes.io/service-name: %[1]s}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: [{name: http, port: 80}]}`, service))
	}
	has(west, "both")
	has(east, "both")
	none := checksWith(t, kubeconfig, 1, "--call")
	says(t, none, "call", "UNKNOWN", "no Service for HTTP of both clusters has ready endpoints in east alone")
	has(east, "cart")
	has(west, "pay")
	noImage := checksWith(t, kubeconfig, 1, "--call")
	says(t, noImage, "call", "UNKNOWN", "no Pod with a sidecar runs")

	fromWest := ends(t, west, 0, "")
	fromEast := ends(t, east, 1, "{}\nthe proxy is not ready: 503 Service Unavailable: no healthy upstream")
	rows := checksWith(t, kubeconfig, 1, "--call", "--call-image=hub/agent:2")
	says(t, rows, "call", "OK", "a Pod of west calls http://cart.shop.svc.cluster.local:80/, whose endpoints are in east, and gets status 200")
	says(t, rows, "call", "FAILED", "a Pod of east calls http://pay.shop.svc.cluster.local:8080/: no answer: {}\nthe proxy is not ready: 503")
	for _, made := range [][]string{fromWest(), fromEast()} {
		if len(made) != 1 || !strings.HasPrefix(made[0], "hub/agent:2 [pilot-agent wait --url=http://") {
			t.Errorf("made %v", made)
		}
	}
	gone := func() {
		t.Helper()
		for _, s := range []*kubeapi.Server{west, east} {
			if left := testkit.Must(s.Client(t).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}))(t); len(left.Items) > 0 {
				t.Errorf("%d Pods are left, such as %s", len(left.Items), left.Items[0].Name)
			}
		}
	}
	gone()
	// Without the flag nothing is made.
	checksWith(t, kubeconfig, 1)
	if len(fromWest()) != 1 {
		t.Errorf("made %v", fromWest())
	}

	// Ctrl-C while the Pods hang, as where no image can be pulled: nobody plays the kubelet of that namespace.
	cmd := exec.CommandContext(t.Context(), fairlead(t), "clusters", "check", "--context", "west", "--context", "east", "--call", "--call-image=x",
		"--call-namespace=shop", "--kubeconfig", kubeconfig) //nolint:gosec // the program under test
	testkit.NoError(t, cmd.Start())
	in := func(s *kubeapi.Server) int {
		return len(testkit.Must(s.Client(t).CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{}))(t).Items)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if in(west) != 1 || in(east) != 1 {
			return fmt.Errorf("%d and %d Pods", in(west), in(east))
		}
		return nil
	})
	testkit.NoError(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted check ends with exit code 0")
	}
	if in(west)+in(east) != 0 {
		t.Errorf("after Ctrl-C %d and %d Pods are left", in(west), in(east))
	}
}
