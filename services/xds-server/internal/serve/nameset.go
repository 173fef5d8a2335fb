package serve

import (
	"slices"
)

const (
	// shortSet is the length up to which a nameSet has no index.
	shortSet = 16
	// longList is the length up to which a nameList is a sorted list; further names are in a map.
	longList = 16 << 10
)

// nameSet is a set that is empty or short most of the time and then takes little memory. The zero value is empty.
type nameSet struct {
	list  []string
	index map[string]int32 // positions in list; nil if that is short or shared
	// shared is true while list is sorted and belongs to somebody else.
	shared bool
}

// setShared fills an empty set with names, which are sorted and must not change.
func (set *nameSet) setShared(names []string) { set.list, set.index, set.shared = names, nil, true }

// shares reports whether the set still is the very list that setShared was called with.
func (set *nameSet) shares(names []string) bool {
	return set.shared && len(set.list) == len(names) && (len(names) == 0 || &set.list[0] == &names[0])
}

// makeOwned copies a shared list, so that the set can be changed.
func (set *nameSet) makeOwned() {
	if !set.shared {
		return
	}
	set.list, set.shared = slices.Clone(set.list), false
	set.reindex()
}

// reindex makes the index, if the list is long enough.
func (set *nameSet) reindex() {
	if len(set.list) <= shortSet {
		return
	}
	set.index = make(map[string]int32, len(set.list))
	for i, n := range set.list {
		set.index[n] = int32(i) //nolint:gosec // far fewer names fit the budget of a stream
	}
}

func (set *nameSet) len() int { return len(set.list) }

func (set *nameSet) find(name string) int {
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

func (set *nameSet) has(name string) bool { return set.find(name) >= 0 }

// add reports whether the name is new.
func (set *nameSet) add(name string) bool {
	if set.has(name) {
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

func (set *nameSet) remove(name string) {
	if !set.has(name) {
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
		set.clear()
	}
}

// clear empties the set and frees the memory of a long one.
func (set *nameSet) clear() {
	if set.index != nil || set.shared {
		set.list, set.index, set.shared = nil, nil, false
		return
	}
	clear(set.list)
	set.list = set.list[:0]
}

// sorted lists the names in order. The list is valid until the set changes.
func (set *nameSet) sorted() []string {
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

// nameList is a set that may be long and seldom changes: sorted, at 16 bytes for each name beside its text, which is
// shared with the class.
type nameList struct {
	list []string
	more map[string]struct{}
	// shared is true while list belongs to somebody else.
	shared bool
}

// setShared fills an empty set with names, which are sorted and must not change.
func (l *nameList) setShared(names []string) { l.list, l.shared = names, true }

// shares reports whether the set still is the very list that setShared was called with.
func (l *nameList) shares(names []string) bool {
	return l.shared && len(l.list) == len(names) && len(l.more) == 0 && (len(names) == 0 || &l.list[0] == &names[0])
}

// makeOwned copies a shared list, so that the set can be changed.
func (l *nameList) makeOwned() {
	if l.shared {
		l.list, l.shared = slices.Clone(l.list), false
	}
}

func (l *nameList) len() int { return len(l.list) + len(l.more) }

func (l *nameList) has(name string) bool {
	if _, ok := slices.BinarySearch(l.list, name); ok {
		return true
	}
	_, ok := l.more[name]
	return ok
}

// add adds sorted names that are not in the set.
func (l *nameList) add(names []string) {
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

// remove removes a name and reports whether it was in the set.
func (l *nameList) remove(name string) bool {
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

// intern replaces the text of a name in the set by an equal one that is shared.
func (l *nameList) intern(name string) {
	if i, ok := slices.BinarySearch(l.list, name); ok && !l.shared {
		l.list[i] = name
	}
}

// each calls f for every name until f returns false.
func (l *nameList) each(f func(name string) bool) {
	for _, n := range l.list {
		if !f(n) {
			return
		}
	}
	for n := range l.more {
		if !f(n) {
			return
		}
	}
}

// all lists the names. The list must not be changed and is valid until the set changes.
func (l *nameList) all() []string {
	if len(l.more) == 0 {
		return l.list
	}
	all := slices.Clone(l.list)
	for n := range l.more {
		all = append(all, n)
	}
	return all
}
