package differential_test

import "sync"

// gate says to package configsource that proxies have to answer, while it is closed.
type gate struct {
	mu       sync.Mutex
	closed   chan struct{} // nil while it is open
	progress uint64
}

func (g *gate) set(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case closed && g.closed == nil:
		g.closed = make(chan struct{})
	case !closed && g.closed != nil:
		close(g.closed)
		g.closed = nil
	}
}

func (g *gate) busy() (<-chan struct{}, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.progress++ // some proxies answer all the time
	return g.closed, g.progress
}
