package kube

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// TestCNIRepairsPodsWithTheRightsOfTheChart: with the rights and flags that the installation gives to the CNI agent, a
// Pod of its node whose validation has failed is deleted, or labelled, and an event says so. Others are left alone.
func TestCNIRepairsPodsWithTheRightsOfTheChart(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: "+
		"istio-system}}")
	pods := s.Client(t).CoreV1().Pods("shop")
	for _, way := range []string{"delete", "label"} {
		t.Run(way, func(t *testing.T) {
			node := "node-" + way
			for name, p := range map[string]struct {
				node string
				code int32
			}{"without-rules": {node, 126}, "well": {node, 0}, "failed-otherwise": {node, 1}, "of-another-node": {"elsewhere", 126}} {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: name + "-" + way, Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
					Spec: corev1.PodSpec{
						NodeName: p.node, InitContainers: []corev1.Container{{Name: "istio-validation", Image: "proxy"}},
						Containers: []corev1.Container{{Name: "app", Image: "app"}},
					},
				}
				pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "istio-validation", Image: "proxy", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: p.code}},
				}}
				if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			startCNI(t, s, node, "--set", "values.cni.repair.repairPods=false", "--set", "values.cni.repair."+way+"Pods=true")
			repaired := func(name string) (bool, error) {
				p, err := pods.Get(t.Context(), name+"-"+way, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return true, nil
				} else if err != nil {
					return false, err
				}
				return p.DeletionTimestamp != nil || p.Labels["cni.istio.io/uninitialized"] == "true", nil
			}
			testkit.Eventually(t, patience, func() error {
				if done, err := repaired("without-rules"); err != nil || !done {
					return errors.Join(err, errors.New("the Pod without rules is not repaired"))
				}
				return nil
			})
			if way == "label" {
				if p, err := pods.Get(t.Context(), "without-rules-label", metav1.GetOptions{}); err != nil || p.DeletionTimestamp != nil {
					t.Errorf("the Pod is not only labelled: %v", err)
				}
			}
			// The API server lists Pods by name, so that the agent has looked at the others before.
			testkit.Eventually(t, patience, func() error {
				events, err := s.Client(t).CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
					return e.InvolvedObject.Name == "without-rules-"+way && e.Reason == "Unredirected" && e.Type == corev1.EventTypeNormal
				}) {
					return errors.New("no event says so")
				}
				return nil
			})
			for _, name := range []string{"well", "failed-otherwise", "of-another-node"} {
				if done, err := repaired(name); err != nil || done {
					t.Errorf("%s: repaired %t, %v", name, done, err)
				}
			}
		})
	}
}

// startCNI runs the CNI agent of a node as the installation does: with its rights and flags, but directories of the
// test's.
func startCNI(t *testing.T, s *kubeapi.Server, node string, settings ...string) {
	t.Helper()
	rendered := process.MustDo(t, exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"),
		append([]string{"manifest", "generate", "--set", "components.cni.enabled=true"}, settings...)...))
	objects, err := kubeapi.Decode([]byte(rendered))
	if err != nil {
		t.Fatal(err)
	}
	const name = "fairlead-cni"
	var set appsv1.DaemonSet
	for _, o := range objects {
		switch {
		case o.GetKind() == "DaemonSet" && strings.HasPrefix(o.GetName(), name):
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &set); err != nil {
				t.Fatal(err)
			}
		case strings.Contains(o.GroupVersionKind().Group, "rbac") && strings.HasPrefix(o.GetName(), name):
			if err := kubeapi.Apply(t.Context(), s.Config, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("the installation has no DaemonSet of the CNI agent: %s", rendered)
	}
	api := kubeapi.Load(t, s.ServiceAccount(t, set.Namespace, set.Spec.Template.Spec.ServiceAccountName))
	dir := t.TempDir()
	roots := api.CAData
	if len(roots) == 0 {
		if roots, err = os.ReadFile(api.CAFile); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string][]byte{"token": []byte(api.BearerToken), "ca.crt": roots} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	agent := binaries.Built(t, "node-agent")
	process.Run(t, process.Program{Name: "node-agent", Path: agent, Args: append(set.Spec.Template.Spec.Containers[0].Args,
		"--cni-bin-dir", dir, "--cni-conf-dir", dir, "--plugin", agent, "--socket", filepath.Join(dir, "s"), "--ops-address",
		testkit.FreeAddress(t).String(),
		"--node-name", node, "--pod-namespace", set.Namespace, "--kubernetes-dir", dir, "--kubernetes-address",
		strings.TrimPrefix(api.Host, "https://"))})
}
