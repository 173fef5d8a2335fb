// Package store holds the bytes of xDS resources. Each resource is marshalled once and addressed by its content; all
// classes, streams and revisions with the same content share it. The garbage collector frees a resource that nothing
// refers to.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Blob is one resource, ready to send. It is immutable. Equal content is the same pointer while it is in use.
type Blob struct {
	// Resource is the delta form: name, version and the message as Any. The state-of-the-world form is the Any alone.
	Resource *discovery.Resource
	// EndpointsName is the name of the endpoints that Envoy waits for after each update of an EDS cluster; ""
	// otherwise.
	EndpointsName string
	// VirtualHosts is true for a route configuration whose virtual hosts are resources of their own (VHDS).
	VirtualHosts bool
	// Clusters are the clusters that a virtual host routes or mirrors to, each once.
	Clusters []string
	// Mirrors are those of Clusters that requests are mirrored to. On demand, a proxy never subscribes to them.
	Mirrors []string
	// frame is the resource as a field of a delta response; any is the part of it that is a field of a
	// state-of-the-world response.
	frame, any mem.Buffer
	// hash identifies type, name and content.
	hash [16]byte
}

// Name of the resource.
func (b *Blob) Name() string { return b.Resource.GetName() }

// Version is a content hash: equal versions of one name mean equal bytes, on every replica.
func (b *Blob) Version() string { return b.Resource.GetVersion() }

// Hash identifies type, name and content.
func (b *Blob) Hash() [16]byte { return b.hash }

// Size is the number of bytes of the message.
func (b *Blob) Size() int { return len(b.Resource.GetResource().GetValue()) }

// DeltaField is the resource as it is encoded in a DeltaDiscoveryResponse, with tag and length. It is shared and must
// not be changed.
func (b *Blob) DeltaField() mem.Buffer { return b.frame }

// SotwField is DeltaField for a DiscoveryResponse.
func (b *Blob) SotwField() mem.Buffer { return b.any }

// Store has each blob once. It is safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	blobs map[[16]byte]weak.Pointer[Blob]
	bytes int64
}

// New returns an empty store.
func New() *Store { return &Store{blobs: map[[16]byte]weak.Pointer[Blob]{}} }

// Put marshals a message and returns the one Blob with its content.
func (s *Store) Put(typeURL, name string, m proto.Message) (*Blob, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", name, err)
	}
	hash := contentHash(typeURL, name, raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.blobs[hash]; ok {
		if b := p.Value(); b != nil {
			return b, nil
		}
		// The blob is freed and its cleanup has yet to run; drop then leaves the entry of the new blob alone.
	}
	b := newBlob(typeURL, name, hash, raw)
	b.EndpointsName, b.VirtualHosts = endpointsName(m), virtualHosts(m)
	b.Clusters, b.Mirrors = clustersOf(m)
	p := weak.Make(b)
	s.blobs[hash] = p
	s.bytes += int64(len(raw))
	runtime.AddCleanup(b, s.drop, freed{p, hash, int64(len(raw))})
	return b, nil
}

// Numbers of the protobuf fields.
const (
	responseResources = 2 // of DeltaDiscoveryResponse and DiscoveryResponse
	resourceVersion   = 1
	resourceAny       = 2
	resourceName      = 3
	anyTypeURL        = 1
	anyValue          = 2
)

// newBlob encodes the resource for both variants of the protocol; Resource shares these bytes.
func newBlob(typeURL, name string, hash [16]byte, raw []byte) *Blob {
	version := hex.EncodeToString(hash[:8])
	field := func(size int) int { return 1 + protowire.SizeBytes(size) } // the tags of fields below 16 are one byte
	inner := field(len(typeURL)) + field(len(raw))
	outer := field(len(version)) + field(inner) + field(len(name))
	frame := make([]byte, 0, field(outer))
	frame = protowire.AppendVarint(protowire.AppendTag(frame, responseResources, protowire.BytesType), uint64(outer)) //nolint:gosec // a size
	frame = protowire.AppendString(protowire.AppendTag(frame, resourceVersion, protowire.BytesType), version)
	start := len(frame)
	frame = protowire.AppendVarint(protowire.AppendTag(frame, resourceAny, protowire.BytesType), uint64(inner)) //nolint:gosec // a size
	frame = protowire.AppendString(protowire.AppendTag(frame, anyTypeURL, protowire.BytesType), typeURL)
	frame = protowire.AppendBytes(protowire.AppendTag(frame, anyValue, protowire.BytesType), raw)
	end := len(frame)
	frame = protowire.AppendString(protowire.AppendTag(frame, resourceName, protowire.BytesType), name)
	return &Blob{
		Resource: &discovery.Resource{
			Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: frame[end-len(raw) : end : end]},
		},
		frame: mem.SliceBuffer(frame),
		any:   mem.SliceBuffer(frame[start:end:end]),
		hash:  hash,
	}
}

// freed is what drop has to know of a blob that was freed.
type freed struct {
	p    weak.Pointer[Blob]
	hash [16]byte
	size int64
}

func (s *Store) drop(f freed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= f.size
	if s.blobs[f.hash] == f.p {
		delete(s.blobs, f.hash)
	}
}

// Usage returns the number of blobs and the bytes of their messages, including those that the garbage collector has yet
// to free.
func (s *Store) Usage() (blobs int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blobs), s.bytes
}

func contentHash(typeURL, name string, raw []byte) [16]byte {
	h := sha256.New()
	for _, part := range []string{typeURL, name} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	h.Write(raw)
	return [16]byte(h.Sum(nil)[:16])
}

func virtualHosts(m proto.Message) bool {
	rc, ok := m.(*route.RouteConfiguration)
	return ok && rc.GetVhds() != nil
}

func endpointsName(m proto.Message) string {
	c, ok := m.(*cluster.Cluster)
	if !ok || c.GetType() != cluster.Cluster_EDS {
		return ""
	}
	if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
		return name
	}
	return c.GetName()
}

// clustersOf lists the clusters that the routes of a virtual host route or mirror to, and those that they mirror to.
func clustersOf(m proto.Message) (found, mirrors []string) {
	host, ok := m.(*route.VirtualHost)
	if !ok {
		return nil, nil
	}
	add := func(name string) {
		if name != "" && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	for _, r := range host.GetRoutes() {
		add(r.GetRoute().GetCluster())
		for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
			add(w.GetName())
		}
		for _, mirror := range r.GetRoute().GetRequestMirrorPolicies() {
			add(mirror.GetCluster())
			mirrors = append(mirrors, mirror.GetCluster())
		}
	}
	return found, mirrors
}
