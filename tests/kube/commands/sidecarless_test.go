package commands

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsWithoutAWorkingSidecarAreDescribed describes Pods that have no proxy, or one that does not run, by the
// beginning of their names, and says why.
func TestPodsWithoutAWorkingSidecarAreDescribed(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	k := &kubelet{ports: map[string]string{}}
	k.node(t, s)
	p := startPlane(t, s, k)
	p.watcher(t, s, "config-watcher-1", "", "config-watcher:1.2.3")
	s.Apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: asks, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: asks-not}
---
apiVersion: v1
kind: Pod
metadata: {name: early-0, namespace: asks, labels: {app: early}}
spec: {containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: refuses-0, namespace: asks, labels: {app: refuses, sidecar.istio.io/inject: "false"}}
spec: {containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host-0, namespace: asks, labels: {app: host}}
spec: {hostNetwork: true, containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: plain-0, namespace: asks-not, labels: {app: plain}}
spec: {containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: crashes-0, namespace: asks, labels: {app: crashes}}
spec: {containers: [{name: app, image: app, securityContext: {runAsUser: 1337}}, {name: istio-proxy, image: proxy}]}
---
apiVersion: v1
kind: Pod
metadata: {name: grpc-0, namespace: asks, labels: {app: grpc}}
spec: {containers: [{name: app, image: app}, {name: istio-proxy, image: proxy, env: [{name: ISTIO_META_GENERATOR, value: grpc}]}]}
`)
	crashing := `{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
		{"name": "app", "image": "app", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
		{"name": "istio-proxy", "image": "proxy", "imageID": "", "ready": false, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}, "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}}]}}`
	if _, err := s.Client(t).CoreV1().Pods("asks").Patch(t.Context(), "crashes-0", types.MergePatchType, []byte(crashing),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string][]string{
		"early": {"Pod early-0.asks\n", "warning PodWithoutProxy",
			"it was made before it was to have one, or the injector of revision default did not answer"},
		"refuses":          {"sidecar.istio.io/inject of the Pod is false"},
		"host-0.asks":      {"it is in the node's network (hostNetwork)"},
		"plain-0.asks-not": {"neither namespace asks-not has the label istio-injection=enabled"},
		"grpc-0": {"info ProxyNotConnected Pod asks/grpc-0: its gRPC client is not connected to the control plane: it connects with " +
			"its first call"},
		"crashes-0": {
			"Pod crashes-0.asks\n", "error ProxyNotConnected",
			"the Pod is not ready: container istio-proxy: CrashLoopBackOff: back-off 40s (it ended with exit code 2, Error)",
			"warning ProxyBypassed Pod asks/crashes-0: container app has runAsUser 1337",
		},
	} {
		out, _ := does(t, s, 0, "describe", "pod", pod)
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s: %q is not in\n%s", pod, text, out)
			}
		}
	}
	if out, said, code := run(t, fairlead(t), s.Kubeconfig, "", "describe", "pod", "nobody"); code != 1 ||
		!strings.Contains(said, fmt.Sprintf("no proxy is named %q", "nobody")) {
		t.Errorf("a Pod that is not there: %d %s%s", code, out, said)
	}
}
