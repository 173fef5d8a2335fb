package install

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/process"
)

var (
	operators = resource("install.istio.io", "v1alpha1", "istiooperators")
	services  = resource("", "v1", "services")
)

// startOperator runs `fairlead operator` with the small install package until the test ends.
func (r *rig) startOperator(t *testing.T, kubeconfig string, more ...string) *process.Process {
	t.Helper()
	args := append([]string{
		"operator", "--kubeconfig", kubeconfig, "--ops-address", testkit.FreeAddress(t).String(), "--operator-namespace", "ops",
		"--watch-namespaces", "mesh",
		"--manifests", r.manifests, "--lease-duration", "6s", "--resync", "1h", "--log-level", "debug",
	}, more...)
	return process.Run(t, process.Program{Name: "operator", Path: binaries.Built(t, "fairlead"), Args: args})
}

// writeKubeconfig writes a kubeconfig of a proxy.
func writeKubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: url}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy"}},
		CurrentContext: "proxy",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ask makes an IstioOperator in namespace mesh, or changes its spec.
func (r *rig) ask(t *testing.T, name string, spec map[string]any) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator", "metadata": map[string]any{"name": name, "namespace": "mesh"},
		"spec": spec,
	}}
	_, err := r.dynamic.Resource(operators).Namespace("mesh").Create(t.Context(), u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		eventually(t, func() error {
			live, err := r.dynamic.Resource(operators).Namespace("mesh").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				live.Object["spec"] = spec
				_, err = r.dynamic.Resource(operators).Namespace("mesh").Update(t.Context(), live, metav1.UpdateOptions{})
			}
			return err
		})
	} else if err != nil {
		t.Fatal(err)
	}
}

// env is a spec with variables of the control plane, which decide what is in its ConfigMap.
func env(pairs ...string) map[string]any {
	all := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return map[string]any{"values": map[string]any{"pilot": map[string]any{"env": all}}}
}

// with adds a revision to a spec.
func with(spec map[string]any, revision string) map[string]any {
	spec["revision"] = revision
	return spec
}

// becomes waits until the status of an IstioOperator, of its present generation, is one, with some words in it.
func (r *rig) becomes(t *testing.T, name, status string, words ...string) {
	t.Helper()
	eventually(t, func() error {
		live, err := r.dynamic.Resource(operators).Namespace("mesh").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has, _, _ := unstructured.NestedMap(live.Object, "status")
		text, err := json.Marshal(has)
		if err != nil {
			return err
		}
		if has["status"] != status || has["observedGeneration"] != live.GetGeneration() {
			return fmt.Errorf("the status of %s, generation %d, is %s, expected %s", name, live.GetGeneration(), text, status)
		}
		for _, w := range words {
			if !strings.Contains(string(text), w) {
				return fmt.Errorf("the status of %s is %s, without %q", name, text, w)
			}
		}
		return nil
	})
}

// healthy makes the Deployments of revisions ready, and waits for the status.
func (r *rig) healthy(t *testing.T, name, deployment string) {
	t.Helper()
	r.ready(t, "mesh", deployment)
	r.becomes(t, name, "HEALTHY")
}

// withdraw deletes an IstioOperator, and waits until it is gone.
func (r *rig) withdraw(t *testing.T, name string) {
	t.Helper()
	client := r.dynamic.Resource(operators).Namespace("mesh")
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		live, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%s is still there: %v", name, live.Object["status"])
	})
}

// level waits until the ConfigMap of a control plane has a level.
func (r *rig) level(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, func() error {
		u, err := r.dynamic.Resource(configMaps).Namespace("mesh").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if level, _, _ := unstructured.NestedString(u.Object, "data", "level"); level != want {
			return fmt.Errorf("level of %s is %s, expected %s", name, level, want)
		}
		return nil
	})
}
