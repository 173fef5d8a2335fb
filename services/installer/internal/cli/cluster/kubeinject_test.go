package cluster_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

const (
	injectTemplate = "metadata: {labels: {net: \"{{ .ProxyConfig.ProxyMetadata.NET }}\", native: \"{{ .NativeSidecars }}\", rev: \"r{{ " +
		".Revision }}\"}}\nspec: {containers: [{name: istio-proxy, image: \"{{ .ProxyImage }}\"}]}\n"
	injectValues = "global: {hub: example.com/mesh, tag: v1}\n"
	injectMesh   = "defaultConfig: {proxyMetadata: {NET: mesh}}\n"
	injectPod    = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec: {containers: [{name: web, image: nginx}]}\n"
)

func injectFiles(t *testing.T) string {
	t.Helper()
	return "--injectConfigFile " + clitest.File(t, injectTemplate) + " --valuesFile " + clitest.File(t, injectValues) + " --meshConfigFile " +
		clitest.File(t, injectMesh)
}

func TestKubeInjectFromFiles(t *testing.T) {
	files := injectFiles(t)
	for name, tc := range map[string]struct {
		stdin, args, says string
		code              int
		wants             []string
	}{
		"a file": {"", "-f " + clitest.File(t, injectPod) + " " + files, "", process.ExitOK,
			[]string{"image: example.com/mesh/proxyv2:v1", "net: mesh", `native: "false"`, "rev: r\n"}},
		"standard input":       {injectPod, "-f - -r canary " + files, "", process.ExitOK, []string{"rev: rcanary"}},
		"the revision default": {injectPod, "-f - -r default " + files, "", process.ExitOK, []string{"rev: r\n"}},
		"a whole configuration": {injectPod, "-f - --webhookConfig x " + files + " --injectConfigFile " +
			clitest.File(t, "policy: disabled\ntemplates: {sidecar: 'metadata: {labels: {whole: \"1\"}}'}"), "", process.ExitOK,
			[]string{"whole: \"1\"", "--webhookConfig is not read"}},
		"a bad annotation": {strings.Replace(injectPod, "name: a,", "name: a, annotations: {sidecar.istio.io/proxyCPU: x},", 1),
			"-f - " + files, "-: document 1: Pod shop/a: annotation sidecar.istio.io/proxyCPU", process.ExitRefused, nil},
		"no file":             {"", files, "name the file with the workloads with -f", process.ExitUsage, nil},
		"a file that is away": {"", "-f /none.yaml " + files, "/none.yaml", process.ExitUsage, nil},
		"a bad mesh": {injectPod, "-f - " + files + " --meshConfigFile " + clitest.File(t, "defaultConfig: {statusPort: 0}"), "statusPort",
			process.ExitRefused, nil},
		"bad values": {injectPod, "-f - " + files + " --valuesFile " + clitest.File(t, "- a"), "values of the injection configuration",
			process.ExitRefused, nil},
		"no cluster": {injectPod, "-f - --kubeconfig /none", "--injectConfigFile", process.ExitFailure, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := clitest.Run(tc.stdin, append([]string{"kube-inject"}, strings.Fields(tc.args)...)...)
			if code != tc.code || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("exit code %d, error %v, output %s", code, err, out)
			}
			for _, want := range tc.wants {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestKubeInjectWritesAFileOnlyIfAllIsInjected(t *testing.T) {
	output := filepath.Join(t.TempDir(), "out.yaml")
	bad := injectPod + "---\n" + strings.Replace(injectPod, "name: a,", "name: b, annotations: {sidecar.istio.io/proxyCPU: x},", 1)
	args := append([]string{"kube-inject", "-f", "-", "-o", output}, strings.Fields(injectFiles(t))...)
	if _, code, err := clitest.Run(bad, args...); code != process.ExitRefused {
		t.Fatalf("exit code %d, error %v", code, err)
	}
	if _, err := os.Stat(output); err == nil {
		t.Error("half of the result is written")
	}
	if _, code, err := clitest.Run(injectPod, args...); code != process.ExitOK {
		t.Fatalf("exit code %d, error %v", code, err)
	}
	if text, err := os.ReadFile(output); err != nil || !strings.Contains(string(text), "istio-proxy") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestKubeInjectFromACluster takes the configuration of a revision, the nodes' versions, the ProxyConfigs and the
// namespaces from an API server.
func TestKubeInjectFromACluster(t *testing.T) {
	answers := map[string]any{
		"/api/v1/namespaces/mesh/configmaps/istio-sidecar-injector-canary": corev1.ConfigMap{
			Data: map[string]string{"config": "policy: enabled\ntemplates: {sidecar: " + quoted(injectTemplate) + "}", "values": injectValues}},
		"/api/v1/namespaces/mesh/configmaps/istio-canary": corev1.ConfigMap{Data: map[string]string{"mesh": injectMesh}},
		"/api/v1/namespaces/mesh/configmaps/istio":        corev1.ConfigMap{Data: map[string]string{"other": ""}},
		"/api/v1/nodes": corev1.NodeList{
			Items: []corev1.Node{{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.34.0"}}}}},
		"/api/v1/namespaces/shop": corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		"/apis/networking.istio.io/v1beta1/proxyconfigs": json.RawMessage(
			`{"items":[{"metadata":{"name":"p","namespace":"shop"},"spec":{"environmentVariables":{"NET":"shop"}}}]}`),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	config := clitest.File(t, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: '"+server.URL+
		"'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n")
	out, code, err := clitest.Run(injectPod, "kube-inject", "-f", "-", "-i", "mesh", "-r", "canary", "-c", config)
	if code != process.ExitOK {
		t.Fatalf("exit code %d, error %v", code, err)
	}
	for _, want := range []string{"net: shop", `native: "true"`, "rev: rcanary", "image: example.com/mesh/proxyv2:v1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, code, err := clitest.Run(injectPod, "kube-inject", "-f", "-", "-i", "mesh", "-r", "other", "-c", config); code !=
		process.ExitRefused || !strings.Contains(err.Error(), "no ConfigMap istio-other in the namespace mesh") {
		t.Errorf("a revision that is not there: exit code %d, error %v", code, err)
	}
	if _, code, err := clitest.Run(injectPod, "kube-inject", "-f", "-", "-i", "mesh", "-c", config); code != process.ExitRefused ||
		!strings.Contains(err.Error(), "has no key mesh") {
		t.Errorf("a ConfigMap without its key: exit code %d, error %v", code, err)
	}
	answers["/api/v1/nodes"] = corev1.NodeList{
		Items: []corev1.Node{{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.32.0"}}}}}
	delete(answers, "/apis/networking.istio.io/v1beta1/proxyconfigs")
	if out, _, err := clitest.Run(injectPod, "kube-inject", "-f", "-", "-i", "mesh", "-r", "canary", "-c", config); err != nil ||
		!strings.Contains(out, `native: "false"`) || !strings.Contains(out, "net: mesh") {
		t.Errorf("%v\n%s", err, out)
	}
}

func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
