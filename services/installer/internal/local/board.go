package local

import (
	"maps"
	"sync"

	"fairlead.dev/services/installer/internal/local/supervise"
)

// entry is what is known of one process.
type entry struct {
	supervise.Status
	// Ready is what its probe says; false while it does not run.
	Ready bool
	// Reason says why it is not ready.
	Reason string
}

// board holds what is known of all processes. It is safe for concurrent use.
type board struct {
	mu      sync.Mutex
	entries map[string]entry
	changed chan struct{}
}

func newBoard() *board {
	return &board{entries: map[string]entry{}, changed: make(chan struct{})}
}

// Changed is closed at the next change. Take it before Snapshot.
func (b *board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Snapshot is a copy of everything.
func (b *board) Snapshot() map[string]entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.entries)
}

func (b *board) get(name string) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries[name]
}

// process takes a new status of a process. A process that started or ended is not ready until its probe says so.
func (b *board) process(s supervise.Status) {
	b.update(s.Name, func(e *entry) {
		if e.PID != s.PID || e.StartedAt != s.StartedAt {
			e.Ready, e.Reason = false, "starting"
		}
		if s.PID == 0 {
			e.Ready, e.Reason = false, s.Exit
		}
		e.Status = s
	})
}

// probed takes a probe's verdict about the process with this pid; one about an earlier process is dropped.
func (b *board) probed(name string, pid int, ready bool, reason string) {
	b.update(name, func(e *entry) {
		if e.PID == pid && pid != 0 {
			e.Ready, e.Reason = ready, reason
		}
	})
}

func (b *board) update(name string, change func(*entry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[name]
	before := e
	change(&e)
	if e == before {
		return
	}
	b.entries[name] = e
	b.notify()
}

// touch wakes those who wait for changes, because of something that is kept elsewhere.
func (b *board) touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notify()
}

func (b *board) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}
