package normalise

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// newKinds is the table of kinds: what Mesh does with the objects of each. The file of a kind has its rules. Objects of
// other kinds have no effect.
func newKinds() map[kindName]kind {
	out := map[kindName]kind{
		{"", "ConfigMap"}:                       meshConfigKind,
		{"", "Endpoints"}:                       endpointsKind,
		{"", "Namespace"}:                       namespaceKind,
		{"", "Node"}:                            nodeKind,
		{"", "Pod"}:                             podKind,
		{"", "Service"}:                         serviceKind,
		{kinds.GroupDiscovery, "EndpointSlice"}: endpointSliceKind,
		{kinds.GroupExtensions, "TrafficExtension"}:    plainKind,
		{kinds.GroupExtensions, "WasmPlugin"}:          plainKind,
		{kinds.GroupFairlead, "IdentityBan"}:           identityBanKind,
		{kinds.GroupFairlead, KindGatewayName}:         gatewayNameKind,
		{kinds.GroupFairlead, KindJwks}:                jwksKind,
		{kinds.GroupFairlead, kindClusterAway}:         clusterAwayKind,
		{kinds.GroupIngress, "Ingress"}:                ingressKind,
		{kinds.GroupIngress, "IngressClass"}:           ingressClassKind,
		{kinds.GroupNetworking, "DestinationRule"}:     destinationRuleKind,
		{kinds.GroupNetworking, "EnvoyFilter"}:         plainKind,
		{kinds.GroupNetworking, "Gateway"}:             gatewayKind,
		{kinds.GroupNetworking, "ProxyConfig"}:         proxyConfigKind,
		{kinds.GroupNetworking, "ServiceEntry"}:        serviceEntryKind,
		{kinds.GroupNetworking, "Sidecar"}:             sidecarKind,
		{kinds.GroupNetworking, "VirtualService"}:      virtualServiceKind,
		{kinds.GroupNetworking, "WorkloadEntry"}:       workloadEntryKind,
		{kinds.GroupSecurity, "AuthorizationPolicy"}:   plainKind,
		{kinds.GroupSecurity, "PeerAuthentication"}:    plainKind,
		{kinds.GroupSecurity, "RequestAuthentication"}: plainKind,
		{kinds.GroupTelemetry, "Telemetry"}:            plainKind,
	}
	addJudgedKinds(out)
	return out
}

// kindName names a kind.
type kindName struct{ group, kind string }

// kind is a row of the table: rules[T] of some T.
type kind interface {
	traits() *traits
	put(m *Mesh, k object.Key, o *object.Object)
	touchStored(m *Mesh, s stored)
	buildStored(m *Mesh, o *object.Object) (proto.Message, error)
}

// traits tell kinds apart before their objects are read.
type traits struct {
	// first is true for kinds that decide which namespaces the mesh discovers: Apply takes their changes over first.
	first bool
	// unreported is true for kinds that Delta.Discovered leaves out.
	unreported bool
	// meshWide is true for kinds whose resources have no namespace.
	meshWide bool
}

// rules declare a kind. T is what the mesh keeps of an object, the value. Every function may be nil.
type rules[T any] struct {
	is traits
	// decode makes the value of an object; nil if the object has no effect. After an error the former value stays.
	// Without decode the object itself is the value.
	decode func(*Mesh, *object.Object) (*T, error)
	// same reports whether a value has the same effect as the former one.
	same func(old, now *T) bool
	// index replaces a value in the indices; old or now may be nil.
	index func(m *Mesh, old, now *T)
	// touch marks as dirty what others build with the value. It is called for the former value before index, for the
	// new one after index, and for every value when the mesh configuration changes.
	touch func(*Mesh, *T)
	// build makes the resource that an object of the own cluster becomes; nil if it becomes none.
	build func(*Mesh, *object.Object) (proto.Message, error)
}

// stored is an object and the *T that the rules of its kind have made of it.
type stored struct {
	object *object.Object
	value  any
}

func (r *rules[T]) traits() *traits { return &r.is }

// put takes over the new state of an object, nil if it is gone.
func (r *rules[T]) put(m *Mesh, k object.Key, o *object.Object) {
	former := m.stored[k]
	old, _ := former.value.(*T)
	var now *T
	switch {
	case o == nil:
	case r.decode == nil:
		now, _ = any(o).(*T)
	default:
		var err error
		if now, err = r.decode(m, o); err != nil {
			m.delta.Errors = append(m.delta.Errors, fmt.Errorf("%s: %w", k, err))
			return
		}
	}
	if old != nil && now != nil && r.same != nil && r.same(old, now) {
		*old = *now // the indices have old
		m.stored[k] = stored{o, old}
		return
	}
	if old != nil {
		r.touchStored(m, former)
	}
	if now == nil {
		delete(m.stored, k)
	} else {
		m.stored[k] = stored{o, now}
	}
	if r.index != nil && (old != nil || now != nil) {
		r.index(m, old, now)
	}
	if now != nil {
		r.touchStored(m, stored{o, now})
	}
}

// touchStored marks as dirty what is built with a stored object.
func (r *rules[T]) touchStored(m *Mesh, s stored) {
	if r.build != nil && s.object.Key.Cluster == "" {
		m.dirty.objects.Add(s.object.Key)
	}
	if r.touch != nil {
		r.touch(m, s.value.(*T))
	}
}

// buildStored makes the resource of an object that touchStored has marked.
func (r *rules[T]) buildStored(m *Mesh, o *object.Object) (proto.Message, error) {
	return r.build(m, o)
}

// KindJwks is the kind of the objects, in group fairlead.dev, by which package jwks adds keys. No user writes them.
const KindJwks = resource.KindJwks

var jwksKind = &rules[object.Object]{
	is:    traits{unreported: true, meshWide: true},
	build: func(_ *Mesh, o *object.Object) (proto.Message, error) { return o.Body.(*configv1.Jwks), nil },
}
