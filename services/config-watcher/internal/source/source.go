// Package source is what every place that mesh configuration comes from has in common.
package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Event is a new state of one object; a nil Object means that it is gone.
type Event struct {
	Key    object.Key
	Object *object.Object
}

// Handler takes events that belong together. It must return quickly. The context carries the trace of the change and nothing else: it may
// end before the change is processed.
type Handler func(ctx context.Context, source string, events []Event)

// Status tells how a source does.
type Status struct {
	// Synced is true once everything that existed at the start has been read and delivered.
	Synced bool
	// Degraded says why the source cannot be read now; nil while it can. Its last-known objects stay.
	Degraded error
	// LastGood is set while objects are served that this process has not read itself: when the state that they come
	// from was saved.
	LastGood time.Time
	// Alarm says why the source takes no writes; nil if it does, or never takes any.
	Alarm error
	// Problems are objects that were refused; the last good version of each stays.
	Problems object.Problems
	// Duplicates are objects that the source has in two places, of which the first counts.
	Duplicates object.Problems
	// Objects counts what the source has delivered.
	Objects int
	// Held counts those among Objects that stand in for broken security objects.
	Held int
	// Staying are the files whose objects stay in force although the file is gone, empty or cut off.
	Staying []Staying
	// Unread are objects of kinds that nobody reads: the first MaxUnread of them, sorted by place.
	Unread object.Problems
	// UnreadTotal counts all of them.
	UnreadTotal int
}

// MaxUnread bounds the objects of kinds that nobody reads that are named one by one.
const MaxUnread = 1000

// Staying is a file whose objects outlive what it says.
type Staying struct {
	// File as it is named in locations.
	File string
	// Why completes a sentence that begins with File: "is gone".
	Why string
	// Until is when the objects are removed, unless the file has them again.
	Until time.Time
	// Objects that stay, sorted by key.
	Objects []*object.Object
}

// String says which file it is, how many objects stay, which, and until when.
func (s Staying) String() string {
	names := make([]string, 0, maxNamed)
	for _, o := range s.Objects {
		if len(names) == maxNamed {
			names = append(names, "...")
			break
		}
		names = append(names, o.Key.String())
	}
	return fmt.Sprintf("%s %s: its %d last objects stay until %s (%s)", s.File, s.Why, len(s.Objects), s.Until.Format(time.RFC3339), strings.Join(names, ", "))
}

// maxNamed bounds the objects that one line names.
const maxNamed = 5

// Settled reports whether the source holds nothing up: it has delivered what it had, now or in an earlier run. A source
// that was never read could be anything: a mesh without its objects is not served.
func (s Status) Settled() bool { return s.Synced || !s.LastGood.IsZero() }

// Source delivers validated objects, in order, from one goroutine at a time; what it then answers about its objects is never older than
// what it has delivered.
type Source interface {
	// Name is unique among the sources of a process.
	Name() string
	// Handle registers the handler. It is called once, before Run.
	Handle(Handler)
	// Run reads until ctx ends. A source that cannot be read degrades, retries and does not return.
	Run(ctx context.Context) error
	// HasSynced reports whether everything that existed at the start has been delivered.
	HasSynced() bool
	// Status may be called at any time from any goroutine.
	Status() Status
}
