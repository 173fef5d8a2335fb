package normalise

import (
	"cmp"
	"slices"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/object"
)

var ingressKind = &rules[object.Object]{
	index: func(m *Mesh, old, now *object.Object) {
		if old != nil {
			m.ingresses.byClass.Remove(ingress.ClassName(old), old.Key)
		}
		if now != nil {
			m.ingresses.byClass.Add(ingress.ClassName(now), now.Key)
		}
	},
	touch: func(m *Mesh, o *object.Object) { m.ingresses.dirty.Add(o.Key) },
}

var ingressClassKind = &rules[object.Object]{
	index: func(m *Mesh, old, now *object.Object) { m.ingresses.setClass(cmp.Or(now, old).Key.Name, now) },
}

// ingresses holds the Ingresses and IngressClasses, and the Gateways and VirtualServices made from them: a Gateway for
// each Ingress that the mesh serves, and a VirtualService for each of their hosts.
type ingresses struct {
	classes ingress.Classes
	// taken are the Ingresses that the mesh serves, as they were converted last.
	taken map[object.Key]*object.Object
	// byClass finds Ingresses by the IngressClass that they name, "" for none; byHost, of those taken, by host, and
	// byPort by the Services that they name ports of.
	byClass sets.Multimap[string, object.Key]
	byHost  sets.Multimap[string, object.Key]
	byPort  sets.Multimap[namespacedName, object.Key]
	// names are the names of the hosts' VirtualServices, sharing the hosts that have the same one; routes are the
	// VirtualServices' keys.
	names   map[string]namespacedName
	sharing sets.Multimap[namespacedName, string]
	routes  map[string]object.Key
	// made are all generated objects. An object of a user with the same key is in force instead.
	made map[object.Key]*object.Object

	// dirty and dirtyHosts are what convertIngresses converts again.
	dirty      sets.Set[object.Key]
	dirtyHosts sets.Set[string]
}

func newIngresses() ingresses {
	return ingresses{
		classes: ingress.Classes{}, taken: map[object.Key]*object.Object{}, byClass: sets.Multimap[string, object.Key]{},
		byHost: sets.Multimap[string, object.Key]{}, byPort: sets.Multimap[namespacedName, object.Key]{}, names: map[string]namespacedName{},
		sharing: sets.Multimap[namespacedName, string]{}, routes: map[string]object.Key{}, made: map[object.Key]*object.Object{},
		dirty: sets.Set[object.Key]{}, dirtyHosts: sets.Set[string]{},
	}
}

// setClass takes over an IngressClass, and marks the Ingresses of it, and those without a class if it is, or was, a
// default one.
func (x *ingresses) setClass(name string, o *object.Object) {
	touch := func(class string) {
		for k := range x.byClass[class].All {
			x.dirty.Add(k)
		}
	}
	touch(name)
	if x.classes.Put(name, o) {
		touch("")
	}
}

// touchService marks the hosts whose routes name a port of a Service.
func (x *ingresses) touchService(service namespacedName) {
	for k := range x.byPort[service].All {
		x.touchHosts(x.taken[k])
	}
}

func (x *ingresses) touchHosts(o *object.Object) {
	for _, h := range ingress.Hosts(o) {
		x.dirtyHosts.Add(h)
	}
}

// setTaken replaces an Ingress that the mesh serves; nil if it does not.
func (x *ingresses) setTaken(k object.Key, o *object.Object) {
	each := func(o *object.Object, host func(string, object.Key), service func(namespacedName, object.Key)) {
		x.touchHosts(o)
		for _, h := range ingress.Hosts(o) {
			host(h, k)
		}
		ingress.Backends(o, func(_ string, b *networkingv1.IngressServiceBackend) {
			if b.Port.Name != "" {
				service(namespacedName{namespace: k.Namespace, name: b.Name}, k)
			}
		})
	}
	if old := x.taken[k]; old != nil {
		each(old, x.byHost.Remove, x.byPort.Remove)
	}
	if o == nil {
		delete(x.taken, k)
		return
	}
	x.taken[k] = o
	each(o, x.byHost.Add, x.byPort.Add)
}

// convertIngresses converts the Ingresses and the hosts that are dirty. Apply calls it after all updates.
func (m *Mesh) convertIngresses() {
	x := &m.ingresses
	for k := range x.dirty {
		now := m.stored[k].object
		if now != nil && ingress.Takes(m.Settings(), now, x.classes.Get) != ingress.Taken {
			now = nil
		}
		x.setTaken(k, now)
		key := object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: ingress.Namespace, Name: ingress.GatewayName(k)}
		if now == nil {
			m.generate(key, nil)
		} else {
			m.generate(key, ingress.Gateway(m.Settings(), now))
		}
	}
	hosts := map[string][]*object.Object{}
	for h := range x.dirtyHosts {
		hosts[h] = x.serving(h)
		x.rename(h, hosts[h])
	}
	for h := range x.dirtyHosts {
		if old, ok := x.routes[h]; ok {
			delete(x.routes, h)
			m.generate(old, nil)
		}
	}
	for h := range x.dirtyHosts {
		list, ok := hosts[h]
		if !ok {
			list = x.serving(h)
		}
		if len(list) > 0 {
			vs := ingress.VirtualService(h, x.nameOf(h), list, m.namedPort, m.cfg.Domain)
			x.routes[h] = vs.Key
			m.generate(vs.Key, vs)
		}
	}
	clear(x.dirty)
	clear(x.dirtyHosts)
}

// serving lists the Ingresses with rules for a host, the oldest first.
func (x *ingresses) serving(host string) []*object.Object {
	var out []*object.Object
	for k := range x.byHost[host].All {
		out = append(out, x.taken[k])
	}
	slices.SortFunc(out, object.CompareAge)
	return out
}

// rename gives a host the name that the oldest of its Ingresses decides, and marks the other hosts of the former name
// and of the new one.
func (x *ingresses) rename(host string, serving []*object.Object) {
	var now namespacedName
	if len(serving) > 0 {
		first := serving[0].Key
		now = namespacedName{namespace: first.Namespace, name: ingress.HostName(host, first)}
	}
	old, had := x.names[host]
	if now == old {
		return
	}
	if had {
		x.sharing.Remove(old, host)
		delete(x.names, host)
	}
	for _, name := range []namespacedName{old, now} {
		for h := range x.sharing[name].All {
			x.dirtyHosts.Add(h)
		}
	}
	if len(serving) > 0 {
		x.names[host] = now
		x.sharing.Add(now, host)
	}
}

// nameOf is the name of a host's VirtualService. Of several hosts with the same name the later ones, sorted, have a
// number behind it.
func (x *ingresses) nameOf(host string) string {
	name, before := x.names[host], 0
	for h := range x.sharing[name].All {
		if h < host {
			before++
		}
	}
	if before == 0 {
		return name.name
	}
	return name.name + "-" + strconv.Itoa(before+1)
}

// generate puts a generated object in force; nil takes it away.
func (m *Mesh) generate(k object.Key, o *object.Object) {
	if o == nil {
		delete(m.ingresses.made, k)
	} else {
		m.ingresses.made[k] = o
	}
	if now := m.stored[k].object; (now != nil && now.Origin != nil) || (now == nil && o != nil) {
		m.kindOf(k).put(m, k, o)
	}
}

// namedPort finds the port of a Service by its name; 0 if there is none.
func (m *Mesh) namedPort(namespace, service, port string) uint32 {
	o := m.service(namespacedName{namespace: namespace, name: service})
	if o == nil {
		return 0
	}
	for _, p := range o.service.Spec.Ports {
		if p.Name == port {
			return uint32(p.Port)
		}
	}
	return 0
}
