package normalise

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/object"
)

// owner is a Service or a ServiceEntry: it claims hostnames and selects workloads.
type owner struct {
	object *object.Object
	// service is the body of a Service, entry that of a ServiceEntry.
	service *corev1.Service
	entry   *networking.ServiceEntry
	hosts   []hostKey
	ports   []*configv1.ServicePort
	// selector of workloads; nil if it selects none.
	selector map[string]string
	// registered is what a registry says of a ServiceEntry that it has made; nil for others.
	registered *object.Registered
}

func ownerRules(decode func(*Mesh, *object.Object) *owner) *rules[owner] {
	return &rules[owner]{
		decode: func(m *Mesh, o *object.Object) (*owner, error) {
			out := decode(m, o)
			out.object, out.registered = o, o.Registered
			for _, h := range HostsOf(o, m.cfg.Domain) {
				out.hosts = append(out.hosts, hostKey{Namespace: o.Key.Namespace, Hostname: h})
			}
			return out, nil
		},
		index: (*Mesh).indexOwner,
		touch: (*Mesh).touchOwner,
	}
}

// maySelect reports whether the owner may select an instance that its selector matches: those of a registry's service
// that service alone, whatever their labels, and all other owners all other instances.
func (o *owner) maySelect(in *instance) bool {
	if o.registered == nil {
		return in.registered == ""
	}
	return in.registered == o.registered.Service
}

// joins is the host to which the endpoints of a registry's ServiceEntry are added; ok is false if there is none.
func (o *owner) joins() (h hostKey, ok bool) {
	if o.registered == nil || o.registered.Joins == "" {
		return hostKey{}, false
	}
	return hostKey{Namespace: o.object.Key.Namespace, Hostname: o.registered.Joins}, true
}

func (o *owner) place() place { return place{o.object.Key.Namespace, o.object.Key.Cluster} }

func (o *owner) name() namespacedName { return nameOf(o.object.Key) }

// build makes the Service of one of the owner's hostnames, without what other owners add.
func (o *owner) build(hostname string) *configv1.Service {
	if set := o.object.ClusterSet; set != nil && hostname == set.Host {
		return fromService(o.object, set.Service, hostname)
	}
	if o.service != nil {
		return fromService(o.object, o.service, hostname)
	}
	out := fromServiceEntry(o.object, o.entry, hostname)
	if o.registered != nil && slices.Contains(o.registered.Aliases, hostname) {
		out.Resolution, out.ExternalName = configv1.Resolution_RESOLUTION_DNS, entryHost(o.entry.Hosts[0])
		out.Selector, out.Ports = nil, nil
	}
	return out
}

func (m *Mesh) indexOwner(old, now *owner) {
	if now != nil {
		m.gateways.Put(now.object.Key, now.object)
	} else {
		m.gateways.Put(old.object.Key, nil)
	}
	if old != nil {
		for _, h := range old.hosts {
			m.hosts[h].owners.Remove(old)
		}
		if h, ok := old.joins(); ok {
			m.hosts[h].joiners.Remove(old)
		}
		m.owners.remove(old)
		for _, name := range old.gatewayNames() {
			m.gatewayNames.Remove(name, old)
		}
	}
	if now != nil {
		for _, h := range now.hosts {
			m.hostOf(h).owners.Add(now)
		}
		if h, ok := now.joins(); ok {
			m.hostOf(h).joiners.Add(now)
		}
		m.owners.add(now)
		for _, name := range now.gatewayNames() {
			m.gatewayNames.Add(name, now)
		}
	}
}

// gatewayNames are the host names of a Service's load balancer, whether or not it is a gateway.
func (o *owner) gatewayNames() []string {
	if o.service == nil {
		return nil
	}
	return networks.Names(o.service)
}

// hostOf finds a host, or makes it.
func (m *Mesh) hostOf(h hostKey) *host {
	if m.hosts[h] == nil {
		m.hosts[h] = &host{}
	}
	return m.hosts[h]
}

// touchOwner marks the hosts of an owner, and the workloads behind it, whose ServiceTargets name its ports.
func (m *Mesh) touchOwner(o *owner) {
	for _, h := range o.hosts {
		m.dirty.services.Add(h)
		m.dirty.endpoints.Add(h)
	}
	if h, ok := o.joins(); ok {
		m.dirty.endpoints.Add(h)
	}
	m.instances.selectedBy(o, m.touchWorkload)
	if o.service == nil {
		return
	}
	for s := range m.slices.ofService[o.name()].All {
		for pod := range s.pods {
			m.dirty.workloads.Add(pod)
		}
	}
	if o.object.Key.Cluster == "" {
		m.ingresses.touchService(o.name())
	}
}

// service finds a Kubernetes Service; nil if there is none.
func (m *Mesh) service(n namespacedName) *owner {
	o, _ := m.stored[n.key("", "Service")].value.(*owner)
	return o
}

// allWorkloads is the selector of a ServiceEntry whose workloadSelector has no labels: as in Istio it selects all
// workloads of the namespace. It is indexed under a pair that no workload has as label.
var allWorkloads = map[string]string{"": ""}

// owners finds the owners whose selector matches given labels. Each is indexed under one pair of its selector.
type owners map[place]sets.Multimap[label, *owner]

// label is one key: value pair of an object's labels.
type label struct{ key, value string }

// indexPair is the pair that a selector is indexed under: the one with the smallest key.
func indexPair(selector map[string]string) label {
	var out label
	first := true
	for k, v := range selector {
		if first || k < out.key {
			out, first = label{k, v}, false
		}
	}
	return out
}

func (x owners) add(o *owner) {
	if len(o.selector) == 0 {
		return
	}
	at := o.place()
	if x[at] == nil {
		x[at] = sets.Multimap[label, *owner]{}
	}
	x[at].Add(indexPair(o.selector), o)
}

func (x owners) remove(o *owner) {
	if len(o.selector) > 0 {
		x[o.place()].Remove(indexPair(o.selector), o)
	}
}

// of calls f for every owner that selects the instance: Services of its cluster, and ServiceEntries, which select
// workloads of all clusters.
func (x owners) of(in *instance, f func(*owner)) {
	may := func(o *owner) {
		if o.maySelect(in) {
			f(o)
		}
	}
	x.matching(in.place(), in.labels, may)
	if in.key.Cluster != "" {
		x.matching(place{namespace: in.key.Namespace}, in.labels, func(o *owner) {
			if o.entry != nil {
				may(o)
			}
		})
	}
}

// matching calls f for every owner of the namespace that selects the labels.
func (x owners) matching(at place, labels map[string]string, f func(*owner)) {
	ns := x[at]
	if ns == nil {
		return
	}
	for o := range ns[label{}].All {
		f(o)
	}
	for k, v := range labels {
		for o := range ns[label{k, v}].All {
			if k != "" && matches(o.selector, labels) {
				f(o)
			}
		}
	}
}

// matches reports whether a selector selects the labels. An empty selector selects nothing, as in a Kubernetes Service.
func matches(selector, labels map[string]string) bool {
	if len(selector) == 0 {
		return false
	}
	for k, v := range selector {
		if got, ok := labels[k]; k != "" && (!ok || got != v) {
			return false
		}
	}
	return true
}
