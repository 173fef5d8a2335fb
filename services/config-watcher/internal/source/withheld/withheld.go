// Package withheld decides which objects that a reading of a source lacks are removed, and which stay until a second
// reading says the same: a registry that was restored, emptied or read with too few rights answers as if its users had
// deleted everything.
//
// A source has a Guard for each part of it that is read as a whole, such as the services of a registry or one kind of
// an API server. It calls Reading with each complete reading and removes what that returns; the other missing objects
// stay in force, and are withheld. Due says when to read again, Forget that a single event has said what became of an
// object, Accept that an administrator wants no second reading. Users see the state as HELD.
//
// What a user deletes himself is no matter for a Guard: the source removes objects of single events, of a namespace
// that is gone, of a file or of a Secret without asking.
package withheld

import "time"

const (
	// Wait is the time between the reading that lacks an object and the one that confirms it.
	Wait = 30 * time.Second
	// Few missing objects, or fewer, are removed at once, however few there are in all.
	Few = 10
)

// Reading is what one complete reading says of the objects in force.
type Reading[K comparable] struct {
	// At is when it was complete. It is never before that of the reading before.
	At time.Time
	// InForce is the number of objects that were in force before the reading, withheld ones included, without what a
	// user has deleted. New objects of the reading do not count: they are no reason to miss others less.
	InForce int
	// Missing are those of them that the reading does not have, each once.
	Missing []K
	// Doubtful is true if the source has a reason of its own to wait, whatever the number: such as an answer that is
	// older than the one before.
	Doubtful bool
}

// Guard remembers which objects are withheld and since when. The zero Guard withholds nothing. It keeps as many keys as
// objects are withheld, has no clock of its own, and is not safe for concurrent use.
type Guard[K comparable] struct {
	held map[K]time.Time
}

// Reading takes over a complete reading and returns the objects to remove, in the order of Missing: those that an
// earlier reading lacked Wait ago or before and every one since, and the others unless they are more than Few and more
// than half of what is left in force, or the reading is doubtful. All others of Missing are withheld from now on, those
// that were withheld already since they were; objects that are not in Missing are not withheld any more.
func (g *Guard[K]) Reading(r Reading[K]) (remove []K) {
	waiting := make(map[K]time.Time, len(g.held))
	for _, k := range r.Missing {
		since, known := g.held[k]
		if !known {
			since = r.At
		}
		if r.At.Sub(since) < Wait {
			waiting[k] = since
		}
	}
	left := r.InForce - (len(r.Missing) - len(waiting))
	if !r.Doubtful && (len(waiting) <= Few || 2*len(waiting) <= left) {
		clear(waiting)
	}
	g.held = waiting
	for _, k := range r.Missing {
		if _, waits := waiting[k]; !waits {
			remove = append(remove, k)
		}
	}
	return remove
}

// Has reports whether an object is withheld.
func (g *Guard[K]) Has(k K) bool {
	_, held := g.held[k]
	return held
}

// Forget ends the withholding of an object without removing it: an event has brought it back, or the caller removes it.
func (g *Guard[K]) Forget(k K) { delete(g.held, k) }

// Accept ends the withholding of all objects, and returns them in no order, for the caller to remove.
func (g *Guard[K]) Accept() (remove []K) {
	for k := range g.held {
		remove = append(remove, k)
	}
	g.held = nil
	return remove
}

// Held returns how many objects are withheld, and since when the first of them is; zero if none is.
func (g *Guard[K]) Held() (count int, since time.Time) {
	for _, at := range g.held {
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return len(g.held), since
}

// Count is how many objects are withheld, without the cost of Held.
func (g *Guard[K]) Count() int { return len(g.held) }

// Due is when the next reading can confirm that an object is gone; zero if none is withheld. It may have passed.
func (g *Guard[K]) Due() time.Time {
	n, since := g.Held()
	if n == 0 {
		return time.Time{}
	}
	return since.Add(Wait)
}
