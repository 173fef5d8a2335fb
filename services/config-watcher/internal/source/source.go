// Package source defines what all sources of mesh configuration have in common: the Source interface, which packages
// source/file and source/memory implement, and Status, which /debug/sources, the metrics and ConfigStoreService.Status
// show.
package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Event is the new state of one object; a nil Object means that the object is gone.
type Event struct {
	Key    object.Key
	Object *object.Object
}

// MaxTogether bounds the events that a source delivers together although nothing says that they belong together, such
// as objects that it found changed at the same time: everything else has to wait for one revision with all of them.
const MaxTogether = 64

// Handler receives events that belong together: they take effect in one revision. Events of endpoints alone
// (kinds.IsEndpoint) overtake others. It must return quickly. The context carries only the trace of the change and
// may end before the change is processed.
type Handler func(ctx context.Context, source string, events []Event)

// Status is the state of a source.
type Status struct {
	// Synced is true after everything that existed at the start has been read and delivered.
	Synced bool
	// Degraded is why the source cannot be read now; nil if it can. Its last known objects stay.
	Degraded error
	// LastGood is set while the source serves objects that only an earlier run has read. It is when they were
	// last known to be followed, or saved.
	LastGood time.Time
	// Alarm is why the source takes no writes; nil if it does, or never takes any.
	Alarm error
	// Problems are about refused objects. The last good version of each stays.
	Problems object.Problems
	// Duplicates are objects that the source has in two places. The first place is in force.
	Duplicates object.Problems
	// Objects is the number of delivered objects.
	Objects int
	// Held is the number of those that replace broken security objects, see hold.Hold.
	Held int
	// Withheld is what a reading of the source lacks and what stays until a second one lacks it too (package withheld),
	// sorted by What.
	Withheld []Withheld
	// Staying are files whose objects stay in force although the file is gone, empty or cut off.
	Staying []Staying
	// Unread are objects of kinds that the mesh does not read: the first MaxUnread of them, sorted by place.
	Unread object.Problems
	// UnreadTotal is the number of all of them.
	UnreadTotal int
	// Kinds are the states of the kinds that the source reads apart from each other, sorted by name; empty for a source
	// that reads all kinds at once.
	Kinds []KindStatus
	// Versions tells how far an API server was read: the resource version up to which every change was delivered, by
	// kind as in KindStatus.Name, or by "Secret ns/name" for what is watched one by one; empty before the first list.
	Versions map[string]string
}

// KindStatus is the state of one kind of objects in a source that can lose one kind alone.
type KindStatus struct {
	// Name is the kind and its group, "VirtualService.networking.istio.io", or "Service" for the core group.
	Name string
	// Objects is the number of delivered objects. Watches are those that are open now.
	Objects, Watches int
	// Events counts delivered changes. Restarts counts watches that ended and were opened again.
	Events, Restarts uint64
	// Degraded is why the kind, or some of its objects, cannot be read now; nil if it can. Its last known objects stay.
	Degraded error
	// Reason is Degraded in one word that may be public: ReasonForbidden, ReasonUnreachable or ReasonFailed.
	Reason string
	// Since is when the kind was found to be degraded.
	Since time.Time
}

// Values of KindStatus.Reason.
const (
	ReasonForbidden   = "forbidden"
	ReasonUnreachable = "unreachable"
	ReasonFailed      = "failed"
)

// MaxUnread bounds Status.Unread.
const MaxUnread = 1000

// Withheld are objects that stay although a reading of their source lacks them, because they are many.
type Withheld struct {
	// What is the part of the source: a kind as in KindStatus.Name, or "services" or "endpoints" of a registry.
	What string
	// Objects is their number, InForce that of all objects of this part, they included.
	Objects, InForce int
	// Since is when a reading lacked the first of them. Until is when a second one may confirm it; it passes while the
	// source cannot be read.
	Since, Until time.Time
}

// String is "15 of 20 Service".
func (w Withheld) String() string { return fmt.Sprintf("%d of %d %s", w.Objects, w.InForce, w.What) }

// Withholder is a source that withholds.
type Withholder interface {
	// Accept removes what is withheld at once, and returns its number; 0 if nothing is. It may be called at any time
	// from any goroutine.
	Accept() (removed int)
}

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
	return fmt.Sprintf("%s %s: its %d last objects stay until %s (%s)", s.File, s.Why, len(s.Objects), s.Until.Format(time.RFC3339),
		strings.Join(names, ", "))
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

// Refused is an object whose newest version is refused.
type Refused struct {
	Key        object.Key
	APIVersion string
	// UID and Generation are those of the refused version; empty and 0 if the source has none.
	UID        string
	Generation int64
	Problems   object.Problems
}

// Location is the place of the object, empty if it stands in no file.
func (r Refused) Location() string {
	if len(r.Problems) == 0 {
		return ""
	}
	return r.Problems[0].Location
}

// Refuser is a source that knows the versions of the objects that it refuses.
type Refuser interface{ Refused() []Refused }

// RefusedOf lists the refused objects of a source, as far as its problems name their objects.
func RefusedOf(s Source) []Refused {
	if r, ok := s.(Refuser); ok {
		return r.Refused()
	}
	var out []Refused
	at := map[string]int{}
	for _, p := range s.Status().Problems {
		k, ok := object.ParseKey(p.Object)
		if !ok || !k.Named() {
			continue
		}
		i, known := at[p.Object]
		if !known {
			i = len(out)
			at[p.Object] = i
			if k.Group == "" {
				k.Group, k.Kind, _ = kinds.ByName(k.Kind)
			}
			out = append(out, Refused{Key: k, APIVersion: kinds.Canonical(k.Group, k.Kind)})
		}
		out[i].Problems = append(out[i].Problems, p)
	}
	return out
}
