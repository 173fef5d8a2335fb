package source

import "time"

// State says in one word how a source does.
type State string

// States of a source.
const (
	// Syncing: it is being read for the first time.
	Syncing State = "SYNCING"
	// Saved: it has not been read since the start, and its last good state is served.
	Saved State = "SAVED"
	// Held: a reading lacks much of what is in force, which stays until a second one lacks it too.
	Held State = "HELD"
	// Away: nothing of it answers; what was known last stays.
	Away State = "AWAY"
	// Degraded: it, or a part of it, cannot be read now; what was known last stays.
	Degraded State = "DEGRADED"
	// Synced: it is read and followed.
	Synced State = "SYNCED"
)

// State is the state that the status describes.
func (s Status) State() State {
	switch {
	case !s.LastGood.IsZero():
		return Saved
	case len(s.Withheld) > 0:
		return Held
	case s.Degraded != nil && s.away():
		return Away
	case s.Degraded != nil:
		return Degraded
	case !s.Synced:
		return Syncing
	}
	return Synced
}

// away reports whether no kind of a source that reads kinds apart from each other can be reached.
func (s Status) away() bool {
	for _, k := range s.Kinds {
		if k.Reason != ReasonUnreachable {
			return false
		}
	}
	return len(s.Kinds) > 0
}

// StaleSince is since when the source may have changed without notice; zero if it is followed, or if that is not known.
func (s Status) StaleSince() (since time.Time) {
	earliest := func(at time.Time) {
		if !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	earliest(s.LastGood)
	for _, w := range s.Withheld {
		earliest(w.Since)
	}
	for _, k := range s.Kinds {
		if k.Degraded != nil {
			earliest(k.Since)
		}
	}
	return since
}

// WithheldObjects is the number of all that is withheld.
func (s Status) WithheldObjects() (n int) {
	for _, w := range s.Withheld {
		n += w.Objects
	}
	return n
}
