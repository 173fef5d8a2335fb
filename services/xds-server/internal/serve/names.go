package serve

import (
	"slices"
)

const (
	// shortSet is up to how many names a nameSet is a mere list.
	shortSet = 16
	// longList is how many names a nameList keeps in order; more than that are a map.
	longList = 16 << 10
)

// nameSet is a set that is empty or short most of the time and takes next to nothing then. The zero value is empty.
type nameSet struct {
	list  []string
	index map[string]int32 // positions in list; nil while that is short
}

func (s *nameSet) len() int { return len(s.list) }

func (s *nameSet) find(name string) int {
	if s.index != nil {
		if i, ok := s.index[name]; ok {
			return int(i)
		}
		return -1
	}
	return slices.Index(s.list, name)
}

func (s *nameSet) has(name string) bool { return s.find(name) >= 0 }

// add reports whether the name is new.
func (s *nameSet) add(name string) bool {
	if s.has(name) {
		return false
	}
	s.list = append(s.list, name)
	switch {
	case s.index != nil:
		s.index[name] = int32(len(s.list) - 1) //nolint:gosec // far fewer names fit the budget of a stream
	case len(s.list) > shortSet:
		s.index = make(map[string]int32, 2*shortSet)
		for i, n := range s.list {
			s.index[n] = int32(i) //nolint:gosec // as above
		}
	}
	return true
}

func (s *nameSet) remove(name string) {
	i := s.find(name)
	if i < 0 {
		return
	}
	last := len(s.list) - 1
	s.list[i] = s.list[last]
	s.list[last] = ""
	s.list = s.list[:last]
	if s.index != nil {
		delete(s.index, name)
		if i < last {
			s.index[s.list[i]] = int32(i) //nolint:gosec // as above
		}
	}
	if last == 0 {
		s.clear()
	}
}

// clear empties the set; what a long one took is given back.
func (s *nameSet) clear() {
	if s.index != nil {
		s.list, s.index = nil, nil
		return
	}
	clear(s.list)
	s.list = s.list[:0]
}

// sorted lists the names in order; the list is valid until the set changes.
func (s *nameSet) sorted() []string {
	if !slices.IsSorted(s.list) {
		slices.Sort(s.list)
		for i, n := range s.list {
			if s.index != nil {
				s.index[n] = int32(i) //nolint:gosec // as above
			}
		}
	}
	return s.list
}

// nameList is a set that may be long and changes seldom: in order, at 16 bytes a name beside the text, which is shared.
type nameList struct {
	list []string
	more map[string]struct{}
}

func (l *nameList) len() int { return len(l.list) + len(l.more) }

func (l *nameList) has(name string) bool {
	if _, ok := slices.BinarySearch(l.list, name); ok {
		return true
	}
	_, ok := l.more[name]
	return ok
}

// add takes names that are not in the set, sorted.
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

// remove takes a name out and reports whether it was in.
func (l *nameList) remove(name string) bool {
	if i, ok := slices.BinarySearch(l.list, name); ok {
		l.list = slices.Delete(l.list, i, i+1)
		return true
	}
	if _, ok := l.more[name]; ok {
		delete(l.more, name)
		return true
	}
	return false
}

// intern replaces the text of a name in the set by an equal one that others share.
func (l *nameList) intern(name string) {
	if i, ok := slices.BinarySearch(l.list, name); ok {
		l.list[i] = name
	}
}

// each calls f for every name until it returns false.
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

// all lists the names; the list must not be changed and is valid until the set changes.
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
