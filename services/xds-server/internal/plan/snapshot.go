package plan

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/store"
)

// Item is one planned resource.
type Item struct {
	// Blob is nil if the class has no resource of that name.
	Blob *store.Blob
	// Wildcard is true if a wildcard subscription receives the resource. Other items are there for subscribers by name.
	Wildcard bool
	// Pending is true while an input of the resource has not arrived, so that the engine cannot build it yet.
	Pending bool
}

// Point is a state of the mesh in the order in which they are served. The zero Point is that before the first revision.
type Point struct {
	// Revision whose configuration the state has. Several states may have one revision, because endpoints overtake
	// configuration (package configsource).
	Revision *configv1.Revision
	// Generation is greater than that of all states before.
	Generation uint64
}

func pointOf(state *mesh.Snapshot) Point { return Point{state.Revision(), state.Generation()} }

// Snapshot is all resources that a class has at one state of the mesh. It is immutable and safe for concurrent use.
type Snapshot struct {
	// Point is the state that brought the last change to the class.
	Point
	types map[string]*TypeSnapshot
}

// SnapshotOf makes a snapshot of items, by type and name: for tests of what reads snapshots.
func SnapshotOf(at Point, items map[string]map[string]Item) *Snapshot {
	s := &Snapshot{Point: at, types: map[string]*TypeSnapshot{}}
	for url, named := range items {
		t := &TypeSnapshot{items: btree.NewMap[string, Item](0), hasTotal: true}
		for name, item := range named {
			t.items.Set(name, item)
			t.total.replace(Item{}, item)
		}
		s.types[url] = t
	}
	return s
}

// Type returns the resources of one type; never nil.
func (s *Snapshot) Type(url string) *TypeSnapshot {
	if t, ok := s.types[url]; ok {
		return t
	}
	return emptyType
}

// URLs lists the types that were planned, sorted.
func (s *Snapshot) URLs() []string { return slices.Sorted(maps.Keys(s.types)) }

// emptyType is the snapshot of a type without resources.
var emptyType = &TypeSnapshot{items: btree.NewMap[string, Item](0), hasTotal: true}

// TypeSnapshot is what a scope plan has of one type: the items that differ from the scope plan below, and the snapshot
// of that plan.
type TypeSnapshot struct {
	items *btree.Map[string, Item]
	below *TypeSnapshot // nil for the lowest

	// total is known from the start if hasTotal; computeTotal works it out otherwise.
	hasTotal bool
	once     sync.Once
	total    wildcardTotal

	listingsMu sync.Mutex
	listings   map[string]*Listing
}

// Len is the number of resources in the wildcard set.
func (t *TypeSnapshot) Len() int {
	t.computeTotal()
	return t.total.count
}

// Get returns an item; ok is false if the name is not in the wildcard set and has no subscriber.
func (t *TypeSnapshot) Get(name string) (item Item, ok bool) {
	for ; t != nil; t = t.below {
		if item, ok = t.items.Get(name); ok {
			break
		}
	}
	return item, ok
}

// Scan calls f for every item in order of name until f returns false.
func (t *TypeSnapshot) Scan(f func(name string, item Item) bool) { t.ScanPrefix("", f) }

// ScanPrefix is Scan for the names that start with prefix.
func (t *TypeSnapshot) ScanPrefix(prefix string, f func(name string, item Item) bool) {
	// One cursor per scope plan, the highest first. If several plans have an item of one name, the highest counts.
	var cursors []*btree.MapIter[string, Item]
	for ; t != nil; t = t.below {
		c := t.items.Iter()
		if c.Seek(prefix) && strings.HasPrefix(c.Key(), prefix) {
			cursors = append(cursors, &c)
		}
	}
	for len(cursors) > 0 {
		first := cursors[0]
		for _, c := range cursors[1:] {
			if c.Key() < first.Key() {
				first = c
			}
		}
		name := first.Key()
		if !f(name, first.Value()) {
			return
		}
		cursors = slices.DeleteFunc(cursors, func(c *btree.MapIter[string, Item]) bool {
			if c.Key() != name {
				return false
			}
			return !c.Next() || !strings.HasPrefix(c.Key(), prefix)
		})
	}
}

// Version is a hash of the wildcard set: equal versions mean the same names and bytes, on every replica.
func (t *TypeSnapshot) Version() string {
	t.computeTotal()
	return t.total.sum.String()
}

// computeTotal works out the total from that of the snapshot below, in time proportional to the items above it.
func (t *TypeSnapshot) computeTotal() {
	if t.hasTotal {
		return
	}
	t.once.Do(func() {
		t.below.computeTotal()
		t.total = t.below.total
		t.items.Scan(func(name string, item Item) bool {
			below, _ := t.below.Get(name)
			t.total.replace(below, item)
			return true
		})
	})
}

// wildcardTotal is the version and the size of a wildcard set.
type wildcardTotal struct {
	sum   versionSum
	count int
}

// replace removes one item from the total and adds another.
func (t *wildcardTotal) replace(old, next Item) {
	if old.Wildcard && old.Blob != nil {
		t.sum.remove(old.Blob)
		t.count--
	}
	if next.Wildcard && next.Blob != nil {
		t.sum.add(next.Blob)
		t.count++
	}
}

// versionSum is a hash of a set of blobs: the sum of their content hashes modulo 2^128. It is updated in constant time.
type versionSum struct{ hi, lo uint64 }

func (s *versionSum) add(b *store.Blob) {
	var carry uint64
	h := b.Hash()
	s.lo, carry = bits.Add64(s.lo, binary.BigEndian.Uint64(h[8:]), 0)
	s.hi, _ = bits.Add64(s.hi, binary.BigEndian.Uint64(h[:8]), carry)
}

func (s *versionSum) remove(b *store.Blob) {
	var borrow uint64
	h := b.Hash()
	s.lo, borrow = bits.Sub64(s.lo, binary.BigEndian.Uint64(h[8:]), 0)
	s.hi, _ = bits.Sub64(s.hi, binary.BigEndian.Uint64(h[:8]), borrow)
}

func (s *versionSum) String() string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], s.hi)
	binary.BigEndian.PutUint64(raw[8:], s.lo)
	return hex.EncodeToString(raw[:])
}

// VersionOf is the version of any set of blobs, equal to TypeSnapshot.Version for the same set.
func VersionOf(blobs []*store.Blob) string {
	var s versionSum
	for _, b := range blobs {
		s.add(b)
	}
	return s.String()
}
