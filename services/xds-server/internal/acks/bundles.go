package acks

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// pointOf says which generation a signed bundle is. It does not verify the signature.
func pointOf(b *cav1.SignedBundle) (Point, error) {
	t := &cav1.TrustBundle{}
	if err := proto.Unmarshal(b.GetBundle(), t); err != nil {
		return Point{}, fmt.Errorf("trust bundle: %w", err)
	}
	return Point{Epoch: t.GetEpoch(), Generation: t.GetGeneration()}, nil
}

// maxBundles is how many versions Bundles remembers. The ca signs a bundle anew from time to time, so that agents may
// acknowledge several versions of two generations at once.
const maxBundles = 8

// Bundles says which generation a version of the resource is that agents are sent. It decodes each version once. The
// zero value is ready; it is safe for concurrent use.
type Bundles struct {
	mu    sync.Mutex
	known []version
}

type version struct {
	name string
	Point
}

// Point returns the generation of a version, whose content is an encoded SignedBundle; the zero Point if it is none.
func (b *Bundles) Point(name string, content []byte) Point {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.known, func(v version) bool { return v.name == name }); i >= 0 {
		return b.known[i].Point
	}
	v := version{name: name}
	signed := &cav1.SignedBundle{}
	if err := proto.Unmarshal(content, signed); err == nil {
		v.Point, _ = pointOf(signed) // what is no bundle is no generation
	}
	if len(b.known) >= maxBundles {
		b.known = slices.Delete(b.known, 0, 1)
	}
	b.known = append(b.known, v)
	return v.Point
}
