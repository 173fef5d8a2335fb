// Package source defines what all sources of mesh configuration have in common: the Source interface, which packages
// source/file and source/memory implement, and Status, which /debug/sources, the metrics and ConfigStoreService.Status
// show.
package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Event is the new state of one object; a nil Object means that the object is gone.
type Event struct {
	Key    object.Key
	Object *object.Object
}

// Handler receives events that belong together. It must return quickly. The context carries only the trace of the
// change and may end before the change is processed.
type Handler func(ctx context.Context, source string, events []Event)

// Status is the state of a source.
type Status struct {
	// Synced is true after everything that existed at the start has been read and delivered.
	Synced bool
	// Degraded is why the source cannot be read now; nil if it can. Its last known objects stay.
	Degraded error
	// LastGood is set while the source serves objects that only an earlier run has read. It is when they were saved.
	LastGood time.Time
	// Alarm is why the source takes no writes; nil if it does, or never takes any.
	Alarm error
	// Problems are about refused objects. The last good version of each stays.
	Problems object.Problems
	// Duplicates are objects that the source has in two places. The first place is in force.
	Duplicates object.Problems
	// Objects is the number of delivered objects.
	Objects int
	// Held is the number of those that replace broken security objects, see validate.Hold.
	Held int
	// Staying are files whose objects stay in force although the file is gone, empty or cut off.
	Staying []Staying
	// Unread are objects of kinds that the mesh does not read: the first MaxUnread of them, sorted by place.
	Unread object.Problems
	// UnreadTotal is the number of all of them.
	UnreadTotal int
}

// MaxUnread bounds Status.Unread.
const MaxUnread = 1000

// Staying is a file whose former objects stay for a while.
type Staying struct {
	// File is the name of the file in locations.
	File string
	// Why completes a sentence that begins with File: "is gone".
	Why string
	// Until is when the objects are removed, unless the file has them again.
	Until time.Time
	// Objects that stay, sorted by key.
	Objects []*object.Object
}

// String names the file, the number of objects that stay, some of them, and until when.
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

// maxNamed bounds the objects that String names.
const maxNamed = 5

// Settled reports whether the first revision need not wait for the source: it has delivered its objects, of this run or
// of an earlier one. A source that was never read keeps the mesh from being served, since its objects are unknown.
func (s Status) Settled() bool { return s.Synced || !s.LastGood.IsZero() }

// Source delivers validated objects, in order, from one goroutine at a time. Its answers about its objects are never
// older than what it has delivered.
type Source interface {
	// Name is unique among the sources of a process.
	Name() string
	// Handle registers the handler. It is called once, before Run.
	Handle(Handler)
	// Run reads until ctx ends. If the source cannot be read, it reports Degraded, tries again and does not return.
	Run(ctx context.Context) error
	// HasSynced reports whether everything that existed at the start has been delivered.
	HasSynced() bool
	// Status may be called at any time from any goroutine.
	Status() Status
}
