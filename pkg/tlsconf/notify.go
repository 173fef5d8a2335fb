package tlsconf

import "sync"

// Notifier implements Source's Changed. The zero value is ready.
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
