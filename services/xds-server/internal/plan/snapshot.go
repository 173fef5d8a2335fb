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
	"fairlead.dev/services/xds-server/internal/store"
)

// Item is one planned resource.
type Item struct {
	// Blob is nil where the class has no resource of that name.
	Blob *store.Blob
	// Wildcard is true for what a wildcard subscription receives; other items are there because somebody asked for them by name.
	Wildcard bool
	// Pending is true while it is not known whether the class has one.
	Pending bool
}

// Snapshot is all that a class has at one revision. It is immutable and safe for concurrent use.
type Snapshot struct {
	// Revision that brought the last change to the class; nil before the first.
	Revision *configv1.Revision
	types    map[string]*TypeSnapshot
}

// Type returns the resources of one type; never nil.
func (s *Snapshot) Type(url string) *TypeSnapshot {
	if t, ok := s.types[url]; ok {
		return t
	}
	return nothing
}

// URLs lists the types that were planned, sorted.
func (s *Snapshot) URLs() []string { return slices.Sorted(maps.Keys(s.types)) }

// emptyItems is what nobody has.
var (
	emptyItems = btree.NewMap[string, Item](0)
	nothing    = &TypeSnapshot{own: emptyItems, whole: true}
)

// TypeSnapshot is what a class has of one type: its own items, and below them what it shares with other classes.
type TypeSnapshot struct {
	own  *btree.Map[string, Item]
	base *TypeSnapshot // nil if nothing is shared

	once sync.Once
	// whole is true if sum and count are known from the start.
	whole bool
	sum   sum
	count int

	listingsMu sync.Mutex
	listings   map[string]*Listing
}

// Len is the number of resources in the wildcard set.
func (t *TypeSnapshot) Len() int {
	t.tally()
	return t.count
}

// Get returns an item; ok is false if nobody has asked for it and it is not part of the wildcard set.
func (t *TypeSnapshot) Get(name string) (item Item, ok bool) {
	for ; t != nil; t = t.base {
		if item, ok = t.own.Get(name); ok {
			break
		}
	}
	return item, ok
}

// Scan calls f for every item in order of name until f returns false.
func (t *TypeSnapshot) Scan(f func(name string, item Item) bool) { t.ScanPrefix("", f) }

// ScanPrefix is Scan for the names that start with prefix.
func (t *TypeSnapshot) ScanPrefix(prefix string, f func(name string, item Item) bool) {
	// One cursor per tier, the highest first: of one name the first one counts.
	var cursors []*btree.MapIter[string, Item]
	for ; t != nil; t = t.base {
		c := t.own.Iter()
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
	t.tally()
	return t.sum.String()
}

// tally works out the version and the size of what is not whole, from those of the shared part, in O(own).
func (t *TypeSnapshot) tally() {
	if t.whole {
		return
	}
	t.once.Do(func() {
		t.base.tally()
		total := tally{sum: t.base.sum, count: t.base.count}
		t.own.Scan(func(name string, item Item) bool {
			below, _ := t.base.Get(name)
			total.replace(below, item)
			return true
		})
		t.sum, t.count = total.sum, total.count
	})
}

// sum is a hash of a set of blobs that is kept up to date in O(1) per change: the sum of their content hashes modulo 2^128.
type sum struct{ hi, lo uint64 }

func (s *sum) add(b *store.Blob) {
	var carry uint64
	h := b.Hash()
	s.lo, carry = bits.Add64(s.lo, binary.BigEndian.Uint64(h[8:]), 0)
	s.hi, _ = bits.Add64(s.hi, binary.BigEndian.Uint64(h[:8]), carry)
}

func (s *sum) remove(b *store.Blob) {
	var borrow uint64
	h := b.Hash()
	s.lo, borrow = bits.Sub64(s.lo, binary.BigEndian.Uint64(h[8:]), 0)
	s.hi, _ = bits.Sub64(s.hi, binary.BigEndian.Uint64(h[:8]), borrow)
}

func (s *sum) String() string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], s.hi)
	binary.BigEndian.PutUint64(raw[8:], s.lo)
	return hex.EncodeToString(raw[:])
}

// VersionOf is the version of any set of blobs, equal to TypeSnapshot.Version for the same set.
func VersionOf(blobs []*store.Blob) string {
	var s sum
	for _, b := range blobs {
		s.add(b)
	}
	return s.String()
}
