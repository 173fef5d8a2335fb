package fairshare

import "container/heap"

// Rankings of which an owner may be in.
const (
	bySize = iota
	byTurn
	rankings
)

// ranking is a heap of owners, so that the first of thousands is found at once. It must be told of each change that
// its order regards.
type ranking struct {
	// which of the rankings it is.
	which  int
	before func(a, b *owner) bool
	owners []*owner
}

// put takes an owner in, or moves it to where it belongs now.
func (r *ranking) put(o *owner) {
	if at := o.rank[r.which]; at > 0 {
		heap.Fix((*ranked)(r), at-1)
	} else {
		heap.Push((*ranked)(r), o)
	}
}

func (r *ranking) remove(o *owner) {
	if at := o.rank[r.which]; at > 0 {
		heap.Remove((*ranked)(r), at-1)
	}
}

// first returns the first owner that matches; nil if none does. stop says that neither an owner nor any behind it does.
func (r *ranking) first(match, stop func(*owner) bool) *owner { return r.below(0, nil, match, stop) }

// below looks for an owner before found at an index and below it in the heap.
func (r *ranking) below(at int, found *owner, match, stop func(*owner) bool) *owner {
	if at >= len(r.owners) {
		return found
	}
	o := r.owners[at]
	switch {
	case found != nil && !r.before(o, found), stop(o):
		return found
	case match(o):
		return o
	}
	return r.below(2*at+2, r.below(2*at+1, found, match, stop), match, stop)
}

// ranked implements heap.Interface.
type ranked ranking

func (r *ranked) Len() int           { return len(r.owners) }
func (r *ranked) Less(i, j int) bool { return r.before(r.owners[i], r.owners[j]) }

func (r *ranked) Swap(i, j int) {
	r.owners[i], r.owners[j] = r.owners[j], r.owners[i]
	r.owners[i].rank[r.which], r.owners[j].rank[r.which] = i+1, j+1
}

func (r *ranked) Push(o any) {
	added, _ := o.(*owner)
	r.owners = append(r.owners, added)
	added.rank[r.which] = len(r.owners)
}

func (r *ranked) Pop() any {
	last := len(r.owners) - 1
	o := r.owners[last]
	r.owners[last] = nil
	r.owners, o.rank[r.which] = r.owners[:last], 0
	return o
}
