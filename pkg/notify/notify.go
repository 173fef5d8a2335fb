// Package notify tells goroutines that something has changed: Notifier any number of them, Wake one.
package notify

import "sync"

// Notifier is embedded by what others wait for. The zero value is ready. A waiter calls Changed before it reads, so
// that no change is missed.
type Notifier struct {
	mu sync.Mutex
	ch chan struct{}
}

// Changed returns a channel that the next Notify closes.
func (n *Notifier) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

// Notify closes the channels of Changed.
func (n *Notifier) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// Wake leaves a token in a channel of capacity 1 for the goroutine that waits there, unless one is in it already.
func Wake(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}
