package gatewaydeploy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"
)

// Keys of a ConfigMap with overlays: each has a strategic merge patch of one object.
const (
	DeploymentKey     = "deployment"
	ServiceKey        = "service"
	ServiceAccountKey = "serviceAccount"
	AutoscalerKey     = "horizontalPodAutoscaler"
	BudgetKey         = "podDisruptionBudget"
)

// ProxyContainer is the one container of a Gateway's Pods.
const ProxyContainer = "istio-proxy"

// A document is what a key holds.
type document struct {
	apiVersion, kind string
	// typed is a new object of the kind, for a strict decoder.
	typed func() any
	field field
	// judge says what is wrong with values that are allowed one by one.
	judge func(typed any) error
}

// documents are all keys, with what overlays may set in them.
func documents() map[string]document {
	return map[string]document{
		DeploymentKey: {"apps/v1", "Deployment", func() any { return &appsv1.Deployment{} }, top(Object, fields{
			"replicas": {},
			"template": {fields: fields{
				"metadata": metadata(Pod),
				"spec": {fields: fields{
					"affinity": {}, "nodeSelector": {}, "tolerations": {}, "topologySpreadConstraints": {}, "priorityClassName": {check: ownPriority},
					"containers": {items: &field{fields: fields{
						"name":      {check: proxyContainer},
						"resources": {fields: fields{"limits": {check: plainResources}, "requests": {check: plainResources}}},
					}}, key: "name"},
				}},
			}},
		}), judgeDeployment},
		ServiceKey: {"v1", "Service", func() any { return &corev1.Service{} }, top(Object, fields{
			"type": {check: serviceType}, "externalTrafficPolicy": {}, "internalTrafficPolicy": {}, "trafficDistribution": {},
			"loadBalancerIP": {}, "loadBalancerClass": {}, "loadBalancerSourceRanges": {}, "allocateLoadBalancerNodePorts": {},
			"healthCheckNodePort": {}, "ipFamilies": {}, "ipFamilyPolicy": {}, "sessionAffinity": {}, "sessionAffinityConfig": {},
			"ports": {items: &field{fields: fields{"port": {}, "protocol": {}, "nodePort": {}}}, key: "port"},
		}), nil},
		ServiceAccountKey: {"v1", "ServiceAccount", func() any { return &corev1.ServiceAccount{} }, top(Account, nil), nil},
		AutoscalerKey: {"autoscaling/v2", "HorizontalPodAutoscaler", func() any { return &autoscalingv2.HorizontalPodAutoscaler{} },
			top(Object, fields{"minReplicas": {}, "maxReplicas": {}, "metrics": {}, "behavior": {}}), judgeAutoscaler},
		BudgetKey: {"policy/v1", "PodDisruptionBudget", func() any { return &policyv1.PodDisruptionBudget{} },
			top(Object, fields{"minAvailable": {}, "maxUnavailable": {}, "unhealthyPodEvictionPolicy": {}}), judgeBudget},
	}
}

// MaxReplicas is spec.maxReplicas of an autoscaler whose overlay has none.
const MaxReplicas = 5

type fields map[string]field

// A field is a place of a document that overlays may write to. Without anything it is theirs with all that is below.
type field struct {
	// fields are what a map may have.
	fields fields
	// items are what an item of a list may have, key names the field that an item must have.
	items *field
	key   string
	// check says what is wrong with a value; "" is nothing.
	check func(value any) string
}

func top(t Target, spec fields) field {
	all := fields{"apiVersion": {}, "kind": {}, "metadata": metadata(t)}
	if spec != nil {
		all["spec"] = field{fields: spec}
	}
	return field{fields: all}
}

func metadata(t Target) field {
	keys := func(value any) string {
		m, ok := value.(map[string]any)
		if !ok {
			return "it is no map"
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if why := Reserved(t, key); why != "" {
				return fmt.Sprintf("%s may not be set: %s", key, why)
			}
			if strings.HasPrefix(key, "$") {
				return directive
			}
		}
		return ""
	}
	return field{fields: fields{"labels": {check: keys}, "annotations": {check: keys}}}
}

// directive is what is said of $patch and its like.
const directive = "directives of strategic merges, whose names begin with $, are not allowed"

func proxyContainer(value any) string {
	if value != ProxyContainer {
		return fmt.Sprintf("%q is another container than %s, which is the only one", fmt.Sprint(value), ProxyContainer)
	}
	return ""
}

func plainResources(value any) string {
	if value == nil {
		return ""
	}
	m, ok := value.(map[string]any)
	if !ok {
		return "it is no map"
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains([]string{"cpu", "memory", "ephemeral-storage"}, name) {
			return fmt.Sprintf("%s may not be set: it may be a device; cpu, memory and ephemeral-storage may", name)
		}
	}
	return ""
}

func ownPriority(value any) string {
	if name, _ := value.(string); strings.HasPrefix(name, "system-") {
		return fmt.Sprintf("%s is for Kubernetes itself", name)
	}
	return ""
}

func serviceType(value any) string {
	if name, _ := value.(string); !slices.Contains(serviceTypes, name) {
		return fmt.Sprintf("%q is not one of %s", fmt.Sprint(value), strings.Join(serviceTypes, ", "))
	}
	return ""
}

// Check judges the overlays of a ConfigMap, which it calls by name, such as "ConfigMap ns/options". The error names
// each field that no overlay may set, and what to do; nil if all may be used. The values of allowed fields are the API
// server's to judge, but for their types.
func Check(name string, data map[string]string) error {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		for _, p := range checkKey(key, data[key]) {
			problems = append(problems, fmt.Errorf("%s, key %s: %w", name, key, p))
		}
	}
	return errors.Join(problems...)
}

// Overlay decodes what a key of a ConfigMap that Check has passed holds.
func Overlay(data map[string]string, key string) (overlay map[string]any, found bool, err error) {
	text, found := data[key]
	if !found {
		return nil, false, nil
	}
	err = yaml.Unmarshal([]byte(text), &overlay)
	return overlay, true, err
}

func checkKey(key, text string) []error {
	all := documents()
	d, ok := all[key]
	if !ok {
		return []error{fmt.Errorf("it is none that has overlays; those are %s", strings.Join(slices.Sorted(maps.Keys(all)), ", "))}
	}
	if err := yamltext.Check([]byte(text)); err != nil {
		return []error{err}
	}
	// Strict: of a field that is written twice, two readers could take different ones.
	var tree map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &tree); err != nil {
		return []error{fmt.Errorf("it is no overlay: %w; write a part of a %s in YAML", err, d.kind)}
	}
	problems := d.field.walk("", tree)
	for name, want := range map[string]string{"apiVersion": d.apiVersion, "kind": d.kind} {
		if got, has := tree[name]; has && got != want {
			problems = append(problems, fmt.Errorf("field %s: %q is not %s; leave it out", name, fmt.Sprint(got), want))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	typed := d.typed()
	if err := yaml.UnmarshalStrict([]byte(text), typed); err != nil {
		return []error{fmt.Errorf("it is no part of a %s: %w; correct the value", d.kind, err)}
	}
	if d.judge != nil {
		if err := d.judge(typed); err != nil {
			return []error{err}
		}
	}
	return nil
}

// walk lists what is not allowed at a place and below.
func (f field) walk(path string, value any) (problems []error) {
	refuse := func(format string, args ...any) []error {
		return []error{fmt.Errorf("field %s: "+format, append([]any{cmp.Or(path, ".")}, args...)...)}
	}
	if f.check != nil {
		if why := f.check(value); why != "" {
			return refuse("%s; leave it out", why)
		}
		return nil
	}
	switch {
	case f.fields != nil:
		m, ok := value.(map[string]any)
		if !ok {
			if path == "" && value == nil {
				return nil
			}
			return refuse("it is no map; write the fields that are to change")
		}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			inner, known := f.fields[name]
			at := strings.TrimPrefix(path+"."+name, ".")
			switch {
			case known:
				problems = append(problems, inner.walk(at, m[name])...)
			case strings.HasPrefix(name, "$"):
				problems = append(problems, fmt.Errorf("field %s: %s; leave it out", at, directive))
			default:
				problems = append(problems, fmt.Errorf("field %s: overlays may not set it; leave it out (here they may set %s)", at,
					strings.Join(slices.Sorted(maps.Keys(f.fields)), ", ")))
			}
		}
	case f.items != nil:
		list, ok := value.([]any)
		if !ok {
			return refuse("it is no list; write the items that are to change")
		}
		for i, item := range list {
			at := fmt.Sprintf("%s[%d]", path, i)
			if m, ok := item.(map[string]any); !ok || m[f.key] == nil {
				problems = append(problems, fmt.Errorf("field %s: it has no field %s; write it, so that the item is known", at, f.key))
				continue
			}
			problems = append(problems, f.items.walk(at, item)...)
		}
	default:
		problems = plain(path, value)
	}
	return problems
}

// plain refuses directives below a field that is the overlay's with all that is below it.
func plain(path string, value any) (problems []error) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if strings.HasPrefix(name, "$") {
				problems = append(problems, fmt.Errorf("field %s.%s: %s; leave it out", path, name, directive))
				continue
			}
			problems = append(problems, plain(path+"."+name, v[name])...)
		}
	case []any:
		for i, item := range v {
			problems = append(problems, plain(fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	}
	return problems
}

func judgeDeployment(typed any) error {
	d, _ := typed.(*appsv1.Deployment)
	if n := d.Spec.Replicas; n != nil && *n < 0 {
		return fmt.Errorf("field spec.replicas: %d is less than 0; write 0 or more", *n)
	}
	return nil
}

func judgeAutoscaler(typed any) error {
	a, _ := typed.(*autoscalingv2.HorizontalPodAutoscaler)
	least, most := int32(1), cmp.Or(a.Spec.MaxReplicas, MaxReplicas)
	if a.Spec.MinReplicas != nil {
		least = *a.Spec.MinReplicas
	}
	if least < 1 || most < least {
		return fmt.Errorf("field spec.minReplicas: %d is not between 1 and spec.maxReplicas, %d; change one of them", least, most)
	}
	return nil
}

func judgeBudget(typed any) error {
	b, _ := typed.(*policyv1.PodDisruptionBudget)
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		return errors.New("field spec.minAvailable: a budget has this or spec.maxUnavailable; remove one of them")
	}
	return nil
}
