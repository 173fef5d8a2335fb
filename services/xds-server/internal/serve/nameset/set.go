// Package nameset has the sets of names that a stream keeps: small while they are empty or short, and cheap while they
// are exactly what the class lists, because they share its list then.
package nameset

import (
	"iter"
	"slices"
)

const (
	// shortSet is the length up to which a Set has no index.
	shortSet = 16
	// longList is the length up to which a List is a sorted list; further names are in a map.
	longList = 16 << 10
)

// Set is a set that is empty or short most of the time and then takes little memory. The zero value is empty.
type Set struct {
	list  []string
	index map[string]int32 // positions in list; nil if that is short or shared
	// shared is true while list is sorted and belongs to somebody else.
	shared bool
}

// SetShared fills an empty set with names, which are sorted and must not change.
func (set *Set) SetShared(names []string) { set.list, set.index, set.shared = names, nil, true }

// Shares reports whether the set still is the very list that SetShared was called with.
func (set *Set) Shares(names []string) bool {
	return set.shared && len(set.list) == len(names) && (len(names) == 0 || &set.list[0] == &names[0])
}

// Shared reports whether the set is a list that belongs to somebody else.
func (set *Set) Shared() bool { return set.shared }

// makeOwned copies a shared list, so that the set can be changed.
func (set *Set) makeOwned() {
	if !set.shared {
		return
	}
	set.list, set.shared = slices.Clone(set.list), false
	set.reindex()
}

// reindex makes the index, if the list is long enough.
func (set *Set) reindex() {
	if len(set.list) <= shortSet {
		return
	}
	set.index = make(map[string]int32, len(set.list))
	for i, n := range set.list {
		set.index[n] = int32(i) //nolint:gosec // far fewer names fit the budget of a stream
	}
}

// Len is the number of names.
func (set *Set) Len() int { return len(set.list) }

func (set *Set) find(name string) int {
	if set.shared {
		if i, ok := slices.BinarySearch(set.list, name); ok {
			return i
		}
		return -1
	}
	if set.index != nil {
		if i, ok := set.index[name]; ok {
			return int(i)
		}
		return -1
	}
	return slices.Index(set.list, name)
}

// Has reports whether the name is in the set.
func (set *Set) Has(name string) bool { return set.find(name) >= 0 }

// Add adds a name and reports whether it is new.
func (set *Set) Add(name string) bool {
	if set.Has(name) {
		return false
	}
	set.makeOwned()
	set.list = append(set.list, name)
	if set.index != nil {
		set.index[name] = int32(len(set.list) - 1) //nolint:gosec // as in reindex
	} else {
		set.reindex()
	}
	return true
}

// Remove removes a name, if it is in the set.
func (set *Set) Remove(name string) {
	if !set.Has(name) {
		return
	}
	set.makeOwned()
	i, last := set.find(name), len(set.list)-1
	set.list[i] = set.list[last]
	set.list[last] = ""
	set.list = set.list[:last]
	if set.index != nil {
		delete(set.index, name)
		if i < last {
			set.index[set.list[i]] = int32(i) //nolint:gosec // as in reindex
		}
	}
	if last == 0 {
		set.Clear()
	}
}

// Clear empties the set and frees the memory of a long one.
func (set *Set) Clear() {
	if set.index != nil || set.shared {
		set.list, set.index, set.shared = nil, nil, false
		return
	}
	clear(set.list)
	set.list = set.list[:0]
}

// Names lists the names in no order. The list must not be changed and is valid until the set changes.
func (set *Set) Names() []string { return set.list }

// Sorted lists the names in order. The list is valid until the set changes.
func (set *Set) Sorted() []string {
	if !set.shared && !slices.IsSorted(set.list) {
		slices.Sort(set.list)
		for i, n := range set.list {
			if set.index != nil {
				set.index[n] = int32(i) //nolint:gosec // as in reindex
			}
		}
	}
	return set.list
}

// List is a set that may be long and seldom changes: sorted, at 16 bytes for each name beside its text, which is
// shared with the class.
type List struct {
	list []string
	more map[string]struct{}
	// shared is true while list belongs to somebody else.
	shared bool
}

// SetShared fills an empty set with names, which are sorted and must not change.
func (l *List) SetShared(names []string) { l.list, l.shared = names, true }

// Shares reports whether the set still is the very list that SetShared was called with.
func (l *List) Shares(names []string) bool {
	return l.shared && len(l.list) == len(names) && len(l.more) == 0 && (len(names) == 0 || &l.list[0] == &names[0])
}

// Shared reports whether the set is a list that belongs to somebody else, as after SetShared.
func (l *List) Shared() bool { return l.shared }

// makeOwned copies a shared list, so that the set can be changed.
func (l *List) makeOwned() {
	if l.shared {
		l.list, l.shared = slices.Clone(l.list), false
	}
}

// Len is the number of names.
func (l *List) Len() int { return len(l.list) + len(l.more) }

// Has reports whether the name is in the set.
func (l *List) Has(name string) bool {
	if _, ok := slices.BinarySearch(l.list, name); ok {
		return true
	}
	_, ok := l.more[name]
	return ok
}

// Add adds sorted names that are not in the set.
func (l *List) Add(names []string) {
	room := max(longList-len(l.list), 0)
	for _, n := range names[min(room, len(names)):] {
		if l.more == nil {
			l.more = map[string]struct{}{}
		}
		l.more[n] = struct{}{}
	}
	names = names[:min(room, len(names))]
	if len(names) == 0 {
		return
	}
	l.makeOwned()
	if len(l.list) == 0 {
		l.list = slices.Clone(names)
		return
	}
	if len(names) == 1 {
		i, _ := slices.BinarySearch(l.list, names[0])
		l.list = slices.Insert(l.list, i, names[0])
		return
	}
	merged := make([]string, 0, len(l.list)+len(names))
	old := l.list
	for len(old) > 0 && len(names) > 0 {
		if old[0] < names[0] {
			merged, old = append(merged, old[0]), old[1:]
		} else {
			merged, names = append(merged, names[0]), names[1:]
		}
	}
	l.list = append(append(merged, old...), names...)
}

// Remove removes a name and reports whether it was in the set.
func (l *List) Remove(name string) bool {
	if i, ok := slices.BinarySearch(l.list, name); ok {
		l.makeOwned()
		l.list = slices.Delete(l.list, i, i+1)
		return true
	}
	if _, ok := l.more[name]; ok {
		delete(l.more, name)
		return true
	}
	return false
}

// Intern replaces the text of a name in the set by an equal one that is shared.
func (l *List) Intern(name string) {
	if i, ok := slices.BinarySearch(l.list, name); ok && !l.shared {
		l.list[i] = name
	}
}

// All yields every name, in no order.
func (l *List) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, n := range l.list {
			if !yield(n) {
				return
			}
		}
		for n := range l.more {
			if !yield(n) {
				return
			}
		}
	}
}

// Names lists the names. The list must not be changed and is valid until the set changes.
func (l *List) Names() []string {
	if len(l.more) == 0 {
		return l.list
	}
	return slices.AppendSeq(make([]string, 0, l.Len()), l.All())
}
