// Package objects makes the objects of a Gateway of Kubernetes' Gateway API: Builder.Build renders the chart gateway,
// and lays overlays on what it gives. It reads and writes nothing in a cluster.
package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/manifests"
)

// A Kind is one of those that a Gateway has objects of.
type Kind struct {
	Resource schema.GroupVersionResource
	Kind     string
	// Overlay is the key of overlays.
	Overlay string
	// OnRequest is whether there is an object only with an overlay.
	OnRequest bool
	typed     any
}

// Kinds are all, in the order in which their objects are made.
func Kinds() []Kind {
	return []Kind{
		{
			corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
			"ServiceAccount",
			gatewaydeploy.ServiceAccountKey,
			false,
			corev1.ServiceAccount{},
		},
		{appsv1.SchemeGroupVersion.WithResource("deployments"), "Deployment", gatewaydeploy.DeploymentKey, false, appsv1.Deployment{}},
		{corev1.SchemeGroupVersion.WithResource("services"), "Service", gatewaydeploy.ServiceKey, false, corev1.Service{}},
		{
			autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
			"HorizontalPodAutoscaler",
			gatewaydeploy.AutoscalerKey,
			true,
			autoscalingv2.HorizontalPodAutoscaler{},
		},
		{policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), "PodDisruptionBudget", gatewaydeploy.BudgetKey, true,
			policyv1.PodDisruptionBudget{}},
	}
}

// chartDir is the chart of gateways in the install package.
const chartDir = "charts/gateway"

// Builder makes objects of an installation's Gateways.
type Builder struct {
	chart  *chart.Chart
	values tree.Map
}

// NewBuilder returns a builder with the values of an installation for the chart gateway, YAML: global, meshConfig. The
// revision is "" without a name.
func NewBuilder(values []byte, revision string) (*Builder, error) {
	pkg, err := profile.Open(manifests.FS)
	if err != nil {
		return nil, err
	}
	b := &Builder{}
	if b.chart, err = pkg.Chart(chartDir); err != nil {
		return nil, err
	}
	given, err := tree.ParseStrictMap(values)
	if err != nil {
		return nil, err
	}
	for name, value := range given {
		if _, ok := value.(tree.Map); !ok {
			return nil, fmt.Errorf("%s: %v is no mapping; write fields of the chart's values", name, value)
		}
	}
	b.values = tree.Merge(given, tree.Map{"revision": revision})
	return b, nil
}

// Input is what the objects of a Gateway depend on.
type Input struct {
	// Gateway is valid by gatewaydeploy.CheckGateway, and Controller that of its class.
	Gateway    *gatewayv1.Gateway
	Controller gatewayv1.GatewayController
	// Ports are those of its Service.
	Ports []corev1.ServicePort
	// Overlays are laid on the objects one after the other: those of the class, then those of the Gateway.
	// gatewaydeploy.Check has passed them.
	Overlays []map[string]string
}

// Object is one of a Gateway's.
type Object struct {
	Kind
	*unstructured.Unstructured
}

// Build makes the objects of a Gateway in the order of Kinds.
func (b *Builder) Build(in Input) ([]Object, error) {
	names, err := gatewaydeploy.NamesOf(in.Gateway)
	if err != nil {
		return nil, err
	}
	values, err := b.valuesOf(in, names)
	if err != nil {
		return nil, err
	}
	rendered, err := render.Chart("gateway", b.chart, values, in.Gateway.Namespace)
	if err != nil {
		return nil, err
	}
	byKind := map[string]tree.Map{}
	for _, o := range rendered {
		byKind[o.Kind()] = o.Tree
	}
	var out []Object
	for _, kind := range Kinds() {
		if kind.OnRequest && !in.asks(kind.Overlay) {
			continue
		}
		o := byKind[kind.Kind]
		if o == nil {
			return nil, fmt.Errorf("the chart gateway has no %s", kind.Kind)
		}
		in.mark(kind, o)
		switch kind.Kind {
		case "Deployment":
			in.deployment(o)
		case "Service":
			if err := in.service(o); err != nil {
				return nil, err
			}
		}
		laid, err := in.lay(kind, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
		out = append(out, laid)
	}
	return out, nil
}

// Try builds the objects of some Gateway, so that values that cannot be used are known before there is one.
func (b *Builder) Try() error {
	gw := &gatewayv1.Gateway{Spec: gatewayv1.GatewaySpec{GatewayClassName: "istio"}}
	gw.Namespace, gw.Name = "default", "gateway"
	_, err := b.Build(Input{Gateway: gw, Controller: gatewaydeploy.IstioController, Ports: gatewaydeploy.Ports(gw, nil)})
	return err
}

// asks reports whether an overlay has a key.
func (in *Input) asks(key string) bool {
	return slices.ContainsFunc(in.Overlays, func(data map[string]string) bool { _, has := data[key]; return has })
}

// valuesOf are those of the chart.
func (b *Builder) valuesOf(in Input, names gatewaydeploy.Names) (tree.Map, error) {
	t, err := gatewaydeploy.ServiceType(in.Gateway)
	if err != nil {
		return nil, err
	}
	over := tree.Map{
		"name": names.Deployment, "serviceAccount": tree.Map{"name": names.ServiceAccount},
		// The Gateway alone is what selects.
		"labels":         tree.Map{gatewaydeploy.NameLabel: gatewaydeploy.LabelValue(in.Gateway.Name), "app": "", "istio": ""},
		"type":           string(t),
		"ipFamilyPolicy": string(corev1.IPFamilyPolicyPreferDualStack),
		// Listeners have the numbers that clients use; those of the Service are set later.
		"lowPorts":         true,
		"ports":            []any{tree.Map{"name": "status-port", "port": gatewaydeploy.StatusPort, "targetPort": gatewaydeploy.StatusPort}},
		"autoscaleEnabled": in.asks(gatewaydeploy.AutoscalerKey), "autoscaleMin": 1, "autoscaleMax": gatewaydeploy.MaxReplicas,
		"global": tree.Map{"defaultPodDisruptionBudget": tree.Map{"enabled": in.asks(gatewaydeploy.BudgetKey)}},
	}
	// As in Istio, the installation's resources of proxies are those of gateways.
	if resources := tree.GetMap(b.values, "global", "proxy", "resources"); len(resources) > 0 {
		over["resources"] = resources
	}
	if network := gatewaydeploy.InfrastructureLabels(in.Gateway, gatewaydeploy.Pod)["topology.istio.io/network"]; network != "" {
		tree.Put(over, network, "global", "network")
	}
	return tree.Merge(b.values, over), nil
}

// mark gives an object the labels and annotations of a Gateway's, and its owner.
func (in *Input) mark(kind Kind, o tree.Map) {
	target := gatewaydeploy.Object
	if kind.Kind == "ServiceAccount" {
		target = gatewaydeploy.Account
	}
	in.metadata(o, target)
	tree.Put(o, in.Gateway.Namespace, "metadata", "namespace")
	tree.Put(o, []any{tree.Map{"apiVersion": gatewayv1.GroupVersion.String(), "kind": "Gateway", "name": in.Gateway.Name,
		"uid": string(in.Gateway.UID)}}, "metadata", "ownerReferences")
}

// metadata adds to labels and annotations those of the Gateway's infrastructure, which change none, and those that say
// whose an object is.
func (in *Input) metadata(o tree.Map, target gatewaydeploy.Target) {
	labels := anyMap(gatewaydeploy.InfrastructureLabels(in.Gateway, target))
	maps.Copy(labels, tree.GetMap(o, "metadata", "labels"))
	labels[gatewaydeploy.NameLabel] = gatewaydeploy.LabelValue(in.Gateway.Name)
	labels[gatewaydeploy.ClassLabel] = gatewaydeploy.LabelValue(string(in.Gateway.Spec.GatewayClassName))
	labels[gatewaydeploy.ManagedLabel] = gatewaydeploy.ManagedValue(in.Controller)
	tree.Put(o, labels, "metadata", "labels")
	annotations := anyMap(gatewaydeploy.InfrastructureAnnotations(in.Gateway, target))
	maps.Copy(annotations, tree.GetMap(o, "metadata", "annotations"))
	if len(annotations) > 0 {
		tree.Put(o, annotations, "metadata", "annotations")
	}
}

func anyMap(m map[string]string) tree.Map {
	out := tree.Map{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// deployment leaves the number of replicas to whoever scales it, unless an overlay says one.
func (in *Input) deployment(o tree.Map) {
	tree.Delete(o, "spec", "replicas")
	template := tree.GetMap(o, "spec", "template")
	in.metadata(template, gatewaydeploy.Pod)
	tree.Put(template, "latest", "metadata", "labels", "service.istio.io/canonical-revision")
}

func (in *Input) service(o tree.Map) error {
	text, err := json.Marshal(in.Ports)
	if err != nil {
		return err
	}
	var ports []any
	if err := json.Unmarshal(text, &ports); err != nil {
		return err
	}
	for i := range ports {
		delete(ports[i].(map[string]any), "targetPort") //nolint:forcetypeassert // a ServicePort is a map
	}
	tree.Put(o, ports, "spec", "ports")
	return nil
}

// lay lays the overlays on an object.
func (in *Input) lay(kind Kind, o tree.Map) (Object, error) {
	o, err := plain(o)
	if err != nil {
		return Object{}, err
	}
	before := tree.CopyMap(o)
	for _, data := range in.Overlays {
		overlay, found, err := gatewaydeploy.Overlay(data, kind.Overlay)
		if err != nil {
			return Object{}, err
		}
		if !found {
			continue
		}
		switch kind.Kind {
		case "Service":
			nodePorts(o, overlay)
			tree.Delete(overlay, "spec", "ports")
		case "PodDisruptionBudget":
			// Kubernetes takes one of them.
			for _, one := range []string{"minAvailable", "maxUnavailable"} {
				if _, has := tree.Get(overlay, "spec", one); has {
					tree.Delete(o, "spec", "minAvailable")
					tree.Delete(o, "spec", "maxUnavailable")
				}
			}
		}
		merged, err := strategicpatch.StrategicMergeMapPatch(o, overlay, kind.typed)
		if err != nil {
			return Object{}, err
		}
		o = merged
	}
	switch kind.Kind {
	case "Deployment":
		if in.asks(gatewaydeploy.AutoscalerKey) {
			tree.Delete(o, "spec", "replicas")
		}
		if err := sameRights(before, o); err != nil {
			return Object{}, err
		}
	case "Service":
		if address := gatewaydeploy.Address(in.Gateway); address != "" &&
			tree.GetString(o, "spec", "type") == string(corev1.ServiceTypeLoadBalancer) {
			tree.Put(o, address, "spec", "loadBalancerIP")
		}
	}
	// Numbers as Kubernetes' decoders have them.
	if o, err = plain(o); err != nil {
		return Object{}, err
	}
	return Object{kind, &unstructured.Unstructured{Object: o}}, nil
}

// nodePorts gives the ports of a Service the node ports of an overlay. One of a port that no listener has waits for it.
func nodePorts(o, overlay tree.Map) {
	list, _ := tree.Get(overlay, "spec", "ports")
	wanted, _ := list.([]any)
	list, _ = tree.Get(o, "spec", "ports")
	ports, _ := list.([]any)
	transport := func(m tree.Map) string {
		if p := tree.GetString(m, "protocol"); p != "" {
			return p
		}
		return string(corev1.ProtocolTCP)
	}
	for _, w := range wanted {
		for _, p := range ports {
			want, _ := w.(tree.Map)
			port, _ := p.(tree.Map)
			if fmt.Sprint(want["port"]) == fmt.Sprint(port["port"]) && transport(want) == transport(port) && want["nodePort"] != nil {
				port["nodePort"] = want["nodePort"]
			}
		}
	}
}

// sameRights makes sure that overlays have changed nothing of the Pods but what they may. gatewaydeploy.Check has
// judged the overlays; this judges what has come of them.
func sameRights(before, after tree.Map) error {
	a, b := tree.CopyMap(before), tree.CopyMap(after)
	for _, o := range []tree.Map{a, b} {
		spec := tree.GetMap(o, "spec", "template", "spec")
		for _, name := range []string{"affinity", "nodeSelector", "tolerations", "topologySpreadConstraints", "priorityClassName"} {
			delete(spec, name)
		}
		containers, _ := spec["containers"].([]any)
		for _, c := range containers {
			if m, ok := c.(map[string]any); ok {
				delete(m, "resources")
			}
		}
	}
	if !reflect.DeepEqual(tree.GetMap(a, "spec", "template", "spec"), tree.GetMap(b, "spec", "template", "spec")) ||
		!reflect.DeepEqual(tree.GetMap(a, "spec", "selector"), tree.GetMap(b, "spec", "selector")) {
		return errors.New("an overlay changes more of the Pods than it may")
	}
	return nil
}

// plain is a tree with the types that Kubernetes' decoders make of JSON.
func plain(o tree.Map) (tree.Map, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	return u.Object, nil
}
