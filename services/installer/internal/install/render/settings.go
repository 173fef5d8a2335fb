package render

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// target is an object that Kubernetes settings change.
type target struct {
	kind, name string
	typed      any
}

// podFields are the settings that are fields of the Pod, podContainerFields of its container, by their names there.
var (
	podFields = map[string]string{
		"affinity": "affinity", "imagePullSecrets": "imagePullSecrets", "nodeSelector": "nodeSelector", "priorityClassName": "priorityClassName",
		"securityContext": "securityContext", "podSecurityContext": "securityContext", "tolerations": "tolerations",
		"topologySpreadConstraints": "topologySpreadConstraints", "volumes": "volumes",
	}
	containerFields = map[string]string{
		"env": "env", "imagePullPolicy": "imagePullPolicy", "readinessProbe": "readinessProbe", "resources": "resources",
		"volumeMounts": "volumeMounts",
	}
)

// Settings lays the Kubernetes settings of a component on its objects, each setting as a strategic merge with the type
// of what it changes: null removes what the chart says, as with istioctl. Settings without an object that they speak of
// are warnings.
func Settings(component string, objects []*manifest.Object, k8s tree.Map, w profile.Workload, name, revision string) (warnings []string,
	err error) {
	expand := strings.NewReplacer("${name}", name, "${revision}", revision)
	workload, service := expand.Replace(w.Name), expand.Replace(w.Service)
	w.Kind = kindOf(objects, w.Kind, workload)
	for _, setting := range tree.Keys(k8s) {
		value := k8s[setting]
		if setting == "overlays" {
			continue
		}
		to, patch, why := patchOf(setting, value, w, workload, service)
		if spec, isSpec := patch["spec"]; why == "" && isSpec && spec == nil {
			why = fmt.Sprintf("a %s without a spec cannot be; use k8s.overlays to remove a field of it", to.kind)
		}
		if why == "" && !apply(objects, to, patch, &err) {
			why = fmt.Sprintf("the component has no %s %s", to.kind, to.name)
		}
		if err != nil {
			return nil, fmt.Errorf("component %s: k8s.%s: %w", component, setting, err)
		}
		if why != "" {
			warnings = append(warnings, fmt.Sprintf("component %s: k8s.%s has no effect: %s", component, setting, why))
		}
	}
	return warnings, nil
}

// kindOf is the kind of a component's workload, which a value may make a StatefulSet where the package says Deployment.
func kindOf(objects []*manifest.Object, kind, name string) string {
	for _, o := range objects {
		if kind == "Deployment" && o.Kind() == "StatefulSet" && o.Name() == name {
			return o.Kind()
		}
	}
	return kind
}

// patchOf returns what a setting, a field of validate.KubernetesSettings, changes, and how; why says that it changes
// nothing.
func patchOf(setting string, value any, w profile.Workload, workload, service string) (to target, patch tree.Map, why string) {
	to = target{kind: w.Kind, name: workload, typed: typeOf(w.Kind)}
	if to.typed == nil {
		return to, nil, "the component has no Pods"
	}
	pod := func(field string, v any) tree.Map {
		return tree.Map{"spec": tree.Map{"template": tree.Map{field: v}}}
	}
	if field, ok := podFields[setting]; ok {
		return to, pod("spec", tree.Map{field: value}), ""
	}
	if field, ok := containerFields[setting]; ok {
		return to, pod("spec", tree.Map{"containers": []any{tree.Map{"name": w.Container, field: value}}}), ""
	}
	switch setting {
	case "podAnnotations":
		return to, pod("metadata", tree.Map{"annotations": value}), ""
	case "podLabels":
		return to, pod("metadata", tree.Map{"labels": value}), ""
	case "replicaCount", "strategy":
		field := map[string]string{"Deployment replicaCount": "replicas", "StatefulSet replicaCount": "replicas",
			"Deployment strategy": "strategy"}[w.Kind+" "+setting]
		if field == "" {
			return to, nil, "a " + w.Kind + " has no such field"
		}
		return to, tree.Map{"spec": tree.Map{field: value}}, ""
	case "hpaSpec":
		return target{"HorizontalPodAutoscaler", workload, autoscalingv2.HorizontalPodAutoscaler{}}, tree.Map{"spec": value}, ""
	case "podDisruptionBudget":
		if budget, _ := value.(tree.Map); budget["maxUnavailable"] != nil {
			value = tree.Merge(budget, tree.Map{"minAvailable": nil}) // one excludes the other
		}
		return target{"PodDisruptionBudget", workload, policyv1.PodDisruptionBudget{}}, tree.Map{"spec": value}, ""
	case "service":
		return target{"Service", service, corev1.Service{}}, tree.Map{"spec": value}, ""
	case "serviceAnnotations":
		return target{"Service", service, corev1.Service{}}, tree.Map{"metadata": tree.Map{"annotations": value}}, ""
	}
	return to, nil, "it is no setting"
}

func typeOf(kind string) any {
	switch kind {
	case "Deployment":
		return appsv1.Deployment{}
	case "DaemonSet":
		return appsv1.DaemonSet{}
	case "StatefulSet":
		return appsv1.StatefulSet{}
	}
	return nil
}

// apply patches the objects that a setting speaks of, and tells whether there are any.
func apply(objects []*manifest.Object, to target, patch tree.Map, err *error) (found bool) {
	for _, o := range objects {
		if o.Kind() != to.kind || o.Name() != to.name {
			continue
		}
		found = true
		merged, e := strategicpatch.StrategicMergeMapPatch(tree.CopyMap(o.Tree), tree.CopyMap(patch), to.typed)
		if e != nil {
			*err = fmt.Errorf("%s cannot take it: %w", o.ID(), e)
			return found
		}
		o.Set(merged)
	}
	return found
}
