package plan

import (
	"hash/maphash"

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

// HasNames reports whether names are those of the listing, in any order.
func (l *Listing) HasNames(names []string) bool {
	if len(names) != len(l.Names) {
		return false
	}
	var t Tally
	for _, name := range names {
		t.AddString(name)
	}
	return t == l.names
}

// HasVersions reports whether a tally of versions is that of the listing's: whoever holds these versions holds the listing, because a
// version says which name it is of.
func (l *Listing) HasVersions(t Tally) bool { return t == l.versions }

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
	l := &Listing{}
	t.ScanPrefix(prefix, func(name string, item Item) bool {
		if item.Wildcard && item.Blob != nil {
			l.Names, l.Blobs = append(l.Names, item.Blob.Name()), append(l.Blobs, item.Blob)
			l.Size += item.Blob.Size()
			l.NameBytes += len(name)
			l.names.AddString(name)
			l.versions.AddString(item.Blob.Version())
		}
		return true
	})
	if t.listings == nil {
		t.listings = map[string]*Listing{}
	}
	t.listings[prefix] = l
	return l
}
