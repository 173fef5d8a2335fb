package status

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Ingresses tells the owners of Ingresses by which addresses the mesh's gateways are reached: status.loadBalancer, as
// ingress.Addresses gives it. The status of an Ingress that the mesh does not serve is left to other controllers. It is
// safe for concurrent use.
type Ingresses struct {
	sinks map[string]Sink

	mu       sync.Mutex
	settings *mesh.MeshConfig
	classes  ingress.Classes
	all      map[object.Key]*object.Object
	services map[string]*corev1.Service // of ingress.Namespace
	pods     map[string]*object.Object  // of ingress.Namespace
	nodes    map[string]*object.Node
	// addresses are those of every Ingress that the mesh serves.
	addresses []networkingv1.IngressLoadBalancerIngress
	// sent are the sources whose sink has the status of an Ingress; unsent are Ingresses for which a sink had no room.
	sent   map[object.Key]string
	unsent map[object.Key]bool
}

// NewIngresses returns an Ingresses that hands statuses to the sinks of their sources.
func NewIngresses(sinks map[string]Sink) *Ingresses {
	return &Ingresses{
		sinks: sinks, classes: ingress.Classes{}, all: map[object.Key]*object.Object{}, services: map[string]*corev1.Service{},
		pods: map[string]*object.Object{}, nodes: map[string]*object.Node{}, sent: map[object.Key]string{}, unsent: map[object.Key]bool{},
	}
}

// Submit takes over the changes of the objects in force and the mesh configuration. The pipeline calls it after the
// commit of their revision.
func (x *Ingresses) Submit(changes []normalise.Change, settings *mesh.MeshConfig) {
	x.mu.Lock()
	defer x.mu.Unlock()
	touched := x.unsent
	x.unsent = map[object.Key]bool{}
	all, moved := settings != x.settings, settings != x.settings
	x.settings = settings
	for _, c := range changes {
		switch c.Key.Group + "/" + c.Key.Kind {
		case kinds.GroupIngress + "/Ingress":
			set(x.all, c.Key, c.Object, c.Object != nil)
			touched[c.Key] = true
		case kinds.GroupIngress + "/IngressClass":
			x.classes.Put(c.Key.Name, c.Object)
			all = true
		case "/Service":
			if c.Key.Namespace == ingress.Namespace {
				moved = true
				set(x.services, c.Key.Name, body[*corev1.Service](c.Object), c.Object != nil)
			}
		case "/Pod":
			if c.Key.Namespace == ingress.Namespace {
				moved = true
				set(x.pods, c.Key.Name, c.Object, c.Object != nil)
			}
		case "/Node":
			moved = true
			set(x.nodes, c.Key.Name, body[*object.Node](c.Object), c.Object != nil)
		}
	}
	if moved {
		if now := x.addressesNow(); !slices.EqualFunc(now, x.addresses, sameAddress) || x.addresses == nil {
			x.addresses, all = now, true
		}
	}
	if all {
		for k := range x.all {
			touched[k] = true
		}
	}
	for k := range touched {
		x.offer(k)
	}
}

func set[K comparable, V any](m map[K]V, k K, v V, there bool) {
	if there {
		m[k] = v
	} else {
		delete(m, k)
	}
}

func body[T any](o *object.Object) (out T) {
	if o != nil {
		out, _ = o.Body.(T)
	}
	return out
}

// addressesNow computes the addresses; they are not nil.
func (x *Ingresses) addressesNow() []networkingv1.IngressLoadBalancerIngress {
	var nodes []*object.Node
	for _, p := range x.pods {
		if n := x.nodes[body[*object.Pod](p).Node]; n != nil && ingress.Runs(x.settings, p) {
			nodes = append(nodes, n)
		}
	}
	out := ingress.Addresses(x.settings, x.services[x.settings.GetIngressService()], nodes)
	if out == nil {
		return []networkingv1.IngressLoadBalancerIngress{}
	}
	return out
}

func sameAddress(a, b networkingv1.IngressLoadBalancerIngress) bool { return reflect.DeepEqual(a, b) }

// offer hands the status of an Ingress to its source's sink, or takes it back from there if the mesh does not serve it.
func (x *Ingresses) offer(k object.Key) {
	o, source := x.all[k], ""
	if o != nil && ingress.Takes(x.settings, o, x.classes.Get) == ingress.Taken && x.sinks[o.Source] != nil {
		source = o.Source
	}
	if old, had := x.sent[k]; had && old != source {
		delete(x.sent, k)
		x.sinks[old].Forget(k)
	}
	if source == "" {
		return
	}
	if x.sinks[source].Put(Target{k, o.APIVersion, o.UID, o.Generation}, &Status{Generation: o.Generation, LoadBalancer: x.addresses}) {
		x.sent[k] = source
	} else {
		x.unsent[k] = true
	}
}

// mergeLoadBalancer is Merge for the status of an Ingress.
func mergeLoadBalancer(before map[string]any, addresses []networkingv1.IngressLoadBalancerIngress) (after map[string]any, changed bool) {
	list := []any{}
	for _, a := range addresses {
		if a.IP != "" {
			list = append(list, map[string]any{"ip": a.IP})
		} else {
			list = append(list, map[string]any{"hostname": a.Hostname})
		}
	}
	balancer, _ := before["loadBalancer"].(map[string]any)
	old, _ := balancer["ingress"].([]any)
	if len(old) == len(list) && (len(list) == 0 || reflect.DeepEqual(old, list)) {
		return before, false
	}
	after = maps.Clone(before)
	if after == nil {
		after = map[string]any{}
	}
	after["loadBalancer"] = map[string]any{"ingress": list}
	return after, true
}
