package plan

import (
	"hash/maphash"
	"slices"
	"strings"

	"fairlead.dev/services/xds-server/internal/store"
)

// Listing is the wildcard set of a type, or the part of it whose names start with a prefix, sorted by name. Callers
// share it and must not change it.
type Listing struct {
	Names []string
	Blobs []*store.Blob
	// Size and NameBytes are the bytes of all messages and of all names.
	Size, NameBytes int

	names, versions Tally
}

// Tally is a hash of a set of texts that does not depend on their order. Its seed is random, so that nobody outside the
// process can make up two sets with the same tally.
type Tally struct {
	count int
	sum   uint64
}

var seed = maphash.MakeSeed()

// Add adds a text to the set.
func (t *Tally) Add(text []byte) {
	t.count++
	t.sum += maphash.Bytes(seed, text)
}

// AddString is Add for a string.
func (t *Tally) AddString(text string) {
	t.count++
	t.sum += maphash.String(seed, text)
}

// Count is the number of texts in the set.
func (t *Tally) Count() int { return t.count }

// HasNames reports whether a tally is that of the listing's names.
func (l *Listing) HasNames(t Tally) bool { return t == l.names }

// HasVersions reports whether a tally is that of the listing's versions. A proxy with these versions has the resources
// of the listing, because the name of a resource is part of its version's hash.
func (l *Listing) HasVersions(t Tally) bool { return t == l.versions }

// applyItems returns the listing of the snapshot below with the snapshot's items applied.
func (t *TypeSnapshot) applyItems(below *Listing, prefix string) *Listing {
	l := &Listing{Size: below.Size, NameBytes: below.NameBytes, names: below.names, versions: below.versions}
	room := len(below.Names)
	if prefix == "" {
		room += t.items.Len()
	}
	l.Names, l.Blobs = make([]string, 0, room), make([]*store.Blob, 0, room)
	at := 0
	t.items.Ascend(prefix, func(name string, item Item) bool {
		if !strings.HasPrefix(name, prefix) {
			return false
		}
		i, found := slices.BinarySearch(below.Names[at:], name)
		l.Names, l.Blobs = append(l.Names, below.Names[at:at+i]...), append(l.Blobs, below.Blobs[at:at+i]...)
		if at += i; found {
			l.count(below.Blobs[at], -1)
			at++
		}
		if item.Wildcard && item.Blob != nil {
			l.Names, l.Blobs = append(l.Names, item.Blob.Name()), append(l.Blobs, item.Blob)
			l.count(item.Blob, 1)
		}
		return true
	})
	l.Names, l.Blobs = append(l.Names, below.Names[at:]...), append(l.Blobs, below.Blobs[at:]...)
	return l
}

// count adds a resource to the sums if by is 1, and removes it if by is -1.
func (l *Listing) count(b *store.Blob, by int) {
	l.Size += by * b.Size()
	l.NameBytes += by * len(b.Name())
	l.names.count += by
	l.names.sum += uint64(by) * maphash.String(seed, b.Name()) //nolint:gosec // modulo 2^64
	l.versions.count += by
	l.versions.sum += uint64(by) * maphash.String(seed, b.Version()) //nolint:gosec // as above
}

// Listing lists the resources of the wildcard set whose names start with prefix.
func (t *TypeSnapshot) Listing(prefix string) *Listing {
	for t.below != nil && t.items.Len() == 0 {
		t = t.below
	}
	t.listingsMu.Lock()
	defer t.listingsMu.Unlock()
	if l, ok := t.listings[prefix]; ok {
		return l
	}
	below := &Listing{}
	if t.below != nil {
		below = t.below.Listing(prefix)
	}
	l := t.applyItems(below, prefix)
	if t.listings == nil {
		t.listings = map[string]*Listing{}
	}
	t.listings[prefix] = l
	return l
}
