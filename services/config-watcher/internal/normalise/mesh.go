// Package normalise turns users' objects into the normalised mesh: everything that does not depend on the asking proxy.
//
// The rules are pure functions (Host, ExportedTo, service, endpointSets, virtualService, ...). Mesh joins them: it keeps the objects indexed, so
// that a change recomputes only what it touches, and the last hash of every resource, so that a recomputation without effect is no change. An
// endpoint event recomputes the EndpointSets of the services that select the workload, and no Service.
package normalise

import (
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Config holds what is the same for the whole mesh and comes from no object.
type Config struct {
	// Cluster is the id of the registry's cluster, "Kubernetes" by default.
	Cluster string
	// Domain is the DNS suffix of service names, "cluster.local" by default.
	Domain string
	// TrustDomain holds unless the mesh configuration names another; "cluster.local" by default.
	TrustDomain string
}

func (c Config) withDefaults() Config {
	if c.Cluster == "" {
		c.Cluster = "Kubernetes"
	}
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	if c.TrustDomain == "" {
		c.TrustDomain = "cluster.local"
	}
	return c
}

// Change is a new state of one object; a nil Object means that it is gone.
type Change struct {
	Key    object.Key
	Object *object.Object
}

// Delta is how the normalised mesh changed. A key is upserted or removed, never both. Both are sorted by key.
type Delta struct {
	Upserts []*configv1.Resource
	Removed []resource.Key
	// Errors are objects that could not be turned into resources; what was there before stays.
	Errors []error
	// Seen are the objects, but for the mesh's own settings and bans, as the mesh has come to see them: those that it does not see any more,
	// because they are gone or their namespace is not selected, have none.
	Seen []Change
}

// Empty reports whether nothing changed.
func (d Delta) Empty() bool { return len(d.Upserts) == 0 && len(d.Removed) == 0 }

// hostKey names a service: one hostname of one namespace.
type hostKey struct{ namespace, hostname string }

// workKey names a Workload resource: a Pod and a WorkloadEntry of the same name are one, and the Pod wins.
type workKey struct{ namespace, name string }

// Mesh is the indexed state. It is not safe for concurrent use.
type Mesh struct {
	cfg Config

	settings   *mesh.MeshConfig
	meshObject *object.Object

	namespaces map[string]*object.Object
	nodes      map[string]*configv1.Locality
	owners     map[owner]*object.Object
	claims     multimap[hostKey, owner]
	selectors  *selectors
	instances  *instances
	slices     map[workKey]*object.Object
	bySlice    multimap[workKey, workKey] // service -> slices
	sliceOf    map[workKey]workKey        // slice -> service
	sliceRefs  multimap[instKey, workKey] // Pod -> slices that refer to it
	configs    map[object.Key]*object.Object
	delegates  multimap[workKey, object.Key] // delegate -> VirtualServices that name it
	// nodeRules are the hosts of the DestinationRules that test the node of endpoints.
	nodeRules map[object.Key]string
	discovery discovery
	bans      bans
	// onDemandConfigs are the ProxyConfigs that say whether sidecars hold only what they call.
	onDemandConfigs set[object.Key]

	vips *vips

	// built and ports keep what endpoint and workload events read of services, so that they need not rebuild any. A host has one Service for each
	// of its audiences.
	built map[hostKey][]*configv1.Service
	ports map[owner][]*configv1.ServicePort

	out       map[resource.Key][]byte // key -> hash of what was last given out
	endpoints map[hostKey][]resource.Key

	dirty dirty
	// seen gathers Delta.Seen.
	seen []Change
}

// dirty is what has to be recomputed.
type dirty struct {
	mesh       bool
	namespaces set[string]
	services   set[hostKey]
	endpoints  set[hostKey]
	workloads  set[workKey]
	configs    set[object.Key]
	bans       set[object.Key]
}

func newDirty() dirty {
	return dirty{namespaces: set[string]{}, services: set[hostKey]{}, endpoints: set[hostKey]{}, workloads: set[workKey]{}, configs: set[object.Key]{}, bans: set[object.Key]{}}
}

// New returns an empty mesh. Its first Apply also gives out the default mesh configuration.
func New(cfg Config) *Mesh {
	m := &Mesh{
		cfg: cfg.withDefaults(), namespaces: map[string]*object.Object{}, nodes: map[string]*configv1.Locality{}, owners: map[owner]*object.Object{},
		claims: multimap[hostKey, owner]{}, selectors: newSelectors(), instances: newInstances(), slices: map[workKey]*object.Object{}, bySlice: multimap[workKey, workKey]{},
		sliceOf: map[workKey]workKey{}, sliceRefs: multimap[instKey, workKey]{}, configs: map[object.Key]*object.Object{}, delegates: multimap[workKey, object.Key]{}, nodeRules: map[object.Key]string{}, onDemandConfigs: set[object.Key]{},
		vips: newVIPs(), built: map[hostKey][]*configv1.Service{}, ports: map[owner][]*configv1.ServicePort{}, out: map[resource.Key][]byte{}, endpoints: map[hostKey][]resource.Key{}, dirty: newDirty(),
		bans: newBans(), discovery: discovery{aside: map[object.Key]*object.Object{}},
	}
	m.settings = m.defaultSettings()
	m.dirty.mesh = true
	return m
}

// Settings are the mesh-wide settings in force. They are not changed any more once they are in force.
func (m *Mesh) Settings() *mesh.MeshConfig { return m.settings }

func (m *Mesh) defaultSettings() *mesh.MeshConfig {
	s := validate.DefaultMeshConfig()
	s.TrustDomain = m.cfg.TrustDomain
	return s
}

// Apply takes over changes and returns their effect. Changes of one call belong together: no intermediate state is seen.
func (m *Mesh) Apply(changes []Change) Delta {
	var d Delta
	// Which namespaces the mesh sees is settled first, and once: the rest follows from it.
	for _, c := range changes {
		if c.decidesSight() {
			m.take(c, &d)
		}
	}
	m.rediscover()
	for _, c := range changes {
		if !c.decidesSight() {
			m.take(c, &d)
		}
	}
	d.Seen, m.seen = m.seen, nil
	m.rebuild(&d)
	sort.Slice(d.Upserts, func(i, j int) bool {
		return resource.KeyOf(d.Upserts[i].Key).Compare(resource.KeyOf(d.Upserts[j].Key)) < 0
	})
	sort.Slice(d.Removed, func(i, j int) bool { return d.Removed[i].Compare(d.Removed[j]) < 0 })
	return d
}

// decidesSight tells the kinds that say which namespaces the mesh sees.
func (c Change) decidesSight() bool {
	return c.Key.Group == "" && c.Key.Kind == "Namespace" || validate.IsMeshConfig(c.Key)
}

// take updates the indices with one change and marks what depends on it.
func (m *Mesh) take(c Change, d *Delta) {
	switch k := c.Key; {
	case k.Group == "" && k.Kind == "Namespace":
		m.seen = append(m.seen, c)
		m.takeNamespace(k.Name, c.Object)
	case k.Group == "" && k.Kind == "Node":
		m.takeNode(k.Name, c.Object)
	case validate.IsMeshConfig(k):
		m.takeMesh(c.Object, d)
	case validate.IsIdentityBan(k):
		m.takeBan(k, c.Object)
	case m.discovered(k.Namespace):
		m.takeNamespaced(k, c.Object)
	case c.Object == nil:
		delete(m.discovery.aside, k)
	default:
		m.discovery.aside[k] = c.Object
	}
}

// takeNamespaced is take for what the mesh sees or not by its namespace.
func (m *Mesh) takeNamespaced(k object.Key, o *object.Object) {
	m.seen = append(m.seen, Change{k, o})
	switch {
	case k.Group == "" && k.Kind == "Service", k.Group == validate.GroupNetworking && k.Kind == "ServiceEntry":
		m.takeOwner(owner{k.Kind, k.Namespace, k.Name}, o)
	case k.Group == "" && k.Kind == "Pod":
		var in *instance
		if o != nil {
			in = fromPod(o, o.Body.(*object.Pod))
		}
		m.takeInstance(instKey{"Pod", k.Namespace, k.Name}, in)
	case k.Group == validate.GroupNetworking && k.Kind == "WorkloadEntry":
		var in *instance
		if o != nil {
			in = fromWorkloadEntry(o, o.Body.(*networking.WorkloadEntry))
			in.labels = merged(o.Labels, in.labels)
		}
		m.takeInstance(instKey{"WorkloadEntry", k.Namespace, k.Name}, in)
	case k.Group == validate.GroupDiscovery && k.Kind == "EndpointSlice":
		m.takeSlice(workKey{k.Namespace, k.Name}, o)
	case k.Group == "" && k.Kind == "Endpoints":
		m.takeEndpoints(k, o)
	case k.Group != "":
		m.takeConfig(k, o)
	}
}

func merged(base, over map[string]string) map[string]string {
	if len(base) == 0 {
		return over
	}
	out := make(map[string]string, len(base)+len(over))
	for k, v := range base {
		out[k] = v
	}
	for k, v := range over {
		out[k] = v
	}
	return out
}

func (m *Mesh) takeNamespace(name string, o *object.Object) {
	network, seen := m.clusterNetwork(), m.discovered(name)
	if o == nil {
		delete(m.namespaces, name)
	} else {
		m.namespaces[name] = o
	}
	m.dirty.namespaces.add(name)
	m.discovery.stale = m.discovery.stale || m.discovered(name) != seen
	if m.clusterNetwork() != network {
		m.allDirty()
	}
}

// clusterNetwork is the network of every workload that names none: a label of the root namespace, as in Istio's multi-network set-up.
func (m *Mesh) clusterNetwork() string {
	if o := m.namespaces[validate.MeshNamespace]; o != nil {
		return o.Labels[labelNetwork]
	}
	return ""
}

func (m *Mesh) takeNode(name string, o *object.Object) {
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

func (m *Mesh) takeMesh(o *object.Object, d *Delta) {
	settings := m.defaultSettings()
	if o != nil {
		text := o.Body.(*corev1.ConfigMap).Data[validate.MeshKey]
		got, _, problems := validate.MeshConfigOver(settings, "", []byte(text))
		if err := problems.Err(); err != nil {
			// Sources validate before they deliver, so this is a defect; the settings in force stay.
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
	m.meshObject, m.settings = o, settings
	m.dirty.mesh = true
	if proto.Equal(settings, before) {
		return
	}
	if err := m.rediscoverBy(before); err != nil {
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
		m.dirty.workloads.add(workKey{k.namespace, k.name})
	}
	for k := range m.configs {
		m.dirty.configs.add(k)
	}
}

// hosts are the hostnames an owner claims.
func (m *Mesh) hosts(o owner, obj *object.Object) []hostKey {
	if obj == nil {
		return nil
	}
	var out []hostKey
	for _, h := range HostsOf(obj, m.cfg.Domain) {
		out = append(out, hostKey{o.namespace, h})
	}
	return out
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

// entrySelector is what a ServiceEntry selects workloads by; nil if it selects none.
func entrySelector(se *networking.ServiceEntry) map[string]string {
	if se.GetWorkloadSelector() != nil && len(se.GetWorkloadSelector().GetLabels()) == 0 {
		return allWorkloads
	}
	return se.GetWorkloadSelector().GetLabels()
}

func (m *Mesh) takeOwner(o owner, obj *object.Object) {
	touch := func(obj *object.Object) {
		for _, h := range m.hosts(o, obj) {
			m.dirty.services.add(h)
			m.dirty.endpoints.add(h)
		}
		m.instances.matching(o.namespace, ownerSelector(o, obj), func(in *instance) {
			m.dirty.workloads.add(workKey{in.key.namespace, in.key.name})
		})
		if o.kind == "Service" && obj != nil {
			m.eachSlicePod(workKey{o.namespace, o.name}, func(k instKey) { m.dirty.workloads.add(workKey{k.namespace, k.name}) })
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
}

func (m *Mesh) takeInstance(k instKey, in *instance) {
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
	m.dirty.workloads.add(workKey{k.namespace, k.name})
}

// touchInstance marks the endpoints of every service that leads to the instance, and the instance itself.
func (m *Mesh) touchInstance(in *instance) {
	if in == nil {
		return
	}
	m.dirty.workloads.add(workKey{in.key.namespace, in.key.name})
	m.selectors.matching(in.key.namespace, in.labels, func(o owner) {
		for _, h := range m.hosts(o, m.owners[o]) {
			m.dirty.endpoints.add(h)
		}
	})
	for slice := range m.sliceRefs[in.key].all {
		m.touchSlice(slice)
	}
}

func (m *Mesh) takeSlice(k workKey, o *object.Object) {
	m.touchSlice(k)
	if old := m.slices[k]; old != nil {
		m.bySlice.remove(m.sliceOf[k], k)
		for _, pod := range slicePods(old) {
			m.sliceRefs.remove(pod, k)
			m.touchSliceTarget(m.sliceOf[k], pod)
		}
		delete(m.sliceOf, k)
		delete(m.slices, k)
	}
	if o == nil {
		return
	}
	m.slices[k] = o
	svc := workKey{k.namespace, o.Labels[labelServiceName]}
	m.sliceOf[k] = svc
	m.bySlice.add(svc, k)
	for _, pod := range slicePods(o) {
		m.sliceRefs.add(pod, k)
		m.touchSliceTarget(svc, pod)
	}
	m.touchSlice(k)
}

// touchSliceTarget marks a Pod whose targets depend on a slice: only where no selector says so already.
func (m *Mesh) touchSliceTarget(svc workKey, pod instKey) {
	o := owner{"Service", svc.namespace, svc.name}
	if len(ownerSelector(o, m.owners[o])) == 0 {
		m.dirty.workloads.add(workKey{pod.namespace, pod.name})
	}
}

func (m *Mesh) touchSlice(slice workKey) {
	svc, ok := m.sliceOf[slice]
	if !ok {
		return
	}
	m.dirty.endpoints.add(hostKey{svc.namespace, Host(svc.name, svc.namespace, m.cfg.Domain)})
}

func (m *Mesh) eachSlicePod(svc workKey, f func(instKey)) {
	for k := range m.bySlice[svc].all {
		for _, pod := range slicePods(m.slices[k]) {
			f(pod)
		}
	}
}

func slicePods(o *object.Object) []instKey {
	var out []instKey
	for _, e := range o.Body.(*discoveryv1.EndpointSlice).Endpoints {
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			ns := e.TargetRef.Namespace
			if ns == "" {
				ns = o.Key.Namespace
			}
			out = append(out, instKey{"Pod", ns, e.TargetRef.Name})
		}
	}
	return out
}

func (m *Mesh) takeConfig(k object.Key, o *object.Object) {
	m.dirty.configs.add(k)
	if k.Kind == "ProxyConfig" && k.Group == validate.GroupNetworking {
		m.touchProxyConfig(k, o)
	}
	if k.Kind == "DestinationRule" && k.Group == validate.GroupNetworking {
		m.touchNodeRule(k, o)
	}
	if k.Kind == "VirtualService" && k.Group == validate.GroupNetworking {
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
		for root := range m.delegates[workKey{k.Namespace, k.Name}].all {
			m.dirty.configs.add(root)
		}
	}
	if o == nil {
		delete(m.configs, k)
	} else {
		m.configs[k] = o
	}
}
