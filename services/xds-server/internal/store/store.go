// Package store holds the bytes of xDS resources: each marshalled once, addressed by content, shared by all classes, streams and
// revisions that agree on it, and freed by the garbage collector when nobody does any more.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"sync"
	"weak"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Blob is one resource, ready to send. It is immutable; equal content is the same pointer while it is in use.
type Blob struct {
	// Resource is the delta form: name, version and the message as Any. The state-of-the-world form is its Any alone.
	Resource *discovery.Resource
	// EndpointsName is the name of the endpoints that a cluster waits for after each update; "" for anything else.
	EndpointsName string
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

// Store interns blobs. It is safe for concurrent use.
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
		// Dead, and its cleanup has yet to run: the cleanup sees that the entry is no longer its own.
	}
	b := &Blob{
		Resource: &discovery.Resource{
			Name: name, Version: hex.EncodeToString(hash[:8]),
			Resource: &anypb.Any{TypeUrl: typeURL, Value: raw},
		},
		EndpointsName: endpointsName(m),
		hash:          hash,
	}
	p := weak.Make(b)
	s.blobs[hash] = p
	s.bytes += int64(len(raw))
	runtime.AddCleanup(b, s.drop, dead{p, hash, int64(len(raw))})
	return b, nil
}

type dead struct {
	p    weak.Pointer[Blob]
	hash [16]byte
	size int64
}

func (s *Store) drop(d dead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= d.size
	if s.blobs[d.hash] == d.p {
		delete(s.blobs, d.hash)
	}
}

// Usage returns the number of blobs and the bytes of their messages, those included that the garbage collector has yet to free.
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
