// Package normalise turns users' objects into the resources of the normalised mesh: everything that does not depend on
// the proxy that asks. Package pipeline calls Mesh.Apply with changed objects and commits the Delta as a revision;
// package running uses the same rules (Host, ExportedTo, ...).
//
// kind.go has the table of kinds of objects, and the file of a kind its rules: what Mesh keeps of an object, which
// indices it is in, what it marks as dirty, and the resource that it becomes. Resources that several objects make
// together have files of their own: host.go Service, endpointset.go EndpointSet, workload.go Workload. So a change
// recomputes only what depends on it: that of an endpoint the EndpointSets of the services that select the workload,
// and no Service. Mesh remembers the hash of every resource, so that equal results are no change. Defaults of
// MeshConfig are not set here: meshdefaults.MeshConfig sets them.
package normalise

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/normalise/vip"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
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
	// Now is the time by which certificates of the Gateway API have expired; if it is nil, none has.
	Now func() time.Time
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
	// Judged is what has changed of the Gateway API.
	Judged Judged
}

// Empty reports whether nothing changed.
func (d Delta) Empty() bool { return len(d.Upserts) == 0 && len(d.Removed) == 0 }

// Mesh is the state of the normalised mesh: the objects, the indices over them, and the hashes of the resources. It is
// not safe for concurrent use.
type Mesh struct {
	cfg   Config
	kinds map[kindName]kind
	// stored are the objects in force, generated ones included, and hidden those of namespaces that are not discovered.
	stored map[object.Key]stored
	hidden map[object.Key]*object.Object
	// rediscover is true if the set of discovered namespaces may have changed since the last call of showAndHide.
	rediscover bool

	settings  *settings
	hosts     map[hostKey]*host
	owners    owners
	instances instances
	slices    sliceIndex
	vips      *vip.Table
	ingresses ingresses
	bans      map[string]int // the number of IdentityBans of an identity
	// delegates finds the VirtualServices that name a delegate.
	delegates sets.Multimap[namespacedName, object.Key]
	// gatewayNames finds the Services whose load balancer has a host name.
	gatewayNames sets.Multimap[string, *owner]
	// nodeRules are the hosts of the DestinationRules that need the node label of endpoints.
	nodeRules map[object.Key]string
	// onDemandConfigs are the ProxyConfigs that switch on-demand configuration on or off.
	onDemandConfigs sets.Set[object.Key]
	// gateways are the objects of the Gateway API and what they refer to.
	gateways *gatewayapi.State

	dirty dirty
	delta Delta                   // of the running Apply
	out   map[resource.Key][]byte // the hashes of all resources
}

// dirty is the set of resources that rebuild has to recompute.
type dirty struct {
	mesh      bool
	objects   sets.Set[object.Key] // that become a resource each
	services  sets.Set[hostKey]
	endpoints sets.Set[hostKey]
	workloads sets.Set[namespacedName]
}

func newDirty() dirty {
	return dirty{objects: sets.Set[object.Key]{}, services: sets.Set[hostKey]{}, endpoints: sets.Set[hostKey]{},
		workloads: sets.Set[namespacedName]{}}
}

// New returns an empty mesh. Its first Apply also upserts the default mesh configuration.
func New(cfg Config) *Mesh {
	m := &Mesh{
		cfg: cfg.withDefaults(), kinds: newKinds(), stored: map[object.Key]stored{}, hidden: map[object.Key]*object.Object{},
		hosts: map[hostKey]*host{}, owners: owners{}, instances: newInstances(), slices: newSliceIndex(), vips: vip.New(),
		ingresses: newIngresses(), bans: map[string]int{}, delegates: sets.Multimap[namespacedName, object.Key]{},
		gatewayNames: sets.Multimap[string, *owner]{}, nodeRules: map[object.Key]string{}, onDemandConfigs: sets.Set[object.Key]{},
		dirty: newDirty(), out: map[resource.Key][]byte{},
	}
	m.settings = m.defaultSettings()
	m.gateways = gatewayapi.New(gatewayapi.Config{Domain: m.cfg.Domain, MeshNamespace: m.settings.GetRootNamespace(),
		Tenants: m.cfg.Tenancy.Enabled})
	m.dirty.mesh = true
	return m
}

// Settings is the mesh configuration in force, defaults included. The caller must not change it.
func (m *Mesh) Settings() *mesh.MeshConfig { return m.settings.MeshConfig }

// Apply takes over changes and returns their effect. The changes of one call take effect together.
func (m *Mesh) Apply(changes []Change) Delta {
	m.updateAll(changes, true)
	m.showAndHide()
	m.updateAll(changes, false)
	m.convertIngresses()
	m.rebuild()
	d := m.delta
	m.delta = Delta{}
	slices.SortFunc(d.Upserts, func(a, b *configv1.Resource) int { return resource.KeyOf(a.Key).Compare(resource.KeyOf(b.Key)) })
	slices.SortFunc(d.Removed, resource.Key.Compare)
	return d
}

// kindOf finds the rules for an object; nil if the mesh does not read it.
func (m *Mesh) kindOf(k object.Key) kind {
	if k.Kind == "ConfigMap" && !kinds.IsMeshConfig(k) {
		return hiddenJudgedKind
	}
	return m.kinds[kindName{k.Group, k.Kind}]
}

// updateAll takes over the changes of kinds that decide which namespaces are discovered, or of all others. It keeps
// objects for later whose namespace is not discovered.
func (m *Mesh) updateAll(changes []Change, first bool) {
	for _, c := range changes {
		kind := m.kindOf(c.Key)
		switch {
		case first != (kind != nil && kind.traits().first):
		case m.discovered(place{c.Key.Namespace, c.Key.Cluster}):
			m.show(kind, c)
		case c.Object == nil:
			delete(m.hidden, c.Key)
		default:
			m.hidden[c.Key] = c.Object
		}
	}
}

// show takes over a change of a discovered namespace. An object made from an Ingress takes the place of one that is
// gone. Objects of remote clusters are no configuration of the mesh, so they are not reported.
func (m *Mesh) show(kind kind, c Change) {
	if c.Key.Cluster == "" && (kind == nil || !kind.traits().unreported) {
		m.delta.Discovered = append(m.delta.Discovered, c)
	}
	if kind != nil {
		kind.put(m, c.Key, cmp.Or(c.Object, m.ingresses.made[c.Key]))
	}
}

// touchAll marks everything that is built from objects as dirty.
func (m *Mesh) touchAll() {
	for k, s := range m.stored {
		m.kindOf(k).touchStored(m, s)
	}
}

// rebuild recomputes everything dirty.
func (m *Mesh) rebuild() {
	todo := m.dirty
	m.dirty = newDirty()
	if todo.mesh {
		m.rebuildMeshConfig()
	}
	m.rebuildServices(todo.services)
	for h := range todo.endpoints {
		m.rebuildEndpoints(h)
	}
	for w := range todo.workloads {
		m.rebuildWorkload(w)
	}
	for k := range todo.objects {
		m.rebuildObject(k)
	}
	m.rebuildGatewayAPI()
}

// rebuildObject recomputes the resource of an object.
func (m *Mesh) rebuildObject(k object.Key) {
	kind := m.kindOf(k)
	var body proto.Message
	if s, ok := m.stored[k]; ok {
		var err error
		if body, err = kind.buildStored(m, s.object); err != nil {
			m.delta.Errors = append(m.delta.Errors, fmt.Errorf("%s: %w", k, err))
			return
		}
	}
	m.emit(m.resourceKey(kind, k), body)
}

// resourceKey is the key of an object's resource. An object without a namespace that holds for the whole mesh (see
// object.Object.Held) goes into the root namespace.
func (m *Mesh) resourceKey(kind kind, k object.Key) resource.Key {
	if kind.traits().meshWide {
		return resource.Key{Kind: resource.KindOf(k), Name: k.Name}
	}
	return resource.Key{Kind: resource.KindOf(k), Namespace: cmp.Or(k.Namespace, m.settings.GetRootNamespace()), Name: k.Name}
}

// emit records the new state of a resource; a nil body removes it. An unchanged resource is not recorded.
func (m *Mesh) emit(k resource.Key, body proto.Message) {
	if body == nil {
		if _, ok := m.out[k]; ok {
			delete(m.out, k)
			m.delta.Removed = append(m.delta.Removed, k)
		}
		return
	}
	r, err := resource.New(k, body)
	if err != nil {
		m.delta.Errors = append(m.delta.Errors, fmt.Errorf("%s %s/%s: %w", k.Kind, k.Namespace, k.Name, err))
		return
	}
	if bytes.Equal(m.out[k], r.Hash) {
		return
	}
	m.out[k] = r.Hash
	m.delta.Upserts = append(m.delta.Upserts, r)
}
