// Package resource names, encodes and hashes the resources of the normalised mesh, which revisions consist of. Package
// normalise makes them with New; package revision sums their hashes with Sum.
package resource

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// HashSize is the length of a resource's hash and of a state hash.
const HashSize = 16

// Hash is the first 16 bytes of the SHA-256 of a body's deterministic encoding.
type Hash [HashSize]byte

// Key is configv1.ResourceKey as a comparable value.
type Key struct {
	Kind, Namespace, Name string
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Kind, o.Kind), strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Proto returns the key as a message.
func (k Key) Proto() *configv1.ResourceKey {
	return &configv1.ResourceKey{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

// KeyOf returns a message's key.
func KeyOf(k *configv1.ResourceKey) Key {
	return Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
}

// KindOf is the kind, in resource keys, of the resource that an object becomes: both Istio and the Gateway API have a
// Gateway. Whoever looks up the resource of an object uses it.
func KindOf(k object.Key) string {
	if k.Group == contract.GroupGatewayAPI {
		return contract.GatewayAPIKind(k.Kind)
	}
	return k.Kind
}

// Of is the key of the resource of an object that has a namespace.
func Of(k object.Key) Key { return Key{Kind: KindOf(k), Namespace: k.Namespace, Name: k.Name} }

// Kinds of the normalised mesh that are not Istio's.
const (
	KindService     = "Service"
	KindEndpointSet = "EndpointSet"
	KindWorkload    = "Workload"
	KindMeshConfig  = "MeshConfig"
	KindNamespace   = "Namespace"
	KindIdentityBan = "IdentityBan"
	KindJwks        = "Jwks"
)

// Deterministic encodes everything that is hashed.
var Deterministic = proto.MarshalOptions{Deterministic: true}

// endpointSetField is the field of configv1.Resource for an EndpointSet.
var endpointSetField = (&configv1.Resource{}).ProtoReflect().Descriptor().Fields().ByName("endpoint_set").Number()

// New makes a resource of a body: *configv1.IstioConfig, Service, EndpointSet, Workload, MeshConfig, Namespace,
// IdentityBan, Jwks or GatewayAPIConfig. The caller must not change the body afterwards: all snapshots and streams
// share it.
//
// An EndpointSet is kept encoded, as an unknown field of the message: nobody reads it before it is sent, it is written
// to the wire as it stands, and it takes a fifth of the memory. Decoded gives it back.
func New(key Key, body proto.Message) (*configv1.Resource, error) {
	enc, err := Deterministic.Marshal(body)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(enc)
	r := &configv1.Resource{Key: key.Proto(), Hash: sum[:HashSize:HashSize]}
	switch b := body.(type) {
	case *configv1.IstioConfig:
		r.Body = &configv1.Resource_IstioConfig{IstioConfig: b}
	case *configv1.Service:
		r.Body = &configv1.Resource_Service{Service: b}
	case *configv1.EndpointSet:
		size := protowire.SizeTag(endpointSetField) + protowire.SizeBytes(len(enc))
		field := protowire.AppendTag(make([]byte, 0, size), endpointSetField, protowire.BytesType)
		r.ProtoReflect().SetUnknown(protowire.AppendBytes(field, enc))
	case *configv1.Workload:
		r.Body = &configv1.Resource_Workload{Workload: b}
	case *configv1.MeshConfig:
		r.Body = &configv1.Resource_MeshConfig{MeshConfig: b}
	case *configv1.Namespace:
		r.Body = &configv1.Resource_Namespace{Namespace: b}
	case *configv1.IdentityBan:
		r.Body = &configv1.Resource_IdentityBan{IdentityBan: b}
	case *configv1.GatewayAPIConfig:
		r.Body = &configv1.Resource_GatewayApi{GatewayApi: b}
	case *configv1.Jwks:
		r.Body = &configv1.Resource_Jwks{Jwks: b}
	}
	return r, nil
}

// Decoded returns the resource with its body in its field, as a subscriber receives it. The result is the resource
// itself if it has its body.
func Decoded(r *configv1.Resource) (*configv1.Resource, error) {
	if r.GetBody() != nil {
		return r, nil
	}
	wire, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	out := &configv1.Resource{}
	return out, proto.Unmarshal(wire, out)
}

// Any packs a message that is part of a hashed body.
func Any(m proto.Message) (*anypb.Any, error) {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, Deterministic); err != nil {
		return nil, err
	}
	return out, nil
}

// Sum is the hash of a set of resources: the sum modulo 2^128 of the SHA-256 of every key and hash. It does not depend
// on their order, and a change costs constant time. It detects differences between honest replicas; it is no signature.
type Sum struct{ hi, lo uint64 }

// Add adds a resource to the sum.
func (s *Sum) Add(k Key, hash []byte) {
	hi, lo := item(k, hash)
	old := s.lo
	s.lo += lo
	s.hi += hi
	if s.lo < old {
		s.hi++
	}
}

// Remove removes a resource from the sum.
func (s *Sum) Remove(k Key, hash []byte) {
	hi, lo := item(k, hash)
	if s.lo < lo {
		s.hi--
	}
	s.lo -= lo
	s.hi -= hi
}

// Bytes returns the sum as a state hash.
func (s Sum) Bytes() []byte {
	out := make([]byte, HashSize)
	binary.BigEndian.PutUint64(out, s.hi)
	binary.BigEndian.PutUint64(out[8:], s.lo)
	return out
}

func item(k Key, hash []byte) (hi, lo uint64) {
	h := sha256.New()
	for _, part := range []string{k.Kind, k.Namespace, k.Name} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(hash)
	sum := h.Sum(nil)
	return binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])
}
