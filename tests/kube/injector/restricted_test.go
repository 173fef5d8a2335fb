package injector

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRestrictedNamespacesTakeInjectedPods injects Pods in a namespace that enforces the Pod Security Standard
// restricted, where redirection is the CNI plugin's: what injection adds meets it, whatever the application's own
// containers say about themselves.
func TestRestrictedNamespacesTakeInjectedPods(t *testing.T) {
	r := newRig(t, "components.cni.enabled=true")
	r.namespace("strict", map[string]string{"istio-injection": "enabled", "pod-security.kubernetes.io/enforce": "restricted"})
	r.start()
	meets := func(p *corev1.Pod) {
		yes, no := true, false
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	for _, kind := range []string{"sidecar", "grpc-agent", "grpc-simple"} {
		r.injectsInto(t, kind, pod(kind, meets, annotation("inject.istio.io/templates", kind)))
	}
	r.injectsInto(t, "classic", pod("classic", meets, annotation("sidecar.istio.io/nativeSidecar", "false")))
	r.injectsInto(t, "gateway", pod("gateway", annotation("inject.istio.io/templates", "gateway"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Name, p.Spec.Containers[0].Image = "istio-proxy", "auto"
	}))
	// The standard is enforced: without injection the same Pod is refused.
	if _, err := r.dryRun("strict", pod("bare", label("sidecar.istio.io/inject", "false"))); err == nil {
		t.Error("a Pod that does not meet the standard is stored")
	}
}

// injectsInto has the API server judge an injected Pod in namespace strict.
func (r *rig) injectsInto(t *testing.T, kind string, p *corev1.Pod) {
	t.Helper()
	stored, err := r.dryRun("strict", p)
	if err != nil {
		t.Errorf("%s: %v", kind, err)
	} else if kind != "grpc-simple" && proxy(stored) == nil {
		t.Errorf("%s: no proxy", kind)
	}
}
