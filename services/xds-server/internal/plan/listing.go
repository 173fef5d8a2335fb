package plan

import (
	"hash/maphash"
	"slices"
	"strings"

	"fairlead.dev/services/xds-server/internal/store"
)

// Listing is the wildcard set of a type, or that part of it whose names start alike, in order of name. It is shared by all who ask a snapshot
// for it, and must not be changed.
type Listing struct {
	Names []string
	Blobs []*store.Blob
	// Size is the bytes of the messages, NameBytes those of the names.
	Size, NameBytes int

	names, versions Tally
}

// Tally is a number by which two sets of texts are told apart, whatever the order they come in. Sets that differ have, by chance only, the
// same tally; nobody outside the process can work one out.
type Tally struct {
	count int
	sum   uint64
}

var seed = maphash.MakeSeed()

// Add counts a text.
func (t *Tally) Add(text []byte) {
	t.count++
	t.sum += maphash.Bytes(seed, text)
}

// AddString counts a text.
func (t *Tally) AddString(text string) {
	t.count++
	t.sum += maphash.String(seed, text)
}

// Count is how many texts were counted.
func (t *Tally) Count() int { return t.count }

// HasNames reports whether a tally of names is that of the listing's, in any order.
func (l *Listing) HasNames(t Tally) bool { return t == l.names }

// HasVersions reports whether a tally of versions is that of the listing's: whoever holds these versions holds the listing, because a
// version says which name it is of.
func (l *Listing) HasVersions(t Tally) bool { return t == l.versions }

// over lists what the snapshot's own items make of the listing of its base, in O(own) beside copying it.
func (t *TypeSnapshot) over(base *Listing, prefix string) *Listing {
	l := &Listing{Size: base.Size, NameBytes: base.NameBytes, names: base.names, versions: base.versions}
	room := len(base.Names)
	if prefix == "" {
		room += t.own.Len()
	}
	l.Names, l.Blobs = make([]string, 0, room), make([]*store.Blob, 0, room)
	at := 0
	t.own.Ascend(prefix, func(name string, item Item) bool {
		if !strings.HasPrefix(name, prefix) {
			return false
		}
		i, found := slices.BinarySearch(base.Names[at:], name)
		l.Names, l.Blobs = append(l.Names, base.Names[at:at+i]...), append(l.Blobs, base.Blobs[at:at+i]...)
		if at += i; found {
			l.count(base.Blobs[at], -1)
			at++
		}
		if item.Wildcard && item.Blob != nil {
			l.Names, l.Blobs = append(l.Names, item.Blob.Name()), append(l.Blobs, item.Blob)
			l.count(item.Blob, 1)
		}
		return true
	})
	l.Names, l.Blobs = append(l.Names, base.Names[at:]...), append(l.Blobs, base.Blobs[at:]...)
	return l
}

// count counts a resource in or out: by is 1 or -1.
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
	for t.base != nil && t.own.Len() == 0 {
		t = t.base
	}
	t.listingsMu.Lock()
	defer t.listingsMu.Unlock()
	if l, ok := t.listings[prefix]; ok {
		return l
	}
	base := &Listing{}
	if t.base != nil {
		base = t.base.Listing(prefix)
	}
	l := t.over(base, prefix)
	if t.listings == nil {
		t.listings = map[string]*Listing{}
	}
	t.listings[prefix] = l
	return l
}
