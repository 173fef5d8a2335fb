package fairshare

import "k8s.io/client-go/util/workqueue"

// turns is the order of a work queue in which owners take turns, so that thousands of items of one keep nobody else
// waiting. It implements workqueue.Queue, whose caller has a lock.
type turns[T comparable] struct {
	owner func(T) string
	// waiting are the items of an owner, in the order in which they came.
	waiting map[string][]T
	// next are the owners with items that wait.
	next []string
	n    int
}

// NewWorkQueue returns a work queue in which owners take turns: of each that waits, the oldest item comes before the
// second of another. Failed items come back after the pause that limiter says.
func NewWorkQueue[T comparable](limiter workqueue.TypedRateLimiter[T], owner func(T) string) workqueue.TypedRateLimitingInterface[T] {
	order := &turns[T]{owner: owner, waiting: map[string][]T{}}
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[T]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Queue: order}),
		}),
	})
}

// Touch implements workqueue.Queue: an item that is added again stays where it is.
func (q *turns[T]) Touch(T) {}

// Push implements workqueue.Queue.
func (q *turns[T]) Push(item T) {
	owner := q.owner(item)
	if len(q.waiting[owner]) == 0 {
		q.next = append(q.next, owner)
	}
	q.waiting[owner] = append(q.waiting[owner], item)
	q.n++
}

// Len implements workqueue.Queue.
func (q *turns[T]) Len() int { return q.n }

// Pop implements workqueue.Queue.
func (q *turns[T]) Pop() T {
	owner := q.next[0]
	q.next = q.next[1:]
	list := q.waiting[owner]
	item := list[0]
	if q.waiting[owner] = list[1:]; len(list) > 1 {
		q.next = append(q.next, owner)
	} else {
		delete(q.waiting, owner)
	}
	q.n--
	return item
}
