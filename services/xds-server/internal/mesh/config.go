package mesh

import (
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Config is one object of Istio's APIs, decoded. It is immutable.
type Config[T proto.Message] struct {
	Key                 Key
	Spec                T
	Labels, Annotations map[string]string
	// Created decides between conflicting objects: the oldest wins. Zero sorts first.
	Created time.Time
	// ExportedTo lists the namespaces that may use the object; ["*"] means all.
	ExportedTo []string
	Source     *configv1.SourceRef
	// Hash of the whole object.
	Hash Hash
}

// These kinds are decoded; others pass through a State unread.
type (
	// VirtualService is an object of that kind.
	VirtualService = Config[*networking.VirtualService]
	// DestinationRule is an object of that kind.
	DestinationRule = Config[*networking.DestinationRule]
	// Gateway is an object of that kind.
	Gateway = Config[*networking.Gateway]
	// Sidecar is an object of that kind.
	Sidecar = Config[*networking.Sidecar]
	// PeerAuthentication is an object of that kind.
	PeerAuthentication = Config[*security.PeerAuthentication]
)

// Older reports whether c precedes o where the oldest wins: by creation time, then namespace, then name.
func (c *Config[T]) Older(o *Config[T]) bool {
	if !c.Created.Equal(o.Created) {
		return c.Created.Before(o.Created)
	}
	if c.Key.Namespace != o.Key.Namespace {
		return c.Key.Namespace < o.Key.Namespace
	}
	return c.Key.Name < o.Key.Name
}

// entry is one resource of a State. value is a *configv1.<Kind>, a *Config[T], *EnvoyFilter, *meshSettings, or nil for kinds nobody reads.
type entry struct {
	key   Key
	hash  Hash
	value any
}

// decode turns a resource into an entry. An error names the resource.
func decode(r *configv1.Resource) (*entry, error) {
	e := &entry{key: keyOf(r.GetKey())}
	if n := copy(e.hash[:], r.GetHash()); n != len(e.hash) {
		var err error
		if e.hash, err = HashOf(r); err != nil {
			return nil, fmt.Errorf("%s: %w", e.key, err)
		}
	}
	var err error
	switch body := r.GetBody().(type) {
	case *configv1.Resource_Service:
		e.value = body.Service
	case *configv1.Resource_EndpointSet:
		e.value = body.EndpointSet
	case *configv1.Resource_Workload:
		e.value = body.Workload
	case *configv1.Resource_MeshConfig:
		e.value, err = decodeMesh(body.MeshConfig)
	case *configv1.Resource_IdentityBan:
		e.value = body.IdentityBan
	case *configv1.Resource_IstioConfig:
		e.value, err = decodeIstio(e, body.IstioConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.key, err)
	}
	return e, nil
}

func decodeIstio(e *entry, c *configv1.IstioConfig) (any, error) {
	switch e.key.Kind {
	case KindVirtualService:
		return decodeSpec(e, c, &networking.VirtualService{})
	case KindDestinationRule:
		return decodeSpec(e, c, &networking.DestinationRule{})
	case KindGateway:
		return decodeSpec(e, c, &networking.Gateway{})
	case KindSidecar:
		return decodeSpec(e, c, &networking.Sidecar{})
	case KindPeerAuthentication:
		return decodeSpec(e, c, &security.PeerAuthentication{})
	case KindEnvoyFilter:
		return decodeEnvoyFilter(e, c)
	default:
		return nil, nil //nolint:nilnil // a kind that nothing reads has no value
	}
}

func decodeSpec[T proto.Message](e *entry, c *configv1.IstioConfig, spec T) (any, error) {
	// Istio's API versions share one wire form, so the Any's version does not matter, only its kind does.
	if got := string(c.GetSpec().MessageName().Name()); got != e.key.Kind {
		return nil, fmt.Errorf("spec is a %q", got)
	}
	if err := proto.Unmarshal(c.GetSpec().GetValue(), spec); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	cfg := &Config[T]{
		Key: e.key, Spec: spec, Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		ExportedTo: c.GetExportedTo(), Source: c.GetSource(), Hash: e.hash,
	}
	if c.GetCreationTime() != nil {
		cfg.Created = c.GetCreationTime().AsTime()
	}
	return cfg, nil
}

// HashOf computes the content hash of a resource's body as the contract defines it: the first 16 bytes of the SHA-256 of its
// deterministic encoding.
func HashOf(r *configv1.Resource) (Hash, error) {
	m := r.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	if field == nil {
		return Hash{}, fmt.Errorf("resource without a body")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Get(field).Message().Interface())
	if err != nil {
		return Hash{}, fmt.Errorf("encode: %w", err)
	}
	sum := sha256.Sum256(raw)
	return Hash(sum[:16]), nil
}
