package secretwatch

import (
	"time"

	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// Lost decides about names that Secrets have declared, such as clusters, and that a list of the Secrets does not
// declare any more: the API server may have lost the Secrets, and only an event says that a user has deleted one. So
// the names stay until a second list lacks them too, however few they are. The zero Lost is ready. It is not safe for
// concurrent use.
type Lost struct {
	guard   withheld.Guard[string]
	deleted map[string]bool
	// lists counts those that were taken over; relisted is true after the confirming one was asked for.
	lists    uint64
	relisted bool
}

// Deleted notes that an event has told the end of a name.
func (l *Lost) Deleted(name string) {
	if l.deleted == nil {
		l.deleted = map[string]bool{}
	}
	l.deleted[name] = true
}

// Keep takes over what is declared after so many lists (State.Lists). all are the names in use, each once, sorted. It
// returns those of them that stay although they are not declared; more is true if they are more than before.
func (l *Lost) Keep(all []string, declared func(name string) bool, lists uint64, now time.Time) (keep map[string]bool, more bool) {
	var missing []string
	for _, name := range all {
		if declared(name) || l.deleted[name] {
			l.guard.Forget(name)
		} else {
			missing = append(missing, name)
		}
	}
	clear(l.deleted)
	if lists != l.lists {
		l.lists, l.relisted = lists, false
		before := l.guard.Count()
		l.guard.Reading(withheld.Reading[string]{At: now, InForce: len(all), Missing: missing, Doubtful: true})
		more = l.guard.Count() > before
	}
	keep = map[string]bool{}
	for _, name := range missing {
		keep[name] = l.guard.Has(name)
	}
	return keep, more
}

// Due reports whether it is time to ask for the second list, and is true once for each.
func (l *Lost) Due(now time.Time) bool {
	due := l.guard.Due()
	late := !due.IsZero() && !due.After(now) && !l.relisted
	l.relisted = l.relisted || late
	return late
}

// Accept ends the waiting of all names: the next Keep does not return them. It returns their number.
func (l *Lost) Accept() int {
	names := l.guard.Accept()
	for _, name := range names {
		l.Deleted(name)
	}
	return len(names)
}

// Withheld tells which of so many names in force stay although a list lacks them.
func (l *Lost) Withheld(inForce int) []source.Withheld {
	n, since := l.guard.Held()
	if n == 0 {
		return nil
	}
	return []source.Withheld{{What: "Secret", Objects: n, InForce: inForce, Since: since, Until: since.Add(withheld.Wait)}}
}
