package memory

import (
	"slices"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Status implements source.Source.
func (s *Store) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{Synced: s.loaded, Degraded: s.failure, LastGood: s.lastGood, Problems: s.allProblems(),
		Objects: len(s.items) + len(s.provisional)}
	for _, d := range s.damaged {
		st.Held += len(d.holds)
		st.Objects += len(d.holds)
	}
	for _, o := range s.provisional {
		if o.Held {
			st.Held++
		}
	}
	if s.alarm != nil {
		st.Alarm = s.alarm.err
	}
	return st
}

// allProblems are the problems of the directory and of every damaged file; the caller holds s.mu or s.writing.
func (s *Store) allProblems() object.Problems {
	out := slices.Clone(s.problems)
	for _, d := range s.damaged {
		out = append(out, d.problems...)
	}
	return out.Sorted()
}

// Refused is the number of writes that failed because of the directory.
func (s *Store) Refused() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// clearDamage drops the damage of a file that a write or a deletion has replaced, and removes its hold; the
// caller holds both locks.
func (s *Store) clearDamage(k object.Key, events []source.Event) []source.Event {
	rel := relPath(k)
	d, was := s.damaged[rel]
	if !was {
		return events
	}
	delete(s.damaged, rel)
	for _, h := range d.holds {
		if h.Key != k {
			events = append(events, source.Event{Key: h.Key})
		}
	}
	return events
}
