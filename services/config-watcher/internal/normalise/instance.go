package normalise

import (
	"cmp"
	"fmt"
	"reflect"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Labels that decide about endpoints.
const (
	labelTLSMode     = "security.istio.io/tlsMode"
	labelServiceName = "kubernetes.io/service-name"
)

// instance is what a Pod or a WorkloadEntry contributes to endpoints and Workloads. Selectors match both alike. For an
// endpoint that is neither, the name in key is empty.
type instance struct {
	key       object.Key
	object    *object.Object
	addresses []string
	labels    map[string]string
	account   string
	node      string
	locality  *configv1.Locality // of the object itself; nil means the node's
	// copied is the locality in the labels that Kubernetes copies from the node to a Pod, which lack the subzone. It
	// counts where the node is not known.
	copied  *configv1.Locality
	network string
	health  configv1.Health
	tlsMode configv1.TlsMode
	weight  uint32
	// ports by name: container ports of a Pod, ports of a WorkloadEntry.
	ports map[string]uint32
	// hostname and subdomain of a StatefulSet's Pod.
	hostname, subdomain string
	// registered is the name of the ServiceEntry that alone selects the instance of a registry; "" for all others.
	registered string
}

func instanceRules(decode func(*object.Object) *instance) *rules[instance] {
	return &rules[instance]{
		decode: func(_ *Mesh, o *object.Object) (*instance, error) { return decode(o), nil },
		same:   (*instance).same,
		index:  func(m *Mesh, old, now *instance) { m.instances.replace(old, now) },
		touch:  (*Mesh).touchInstance,
	}
}

const kindPod = "Pod"

func (in *instance) isPod() bool { return in.key.Kind == kindPod }

func (in *instance) place() place { return place{in.key.Namespace, in.key.Cluster} }

// same reports whether two instances contribute the same to endpoints and Workloads.
func (in *instance) same(o *instance) bool {
	a, b := *in, *o
	a.object, b.object = nil, nil
	return reflect.DeepEqual(a, b) && reflect.DeepEqual(MeshAnnotations(in.object.Annotations), MeshAnnotations(o.object.Annotations)) &&
		in.object.Location == o.object.Location && in.object.Source == o.object.Source && in.object.Generation == o.object.Generation
}

// touchInstance marks the Workload of the instance and the endpoints of every service that leads to it.
func (m *Mesh) touchInstance(in *instance) {
	m.touchWorkload(in)
	m.owners.of(in, func(o *owner) {
		for _, h := range o.hosts {
			m.dirty.endpoints.Add(h)
		}
		if h, ok := o.joins(); ok {
			m.dirty.endpoints.Add(h)
		}
	})
	for s := range m.slices.of(in) {
		m.touchSlice(s)
	}
}

func (m *Mesh) touchWorkload(in *instance) { m.dirty.workloads.Add(nameOf(in.key)) }

// pod finds a Pod; nil if there is none.
func (m *Mesh) pod(n namespacedName) *instance {
	in, _ := m.stored[n.key("", kindPod)].value.(*instance)
	return in
}

// endpointAddresses are the instance's addresses. A WorkloadEntry of a network may have none, because only the
// network's gateways reach it; it yields one empty address.
func (in *instance) endpointAddresses() []string {
	if len(in.addresses) == 0 && in.network != "" && !in.isPod() {
		return []string{""}
	}
	return in.addresses
}

// identity is the SPIFFE URI of a service account; empty if the account is unknown.
func (m *Mesh) identity(namespace, account string) string {
	if account == "" {
		return ""
	}
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", m.settings.GetTrustDomain(), namespace, account)
}

func (m *Mesh) localityOf(in *instance) *configv1.Locality {
	return cmp.Or(in.locality, m.nodeLocality(in), in.copied)
}

// instances finds the workload instances that a selector matches.
type instances struct {
	byPair map[place]sets.Multimap[label, *instance]
	byNode sets.Multimap[nodeKey, *instance]
	// clusters counts the instances of each cluster.
	clusters map[string]int
}

func newInstances() instances {
	return instances{
		byPair: map[place]sets.Multimap[label, *instance]{}, byNode: sets.Multimap[nodeKey, *instance]{}, clusters: map[string]int{},
	}
}

// replace takes over a new instance for an old one; either may be nil.
func (x *instances) replace(old, now *instance) {
	if old != nil {
		ns := x.byPair[old.place()]
		ns.Remove(label{}, old)
		for k, v := range old.labels {
			ns.Remove(label{k, v}, old)
		}
		if old.node != "" {
			x.byNode.Remove(old.nodeKey(), old)
		}
		if x.clusters[old.key.Cluster]--; x.clusters[old.key.Cluster] == 0 {
			delete(x.clusters, old.key.Cluster)
		}
	}
	if now != nil {
		ns := x.byPair[now.place()]
		if ns == nil {
			ns = sets.Multimap[label, *instance]{}
			x.byPair[now.place()] = ns
		}
		ns.Add(label{}, now)
		for k, v := range now.labels {
			ns.Add(label{k, v}, now)
		}
		if now.node != "" {
			x.byNode.Add(now.nodeKey(), now)
		}
		x.clusters[now.key.Cluster]++
	}
}

// matching calls f for every instance of the namespace that the selector matches, in no order. It compares only the
// instances with the rarest pair of the selector. owner.maySelect says which of them an owner may have.
func (x *instances) matching(at place, selector map[string]string, f func(*instance)) {
	ns := x.byPair[at]
	if ns == nil || len(selector) == 0 {
		return
	}
	var smallest sets.Small[*instance]
	first := true
	for k, v := range selector {
		b := ns[label{k, v}]
		if first || b.Len() < smallest.Len() {
			smallest, first = b, false
		}
	}
	for in := range smallest.All {
		if matches(selector, in.labels) {
			f(in)
		}
	}
}

// everywhere is matching for a namespace of all clusters.
func (x *instances) everywhere(namespace string, selector map[string]string, f func(*instance)) {
	for cluster := range x.clusters {
		x.matching(place{namespace, cluster}, selector, f)
	}
}

// selectedBy is matching for what an owner selects: a Service workloads of its cluster, a ServiceEntry those of all.
func (x *instances) selectedBy(o *owner, f func(*instance)) {
	may := func(in *instance) {
		if o.maySelect(in) {
			f(in)
		}
	}
	if o.service != nil {
		x.matching(o.place(), o.selector, may)
	} else {
		x.everywhere(o.place().namespace, o.selector, may)
	}
}
