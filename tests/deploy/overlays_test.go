package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func overlay(t *testing.T, name string) []runtime.Object {
	t.Helper()
	text, err := render("../../deploy/kustomize/overlays/" + name)
	if err != nil {
		t.Fatal(err)
	}
	// The operator's definition is the only one: an API server takes it in tests/kube.
	documents := slices.DeleteFunc(strings.Split(string(text), "\n---\n"),
		func(one string) bool { return strings.Contains(one, "kind: CustomResourceDefinition\n") })
	objects, err := decode([]byte(strings.Join(documents, "\n---\n")))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Each overlay is known to Kubernetes, and has the Deployments in the namespaces that its name promises.
func TestOverlaysAreWhatTheirNamesSay(t *testing.T) {
	for name, want := range map[string][]string{
		"compact": {"istio-system/fairlead", "istio-system/gateways", "istio-system/injector", "istio-system/keeper"},
		"ha": {"istio-system/config-watcher", "istio-system/gateways", "istio-system/injector", "istio-system/keeper",
			"istio-system/xds-server"},
		"revision": {"istio-system/ca", "istio-system/config-watcher-canary", "istio-system/gateways-canary", "istio-system/injector-canary",
			"istio-system/keeper-canary", "istio-system/xds-server-canary"},
		"operator": {"istio-operator/fairlead-operator"},
		"split-namespaces": {"fairlead-ca/ca", "fairlead-xds/xds-server", "istio-system/config-watcher", "istio-system/gateways",
			"istio-system/injector", "istio-system/keeper"},
	} {
		objects := overlay(t, name)
		var got []string
		for _, d := range all[*appsv1.Deployment](objects) {
			got = append(got, d.Namespace+"/"+d.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has the Deployments %v, want %v", name, got, want)
		}
		var namespaces []string
		for _, n := range all[*corev1.Namespace](objects) {
			namespaces = append(namespaces, n.Name)
		}
		for _, d := range want {
			if in, _, _ := strings.Cut(d, "/"); !slices.Contains(namespaces, in) {
				t.Errorf("%s: namespace %s of %s is not rendered", name, in, d)
			}
		}
	}
}

// What the services of one Pod dial is inside of the Pod: a Service does not lead to a Pod that is not ready yet.
func TestServicesOfOnePodWaitForNoService(t *testing.T) {
	d, ok := named[*appsv1.Deployment](overlay(t, "compact"), "fairlead")
	if !ok || len(d.Spec.Template.Spec.Containers) != 3 {
		t.Fatalf("Deployment fairlead: %+v", d)
	}
	ports := map[int32]string{}
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, a := range c.Args {
			if flag, value, _ := strings.Cut(a, "="); strings.HasSuffix(flag, "-address") && strings.Contains(value, ".svc") || flag == "--peers" {
				t.Errorf("%s: %s", c.Name, a)
			}
		}
		for _, p := range c.Ports {
			if other, taken := ports[p.ContainerPort]; taken {
				t.Errorf("%s and %s listen on port %d", other, c.Name, p.ContainerPort)
			}
			ports[p.ContainerPort] = c.Name
		}
	}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil && madeByTheCA[v.ConfigMap.Name] != nil {
			t.Errorf("the Pod cannot start before its own ca has written ConfigMap %s", v.ConfigMap.Name)
		}
	}
}

func TestManyReplicasScale(t *testing.T) {
	objects := overlay(t, "ha")
	for _, name := range []string{"config-watcher", "xds-server"} {
		h, ok := named[*autoscalingv2.HorizontalPodAutoscaler](objects, name)
		if !ok || *h.Spec.MinReplicas < 3 || h.Spec.ScaleTargetRef.Name != name {
			t.Errorf("autoscaler %s: %+v", name, h)
		}
		if d, _ := named[*appsv1.Deployment](objects, name); d == nil || d.Spec.Replicas != nil {
			t.Errorf("each apply would take the replicas of Deployment %s back from the autoscaler", name)
		}
	}
}

// The replicas of the ca have their keys in a Secret, find each other while they are not ready, and own no volume
// together.
func TestReplicasOfTheCAShareKeysAndNoVolume(t *testing.T) {
	objects := overlay(t, "ha")
	s, ok := named[*appsv1.StatefulSet](objects, "ca")
	if !ok || *s.Spec.Replicas != 3 || len(s.Spec.VolumeClaimTemplates) != 1 {
		t.Fatalf("StatefulSet ca: %+v", s)
	}
	pod := s.Spec.Template.Spec
	for _, v := range pod.Volumes {
		if v.PersistentVolumeClaim != nil {
			t.Errorf("volume %s is one of all replicas", v.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		claimed := m.Name == s.Spec.VolumeClaimTemplates[0].Name
		if !claimed && !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("mount %s has no volume", m.Name)
		}
	}
	peers, ok := named[*corev1.Service](objects, s.Spec.ServiceName)
	if !ok || peers.Spec.ClusterIP != corev1.ClusterIPNone || !peers.Spec.PublishNotReadyAddresses ||
		!slices.Contains(pod.Containers[0].Args, "--peers="+peers.Name+"."+peers.Namespace+".svc:15012") {
		t.Errorf("Service %s: %+v, arguments %q", s.Spec.ServiceName, peers, pod.Containers[0].Args)
	}
	if c, ok := named[*corev1.ConfigMap](objects, "ca-signer"); !ok || !strings.Contains(c.Data["signer.yaml"], "name: ca-keys") {
		t.Errorf("ConfigMap ca-signer: %+v", c)
	}
	budget, ok := named[*policyv1.PodDisruptionBudget](objects, "ca")
	if !ok || budget.Spec.MaxUnavailable == nil || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("PodDisruptionBudget ca: %+v", budget)
	}
}

// The operator takes the arguments and the variables of its Deployment: it complains of the last one alone, which is
// wrong on purpose.
func TestOperatorAcceptsItsFlags(t *testing.T) {
	objects := overlay(t, "operator")
	d, ok := named[*appsv1.Deployment](objects, "fairlead-operator")
	if !ok {
		t.Fatal("no Deployment")
	}
	out := filepath.Join(t.TempDir(), "fairlead")
	if dir := os.Getenv("BIN_DIR"); dir != "" {
		out = filepath.Join(dir, "fairlead")
	} else if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", out,
		"fairlead.dev/services/installer/cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	args := append(arguments(t, objects, d.Spec.Template.Spec.Containers[0]), "--workers=0")
	text, err := exec.CommandContext(t.Context(), out, args...).CombinedOutput() //nolint:gosec // the program under test
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || strings.TrimSpace(string(text)) != "fairlead: --workers: 0 is not between 1 and 64" {
		t.Errorf("%v: %s", err, text)
	}
}
