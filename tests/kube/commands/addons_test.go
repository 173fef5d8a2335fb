package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/kubeapi"
)

// addons are the namespaces of docs/guide/addons.md.
const addons = `
apiVersion: v1
kind: Namespace
metadata: {name: istio-addons}
---
apiVersion: v1
kind: Namespace
metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted}}
`

// TestIstiosAddonsRunInANamespaceOfTheirOwn runs the command of the guide on Istio's samples. As they are, some of
// their Pods are refused where the Pod Security Standard is that of the control plane.
func TestIstiosAddonsRunInANamespaceOfTheirOwn(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guide/addons.md")
	if err != nil {
		t.Fatal(err)
	}
	_, manifests := istio(t)
	expressions := regexp.MustCompile(`-e '([^']*)'`).FindAllStringSubmatch(string(guide), -1)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(manifests), "samples", "addons", "*.yaml"))
	if err != nil || len(files) < 5 || len(expressions) == 0 {
		t.Fatalf("%v, %v, %v", files, expressions, err)
	}
	args := []string{"-E"}
	for _, e := range expressions {
		args = append(args, "-e", e[1])
	}
	s := start(t)
	s.Apply(t, addons)
	refused, pods := 0, 0
	for _, file := range files {
		text, err := exec.Command("sed", append(args, file)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "loki.istio-system") {
			t.Errorf("%s: Loki is looked for in the old namespace", file)
		}
		s.Apply(t, string(text))
		for _, pod := range podsOf(t, string(text)) {
			pods++
			if pod.Namespace != "istio-addons" {
				t.Errorf("%s: Pod %s is in namespace %s", file, pod.Name, pod.Namespace)
			}
			if err := admits(t, s, pod); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			pod.Namespace, pod.Spec.ServiceAccountName = "restricted", "default"
			if err := admits(t, s, pod); err != nil && strings.Contains(err.Error(), "violates PodSecurity") {
				refused++
			}
		}
	}
	if pods < 5 || refused == 0 {
		t.Errorf("%d Pods, %d of them refused by the standard restricted", pods, refused)
	}
	t.Logf("%d Pods, %d of them refused by the standard restricted", pods, refused)
}

// podsOf are the Pods that Deployments and StatefulSets of a text ask for.
func podsOf(t *testing.T, text string) (pods []*corev1.Pod) {
	t.Helper()
	for _, doc := range regexp.MustCompile(`(?m)^---.*$`).Split(text, -1) {
		var d appsv1.StatefulSet // which has the fields of a Deployment, as far as they count here
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil || d.Kind != "Deployment" && d.Kind != "StatefulSet" {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, Labels: d.Spec.Template.Labels},
			Spec: d.Spec.Template.Spec}
		for _, claim := range d.Spec.VolumeClaimTemplates {
			pod.Spec.Volumes = append(pod.Spec.Volumes,
				corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		pods = append(pods, pod)
	}
	return pods
}

// admits has the API server judge a Pod, without effect.
func admits(t *testing.T, s *kubeapi.Server, pod *corev1.Pod) error {
	t.Helper()
	_, err := s.Client(t).CoreV1().Pods(pod.Namespace).Create(t.Context(), pod.DeepCopy(),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("Pod %s: %w", pod.Name, err)
	}
	return nil
}
