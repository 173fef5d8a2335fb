package migrate

import (
	"encoding/json"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/installer/internal/install/tree"
)

// asTree turns a part of a typed object into a tree.
func asTree(v any) any {
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	t, err := tree.Parse(text)
	if err != nil {
		return nil
	}
	return dense(t)
}

// dense leaves out mappings that say nothing.
func dense(v any) any {
	m, ok := v.(tree.Map)
	if !ok {
		return v
	}
	for k, item := range m {
		if item = dense(item); filled(item) {
			m[k] = item
		} else if _, isMap := item.(tree.Map); isMap {
			delete(m, k)
		}
	}
	return m
}

// workload reads the Kubernetes settings of a Deployment that people change, into the component below keys. root is
// where the values of its chart are.
func (r *Result) workload(o Objects, d *appsv1.Deployment, container string, values tree.Map, root []string, keys ...string) {
	put := func(v any, setting ...string) {
		if t := asTree(v); filled(t) {
			tree.Put(r.Spec, t, slices.Concat(keys, []string{"k8s"}, setting)...)
		}
	}
	pod := d.Spec.Template.Spec
	for _, c := range pod.Containers {
		if c.Name == container {
			put(c.Resources, "resources")
		}
	}
	put(pod.NodeSelector, "nodeSelector")
	put(pod.Tolerations, "tolerations")
	put(pod.Affinity, "affinity")
	put(pod.TopologySpreadConstraints, "topologySpreadConstraints")
	put(pod.PriorityClassName, "priorityClassName")
	put(pod.ImagePullSecrets, "imagePullSecrets")
	hpa, err := o.hpa(d.Namespace, d.Name)
	if err == nil {
		put(hpa.Spec.MinReplicas, "hpaSpec", "minReplicas")
		put(hpa.Spec.MaxReplicas, "hpaSpec", "maxReplicas")
		put(hpa.Spec.Metrics, "hpaSpec", "metrics")
		return
	}
	tree.Put(values, false, append(slices.Clone(root), "autoscaleEnabled")...)
	if d.Spec.Replicas != nil {
		put(*d.Spec.Replicas, "replicaCount")
	}
}

// chartAnnotations are of the gateways' charts themselves, and of kubectl and the API server.
var chartAnnotations = []string{"istio.io/rev", "prometheus.io/path", "prometheus.io/port", "prometheus.io/scrape",
	"sidecar.istio.io/inject", "inject.istio.io/templates"}

// gateways reads the gateways of all namespaces.
func (r *Result) gateways(o Objects, values tree.Map) {
	lists := map[string][]any{}
	scaled := map[string]map[bool][]string{}
	for i := range o.Deployments {
		d := &o.Deployments[i]
		pod := d.Spec.Template
		component := d.Labels["operator.istio.io/component"]
		if component != "IngressGateways" && component != "EgressGateways" && pod.Annotations["inject.istio.io/templates"] != "gateway" {
			continue
		}
		id := "Deployment " + d.Namespace + "/" + d.Name
		if name := d.Labels["gateway.networking.k8s.io/gateway-name"]; name != "" {
			r.warn("%s is not migrated: the control plane makes it for the Gateway %s", id, name)
			continue
		}
		list, chart := "ingressGateways", gatewayName
		if component == "EgressGateways" || pod.Labels["istio"] == "egressgateway" {
			list, chart = "egressGateways", "istio-egressgateway"
		}
		part := r.gatewayOf(o, d, values)
		lists[list] = append(lists[list], part)
		if scaled[chart] == nil {
			scaled[chart] = map[bool][]string{}
		}
		_, err := o.hpa(d.Namespace, d.Name)
		scaled[chart][err == nil] = append(scaled[chart][err == nil], id)
	}
	for list, parts := range lists {
		tree.Put(r.Spec, parts, "components", list)
	}
	for chart, by := range scaled {
		switch {
		case len(by[false]) > 0 && len(by[true]) > 0:
			tree.Delete(values, "gateways", chart, "autoscaleEnabled")
			for _, id := range by[false] {
				r.warn("%s has no HorizontalPodAutoscaler, others have: autoscaleEnabled is a value of all gateways together, and it gets one", id)
			}
		case len(by[true]) > 0:
			tree.Delete(values, "gateways", chart, "autoscaleEnabled")
		}
	}
}

func (r *Result) gatewayOf(o Objects, d *appsv1.Deployment, values tree.Map) tree.Map {
	chart := gatewayName
	if d.Labels["operator.istio.io/component"] == "EgressGateways" || d.Spec.Template.Labels["istio"] == "egressgateway" {
		chart = "istio-egressgateway"
	}
	one := &Result{Spec: tree.Map{}}
	one.workload(o, d, "istio-proxy", values, []string{"gateways", chart}, "part")
	part := tree.GetMap(one.Spec, "part")
	if part == nil {
		part = tree.Map{}
	}
	part["name"], part["enabled"] = d.Name, true
	if d.Namespace != o.Namespace {
		part["namespace"] = d.Namespace
	}
	if d.Spec.Selector != nil && len(d.Spec.Selector.MatchLabels) > 0 {
		label := tree.Map{"app": "", "istio": ""} // the chart selects by these, too, unless they are empty
		for k, v := range d.Spec.Selector.MatchLabels {
			label[k] = v
		}
		part["label"] = label
	}
	annotations := tree.Map{}
	for k, v := range d.Spec.Template.Annotations {
		if !slices.Contains(chartAnnotations, k) {
			annotations[k] = v
		}
	}
	if len(annotations) > 0 {
		tree.Put(part, annotations, "k8s", "podAnnotations")
	}
	r.service(o, d, part)
	return part
}

// service reads the Service of a gateway, which has its name.
func (r *Result) service(o Objects, d *appsv1.Deployment, part tree.Map) {
	i := slices.IndexFunc(o.Services, func(s corev1.Service) bool { return s.Namespace == d.Namespace && s.Name == d.Name })
	if i < 0 {
		r.warn("Deployment %s/%s has no Service of its name: the gateway gets one", d.Namespace, d.Name)
		return
	}
	s := o.Services[i]
	var ports []any
	for _, p := range s.Spec.Ports {
		if !nodePortMatters(s) {
			p.NodePort = 0
		}
		ports = append(ports, asTree(p))
	}
	if len(ports) > 0 {
		tree.Put(part, ports, "k8s", "service", "ports")
	}
	fields, _ := asTree(s.Spec).(tree.Map)
	for _, field := range append([]string{"type"}, ofService...) {
		if v, ok := fields[field]; ok && filled(v) &&
			!slices.Contains([]string{"ports", "clusterIP", "ipFamilies", "ipFamilyPolicy", "allocateLoadBalancerNodePorts", "healthCheckNodePort"},
				field) {
			if field == "externalTrafficPolicy" && v == "Cluster" {
				continue // the default
			}
			tree.Put(part, v, "k8s", "service", field)
		}
	}
	annotations := tree.Map{}
	for k, v := range s.Annotations {
		if !strings.HasPrefix(k, "kubectl.kubernetes.io/") {
			annotations[k] = v
		}
	}
	if len(annotations) > 0 {
		tree.Put(part, annotations, "k8s", "serviceAnnotations")
	}
}

// nodePortMatters tells whether people dial the ports of nodes: those of a load balancer are the API server's own
// choice.
func nodePortMatters(s corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeNodePort }
