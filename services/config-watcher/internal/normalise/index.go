package normalise

import "slices"

// label is one key: value pair of an object's labels.
type label struct{ key, value string }

// set is a set of comparable keys.
type set[K comparable] map[K]struct{}

func (s set[K]) add(k K) { s[k] = struct{}{} }

// bag is a set that is mostly of one or two: as a list until it has many.
type bag[K comparable] struct {
	few  []K
	many set[K]
}

// maxFew is how long the list gets; a map costs as much as ten members or more.
const maxFew = 8

func (b bag[K]) len() int { return len(b.few) + len(b.many) }

// all calls yield for every member, in no order, until it returns false.
func (b bag[K]) all(yield func(K) bool) {
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

func (b *bag[K]) add(k K) {
	switch {
	case b.many != nil:
		b.many.add(k)
	case slices.Contains(b.few, k):
	case len(b.few) < maxFew:
		b.few = append(b.few, k)
	default:
		b.many = make(set[K], 2*maxFew)
		for _, old := range b.few {
			b.many.add(old)
		}
		b.few = nil
		b.many.add(k)
	}
}

func (b *bag[K]) remove(k K) {
	delete(b.many, k)
	if i := slices.Index(b.few, k); i >= 0 {
		b.few = slices.Delete(b.few, i, i+1)
	}
}

// multimap maps a key to a set and forgets empty sets.
type multimap[K, V comparable] map[K]bag[V]

func (m multimap[K, V]) add(k K, v V) {
	b := m[k]
	b.add(v)
	m[k] = b
}

func (m multimap[K, V]) remove(k K, v V) {
	b, ok := m[k]
	if !ok {
		return
	}
	if b.remove(v); b.len() == 0 {
		delete(m, k)
	} else {
		m[k] = b
	}
}

// owner is what selects workloads: a Kubernetes Service or a ServiceEntry.
type owner struct{ kind, namespace, name string }

// allWorkloads is the selector of a ServiceEntry that has one without labels: as in Istio, it is of all workloads of the namespace. It is filed under a pair
// that no label is.
var allWorkloads = map[string]string{"": ""}

// selectors finds the owners whose selector matches given labels without trying them all: each is filed under one pair of its selector.
type selectors struct {
	byPair   map[string]multimap[label, owner]
	selector map[owner]map[string]string
}

func newSelectors() *selectors {
	return &selectors{byPair: map[string]multimap[label, owner]{}, selector: map[owner]map[string]string{}}
}

// anchor is the pair that a selector is filed under: the smallest, so that it can be found again.
func anchor(selector map[string]string) label {
	var out label
	first := true
	for k, v := range selector {
		if first || k < out.key {
			out, first = label{k, v}, false
		}
	}
	return out
}

// set replaces the owner's selector; an empty one removes it.
func (s *selectors) set(o owner, selector map[string]string) {
	if old := s.selector[o]; len(old) > 0 {
		s.byPair[o.namespace].remove(anchor(old), o)
		delete(s.selector, o)
	}
	if len(selector) == 0 {
		return
	}
	ns := s.byPair[o.namespace]
	if ns == nil {
		ns = multimap[label, owner]{}
		s.byPair[o.namespace] = ns
	}
	ns.add(anchor(selector), o)
	s.selector[o] = selector
}

// matching calls f for every owner of the namespace that selects the labels.
func (s *selectors) matching(namespace string, labels map[string]string, f func(owner)) {
	ns := s.byPair[namespace]
	if ns == nil {
		return
	}
	for o := range ns[label{}].all {
		f(o)
	}
	for k, v := range labels {
		for o := range ns[label{k, v}].all {
			if k != "" && matches(s.selector[o], labels) {
				f(o)
			}
		}
	}
}

// instances finds the workload instances that a selector matches.
type instances struct {
	byKey  map[instKey]*instance
	byPair map[string]multimap[label, instKey]
	byNode multimap[string, instKey]
}

func newInstances() *instances {
	return &instances{byKey: map[instKey]*instance{}, byPair: map[string]multimap[label, instKey]{}, byNode: multimap[string, instKey]{}}
}

func (x *instances) put(in *instance) {
	x.remove(in.key)
	x.byKey[in.key] = in
	ns := x.byPair[in.key.namespace]
	if ns == nil {
		ns = multimap[label, instKey]{}
		x.byPair[in.key.namespace] = ns
	}
	ns.add(label{}, in.key)
	for k, v := range in.labels {
		ns.add(label{k, v}, in.key)
	}
	if in.node != "" {
		x.byNode.add(in.node, in.key)
	}
}

func (x *instances) remove(k instKey) {
	old := x.byKey[k]
	if old == nil {
		return
	}
	delete(x.byKey, k)
	x.byPair[k.namespace].remove(label{}, k)
	for lk, lv := range old.labels {
		x.byPair[k.namespace].remove(label{lk, lv}, k)
	}
	if old.node != "" {
		x.byNode.remove(old.node, k)
	}
}

// matching calls f for every instance of the namespace that the selector matches, in no order. It looks only at the instances that carry the
// rarest pair of the selector.
func (x *instances) matching(namespace string, selector map[string]string, f func(*instance)) {
	ns := x.byPair[namespace]
	if ns == nil || len(selector) == 0 {
		return
	}
	var smallest bag[instKey]
	first := true
	for k, v := range selector {
		b := ns[label{k, v}]
		if first || b.len() < smallest.len() {
			smallest, first = b, false
		}
	}
	for k := range smallest.all {
		if in := x.byKey[k]; matches(selector, in.labels) {
			f(in)
		}
	}
}
