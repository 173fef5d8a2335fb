package gatewayapi

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/config-watcher/internal/object"
)

// graph knows what the computation of each object has read, and which objects have to be computed again.
type graph struct {
	users map[object.Key]map[object.Key]struct{}
	reads map[object.Key][]object.Key
	dirty map[string]map[object.Key]struct{} // by kind
}

// invalidate has an object computed again.
func (g *graph) invalidate(k object.Key) {
	if g.dirty[k.Kind] == nil {
		g.dirty[k.Kind] = map[object.Key]struct{}{}
	}
	g.dirty[k.Kind][k] = struct{}{}
}

// touch has those computed again that have read what a key stands for.
func (g *graph) touch(k object.Key) {
	for user := range g.users[k] {
		g.invalidate(user)
	}
}

// take returns the objects of a kind that have to be computed again, sorted, and forgets them.
func (g *graph) take(kind string) []object.Key {
	dirty := g.dirty[kind]
	if len(dirty) == 0 {
		return nil
	}
	delete(g.dirty, kind)
	return slices.SortedFunc(maps.Keys(dirty), object.Key.Compare)
}

// lookup reads objects for the computation of one object.
type lookup struct {
	*State
	of   object.Key
	keys []object.Key
	// has and lacks are the accesses to other namespaces that it has asked for.
	has, lacks []Access
}

func (s *State) lookup(of object.Key) *lookup { return &lookup{State: s, of: of} }

func (l *lookup) read(k object.Key) { l.keys = append(l.keys, k) }

// done records what was read.
func (l *lookup) done() {
	l.compare()
	slices.SortFunc(l.keys, object.Key.Compare)
	now := slices.Compact(l.keys)
	old := l.graph.reads[l.of]
	if slices.Equal(old, now) {
		return
	}
	for _, k := range old {
		if _, found := slices.BinarySearchFunc(now, k, object.Key.Compare); found {
			continue
		}
		if delete(l.graph.users[k], l.of); len(l.graph.users[k]) == 0 {
			delete(l.graph.users, k)
			l.want(k, false)
		}
	}
	for _, k := range now {
		if l.graph.users[k] == nil {
			l.graph.users[k] = map[object.Key]struct{}{}
			l.want(k, true)
		}
		l.graph.users[k][l.of] = struct{}{}
	}
	if len(now) == 0 {
		delete(l.graph.reads, l.of)
		return
	}
	l.graph.reads[l.of] = slices.Clip(now)
}

// want keeps the list of Secrets and ConfigMaps that are read.
func (l *lookup) want(k object.Key, wanted bool) {
	switch k.Kind {
	case credential:
		k.Group, k.Kind = "", secret
	case configMap:
	default:
		return
	}
	l.result.Wanted = true
	if wanted {
		l.wanted[k] = struct{}{}
	} else {
		delete(l.wanted, k)
	}
}

func serviceKey(n Name) object.Key {
	return object.Key{Kind: service, Namespace: n.Namespace, Name: n.Name}
}

// service finds a Service, that of the own cluster first; nil if there is none.
func (l *lookup) service(n Name) *object.Object {
	l.read(serviceKey(n))
	var out *object.Object
	for cluster, o := range l.services[n] {
		if out == nil || cluster < out.Key.Cluster {
			out = o
		}
	}
	return out
}

// entryKey is the key of a ServiceEntry.
func entryKey(n Name) object.Key {
	return object.Key{Group: groupIstio, Kind: serviceEntry, Namespace: n.Namespace, Name: n.Name}
}

// hostKey stands for all ServiceEntries with a host.
func hostKey(host string) object.Key { return object.Key{Kind: "host", Name: host} }

// sameService reports whether two Services are equal in what is read of them.
func sameService(a, b *object.Object) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := a.Body.(*corev1.Service), b.Body.(*corev1.Service)
	same := func(a, b *object.ClusterSet) bool {
		if a == nil || b == nil {
			return a == b
		}
		return a.Host == b.Host && equality.Semantic.DeepEqual(a.Service, b.Service)
	}
	return x.Spec.Type == y.Spec.Type && equality.Semantic.DeepEqual(x.Spec.Ports, y.Spec.Ports) &&
		equality.Semantic.DeepEqual(x.Spec.Selector, y.Spec.Selector) && same(a.ClusterSet, b.ClusterSet)
}

// namespaceLabels are the labels of a namespace, among them the one that Kubernetes gives to each.
func (l *lookup) namespaceLabels(name string) labels.Set {
	k := object.Key{Kind: namespace, Name: name}
	l.read(k)
	if o := l.objects[k]; o != nil && o.Labels[corev1.LabelMetadataName] == name {
		return o.Labels
	} else if o != nil {
		return labels.Merge(o.Labels, labels.Set{corev1.LabelMetadataName: name})
	}
	return labels.Set{corev1.LabelMetadataName: name}
}

// grantsOf stands for all ReferenceGrants of a namespace.
func grantsOf(namespace string) object.Key {
	return object.Key{Group: Group, Kind: ReferenceGrant, Namespace: namespace}
}

// policiesOf stands for all BackendTLSPolicies that target a Service.
func policiesOf(n Name) object.Key { return key("policies", n) }

// routedTo stands for the Gateways whose routes lead to a Service.
func routedTo(n Name) object.Key { return key("routed", n) }

func compareText(a, b string) int { return strings.Compare(a, b) }

func compareNames(a, b Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
