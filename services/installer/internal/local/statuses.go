package local

import (
	"maps"
	"sync"

	"fairlead.dev/pkg/notify"

	"fairlead.dev/services/installer/internal/local/supervise"
)

// processStatus is a process's state with the result of its readiness probe.
type processStatus struct {
	supervise.Status
	// Ready is the probe's result; false while the process does not run.
	Ready bool
	// Reason says why the process is not ready.
	Reason string
}

// statuses holds the status of every process by its name. Its methods are safe for concurrent use.
type statuses struct {
	// Notifier tells of every change; Notify is also called for one that is kept elsewhere.
	notify.Notifier

	mu      sync.Mutex
	entries map[string]processStatus
}

func newStatuses() *statuses {
	return &statuses{entries: map[string]processStatus{}}
}

// Snapshot returns a copy of all statuses.
func (s *statuses) Snapshot() map[string]processStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.entries)
}

func (s *statuses) get(name string) processStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[name]
}

// setProcess stores a process's new status. A process that has started or ended is not ready until its probe says so.
func (s *statuses) setProcess(now supervise.Status) {
	s.update(now.Name, func(e *processStatus) {
		if e.PID != now.PID || e.StartedAt != now.StartedAt {
			e.Ready, e.Reason = false, "starting"
		}
		if now.PID == 0 {
			e.Ready, e.Reason = false, now.Exit
		}
		e.Status = now
	})
}

// setReadiness stores a probe's result for the process with this pid, and drops one for an earlier process.
func (s *statuses) setReadiness(name string, pid int, ready bool, reason string) {
	s.update(name, func(e *processStatus) {
		if e.PID == pid && pid != 0 {
			e.Ready, e.Reason = ready, reason
		}
	})
}

func (s *statuses) update(name string, change func(*processStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	before := e
	change(&e)
	if e == before {
		return
	}
	s.entries[name] = e
	s.Notify()
}
