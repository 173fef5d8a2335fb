package operator

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
)

// allowFlag is the flag that lifts the guard.
const allowFlag = "--allow-privileges"

// privilegedComponent may have the node's privileges: its plugin is installed on nodes.
const privilegedComponent = "cni"

// trusted are the components with rights beyond the mesh, to nodes and to webhooks, and what these are. No overlay
// changes their Pods.
var trusted = map[string]string{privilegedComponent: "privileges of the node", "keeper": "the right to write webhook configurations",
	"gatewayDeployments": "the right to make Pods everywhere"}

// guard refuses what makes more of the right to write IstioOperators than the choice of a mesh and of its images:
// overlays that change which objects there are, in which namespace, as which account, or rights and webhooks, or the
// Pods of trusted components; and Pods with privileges of the node, by whatever field, outside of the CNI component. It
// compares with the same resource without its overlays. Images are not judged: who chooses them is an administrator.
func (op *Operator) guard(r *resource, file merge.File, result *install.Result) error {
	if op.options.AllowPrivileges {
		return nil
	}
	var problems []string
	for _, o := range result.Objects {
		if o.Component == privilegedComponent {
			continue
		}
		if spec := podSpec(o); spec != nil {
			for _, what := range privileges(spec) {
				problems = append(problems, fmt.Sprintf("component %s: %s has %s", o.Component, name(o), what))
			}
		}
	}
	if bare, has := r.withoutOverlays(); has {
		text, err := json.Marshal(bare)
		if err != nil {
			return err
		}
		plain, err := install.Generate(install.Inputs{Inputs: merge.Inputs{Files: []merge.File{{Name: file.Name, Text: text}}}, Package: op.pkg})
		if err != nil {
			return err
		}
		problems = append(problems, overlaid(plain.Objects, result.Objects)...)
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s; nothing is changed: an operator lets IstioOperators set no such thing, which is no part of a mesh. "+
		"Leave it out, install it by the command line with your own rights, or start the operator with %s", strings.Join(problems, "; "),
		allowFlag)
}

// withoutOverlays is the resource without its overlays; has is false if there are none.
func (r *resource) withoutOverlays() (doc map[string]any, has bool) {
	spec, ok := r.Object["spec"].(map[string]any)
	if !ok {
		return nil, false
	}
	spec = (&unstructured.Unstructured{Object: spec}).DeepCopy().Object
	var strip func(v any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if k8s, ok := v["k8s"].(map[string]any); ok && k8s["overlays"] != nil {
				has = true
				delete(k8s, "overlays")
			}
			for _, inner := range v {
				strip(inner)
			}
		case []any:
			for _, inner := range v {
				strip(inner)
			}
		}
	}
	strip(spec["components"])
	return map[string]any{"apiVersion": r.GetAPIVersion(), "kind": r.GetKind(), "spec": spec}, has
}

// whole are groups whose objects no overlay changes.
var whole = []string{"rbac.authorization.k8s.io/", "admissionregistration.k8s.io/", "apiextensions.k8s.io/"}

// overlaid says what overlays have changed that they may not.
func overlaid(plain, result []*manifest.Object) (problems []string) {
	before := map[string]*manifest.Object{}
	for _, o := range plain {
		before[o.Component+" "+name(o)] = o
	}
	for _, o := range result {
		was := before[o.Component+" "+name(o)]
		if was == nil {
			problems = append(problems, fmt.Sprintf("component %s: an overlay makes %s of another object", o.Component, name(o)))
			continue
		}
		if slices.ContainsFunc(whole, func(group string) bool { return strings.HasPrefix(o.APIVersion(), group) }) &&
			!reflect.DeepEqual(was.Tree, o.Tree) {
			problems = append(problems, fmt.Sprintf("component %s: an overlay changes %s", o.Component, name(o)))
		}
		spec, old := podSpec(o), podSpec(was)
		if spec == nil || old == nil {
			continue
		}
		if spec.ServiceAccountName != old.ServiceAccountName || spec.DeprecatedServiceAccount != old.DeprecatedServiceAccount {
			problems = append(problems, fmt.Sprintf("component %s: an overlay gives %s another service account", o.Component, name(o)))
		}
		if has := trusted[o.Component]; has != "" && !reflect.DeepEqual(spec, old) {
			problems = append(problems, fmt.Sprintf("component %s: an overlay changes the Pods of %s, which have %s", o.Component, name(o), has))
		}
	}
	return problems
}

// name is an object's kind, namespace and name.
func name(o *manifest.Object) string {
	u := unstructured.Unstructured{Object: o.Tree}
	return strings.TrimSpace(o.Kind() + " " + strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/"))
}

// podSpec is the spec of an object's Pods; nil if it has none. One that does not decode has every privilege: see
// privileges.
func podSpec(o *manifest.Object) *corev1.PodSpec {
	path := []string{"spec", "template", "spec"}
	switch o.Kind() {
	case "Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job":
	case "Pod":
		path = []string{"spec"}
	case "CronJob":
		path = []string{"spec", "jobTemplate", "spec", "template", "spec"}
	default:
		return nil
	}
	tree, _, _ := unstructured.NestedMap(plain(o.Tree), path...)
	text, err := json.Marshal(tree)
	spec := &corev1.PodSpec{}
	if err != nil || json.Unmarshal(text, spec) != nil {
		return &corev1.PodSpec{HostPID: true}
	}
	return spec
}

// plain is a tree with the types that unstructured knows.
func plain(tree map[string]any) map[string]any {
	text, err := json.Marshal(tree)
	out := map[string]any{}
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil
	}
	return out
}

// privileges lists what of a Pod is the node's, or takes protection away that a container has by default.
func privileges(spec *corev1.PodSpec) (found []string) {
	pod := spec.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	for what, has := range map[string]bool{
		"hostNetwork": spec.HostNetwork, "hostPID": spec.HostPID, "hostIPC": spec.HostIPC, "sysctls": len(pod.Sysctls) > 0,
		"seLinuxOptions": pod.SELinuxOptions != nil, "windowsOptions.hostProcess": hostProcess(pod.WindowsOptions),
		"no seccomp profile": unconfined(pod.SeccompProfile), "no AppArmor profile": unconfinedByAppArmor(pod.AppArmorProfile),
	} {
		if has {
			found = append(found, what)
		}
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			found = append(found, "a hostPath volume")
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 }) {
			found = append(found, "a hostPort")
		}
		if c.SecurityContext != nil {
			found = append(found, containerPrivileges(c.SecurityContext)...)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func containerPrivileges(c *corev1.SecurityContext) (found []string) {
	for what, has := range map[string]bool{
		"a privileged container":   c.Privileged != nil && *c.Privileged,
		"allowPrivilegeEscalation": c.AllowPrivilegeEscalation != nil && *c.AllowPrivilegeEscalation,
		"another procMount":        c.ProcMount != nil && *c.ProcMount != corev1.DefaultProcMount,
		"further capabilities": c.Capabilities != nil &&
			slices.ContainsFunc(c.Capabilities.Add, func(added corev1.Capability) bool { return added != "NET_BIND_SERVICE" }),
		"seLinuxOptions":             c.SELinuxOptions != nil,
		"windowsOptions.hostProcess": hostProcess(c.WindowsOptions),
		"no seccomp profile":         unconfined(c.SeccompProfile),
		"no AppArmor profile":        unconfinedByAppArmor(c.AppArmorProfile),
	} {
		if has {
			found = append(found, what)
		}
	}
	return found
}

func hostProcess(o *corev1.WindowsSecurityContextOptions) bool {
	return o != nil && o.HostProcess != nil && *o.HostProcess
}

func unconfined(p *corev1.SeccompProfile) bool {
	return p != nil && p.Type == corev1.SeccompProfileTypeUnconfined
}

func unconfinedByAppArmor(p *corev1.AppArmorProfile) bool {
	return p != nil && p.Type == corev1.AppArmorProfileTypeUnconfined
}
