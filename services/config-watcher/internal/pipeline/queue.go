package pipeline

import (
	"context"
	"time"

	"fairlead.dev/pkg/lanes"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// queue holds the changes that no revision contains yet, in two lanes. A submission of endpoint changes alone goes into
// the lane of endpoints, which keeps the newest state of each object and is taken first and whole. Every other
// submission goes to the end of the ordered lane, which is taken from its front in whole submissions.
//
// An endpoint object may be in both lanes, because a submission with configuration may change it too. Its newest state
// wins: the ordered lane drops a state that is older than one that has overtaken it, and a state that is taken from it
// replaces an older one in the lane of endpoints.
type queue struct {
	submitted uint64 // number of submissions so far

	ordered []submission
	size    int // changes in ordered

	endpoints lanes.Latest[object.Key, normalise.Change]
	oldest    uint64          // the first submission in endpoints
	trace     context.Context // of that submission
	since     time.Time       // of that submission

	// overtakable are the endpoint objects in ordered.
	overtakable map[object.Key]overtakable
}

// submission is what one call of Submit gave. Its changes take effect together.
type submission struct {
	number  uint64
	changes []normalise.Change
	trace   context.Context
	since   time.Time
}

// overtakable is an endpoint object in the ordered lane.
type overtakable struct {
	count  int    // how often it is there
	newest uint64 // the last submission that overtook it with a newer state; 0 for none
}

func newQueue() queue {
	return queue{overtakable: map[object.Key]overtakable{}}
}

// add reports whether the changes, which are submitted now, go into the lane of endpoints.
func (q *queue) add(trace context.Context, now time.Time, changes []normalise.Change) bool {
	q.submitted++
	if !onlyEndpoints(changes) {
		q.ordered = append(q.ordered, submission{q.submitted, changes, trace, now})
		q.size += len(changes)
		for _, c := range changes {
			if kinds.IsEndpoint(c.Key) {
				o := q.overtakable[c.Key]
				o.count++
				q.overtakable[c.Key] = o
			}
		}
		return false
	}
	if len(q.endpoints.List) == 0 {
		q.oldest, q.trace, q.since = q.submitted, trace, now
	}
	for _, c := range changes {
		if o, ok := q.overtakable[c.Key]; ok {
			o.newest = q.submitted
			q.overtakable[c.Key] = o
		}
	}
	q.endpoints.Merge(func(c normalise.Change) object.Key { return c.Key }, changes)
	return true
}

func onlyEndpoints(changes []normalise.Change) bool {
	return len(changes) > 0 && lists.All(changes, func(c normalise.Change) bool { return kinds.IsEndpoint(c.Key) })
}

// batch is what one revision is made of.
type batch struct {
	changes []normalise.Change
	trace   context.Context // of the first submission
	since   time.Time       // of the first submission; zero if there is none
}

// takeEndpoints takes the whole lane of endpoints: a part of it could divide a submission.
func (q *queue) takeEndpoints() batch {
	out := batch{q.endpoints.List, q.trace, q.since}
	q.endpoints, q.trace, q.since = lanes.Latest[object.Key, normalise.Change]{}, nil, time.Time{}
	return out
}

// takeOrdered takes whole submissions from the front of the ordered lane: as many as have at most limit changes
// together, and one at least.
func (q *queue) takeOrdered(limit int) batch {
	var out batch
	n, taken := 0, 0
	for _, s := range q.ordered {
		if n > 0 && taken+len(s.changes) > limit {
			break
		}
		n++
		taken += len(s.changes)
		if out.trace == nil {
			out.trace, out.since = s.trace, s.since
		}
		for _, c := range s.changes {
			if q.overtaken(c, s.number) {
				continue
			}
			out.changes = append(out.changes, c)
			q.endpoints.Replace(c.Key, c) // what came into the lane since it was last taken is older
		}
	}
	clear(q.ordered[:n]) // for the garbage collector
	q.ordered = q.ordered[n:]
	q.size -= taken
	if len(q.overtakable) == 0 {
		q.overtakable = map[object.Key]overtakable{} // an emptied map keeps the memory of its largest size
	}
	return out
}

// overtaken reports whether a newer state has overtaken a change of the submission, which leaves the ordered lane now.
func (q *queue) overtaken(c normalise.Change, number uint64) bool {
	if !kinds.IsEndpoint(c.Key) {
		return false
	}
	o := q.overtakable[c.Key]
	if o.count--; o.count == 0 {
		delete(q.overtakable, c.Key)
	} else {
		q.overtakable[c.Key] = o
	}
	return o.newest > number
}

// takeAll takes everything. The endpoints come first: what is in the ordered lane too and counts is newer there.
func (q *queue) takeAll() batch {
	out, rest := q.takeEndpoints(), q.takeOrdered(q.size)
	out.changes = append(out.changes, rest.changes...)
	if out.trace == nil {
		out.trace = rest.trace
	}
	if out.since.IsZero() || !rest.since.IsZero() && rest.since.Before(out.since) {
		out.since = rest.since
	}
	return out
}

// done is the number of the last submission before the oldest one that is still in the queue.
func (q *queue) done() uint64 {
	done := q.submitted
	if len(q.ordered) > 0 {
		done = q.ordered[0].number - 1
	}
	if len(q.endpoints.List) > 0 {
		done = min(done, q.oldest-1)
	}
	return done
}

func (q *queue) len() int { return len(q.endpoints.List) + q.size }
