package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/local/meshfile"
)

// unusedFields warns once of each field of containers and Pods that has no effect on one machine, with the Deployments
// that have it.
func unusedFields(m *meshfile.Mesh) (warnings []string) {
	for _, f := range []struct {
		name string
		set  func(corev1.PodSpec) bool
	}{
		{"livenessProbe", anyContainer(func(c corev1.Container) bool { return c.LivenessProbe != nil })},
		{"startupProbe", anyContainer(func(c corev1.Container) bool { return c.StartupProbe != nil })},
		{"resources", anyContainer(func(c corev1.Container) bool { return len(c.Resources.Limits)+len(c.Resources.Requests) > 0 })},
		{"securityContext", func(s corev1.PodSpec) bool {
			return s.SecurityContext != nil || anyContainer(func(c corev1.Container) bool { return c.SecurityContext != nil })(s)
		}},
		{"volumeMounts", anyContainer(func(c corev1.Container) bool { return len(c.VolumeMounts) > 0 })},
		{"hostAliases", func(s corev1.PodSpec) bool { return len(s.HostAliases) > 0 }},
	} {
		with := lists.Filter(m.Deployments, func(d meshfile.Deployment) bool { return f.set(d.Spec.Template.Spec) })
		if len(with) > 0 {
			names := lists.Map(with, func(d meshfile.Deployment) string { return d.Namespace + "/" + d.Name })
			warnings = append(warnings, fmt.Sprintf("%s of Deployment %s: has no effect on one machine", f.name, strings.Join(names, ", ")))
		}
	}
	return warnings
}

// anyContainer makes a condition of a Pod from one of its applications.
func anyContainer(set func(corev1.Container) bool) func(corev1.PodSpec) bool {
	return func(s corev1.PodSpec) bool {
		return slices.ContainsFunc(s.Containers, func(c corev1.Container) bool { return c.Name != proxyContainer && set(c) })
	}
}

// idleServices warns of Services whose selector selects nothing in the mesh files. It is silent about a namespace with
// a WorkloadGroup, whose members come later.
func idleServices(m *meshfile.Mesh) (warnings []string) {
	for _, s := range m.Services {
		if len(s.Spec.Selector) == 0 {
			continue
		}
		used := slices.ContainsFunc(m.Deployments, func(d meshfile.Deployment) bool {
			return d.Namespace == s.Namespace && selects(s.Spec.Selector, d.Spec.Template.Labels)
		})
		for _, o := range m.Objects {
			if o.Namespace != s.Namespace || o.GroupVersionKind().Group != "networking.istio.io" {
				continue
			}
			var entry struct {
				Spec struct{ Labels map[string]string }
			}
			switch {
			case o.Kind == "WorkloadGroup":
				used = true
			case o.Kind == "WorkloadEntry" && yaml.Unmarshal(o.Raw, &entry) == nil:
				used = used || selects(s.Spec.Selector, entry.Spec.Labels)
			}
		}
		if !used {
			warnings = append(warnings, fmt.Sprintf(
				"Service %s/%s: spec.selector selects no Pod and no WorkloadEntry of the mesh files; calls to it are answered with 503",
				s.Namespace, s.Name))
		}
	}
	return warnings
}
