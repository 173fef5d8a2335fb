package memory

import (
	"errors"
	"sync"

	"fairlead.dev/pkg/notify"
)

// ErrSlow ends a watch whose reader is too far behind. The reader must watch again.
var ErrSlow = errors.New("watcher fell too far behind")

// EventType is what happened to an object.
type EventType int

// Event types.
const (
	Added EventType = iota
	Modified
	Deleted
)

// Event is one change of the store.
type Event struct {
	Type EventType
	Item *Item
}

// maxQueue bounds the events that wait for one reader.
const maxQueue = 10_000

// Watcher returns the changes since its creation, in order.
type Watcher struct {
	store           *Store
	kind, namespace string

	mu       sync.Mutex
	queue    []Event
	overflow bool
	wake     chan struct{}
}

// Watch returns the objects of a kind and namespace (empty means all), and a watcher of all later changes.
func (s *Store) Watch(kind, namespace string) ([]*Item, *Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil, nil, ErrNotLoaded
	}
	w := &Watcher{store: s, kind: kind, namespace: namespace, wake: make(chan struct{}, 1)}
	s.watchers[w] = struct{}{}
	return s.list(kind, namespace), w, nil
}

// notify queues an event for watchers; the caller holds s.mu.
func (s *Store) notify(it *Item, existed, gone bool) {
	e := Event{Type: Added, Item: it}
	switch {
	case gone:
		e.Type = Deleted
	case existed:
		e.Type = Modified
	}
	for w := range s.watchers {
		if selected(it, w.kind, w.namespace) {
			w.push(e)
		}
	}
}

func (w *Watcher) push(e Event) {
	w.mu.Lock()
	if len(w.queue) >= maxQueue {
		w.overflow = true
	} else {
		w.queue = append(w.queue, e)
	}
	w.mu.Unlock()
	notify.Wake(w.wake)
}

// Ready receives a value when Take has events or an error.
func (w *Watcher) Ready() <-chan struct{} { return w.wake }

// Take returns the events since its last call.
func (w *Watcher) Take() ([]Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.overflow {
		return nil, ErrSlow
	}
	out := w.queue
	w.queue = nil
	return out, nil
}

// Stop ends the watch.
func (w *Watcher) Stop() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	delete(w.store.watchers, w)
}
