// Package gatewayapi computes what objects of the Kubernetes Gateway API mean: New makes a State, Put takes over
// objects, and Rebuild returns the resources and statuses that have changed. Listeners are judged, routes attached and
// ranked, references resolved, and the statuses come from the same computation. It does no I/O, and its clock is
// Advance.
//
// A change computes again only what has read the object that has changed: every computation reads by way of a lookup,
// which records what was read. Gateways come first with their ListenerSets, then routes, then policies; none of them
// reads what comes after it.
package gatewayapi

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Group is the API group of the kinds below.
const Group = contract.GroupGatewayAPI

// Kinds that a State takes over. The bodies of the first ten are pointers to the types of
// sigs.k8s.io/gateway-api/apis/v1.
const (
	GatewayClass     = "GatewayClass"
	Gateway          = "Gateway"
	ListenerSet      = "ListenerSet"
	HTTPRoute        = "HTTPRoute"
	GRPCRoute        = "GRPCRoute"
	TLSRoute         = "TLSRoute"
	TCPRoute         = "TCPRoute"
	UDPRoute         = "UDPRoute"
	BackendTLSPolicy = "BackendTLSPolicy"
	ReferenceGrant   = "ReferenceGrant"

	service    = "Service"
	namespace  = "Namespace"
	configMap  = "ConfigMap"
	secret     = "Secret"
	credential = object.KindCredentialState

	serviceEntry  = "ServiceEntry"
	groupFairlead = "fairlead.dev"
	groupMCS      = "multicluster.x-k8s.io"
	groupIstio    = "networking.istio.io"
)

// Config is what a State needs to know of the mesh.
type Config struct {
	// Domain of the cluster's Services, such as "cluster.local".
	Domain string
	// MeshNamespace is the root namespace.
	MeshNamespace string
	// Tenants is true if a Gateway, unless it is in the root namespace, has no workloads of other namespaces.
	Tenants bool
}

// Name is the namespace and name of an object.
type Name = types.NamespacedName

// Result is what has changed.
type Result struct {
	// Resources of the mesh by the user's object; nil for one that is gone. Their kind is contract.GatewayAPIKind of
	// the object's.
	Resources map[object.Key]*configv1.GatewayAPIConfig
	// Statuses by the object; nil for one that has none, because it is gone or concerns no Gateway of ours.
	Statuses map[object.Key]*Status
	// Wanted is true if State.Wanted has changed.
	Wanted bool
	// Ended are the accesses to other namespaces, but to Secrets, that are asked for as before and not granted any
	// more.
	Ended map[Access]struct{}
}

// State is the objects and what they mean. It is not safe for concurrent use.
type State struct {
	cfg Config
	now time.Time

	objects map[object.Key]*object.Object
	// services by cluster: a Service may be in several.
	services map[Name]map[string]*object.Object
	grants   map[string]map[string]*object.Object // by namespace and name
	// entries are the ServiceEntries by host, which is the Name of a Name.
	entries map[Name]map[Name]*object.Object
	// sets are the ListenerSets that name a Gateway as parent.
	sets map[Name]map[Name]*object.Object
	// defaults are the ConfigMaps with overlays for all Gateways of a class, which is the Name of a Name.
	defaults map[Name]map[Name]*object.Object
	// policies are the BackendTLSPolicies that target a Service.
	policies map[Name]map[Name]*object.Object

	graph  graph
	shared shared
	wanted map[object.Key]struct{}
	// access is what ReferenceGrants give, by the object that refers.
	access map[object.Key][]Access

	gateways map[Name]*gateway
	judged   map[Name]*listenerSet
	routes   map[object.Key]*route
	// attached counts the routes that a listener has taken.
	attached map[ListenerID]int
	// routed counts, for each Service, how many routes of each Gateway lead to it.
	routed map[Name]map[Name]int

	resources map[object.Key]*configv1.GatewayAPIConfig
	statuses  map[object.Key]*Status
	// recount are the Gateways and ListenerSets whose status has to be made again.
	recount map[object.Key]struct{}
	result  Result
}

// New returns a State without objects.
func New(cfg Config) *State {
	s := &State{
		cfg: cfg, objects: map[object.Key]*object.Object{}, services: map[Name]map[string]*object.Object{},
		grants: map[string]map[string]*object.Object{}, entries: map[Name]map[Name]*object.Object{},
		sets: map[Name]map[Name]*object.Object{}, defaults: map[Name]map[Name]*object.Object{}, policies: map[Name]map[Name]*object.Object{},
		wanted: map[object.Key]struct{}{}, access: map[object.Key][]Access{}, gateways: map[Name]*gateway{},
		judged: map[Name]*listenerSet{}, routes: map[object.Key]*route{},
		attached: map[ListenerID]int{}, routed: map[Name]map[Name]int{}, shared: newShared(),
		resources: map[object.Key]*configv1.GatewayAPIConfig{}, statuses: map[object.Key]*Status{}, recount: map[object.Key]struct{}{},
	}
	s.graph = graph{
		users: map[object.Key]map[object.Key]struct{}{}, reads: map[object.Key][]object.Key{}, dirty: map[string]map[object.Key]struct{}{},
	}
	s.reset()
	return s
}

func (s *State) reset() {
	s.result = Result{Resources: map[object.Key]*configv1.GatewayAPIConfig{}, Statuses: map[object.Key]*Status{}, Ended: map[Access]struct{}{}}
}

func key(kind string, n Name) object.Key {
	return object.Key{Group: Group, Kind: kind, Namespace: n.Namespace, Name: n.Name}
}

func nameOf(k object.Key) Name { return Name{Namespace: k.Namespace, Name: k.Name} }

// routeKinds are the kinds of routes with the TLS, TCP or UDP ones last.
var routeKinds = []string{HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute}

// Put takes over an object, nil if it is gone. Kinds that the State does not know are ignored, and so are objects of
// remote clusters that are no Services, and bodies of an unexpected type.
func (s *State) Put(k object.Key, o *object.Object) {
	if k.Kind != service && k.Cluster != "" {
		return
	}
	old := s.objects[k]
	switch k {
	case object.Key{Group: Group, Kind: GatewayClass, Name: k.Name}:
		if put[gatewayv1.GatewayClass](s, k, o) {
			s.graph.invalidate(k)
			s.graph.touch(k)
		}
	case object.Key{Kind: namespace, Name: k.Name}:
		if old != nil && o != nil && maps.Equal(old.Labels, o.Labels) {
			return
		}
		store(s.objects, k, o)
		s.graph.touch(k)
	case key(k.Kind, nameOf(k)):
		s.putNamespaced(k, old, o)
	case object.Key{Group: groupFairlead, Kind: credential, Namespace: k.Namespace, Name: k.Name}:
		if put[object.CredentialState](s, k, o) {
			s.graph.touch(k)
		}
	case object.Key{Kind: configMap, Namespace: k.Namespace, Name: k.Name}:
		s.putConfigMap(k, old, o)
	case entryKey(nameOf(k)):
		s.putEntry(k, old, o)
	case object.Key{Kind: service, Namespace: k.Namespace, Name: k.Name, Cluster: k.Cluster}:
		s.putService(k, o)
	}
}

// putNamespaced takes over an object of the Gateway API that has a namespace.
func (s *State) putNamespaced(k object.Key, old, o *object.Object) {
	n := nameOf(k)
	switch k.Kind {
	case Gateway:
		if put[gatewayv1.Gateway](s, k, o) {
			s.graph.invalidate(k)
		}
	case ListenerSet:
		if !put[gatewayv1.ListenerSet](s, k, o) {
			return
		}
		for _, object := range []*object.Object{old, o} {
			if object != nil {
				parent, _ := parentOf(object)
				index(s.sets, parent, n, s.objects[k], object == o)
				s.graph.invalidate(key(Gateway, parent))
			}
		}
	case HTTPRoute:
		s.putRoute(k, put[gatewayv1.HTTPRoute](s, k, o))
	case GRPCRoute:
		s.putRoute(k, put[gatewayv1.GRPCRoute](s, k, o))
	case TLSRoute:
		s.putRoute(k, put[gatewayv1.TLSRoute](s, k, o))
	case TCPRoute:
		s.putRoute(k, put[gatewayv1.TCPRoute](s, k, o))
	case UDPRoute:
		s.putRoute(k, put[gatewayv1.UDPRoute](s, k, o))
	case BackendTLSPolicy:
		if !put[gatewayv1.BackendTLSPolicy](s, k, o) {
			return
		}
		s.graph.invalidate(k)
		for _, object := range []*object.Object{old, o} {
			if object != nil {
				for _, target := range targetsOf(object) {
					index(s.policies, target, n, s.objects[k], object == o)
					s.graph.touch(policiesOf(target))
				}
			}
		}
	case ReferenceGrant:
		if !put[gatewayv1.ReferenceGrant](s, k, o) {
			return
		}
		if s.grants[n.Namespace] == nil {
			s.grants[n.Namespace] = map[string]*object.Object{}
		}
		store(s.grants[n.Namespace], n.Name, o)
		if len(s.grants[n.Namespace]) == 0 {
			delete(s.grants, n.Namespace)
		}
		s.graph.touch(grantsOf(n.Namespace))
	}
}

func (s *State) putRoute(k object.Key, changed bool) {
	if changed {
		s.graph.invalidate(k)
	}
}

func (s *State) putService(k object.Key, o *object.Object) {
	if o != nil {
		if _, ok := o.Body.(*corev1.Service); !ok {
			return
		}
	}
	n := nameOf(k)
	old := s.services[n][k.Cluster]
	if s.services[n] == nil {
		s.services[n] = map[string]*object.Object{}
	}
	store(s.services[n], k.Cluster, o)
	if len(s.services[n]) == 0 {
		delete(s.services, n)
	}
	if !sameService(old, o) {
		s.graph.touch(serviceKey(n))
	}
}

// store keeps a value under a key; a nil one is removed.
func store[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
	} else {
		m[k] = v
	}
}

// index keeps a value in an index, or removes it.
func index[V any](m map[Name]map[Name]*V, by, n Name, v *V, keep bool) {
	if !keep {
		if delete(m[by], n); len(m[by]) == 0 {
			delete(m, by)
		}
		return
	}
	if m[by] == nil {
		m[by] = map[Name]*V{}
	}
	m[by][n] = v
}

// put stores an object whose body must be a *T. It returns false if nothing has to be computed again.
func put[T any](s *State, k object.Key, o *object.Object) bool {
	if o != nil {
		if _, ok := o.Body.(*T); !ok {
			return false
		}
	}
	if o == nil && s.objects[k] == nil {
		return false
	}
	store(s.objects, k, o)
	return true
}

// Advance tells the time. Certificates that have expired since then are warned of by the next Rebuild.
func (s *State) Advance(now time.Time) {
	for n, g := range s.gateways {
		if !g.expires.IsZero() && !g.expires.After(now) {
			s.graph.invalidate(key(Gateway, n))
		}
	}
	s.now = now
}

// Rebuild computes what has changed since its last call.
func (s *State) Rebuild() Result {
	for _, k := range s.graph.take(GatewayClass) {
		s.judgeClass(k)
	}
	for _, k := range s.graph.take(Gateway) {
		s.judge(nameOf(k))
	}
	s.judgeShared()
	for _, kind := range routeKinds {
		for _, k := range s.graph.take(kind) {
			s.route(k)
		}
	}
	for _, k := range s.graph.take(BackendTLSPolicy) {
		s.policy(k)
	}
	for k := range s.recount {
		s.count(k)
	}
	clear(s.recount)
	out := s.result
	s.reset()
	return out
}

// emit keeps a resource and a status, nil for none, and adds to the result what has changed.
func (s *State) emit(k object.Key, r *configv1.GatewayAPIConfig, status *Status) {
	s.emitStatus(k, status)
	if old := s.resources[k]; old == r || old != nil && r != nil && proto.Equal(old, r) {
		return
	}
	store(s.resources, k, r)
	s.result.Resources[k] = r
}

func (s *State) emitStatus(k object.Key, status *Status) {
	if s.statuses[k].Equal(status) {
		return
	}
	store(s.statuses, k, status)
	s.result.Statuses[k] = status
}

// config is the frame of a resource.
func config(o *object.Object) *configv1.GatewayAPIConfig {
	out := &configv1.GatewayAPIConfig{Source: &configv1.SourceRef{
		Source: o.Source, ApiVersion: o.APIVersion, Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Generation: o.Generation,
		Location: o.Location,
	}}
	if !o.Created.IsZero() {
		out.CreationTime = timestamppb.New(o.Created)
	}
	return out
}

// olderFirst orders objects by the specification's rule: the oldest, then "<namespace>/<name>".
func olderFirst(a, b *object.Object) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	if a.Key.Namespace == b.Key.Namespace {
		return compareText(a.Key.Name, b.Key.Name)
	}
	return compareText(a.Key.Namespace+"/", b.Key.Namespace+"/")
}

func sortedObjects(m map[Name]*object.Object) []*object.Object {
	return slices.SortedFunc(maps.Values(m), olderFirst)
}

// Wanted lists the Secrets and ConfigMaps that are referred to and may be read, sorted: Put is expected of the
// ConfigMaps, and of a CredentialState for each Secret.
func (s *State) Wanted() []object.Key {
	return slices.SortedFunc(maps.Keys(s.wanted), object.Key.Compare)
}
