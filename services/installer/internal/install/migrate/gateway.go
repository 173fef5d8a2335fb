package migrate

import (
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

// straight are values of the gateway chart that Kubernetes settings call by the same name.
var straight = []string{
	"affinity", "imagePullPolicy", "imagePullSecrets", "nodeSelector", "podAnnotations", "podDisruptionBudget", "priorityClassName",
	"readinessProbe",
	"replicaCount", "resources", "strategy", "tolerations", "topologySpreadConstraints", "volumeMounts", "volumes",
}

// ofService are fields of service that a Kubernetes Service has under the same name.
var ofService = []string{
	"allocateLoadBalancerNodePorts", "clusterIP", "externalIPs", "externalTrafficPolicy", "healthCheckNodePort", "ipFamilies",
	"ipFamilyPolicy",
	"loadBalancerClass", "loadBalancerIP", "loadBalancerSourceRanges", "ports",
}

// gateways of Istio's former charts, whose names the release gets if its values have none.
const gatewayName = "istio-ingressgateway"

// gateway adds a gateway from the values of the gateway chart.
func (r *Result) gateway(v Values) {
	left, part, k8s := tree.CopyMap(v.Tree), tree.Map{"enabled": true}, tree.Map{}
	take := func(keys ...string) (any, bool) {
		value, ok := tree.Get(left, keys...)
		prune(left, keys)
		return value, ok && filled(value)
	}
	name, _ := take("name")
	part["name"] = name
	if name == nil {
		part["name"] = gatewayName
		r.warn("%s: name is not in the values, because Helm takes that of the release; the gateway is called %s: change it if the release is not",
			v.File, gatewayName)
	}
	for _, key := range straight {
		if value, ok := take(key); ok {
			k8s[key] = value
		}
	}
	for _, key := range ofService {
		if value, ok := take("service", key); ok {
			tree.Put(k8s, value, "service", key)
		}
	}
	if kind, ok := take("service", "type"); ok && kind != "None" {
		tree.Put(k8s, kind, "service", "type")
	} else if ok {
		r.warn("%s: service.type None is not migrated: a gateway has a Service; delete it afterwards if it disturbs", v.File)
	}
	if annotations, ok := take("service", "annotations"); ok {
		k8s["serviceAnnotations"] = annotations
	}
	if pod, ok := take("securityContext"); ok {
		k8s["podSecurityContext"] = pod
	}
	r.scaling(v.File, take, k8s)
	if env := environment(take); len(env) > 0 {
		k8s["env"] = env
	}
	gatewayLabels(take, part, k8s)
	r.global(v.File, left)
	for _, path := range leaves(left, "") {
		r.warn("%s: %s of the gateway chart is not migrated: an IstioOperator has no such field; an overlay, k8s.overlays, may say it", v.File,
			path)
	}
	if len(k8s) > 0 {
		part["k8s"] = k8s
	}
	list, _ := tree.Get(r.Spec, "components", "ingressGateways")
	items, _ := list.([]any)
	tree.Put(r.Spec, append(items, part), "components", "ingressGateways")
}

type taker func(keys ...string) (any, bool)

// scaling migrates autoscaling.
func (r *Result) scaling(file string, take taker, k8s tree.Map) {
	enabled, ok := take("autoscaling", "enabled")
	if ok && enabled == false {
		tree.Put(r.Spec, false, "values", "gateways", gatewayName, "autoscaleEnabled")
		r.warn("%s: autoscaling.enabled is a value of all ingress gateways together in an IstioOperator", file)
	}
	for value, field := range map[string]string{"minReplicas": "minReplicas", "maxReplicas": "maxReplicas", "autoscaleBehavior": "behavior"} {
		if n, ok := take("autoscaling", value); ok && enabled != false {
			tree.Put(k8s, n, "hpaSpec", field)
		}
	}
	var metrics []any
	for _, m := range []struct{ value, resource string }{{"targetCPUUtilizationPercentage", "cpu"},
		{"targetMemoryUtilizationPercentage", "memory"}} {
		if n, ok := take("autoscaling", m.value); ok && enabled != false {
			metrics = append(metrics, tree.Map{"type": "Resource", "resource": tree.Map{
				"name": m.resource, "target": tree.Map{"type": "Utilization", "averageUtilization": n},
			}})
		}
	}
	if len(metrics) > 0 {
		tree.Put(k8s, metrics, "hpaSpec", "metrics")
	}
}

// environment migrates env, a mapping, and envVarFrom, a list.
func environment(take taker) []any {
	var list []any
	env, _ := take("env")
	if table, ok := env.(tree.Map); ok {
		for _, name := range tree.Keys(table) {
			list = append(list, tree.Map{"name": name, "value": text(table[name])})
		}
	}
	from, _ := take("envVarFrom")
	more, _ := from.([]any)
	return append(list, more...)
}

// gatewayLabels migrates labels. The chart selects Pods by the labels app and istio, whose defaults come from the name.
func gatewayLabels(take taker, part, k8s tree.Map) {
	name, _ := part["name"].(string)
	label := tree.Map{"app": name, "istio": strings.TrimPrefix(name, "istio-")}
	value, _ := take("labels")
	if labels, ok := value.(tree.Map); ok {
		for _, key := range tree.Keys(labels) {
			if _, selects := label[key]; selects {
				label[key] = text(labels[key])
			} else {
				tree.Put(k8s, text(labels[key]), "podLabels", key)
			}
		}
	}
	part["label"] = label
}

// global takes what a gateway shares with the rest of the installation.
func (r *Result) global(file string, left tree.Map) {
	values := tree.Map{}
	for _, key := range []string{"global", "revision", "platform"} {
		if v, ok := left[key]; ok && filled(v) {
			values[key] = v
		}
		delete(left, key)
	}
	if v, ok := values["platform"]; ok {
		delete(values, "platform")
		tree.Put(values, v, "global", "platform")
	}
	more := tree.GetMap(r.Spec, "values")
	if more == nil {
		more = tree.Map{}
	}
	r.lay(more, values, file, "")
	if len(more) > 0 {
		r.Spec["values"] = more
	}
}

// filled is false for what says nothing in values: null, and empty text, lists and mappings.
func filled(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case string:
		return v != ""
	case tree.Map:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return true
}

// leaves lists the paths of the values that say something.
func leaves(m tree.Map, path string) []string {
	var all []string
	for _, key := range tree.Keys(m) {
		at := strings.TrimPrefix(path+"."+key, ".")
		if table, ok := m[key].(tree.Map); ok {
			all = append(all, leaves(table, at)...)
		} else if filled(m[key]) {
			all = append(all, at)
		}
	}
	return all
}

// text writes a scalar as labels and environment variables have it.
func text(v any) string {
	t, err := tree.Text(v)
	if s, ok := v.(string); ok || err != nil {
		return s
	}
	return strings.TrimSpace(string(t))
}
