package serve

import (
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
)

// hearing is how a stream hears of changes without making the caller wait: a revision is applied to all streams by a
// few goroutines, and a client whose request is long must not hold up the others. What comes while the stream's mutex
// is taken waits here for who holds it.
type hearing struct {
	lateMu sync.Mutex
	late   []heardChange
	// upTo is the newest revision whose changes the stream has heard of, all of them: what was served when the mutex
	// was taken. It goes with the stream's mutex.
	upTo *configv1.Revision
}

// heardChange is one call of Changed, and what was served before it, or one of regroup.
type heardChange struct {
	changes, arrived plan.Changes
	before           *configv1.Revision
	regroup          bool
}

// lock takes the stream's mutex and everything that has changed until then.
func (s *stream) lock() {
	s.mu.Lock()
	served := s.server.engine.Served()
	s.hear()
	s.upTo = served
}

// unlock gives the mutex back. Changes that came meanwhile are taken over first, and those that come in between by
// whoever has it next.
func (s *stream) unlock() {
	for {
		served := s.server.engine.Served()
		s.hear()
		s.upTo = served
		s.mu.Unlock()
		if s.heardAll() || !s.mu.TryLock() {
			return
		}
	}
}

// Changed implements plan.Watcher.
func (s *stream) Changed(changes, arrived plan.Changes) {
	s.tell(heardChange{changes: changes, arrived: arrived})
}

// regroup makes the stream look whether the mesh has made its proxy another class.
func (s *stream) regroup() { s.tell(heardChange{regroup: true}) }

// tell has the stream hear of something, at once unless its mutex is taken.
func (s *stream) tell(c heardChange) {
	s.lateMu.Lock()
	c.before = s.server.engine.Served()
	s.late = append(s.late, c)
	s.lateMu.Unlock()
	if s.mu.TryLock() {
		s.unlock()
	}
}

func (s *stream) heardAll() bool {
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	return len(s.late) == 0
}

// hear takes over what has changed. The caller holds s.mu.
func (s *stream) hear() {
	s.lateMu.Lock()
	late := s.late
	s.late = nil
	s.lateMu.Unlock()
	if len(late) == 0 || s.closed || s.class == nil {
		return
	}
	touched := false
	for _, c := range late {
		s.upTo = c.before
		if c.regroup {
			touched = s.reclassify() || touched
			continue
		}
		touched = s.changed(c.changes, c.arrived) || touched
	}
	if touched {
		s.server.reports.touch(s)
		s.flush()
	}
}

// changed marks what may be different from what the client holds, and reports whether anything is.
func (s *stream) changed(changes, arrived plan.Changes) (touched bool) {
	for url, names := range changes {
		sub := s.of(url)
		if sub == nil {
			continue
		}
		for _, name := range names {
			touched = s.touchIfHeld(sub, name) || touched
		}
		if url == resource.ClusterType {
			for _, name := range arrived[url] {
				s.arrives(sub, name)
			}
		}
	}
	return touched
}
