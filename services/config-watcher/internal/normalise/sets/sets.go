// Package sets has the sets that the indices of package normalise are made of: small in memory while they have few
// members. They are not safe for concurrent use.
package sets

import "slices"

// Set is a set of comparable keys.
type Set[K comparable] map[K]struct{}

// Add adds a member.
func (s Set[K]) Add(k K) { s[k] = struct{}{} }

// Small is a set that mostly has one or two members. It is a slice until it has more than maxFew.
type Small[K comparable] struct {
	few  []K
	many Set[K]
}

// maxFew is the longest slice; a map costs as much memory as ten members or more.
const maxFew = 8

// Len is the number of members.
func (b Small[K]) Len() int { return len(b.few) + len(b.many) }

// All calls yield for every member, in no order, until it returns false.
func (b Small[K]) All(yield func(K) bool) {
	for _, k := range b.few {
		if !yield(k) {
			return
		}
	}
	for k := range b.many {
		if !yield(k) {
			return
		}
	}
}

// Add adds a member.
func (b *Small[K]) Add(k K) {
	switch {
	case b.many != nil:
		b.many.Add(k)
	case slices.Contains(b.few, k):
	case len(b.few) < maxFew:
		b.few = append(b.few, k)
	default:
		b.many = make(Set[K], 2*maxFew)
		for _, old := range b.few {
			b.many.Add(old)
		}
		b.few = nil
		b.many.Add(k)
	}
}

// Remove removes a member, if it is one.
func (b *Small[K]) Remove(k K) {
	delete(b.many, k)
	if i := slices.Index(b.few, k); i >= 0 {
		b.few = slices.Delete(b.few, i, i+1)
	}
}

// Multimap maps a key to a set. It drops empty sets.
type Multimap[K, V comparable] map[K]Small[V]

// Add adds v to the set of k.
func (m Multimap[K, V]) Add(k K, v V) {
	b := m[k]
	b.Add(v)
	m[k] = b
}

// Remove removes v from the set of k.
func (m Multimap[K, V]) Remove(k K, v V) {
	b, ok := m[k]
	if !ok {
		return
	}
	if b.Remove(v); b.Len() == 0 {
		delete(m, k)
	} else {
		m[k] = b
	}
}
