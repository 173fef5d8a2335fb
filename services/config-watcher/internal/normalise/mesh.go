// Package normalise turns users' objects into the resources of the normalised mesh: everything that does not depend on
// the proxy that asks. Package pipeline calls Mesh.Apply with changed objects and commits the Delta as a revision;
// package running uses the same rules (Host, ExportedTo, MergeDelegate, ...).
//
// A file holds the rules for one kind of resource: service.go Service, endpoints.go EndpointSet, workload.go Workload,
// istio.go the Istio kinds. Mesh indexes the objects, so that a change recomputes only what depends on it, and
// remembers the hash of every resource, so that equal results are no change. A change of an endpoint recomputes the
// EndpointSets of the services that select the workload, and no Service. Defaults of MeshConfig are not set here:
// meshdefaults.MeshConfig sets them.
package normalise

import (
	"cmp"
	"fmt"
	"maps"
	"sort"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/meshdefaults"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// Config holds the settings of the whole mesh that come from no object.
type Config struct {
	// Cluster is the ID of the own cluster, "Kubernetes" by default.
	Cluster string
	// Domain is the DNS suffix of service names, "cluster.local" by default.
	Domain string
	// TrustDomain is used unless the mesh configuration names another; "cluster.local" by default.
	TrustDomain string
	// Tenancy is off by default.
	Tenancy Tenancy
}

func (c Config) withDefaults() Config {
	c.Cluster, c.Domain, c.TrustDomain = cmp.Or(c.Cluster, "Kubernetes"), cmp.Or(c.Domain, "cluster.local"),
		cmp.Or(c.TrustDomain, "cluster.local")
	c.Tenancy.Domain = c.Domain
	return c
}

// Change is the new state of one object; a nil Object means that the object is gone.
type Change struct {
	Key    object.Key
	Object *object.Object
}

// Delta is a change of the normalised mesh. Each key is upserted or removed, never both. Both lists are sorted by key.
type Delta struct {
	Upserts []*configv1.Resource
	Removed []resource.Key
	// Errors name objects that could not be turned into resources. Their earlier resources stay.
	Errors []error
	// Discovered are the changed objects as the mesh discovers them: an object that is gone, or whose namespace is not
	// selected any more, is nil. IdentityBans and the mesh configuration are left out.
	Discovered []Change
}

// Empty reports whether nothing changed.
func (d Delta) Empty() bool { return len(d.Upserts) == 0 && len(d.Removed) == 0 }

// hostKey names a hostname of one namespace. Its Services differ in visibility.
type hostKey struct{ namespace, hostname string }

// namespacedName names a Workload, which a Pod and a WorkloadEntry of the same name share (the Pod wins), or an
// EndpointSlice, a Kubernetes Service or a VirtualService.
type namespacedName struct{ namespace, name, cluster string }

// Mesh is the state of the normalised mesh: the objects, indexed, and the hashes of the resources. It is not safe for
// concurrent use.
type Mesh struct {
	cfg Config

	settings     *mesh.MeshConfig
	meshObject   *object.Object
	clusterLocal map[string]bool // see clusterLocalHosts

	namespaces map[place]*object.Object
	nodes      map[nodeKey]*configv1.Locality
	owners     map[owner]*object.Object
	claims     multimap[hostKey, owner]
	selectors  *selectors
	instances  *instances
	slices     map[namespacedName]*object.Object
	mirrored   map[namespacedName]*object.Object        // Endpoints objects, whose slices are in slices too
	bySlice    multimap[namespacedName, namespacedName] // service -> slices
	sliceOf    map[namespacedName]namespacedName        // slice -> service
	sliceRefs  multimap[instKey, namespacedName]        // Pod -> slices that refer to it
	configs    map[object.Key]*object.Object
	delegates  multimap[namespacedName, object.Key] // delegate -> VirtualServices that name it
	// nodeRules are the hosts of the DestinationRules that need the node label of endpoints.
	nodeRules map[object.Key]string
	discovery discovery
	bans      bans
	ingresses ingresses
	// onDemandConfigs are the ProxyConfigs that switch on-demand configuration on or off.
	onDemandConfigs set[object.Key]

	vips *vips

	// built and ports are the Services of each hostname and the ports of each owner, so that a change of an endpoint or
	// a workload rebuilds no Service.
	built map[hostKey][]*configv1.Service
	ports map[owner][]*configv1.ServicePort

	out       map[resource.Key][]byte // key -> hash of the resource that the last Delta upserted
	endpoints map[hostKey][]resource.Key

	dirty dirty
	// discoveredChanges collects Delta.Discovered.
	discoveredChanges []Change
}

// dirty is the set of resources that rebuild has to recompute.
type dirty struct {
	mesh       bool
	namespaces set[string]
	services   set[hostKey]
	endpoints  set[hostKey]
	workloads  set[namespacedName]
	configs    set[object.Key]
	bans       set[object.Key]
}

func newDirty() dirty {
	return dirty{namespaces: set[string]{}, services: set[hostKey]{}, endpoints: set[hostKey]{}, workloads: set[namespacedName]{},
		configs: set[object.Key]{}, bans: set[object.Key]{}}
}

// New returns an empty mesh. Its first Apply also upserts the default mesh configuration.
func New(cfg Config) *Mesh {
	m := &Mesh{
		cfg: cfg.withDefaults(), namespaces: map[place]*object.Object{}, nodes: map[nodeKey]*configv1.Locality{},
		owners: map[owner]*object.Object{},
		claims: multimap[hostKey, owner]{}, selectors: newSelectors(), instances: newInstances(), slices: map[namespacedName]*object.Object{},
		mirrored: map[namespacedName]*object.Object{}, bySlice: multimap[namespacedName, namespacedName]{},
		sliceOf: map[namespacedName]namespacedName{}, sliceRefs: multimap[instKey, namespacedName]{}, configs: map[object.Key]*object.Object{},
		delegates: multimap[namespacedName, object.Key]{}, nodeRules: map[object.Key]string{}, onDemandConfigs: set[object.Key]{},
		vips: newVIPs(), built: map[hostKey][]*configv1.Service{}, ports: map[owner][]*configv1.ServicePort{}, out: map[resource.Key][]byte{},
		endpoints: map[hostKey][]resource.Key{}, dirty: newDirty(),
		bans: newBans(), ingresses: newIngresses(), discovery: discovery{hidden: map[object.Key]*object.Object{}},
	}
	m.settings = m.defaultSettings()
	m.clusterLocal = clusterLocalHosts(m.settings, m.cfg.Domain)
	m.dirty.mesh = true
	return m
}

// Settings is the mesh configuration in force, defaults included. The caller must not change it.
func (m *Mesh) Settings() *mesh.MeshConfig { return m.settings }

func (m *Mesh) defaultSettings() *mesh.MeshConfig {
	s := meshdefaults.MeshConfig()
	s.TrustDomain = m.cfg.TrustDomain
	return s
}

// Apply takes over changes and returns their effect. The changes of one call take effect together.
func (m *Mesh) Apply(changes []Change) Delta {
	var d Delta
	// Namespaces and settings first: they decide which of the other objects the mesh discovers.
	for _, c := range changes {
		if c.decidesDiscovery() {
			m.update(c, &d)
		}
	}
	m.rediscover()
	for _, c := range changes {
		if !c.decidesDiscovery() {
			m.update(c, &d)
		}
	}
	d.Discovered, m.discoveredChanges = m.discoveredChanges, nil
	m.rebuildIngresses()
	m.rebuild(&d)
	sort.Slice(d.Upserts, func(i, j int) bool {
		return resource.KeyOf(d.Upserts[i].Key).Compare(resource.KeyOf(d.Upserts[j].Key)) < 0
	})
	sort.Slice(d.Removed, func(i, j int) bool { return d.Removed[i].Compare(d.Removed[j]) < 0 })
	return d
}

// decidesDiscovery reports whether the object is of a kind that decides which namespaces the mesh discovers.
func (c Change) decidesDiscovery() bool {
	return c.Key.Group == "" && c.Key.Kind == "Namespace" || kinds.IsMeshConfig(c.Key)
}

// update updates the indices with one change and marks what depends on it as dirty.
func (m *Mesh) update(c Change, d *Delta) {
	switch k := c.Key; {
	case k.Group == "" && k.Kind == "Namespace":
		m.tellDiscovered(c)
		m.updateNamespace(place{k.Name, k.Cluster}, c.Object)
	case k.Group == "" && k.Kind == "Node":
		m.tellDiscovered(c)
		m.updateNode(nodeKey{k.Name, k.Cluster}, c.Object)
	case kinds.IsMeshConfig(k):
		m.updateMesh(c.Object, d)
	case kinds.IsIdentityBan(k):
		m.updateBan(k, c.Object)
	case m.discovered(place{k.Namespace, k.Cluster}):
		m.updateNamespaced(k, c.Object)
	case c.Object == nil:
		delete(m.discovery.hidden, k)
	default:
		m.discovery.hidden[k] = c.Object
	}
}

// tellDiscovered adds to Delta.Discovered. Objects of remote clusters are no configuration of the mesh.
func (m *Mesh) tellDiscovered(c Change) {
	if c.Key.Cluster == "" {
		m.discoveredChanges = append(m.discoveredChanges, c)
	}
}

// updateNamespaced is update for an object of a discovered namespace.
func (m *Mesh) updateNamespaced(k object.Key, o *object.Object) {
	m.tellDiscovered(Change{k, o})
	switch {
	case k.Group == "" && k.Kind == "Service", k.Group == kinds.GroupNetworking && k.Kind == "ServiceEntry":
		m.updateOwner(owner{k.Kind, k.Namespace, k.Name, k.Cluster}, o)
	case k.Group == "" && k.Kind == "Pod":
		var in *instance
		if o != nil {
			in = fromPod(o, o.Body.(*object.Pod))
		}
		m.updateInstance(instKey{"Pod", k.Namespace, k.Name, k.Cluster}, in)
	case k.Group == kinds.GroupNetworking && k.Kind == "WorkloadEntry":
		var in *instance
		if o != nil {
			in = fromWorkloadEntry(o, o.Body.(*networking.WorkloadEntry))
			in.labels = merged(o.Labels, in.labels)
		}
		m.updateInstance(instKey{"WorkloadEntry", k.Namespace, k.Name, k.Cluster}, in)
	case k.Group == kinds.GroupDiscovery && k.Kind == "EndpointSlice":
		m.updateSlice(namespacedName{k.Namespace, k.Name, k.Cluster}, o)
	case k.Group == "" && k.Kind == "Endpoints":
		m.updateEndpoints(k, o)
	case k.Group == kinds.GroupIngress && k.Kind == "Ingress":
		m.ingresses.updateIngress(k, o)
	case k.Group == kinds.GroupIngress && k.Kind == "IngressClass":
		m.ingresses.updateClass(k.Name, o)
	case k.Group != "" && o == nil:
		m.updateConfig(k, m.ingresses.made[k])
	case k.Group != "":
		m.updateConfig(k, o)
	}
}

func merged(base, over map[string]string) map[string]string {
	if len(base) == 0 {
		return over
	}
	out := maps.Clone(base)
	maps.Copy(out, over)
	return out
}

func (m *Mesh) updateNamespace(at place, o *object.Object) {
	network, seen := m.clusterNetwork(at.cluster), m.discovered(at)
	if o == nil {
		delete(m.namespaces, at)
	} else {
		m.namespaces[at] = o
	}
	if at.cluster == "" {
		m.dirty.namespaces.add(at.namespace)
	}
	m.discovery.stale = m.discovery.stale || m.discovered(at) != seen
	if m.clusterNetwork(at.cluster) != network {
		m.allDirty()
	}
}

// clusterNetwork is the network of every workload of a cluster that names none: a label of the root namespace, as in
// Istio's multi-network installation.
func (m *Mesh) clusterNetwork(cluster string) string {
	if o := m.namespaces[place{kinds.MeshNamespace, cluster}]; o != nil {
		return o.Labels[labelNetwork]
	}
	return ""
}

func (m *Mesh) updateNode(name nodeKey, o *object.Object) {
	var l *configv1.Locality
	if o != nil {
		l = topologyLocality(o.Labels)
	}
	if proto.Equal(l, m.nodes[name]) && (l == nil) == (m.nodes[name] == nil) {
		return
	}
	if l == nil {
		delete(m.nodes, name)
	} else {
		m.nodes[name] = l
	}
	for k := range m.instances.byNode[name].all {
		m.touchInstance(m.instances.byKey[k])
	}
}

func (m *Mesh) updateMesh(o *object.Object, d *Delta) {
	settings := m.defaultSettings()
	if o != nil {
		text := o.Body.(*corev1.ConfigMap).Data[kinds.MeshKey]
		got, _, problems := meshconfig.ParseOver(settings, "", []byte(text))
		if err := problems.Err(); err != nil {
			// Sources validate before they deliver, so this is a defect of Fairlead. The settings in force stay.
			d.Errors = append(d.Errors, fmt.Errorf("%s: %w", o.Key, err))
			return
		}
		settings = got
	}
	before := m.settings
	if before.GetRootNamespace() != settings.GetRootNamespace() {
		for k := range m.configs {
			if k.Namespace == "" {
				m.emit(d, m.configKey(k), nil) // it moves to the new root namespace
			}
		}
	}
	m.meshObject, m.settings, m.clusterLocal = o, settings, clusterLocalHosts(settings, m.cfg.Domain)
	m.dirty.mesh = true
	if proto.Equal(settings, before) {
		return
	}
	if err := m.updateDiscovery(before); err != nil {
		d.Errors = append(d.Errors, fmt.Errorf("MeshConfig.discoverySelectors: %w", err))
	}
	m.allDirty()
}

func (m *Mesh) allDirty() {
	for h := range m.claims {
		m.dirty.services.add(h)
		m.dirty.endpoints.add(h)
	}
	for k := range m.instances.byKey {
		m.dirty.workloads.add(k.workload())
	}
	for k := range m.configs {
		m.dirty.configs.add(k)
	}
	for k := range m.ingresses.all {
		m.ingresses.dirty.add(k)
	}
}

// hosts are the hostnames that an owner claims.
func (m *Mesh) hosts(o owner, obj *object.Object) []hostKey {
	if obj == nil {
		return nil
	}
	return lists.Map(HostsOf(obj, m.cfg.Domain), func(h string) hostKey { return hostKey{o.namespace, h} })
}

func ownerSelector(o owner, obj *object.Object) map[string]string {
	if obj == nil {
		return nil
	}
	if o.kind == "Service" {
		s := obj.Body.(*corev1.Service)
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			return nil
		}
		return s.Spec.Selector
	}
	return entrySelector(obj.Body.(*networking.ServiceEntry))
}

// entrySelector is the selector of a ServiceEntry's workloads; nil if it selects none.
func entrySelector(se *networking.ServiceEntry) map[string]string {
	if se.GetWorkloadSelector() != nil && len(se.GetWorkloadSelector().GetLabels()) == 0 {
		return allWorkloads
	}
	return se.GetWorkloadSelector().GetLabels()
}

func (m *Mesh) updateOwner(o owner, obj *object.Object) {
	touch := func(obj *object.Object) {
		for _, h := range m.hosts(o, obj) {
			m.dirty.services.add(h)
			m.dirty.endpoints.add(h)
		}
		m.instances.selectedBy(o, ownerSelector(o, obj), m.touchWorkload)
		if o.kind == "Service" && obj != nil {
			m.eachSlicePod(namespacedName{o.namespace, o.name, o.cluster}, func(k instKey) { m.dirty.workloads.add(k.workload()) })
		}
	}
	old := m.owners[o]
	touch(old)
	for _, h := range m.hosts(o, old) {
		m.claims.remove(h, o)
	}
	if obj == nil {
		delete(m.owners, o)
		delete(m.ports, o)
	} else {
		m.owners[o] = obj
		m.ports[o] = ownerPorts(obj)
		for _, h := range m.hosts(o, obj) {
			m.claims.add(h, o)
		}
	}
	m.selectors.set(o, ownerSelector(o, obj))
	touch(obj)
	if o.kind == "Service" && o.cluster == "" {
		m.ingresses.touchService(namespacedName{namespace: o.namespace, name: o.name})
	}
}

func (m *Mesh) updateInstance(k instKey, in *instance) {
	old := m.instances.byKey[k]
	if old.same(in) {
		if in != nil {
			m.instances.byKey[k] = in
		}
		return
	}
	m.touchInstance(old)
	if in == nil {
		m.instances.remove(k)
	} else {
		m.instances.put(in)
		if !sameLabels(old, in) || old == nil {
			m.touchInstance(in)
		}
	}
	m.dirty.workloads.add(k.workload())
}

// touchInstance marks the Workload of the instance and the endpoints of every service that leads to it.
func (m *Mesh) touchInstance(in *instance) {
	if in == nil {
		return
	}
	m.touchWorkload(in)
	m.selectors.of(in, func(o owner) {
		for _, h := range m.hosts(o, m.owners[o]) {
			m.dirty.endpoints.add(h)
		}
	})
	for slice := range m.sliceRefs[in.key].all {
		m.touchSlice(slice)
	}
}

func (m *Mesh) updateConfig(k object.Key, o *object.Object) {
	m.dirty.configs.add(k)
	if k.Kind == "ProxyConfig" && k.Group == kinds.GroupNetworking {
		m.touchProxyConfig(k, o)
	}
	if k.Kind == "DestinationRule" && k.Group == kinds.GroupNetworking {
		m.touchNodeRule(k, o)
	}
	if k.Kind == "VirtualService" && k.Group == kinds.GroupNetworking {
		if old := m.configs[k]; old != nil {
			for _, d := range delegateNames(old) {
				m.delegates.remove(d, k)
			}
		}
		if o != nil {
			for _, d := range delegateNames(o) {
				m.delegates.add(d, k)
			}
		}
		for root := range m.delegates[namespacedName{namespace: k.Namespace, name: k.Name}].all {
			m.dirty.configs.add(root)
		}
	}
	if o == nil {
		delete(m.configs, k)
	} else {
		m.configs[k] = o
	}
}
