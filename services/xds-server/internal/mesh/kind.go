package mesh

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Kinds of resources, as they stand in configv1.ResourceKey.kind.
const (
	KindService            = "Service"
	KindEndpointSet        = "EndpointSet"
	KindWorkload           = "Workload"
	KindNamespace          = "Namespace"
	KindMeshConfig         = "MeshConfig"
	KindIdentityBan        = "IdentityBan"
	KindJwks               = "Jwks"
	KindVirtualService     = "VirtualService"
	KindDestinationRule    = "DestinationRule"
	KindGateway            = "Gateway"
	KindSidecar            = "Sidecar"
	KindPeerAuthentication = "PeerAuthentication"
	KindEnvoyFilter        = "EnvoyFilter"

	KindAuthorizationPolicy   = "AuthorizationPolicy"
	KindRequestAuthentication = "RequestAuthentication"
)

// kind declares how a snapshot reads the resources of one kind. The file of the kind has the look-ups and their topics.
type kind struct {
	// decode returns the value of an entry whose key and hash are set.
	decode func(*entry, *configv1.Resource) (any, error)
	// index adds an entry to the indices, or removes it, and touches every topic whose answer the entry is part of.
	index func(w *writer, e *entry, add bool)
}

// kinds lists the kinds that are read. A snapshot holds resources of other kinds without a value.
var kinds = map[string]kind{
	KindService:               native((*configv1.Resource).GetService, (*writer).indexService),
	KindEndpointSet:           native((*configv1.Resource).GetEndpointSet, (*writer).indexEndpoints),
	KindWorkload:              native((*configv1.Resource).GetWorkload, (*writer).indexWorkload),
	KindMeshConfig:            {decode: decodeSettings, index: (*writer).indexSettings},
	KindIdentityBan:           native((*configv1.Resource).GetIdentityBan, func(*writer, *entry, *configv1.IdentityBan, bool) {}),
	KindJwks:                  native((*configv1.Resource).GetJwks, (*writer).indexJwks),
	KindVirtualService:        istio((*writer).indexVirtualService),
	KindDestinationRule:       istio((*writer).indexDestinationRule),
	KindGateway:               istio((*writer).indexGateway),
	KindSidecar:               istio((*writer).indexSidecar),
	KindPeerAuthentication:    istio((*writer).indexPeerAuthentication),
	KindAuthorizationPolicy:   istio((*writer).indexAuthorizationPolicy),
	KindRequestAuthentication: istio((*writer).indexRequestAuthentication),
	KindEnvoyFilter:           {decode: decodeEnvoyFilter, index: (*writer).indexEnvoyFilter},
	KindGatewayListeners:      {decode: decodeGatewayListeners, index: (*writer).indexGatewayListeners},
	KindListenerSet:           {decode: decodeGatewayListeners, index: (*writer).indexGatewayListeners},
	KindHTTPRoute:             {decode: decodeAttachedRoute, index: (*writer).indexAttachedRoute},
	KindGRPCRoute:             {decode: decodeAttachedRoute, index: (*writer).indexAttachedRoute},
	KindTLSRoute:              {decode: decodeAttachedRoute, index: (*writer).indexAttachedRoute},
	KindTCPRoute:              {decode: decodeAttachedRoute, index: (*writer).indexAttachedRoute},
	KindUDPRoute:              {decode: decodeAttachedRoute, index: (*writer).indexAttachedRoute},
	KindBackendTLSPolicy:      {decode: decodeBackendTLS, index: (*writer).indexBackendTLS},
}

// native declares a kind of config-watcher's own, whose value is the message in the resource's body.
func native[T any](body func(*configv1.Resource) *T, index func(*writer, *entry, *T, bool)) kind {
	return kind{
		decode: func(_ *entry, r *configv1.Resource) (any, error) {
			if v := body(r); v != nil {
				return v, nil
			}
			return nil, errors.New("the body is of another kind")
		},
		index: func(w *writer, e *entry, add bool) { index(w, e, e.value.(*T), add) },
	}
}

// istio declares a kind of Istio's APIs, whose value is a *Config of its spec.
func istio[T any, P interface {
	*T
	proto.Message
}](index func(*writer, *Config[P], bool)) kind {
	return kind{
		decode: func(e *entry, r *configv1.Resource) (any, error) { return decodeConfig[P](e, r, new(T)) },
		index:  func(w *writer, e *entry, add bool) { index(w, e.value.(*Config[P]), add) },
	}
}

// Key names one resource of the mesh.
type Key struct {
	Kind, Namespace, Name string
}

// String returns "Kind/namespace/name".
func (k Key) String() string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

// path is the key within its kind, in the form that configv1.Held.keys wants: "<namespace>/<name>".
func (k Key) path() string { return k.Namespace + "/" + k.Name }

// KeyOf returns the key of a resource.
func KeyOf(k *configv1.ResourceKey) Key {
	return Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
}

// Hash is a resource's content hash: equal hashes mean equal bodies.
type Hash [16]byte

// HashOf computes the content hash of a resource's body as the contract defines it: the first 16 bytes of the SHA-256
// of its deterministic encoding.
func HashOf(r *configv1.Resource) (Hash, error) {
	m := r.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	if field == nil {
		return Hash{}, errors.New("resource without a body")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Get(field).Message().Interface())
	if err != nil {
		return Hash{}, fmt.Errorf("encode: %w", err)
	}
	sum := sha256.Sum256(raw)
	return Hash(sum[:16]), nil
}

// entry is one resource of a Snapshot. Its value is what the kind's decode has returned, nil for a kind that is not
// read.
type entry struct {
	key   Key
	hash  Hash
	value any
}

// decode turns a resource into an entry. An error names the resource.
func decode(r *configv1.Resource) (*entry, error) {
	e := &entry{key: KeyOf(r.GetKey())}
	var err error
	if n := copy(e.hash[:], r.GetHash()); n != len(e.hash) {
		if e.hash, err = HashOf(r); err != nil {
			return nil, fmt.Errorf("%s: %w", e.key, err)
		}
	}
	if k, ok := kinds[e.key.Kind]; ok {
		if e.value, err = k.decode(e, r); err != nil {
			return nil, fmt.Errorf("%s: %w", e.key, err)
		}
	}
	return e, nil
}
