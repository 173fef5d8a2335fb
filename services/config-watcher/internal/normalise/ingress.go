package normalise

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// ingresses holds the Ingresses and IngressClasses, and the Gateways and VirtualServices made from them: a Gateway for
// each Ingress that the mesh serves, and a VirtualService for each of their hosts.
type ingresses struct {
	classes ingress.Classes
	all     map[object.Key]*object.Object
	// taken are the Ingresses that the mesh serves, as they were converted last.
	taken map[object.Key]*object.Object
	// byClass finds Ingresses by the IngressClass that they name, "" for none; byHost, of those taken, by host, and
	// byPort by the Services that they name ports of.
	byClass multimap[string, object.Key]
	byHost  multimap[string, object.Key]
	byPort  multimap[namespacedName, object.Key]
	// names are the names of the hosts' VirtualServices, sharing the hosts that have the same one; routes are the
	// VirtualServices' keys.
	names   map[string]namespacedName
	sharing multimap[namespacedName, string]
	routes  map[string]object.Key
	// made are all generated objects. An object of a user with the same key is in force instead.
	made map[object.Key]*object.Object

	// dirty and dirtyHosts are what rebuildIngresses converts again.
	dirty      set[object.Key]
	dirtyHosts set[string]
}

func newIngresses() ingresses {
	return ingresses{
		classes: ingress.Classes{}, all: map[object.Key]*object.Object{}, taken: map[object.Key]*object.Object{},
		byClass: multimap[string, object.Key]{}, byHost: multimap[string, object.Key]{}, byPort: multimap[namespacedName, object.Key]{},
		names: map[string]namespacedName{}, sharing: multimap[namespacedName, string]{}, routes: map[string]object.Key{},
		made: map[object.Key]*object.Object{}, dirty: set[object.Key]{}, dirtyHosts: set[string]{},
	}
}

// updateIngress takes over an Ingress.
func (x *ingresses) updateIngress(k object.Key, o *object.Object) {
	x.dirty.add(k)
	if old := x.all[k]; old != nil {
		x.byClass.remove(ingress.ClassName(old), k)
	}
	if o == nil {
		delete(x.all, k)
		return
	}
	x.all[k] = o
	x.byClass.add(ingress.ClassName(o), k)
}

// updateClass takes over an IngressClass, and marks the Ingresses of it, and those without a class if it is, or was, a
// default one.
func (x *ingresses) updateClass(name string, o *object.Object) {
	touch := func(class string) {
		for k := range x.byClass[class].all {
			x.dirty.add(k)
		}
	}
	touch(name)
	if x.classes.Put(name, o) {
		touch("")
	}
}

// touchService marks the hosts whose routes name a port of a Service.
func (x *ingresses) touchService(service namespacedName) {
	for k := range x.byPort[service].all {
		x.touchHosts(x.taken[k])
	}
}

func (x *ingresses) touchHosts(o *object.Object) {
	for _, h := range ingress.Hosts(o) {
		x.dirtyHosts.add(h)
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
		each(old, x.byHost.remove, x.byPort.remove)
	}
	if o == nil {
		delete(x.taken, k)
		return
	}
	x.taken[k] = o
	each(o, x.byHost.add, x.byPort.add)
}

// rebuildIngresses converts the Ingresses and the hosts that are dirty. Apply calls it after all updates.
func (m *Mesh) rebuildIngresses() {
	x := &m.ingresses
	for k := range x.dirty {
		now := x.all[k]
		if now != nil && ingress.Takes(m.settings, now, x.classes.Get) != ingress.Taken {
			now = nil
		}
		x.setTaken(k, now)
		key := object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: ingress.Namespace, Name: ingress.GatewayName(k)}
		if now == nil {
			m.generate(key, nil)
		} else {
			m.generate(key, ingress.Gateway(m.settings, now))
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
	for k := range x.byHost[host].all {
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
		x.sharing.remove(old, host)
		delete(x.names, host)
	}
	for _, name := range []namespacedName{old, now} {
		for h := range x.sharing[name].all {
			x.dirtyHosts.add(h)
		}
	}
	if len(serving) > 0 {
		x.names[host] = now
		x.sharing.add(now, host)
	}
}

// nameOf is the name of a host's VirtualService. Of several hosts with the same name the later ones, sorted, have a
// number behind it.
func (x *ingresses) nameOf(host string) string {
	name, before := x.names[host], 0
	for h := range x.sharing[name].all {
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
	if now := m.configs[k]; (now != nil && now.Origin != nil) || (now == nil && o != nil) {
		m.updateConfig(k, o)
	}
}

// namedPort finds the port of a Service by its name; 0 if there is none.
func (m *Mesh) namedPort(namespace, service, port string) uint32 {
	o := m.owners[owner{"Service", namespace, service, ""}]
	if o == nil {
		return 0
	}
	for _, p := range o.Body.(*corev1.Service).Spec.Ports {
		if p.Name == port {
			return uint32(p.Port)
		}
	}
	return 0
}
