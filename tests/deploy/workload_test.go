package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// selected are the Deployments whose Pods a selector finds.
func selected(objects []runtime.Object, selector map[string]string) []string {
	var names []string
	for _, d := range all[*appsv1.Deployment](objects) {
		if labels.SelectorFromSet(selector).Matches(labels.Set(d.Spec.Template.Labels)) {
			names = append(names, d.Name)
		}
	}
	return names
}

func TestSelectorsFindTheirPods(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		d, _ := service(t, objects, name)
		if got := selected(objects, d.Spec.Selector.MatchLabels); !slices.Equal(got, []string{name}) {
			t.Errorf("Deployment %s selects the Pods of %v", name, got)
		}
		b, ok := named[*policyv1.PodDisruptionBudget](objects, name)
		if !ok {
			t.Errorf("%s has no PodDisruptionBudget", name)
			continue
		}
		if got := selected(objects, b.Spec.Selector.MatchLabels); !slices.Equal(got, []string{name}) {
			t.Errorf("PodDisruptionBudget %s selects the Pods of %v", name, got)
		}
		// A budget that never lets a Pod go makes a node impossible to drain.
		if m := b.Spec.MinAvailable; m != nil && m.IntValue() >= int(*d.Spec.Replicas) {
			t.Errorf("PodDisruptionBudget %s wants %d of %d", name, m.IntValue(), *d.Spec.Replicas)
		}
	}
	// Istio's name leads to two services, which are told apart by the names of their ports.
	for name, want := range map[string][]string{"ca": {"ca"}, "config-watcher": {"config-watcher"}, "xds-server": {"xds-server"},
		"istiod": {"injector", "xds-server"}, "injector": {"injector"}, "xds-server-peers": {"xds-server"}} {
		s, ok := named[*corev1.Service](objects, name)
		if !ok {
			t.Fatalf("no Service %s", name)
		}
		if got := slices.Sorted(slices.Values(selected(objects, s.Spec.Selector))); !slices.Equal(got, want) {
			t.Errorf("Service %s selects the Pods of %v, want %v", name, got, want)
		}
		for _, p := range s.Spec.Ports {
			var leads []string
			for _, at := range want {
				if _, c := service(t, objects, at); containerPort(&c, p.TargetPort) != 0 {
					leads = append(leads, at)
				}
			}
			if len(leads) != 1 {
				t.Errorf("Service %s: port %s leads to %s, which %v have", name, p.Name, p.TargetPort.String(), leads)
			}
		}
	}
}

// Istio's sidecars dial istiod.istio-system.svc:15012, so that name must lead to xDS and be in its certificate.
func TestStockSidecarsFindTheirServers(t *testing.T) {
	objects := mesh(t)
	istiod, _ := named[*corev1.Service](objects, "istiod")
	if istiod == nil || !slices.ContainsFunc(istiod.Spec.Ports,
		func(p corev1.ServicePort) bool { return p.Port == 15012 && p.TargetPort.StrVal == "tls-xds" }) {
		t.Fatalf("Service istiod: %+v", istiod)
	}
	_, ca := service(t, objects, "ca")
	args := strings.Join(ca.Args, "\n")
	for _, name := range []string{"istiod.istio-system.svc", "xds-server.istio-system.svc", "ca.istio-system.svc"} {
		if !strings.Contains(args, "="+name+",") && !strings.Contains(args, ","+name+",") {
			t.Errorf("no certificate has the DNS name %s:\n%s", name, args)
		}
	}
	mesh, _ := named[*corev1.ConfigMap](objects, "istio")
	if mesh == nil || !strings.Contains(mesh.Data["mesh"], "CA_ADDR: ca.istio-system.svc:15012") {
		t.Error("the mesh configuration does not lead sidecars to the ca")
	}
}

// The replicas of xds-server find each other by a name that resolves to every ready Pod.
func TestReplicasFindEachOther(t *testing.T) {
	objects := mesh(t)
	_, c := service(t, objects, "xds-server")
	s, ok := named[*corev1.Service](objects, "xds-server-peers")
	if !ok || s.Spec.ClusterIP != corev1.ClusterIPNone || s.Spec.PublishNotReadyAddresses {
		t.Fatalf("Service xds-server-peers: %+v", s)
	}
	want := fmt.Sprintf("--peers=%s.%s.svc:%d", s.Name, s.Namespace, s.Spec.Ports[0].Port)
	if !slices.Contains(c.Args, want) || !slices.Contains(c.Args, fmt.Sprintf("--secure-address=:%d", s.Spec.Ports[0].Port)) {
		t.Errorf("arguments %v, want %s and that port", c.Args, want)
	}
}

func TestPodsAreConfined(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		d, c := service(t, objects, name)
		pod := d.Spec.Template.Spec
		p, s := pod.SecurityContext, c.SecurityContext
		if p == nil || s == nil {
			t.Fatalf("%s has no security context", name)
		}
		for what, ok := range map[string]bool{
			"runs as 1337, not root":          isTrue(p.RunAsNonRoot) && *p.RunAsUser == 1337 && *p.RunAsGroup == 1337,
			"has the default seccomp profile": p.SeccompProfile != nil && p.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
			"cannot gain privileges":          s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation && !isTrue(s.Privileged),
			"has a read-only file system":     isTrue(s.ReadOnlyRootFilesystem),
			"has no capability": s.Capabilities != nil && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) &&
				len(s.Capabilities.Add) == 0,
			"shares nothing with the node": !pod.HostNetwork && !pod.HostPID && !pod.HostIPC,
			"has memory bounded":           !c.Resources.Limits.Memory().IsZero() && !c.Resources.Requests.Memory().IsZero(),
			"asks for CPU":                 !c.Resources.Requests.Cpu().IsZero(),
			"is not injected":              d.Spec.Template.Labels["sidecar.istio.io/inject"] == "false",
			"has a tag other than latest":  strings.HasPrefix(c.Image, "fairlead/"+name+":") && !strings.HasSuffix(c.Image, ":latest"),
		} {
			if !ok {
				t.Errorf("not true of %s: it %s", name, what)
			}
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

func TestPodsStartAndStopGently(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		d, c := service(t, objects, name)
		for what, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != what || containerPort(&c, probe.HTTPGet.Port) != 15014 {
				t.Errorf("%s: probe for %s is %+v", name, what, probe)
			}
		}
		if c.StartupProbe == nil {
			t.Errorf("%s has no startup probe", name)
		}
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
			t.Errorf("%s does not wait before it stops; its image has no shell, so the wait must be Kubernetes' own", name)
			continue
		}
		if grace := d.Spec.Template.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < c.Lifecycle.PreStop.Sleep.Seconds+15 {
			t.Errorf("%s has not enough time to drain", name)
		}
		if replicas := *d.Spec.Replicas; (name == "ca") != (replicas == 1) {
			t.Errorf("%s has %d replicas", name, replicas)
		}
		if name == "ca" && d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			t.Error("two processes would hold the root's volume during an update")
		}
		if name != "ca" && len(d.Spec.Template.Spec.TopologySpreadConstraints) == 0 {
			t.Errorf("replicas of %s may all be on one node", name)
		}
	}
}

// Where a constraint selects Pods it must select its own.
func TestSpreadConstraintsSelectTheirOwn(t *testing.T) {
	for _, d := range all[*appsv1.Deployment](mesh(t)) {
		for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
			selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
			if err != nil || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Errorf("%s: %v, labels %v", d.Name, c.LabelSelector, slices.Sorted(maps.Keys(d.Spec.Template.Labels)))
			}
		}
	}
}
