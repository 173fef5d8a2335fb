package normalise

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// rebuild recomputes everything dirty and records the changes in d.
func (m *Mesh) rebuild(d *Delta) {
	todo := m.dirty
	m.dirty = newDirty()
	if todo.mesh {
		m.rebuildMesh(d)
	}
	for name := range todo.namespaces {
		var body proto.Message
		if o := m.namespaces[place{namespace: name}]; o != nil {
			body = &configv1.Namespace{Name: name, Labels: o.Labels}
		}
		m.emit(d, resource.Key{Kind: resource.KindNamespace, Name: name}, body)
	}
	m.rebuildServices(d, todo.services)
	for h := range todo.endpoints {
		m.rebuildEndpoints(d, h)
	}
	for w := range todo.workloads {
		var body proto.Message
		if wl := m.workload(w); wl != nil {
			body = wl
		}
		m.emit(d, resource.Key{Kind: resource.KindWorkload, Namespace: w.namespace, Name: contract.WorkloadName(w.name, w.cluster)}, body)
	}
	for k := range todo.bans {
		m.emit(d, resource.Key{Kind: resource.KindIdentityBan, Name: k.Name}, m.ban(k))
	}
	for k := range todo.configs {
		body, err := m.istioConfig(k)
		if err != nil {
			d.Errors = append(d.Errors, fmt.Errorf("%s: %w", k, err))
			continue
		}
		m.emit(d, m.configKey(k), body)
	}
}

// configKey is the resource key of an Istio object. An object without a namespace holds for the whole mesh (see
// object.Object.Held) and goes into the root namespace.
func (m *Mesh) configKey(k object.Key) resource.Key {
	return resource.Key{Kind: k.Kind, Namespace: cmp.Or(k.Namespace, m.settings.GetRootNamespace()), Name: k.Name}
}

func (m *Mesh) rebuildMesh(d *Delta) {
	settings, err := resource.Any(m.settings)
	if err != nil {
		d.Errors = append(d.Errors, fmt.Errorf("mesh configuration: %w", err))
		return
	}
	body := &configv1.MeshConfig{Settings: settings, ClusterDomain: m.cfg.Domain, Cluster: m.cfg.Cluster}
	if m.meshObject != nil {
		body.Source = sourceRef(m.meshObject)
	}
	m.emit(d, resource.Key{Kind: resource.KindMeshConfig, Name: "default"}, body)
}

// rebuildServices builds the Services and then writes the allocated addresses into them, and into others whose address
// moved.
func (m *Mesh) rebuildServices(d *Delta, hosts set[hostKey]) {
	for h := range hosts {
		services := m.buildServices(h)
		for _, old := range m.built[h] {
			if !slices.ContainsFunc(services, sameVisibility(old)) {
				m.emit(d, serviceKey(old), nil)
			}
		}
		if len(services) == 0 {
			delete(m.built, h)
		} else {
			m.built[h] = services
		}
		if first := oldestWantingVIP(h, services); first != nil {
			m.vips.want(h, first.GetCreationTime().AsTime())
		} else {
			m.vips.drop(h)
		}
	}
	for h := range m.vips.takeMoved() {
		hosts.add(h)
	}
	for h := range hosts {
		given := m.vips.addresses(h)
		for i, s := range m.built[h] {
			var own []string
			if given != nil && wantsVIP(h, s) {
				own = given
			}
			if !slices.Equal(own, s.AutoAddresses) {
				s = proto.CloneOf(s)
				s.AutoAddresses = own
				m.built[h][i] = s
			}
			m.emit(d, serviceKey(s), s)
		}
	}
}

func serviceKey(s *configv1.Service) resource.Key {
	return resource.Key{Kind: resource.KindService, Namespace: s.Namespace, Name: contract.ServiceName(s)}
}

func (m *Mesh) rebuildEndpoints(d *Delta, h hostKey) {
	var keys []resource.Key
	for _, es := range m.endpointSets(h) {
		k := resource.Key{Kind: resource.KindEndpointSet, Namespace: h.namespace, Name: contract.EndpointSetName(es)}
		keys = append(keys, k)
		m.emit(d, k, es)
	}
	for _, old := range m.endpoints[h] {
		if !slices.Contains(keys, old) {
			m.emit(d, old, nil)
		}
	}
	if len(keys) == 0 {
		delete(m.endpoints, h)
	} else {
		m.endpoints[h] = keys
	}
}

// emit records the new state of a resource; a nil body removes it. An unchanged resource is not recorded.
func (m *Mesh) emit(d *Delta, k resource.Key, body proto.Message) {
	if body == nil {
		if _, ok := m.out[k]; ok {
			delete(m.out, k)
			d.Removed = append(d.Removed, k)
		}
		return
	}
	r, err := resource.New(k, body)
	if err != nil {
		d.Errors = append(d.Errors, fmt.Errorf("%s %s/%s: %w", k.Kind, k.Namespace, k.Name, err))
		return
	}
	if bytes.Equal(m.out[k], r.Hash) {
		return
	}
	m.out[k] = r.Hash
	d.Upserts = append(d.Upserts, r)
}

// claimants are the objects behind a hostname: the Kubernetes Service first, then ServiceEntries, oldest first. The
// first decides. Of Services of several clusters it is the first of servicesOf alone.
func (m *Mesh) claimants(h hostKey) []*object.Object {
	var out []*object.Object
	for o := range m.claims[h].all {
		if o.kind != "Service" {
			out = append(out, m.owners[o])
		}
	}
	slices.SortFunc(out, object.CompareAge)
	if services := m.servicesOf(h); len(services) > 0 {
		return append(services[:1:1], out...)
	}
	return out
}

// servicesOf are the Kubernetes Services of a hostname, one of each cluster: that of the own cluster first, then the
// oldest.
func (m *Mesh) servicesOf(h hostKey) []*object.Object {
	var out []*object.Object
	for o := range m.claims[h].all {
		if o.kind == "Service" {
			out = append(out, m.owners[o])
		}
	}
	slices.SortFunc(out, func(a, b *object.Object) int {
		if own := a.Key.Cluster == ""; own != (b.Key.Cluster == "") {
			if own {
				return -1
			}
			return 1
		}
		return object.CompareAge(a, b)
	})
	return out
}
