// Package file is the source that reads objects from YAML and JSON files: single files, or directories with their
// subdirectories. Source.Run reads all files at the start, a changed one after a notification of the operating system,
// and all of them again at intervals. Files may be replaced by renaming, and whole directories by switching a symbolic
// link, as Kubernetes does with ConfigMap volumes.
//
// scan lists the files (list.go) and reads those that have changed (read.go). deliver merges them and passes on the
// difference. If a file is gone, empty or cut off, its objects stay for a grace (grace.go). The last good state
// outlives a restart (saved.go).
package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

// Times of the source. A writer that does not rename causes several notifications and, for a moment, an empty or
// incomplete file.
const (
	debounce = 15 * time.Millisecond
	// quiet is how long a file must not have been written to before content that lacks objects is trusted.
	quiet = 250 * time.Millisecond
	// quietInGrace is quiet for a file that was just gone, empty or cut off: its writer is slow.
	quietInGrace = time.Second
)

// DefaultResync is the interval of reading everything without a notification.
const DefaultResync = 30 * time.Second

// Config of a source. Name, Paths, Log and Clock are required.
type Config struct {
	Name  string
	Paths []string
	// Resync is the interval of reading everything; DefaultResync if 0.
	Resync time.Duration
	// Grace is how long the objects of a file that is gone, empty or cut off stay; DefaultGrace if 0.
	Grace time.Duration
	// Decode decodes a file's content; if zero, objects of Kubernetes' and Istio's kinds.
	Decode Decoder
	// Saved keeps the last good state across restarts; if nil it is not kept.
	Saved *lastgood.Dir
	// Codec encodes Saved's records.
	Codec record.Codec
	Log   *slog.Logger
	Clock clock.Clock
}

// Source is a file source.
type Source struct {
	cfg     Config
	handler source.Handler

	mu         sync.Mutex
	synced     bool
	degraded   error
	problems   object.Problems
	objects    int
	held       int
	lastGood   time.Time
	duplicates object.Problems
	stay       []source.Staying
	unread     object.Problems
	unreads    int

	// Used by Run's goroutine only.
	roots     map[string]*root
	files     map[string]*fileState
	delivered map[object.Key]*object.Object
	reported  map[string]bool
}

// New returns a source; Run reads.
func New(cfg Config) *Source {
	cfg.Resync, cfg.Grace = cmp.Or(cfg.Resync, DefaultResync), cmp.Or(cfg.Grace, DefaultGrace)
	if cfg.Decode.Decode == nil {
		cfg.Decode = manifests(cfg.Saved != nil)
	}
	roots := map[string]*root{}
	for _, p := range cfg.Paths {
		roots[p] = &root{}
	}
	return &Source{cfg: cfg, roots: roots, files: map[string]*fileState{}, delivered: map[object.Key]*object.Object{},
		reported: map[string]bool{}}
}

// Name implements source.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Handle implements source.Source.
func (s *Source) Handle(h source.Handler) { s.handler = h }

// HasSynced implements source.Source.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return source.Status{
		Synced: s.synced, Degraded: s.degraded, LastGood: s.lastGood, Problems: s.problems, Objects: s.objects, Held: s.held,
		Duplicates: s.duplicates, Staying: s.stay, Unread: s.unread, UnreadTotal: s.unreads,
	}
}

// Run implements source.Source. It returns an error if it needs a saved state that is encrypted with a key that was not
// given: without the state its objects would be lost.
func (s *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		// Without notifications changes are found at the next resync.
		s.cfg.Log.Warn("no file notifications, changes are found by reading at intervals", "source", s.cfg.Name, "period", s.cfg.Resync, "error",
			err)
	}
	var events chan fsnotify.Event
	var failures chan error
	if watcher != nil {
		defer watcher.Close() //nolint:errcheck // nothing to do about it
		events, failures = watcher.Events, watcher.Errors
	}
	resync := s.cfg.Clock.NewTimer(s.cfg.Resync)
	defer resync.Stop()
	next := newEarliestTimer(s.cfg.Clock)
	defer next.timer.Stop()
	again, err := s.scan(ctx, watcher, true)
	for {
		if err != nil {
			return fmt.Errorf("source %s: %w", s.cfg.Name, err)
		}
		if again > 0 {
			next.within(again)
			again = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			drain(events)
			// Later notifications do not postpone it, so that a directory that always changes is still read.
			next.within(debounce)
			continue
		case lost := <-failures:
			s.cfg.Log.Warn("file notifications lost, reading everything again", "source", s.cfg.Name, "error", lost)
			again, err = s.scan(ctx, watcher, true)
		case <-next.timer.C():
			next.due = time.Time{}
			again, err = s.scan(ctx, watcher, false)
		case <-resync.C():
			again, err = s.scan(ctx, watcher, true)
			resync.Reset(s.cfg.Resync)
		}
	}
}

// earliestTimer is a timer that can only be moved forward.
type earliestTimer struct {
	clock clock.Clock
	timer clock.Timer
	due   time.Time // zero while it is not set
}

func newEarliestTimer(c clock.Clock) *earliestTimer {
	a := &earliestTimer{clock: c, timer: c.NewTimer(time.Hour)}
	a.timer.Stop()
	return a
}

// within makes the timer fire after d at the latest.
func (a *earliestTimer) within(d time.Duration) {
	due := a.clock.Now().Add(d)
	if a.due.IsZero() || due.Before(a.due) {
		a.due = due
		a.timer.Reset(d)
	}
}

func drain(events chan fsnotify.Event) {
	for {
		select {
		case <-events:
		default:
			return
		}
	}
}

// scan brings the state up to date and delivers changes. If full is true it reads every file, otherwise only those
// whose metadata has changed. It returns when to scan again, 0 for not before the next notification.
func (s *Source) scan(ctx context.Context, watcher *fsnotify.Watcher, full bool) (time.Duration, error) {
	found := list(s.cfg.Paths, func(path string) bool {
		st := s.files[path]
		return st != nil && st.seen || s.inGrace(entry{path: path, name: filepath.Base(path), root: path})
	}, s.wasFile)
	if watcher != nil {
		for _, d := range found.dirs {
			if addErr := watcher.Add(d); addErr != nil && !errors.Is(addErr, fs.ErrNotExist) {
				s.cfg.Log.Warn("directory cannot be watched, its changes are found by reading at intervals", "source", s.cfg.Name, "dir", d, "error",
					addErr)
			}
		}
	}
	var again time.Duration
	later := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	changed := false
	now := s.cfg.Clock.Now()
	for path := range found.failed {
		restored, err := s.restoreRoot(path)
		if err != nil {
			return 0, err
		}
		changed = changed || restored
	}
	if err := s.restoreMissing(found); err != nil {
		return 0, err
	}
	ahead := s.decodeAhead(ctx, found.files, full)
	defer ahead.stop()
	for _, f := range found.files {
		st := s.files[f.path]
		if st == nil {
			st = &fileState{entry: f}
			s.files[f.path] = st
		}
		wait, differs, err := s.read(st, f, ahead.take(f.path), full, now)
		if err != nil {
			return 0, err
		}
		if changed = changed || differs; wait > 0 {
			later(wait)
		}
	}
	for path, st := range s.files {
		// A configured path that cannot be listed says nothing about its files: their objects stay.
		if found.failed[st.entry.root] != nil || found.has(path) {
			continue
		}
		if len(st.objects) > 0 {
			wait, told := s.extendGrace(st, now, isGone, nil)
			if changed = changed || told; wait > 0 {
				later(wait)
				continue
			}
			s.expireGrace(st, Decoded{})
		}
		delete(s.files, path)
		s.removeSaved(st.entry)
		changed = true
	}
	c := s.coverage(found)
	// Most notifications are about other files of a watched directory.
	if status := s.Status(); changed || c.degraded != nil || status.Degraded != nil || !status.Synced {
		s.deliver(ctx, c)
	}
	if c.degraded != nil {
		later(time.Second)
	}
	return again, nil
}

// coverage says which part of the configured paths has been read.
type coverage struct {
	// complete is true if this run has read all of it.
	complete bool
	// lastGood is set if all of it has been read, some of it only by an earlier run. It is when the newest state from
	// there was saved.
	lastGood time.Time
	degraded error
}

func (s *Source) coverage(found listing) coverage {
	c := coverage{complete: true, degraded: found.err()}
	covered := true
	count := func(seen bool, restored time.Time) {
		switch {
		case seen:
			return
		case restored.IsZero():
			covered = false
		case restored.After(c.lastGood):
			c.lastGood = restored
		}
		c.complete = false
	}
	unseen := map[string]bool{}
	for _, f := range found.files {
		st := s.files[f.path]
		if count(st.seen, st.restored); !st.seen {
			unseen[f.root] = true
		}
		if st.failure != nil {
			c.degraded = errors.Join(c.degraded, st.failure)
		}
	}
	for path, r := range s.roots {
		if found.failed[path] == nil && !unseen[path] && !r.seen {
			r.seen = true
			s.saveRoot(path)
		}
		if found.failed[path] != nil {
			count(r.seen, r.restored)
		}
	}
	if !covered {
		c.lastGood = time.Time{}
	}
	return c
}

// deliver merges the objects of all files, in the order of their paths, and passes the difference on.
func (s *Source) deliver(ctx context.Context, c coverage) {
	paths := slices.Sorted(maps.Keys(s.files))
	next := map[object.Key]*object.Object{}
	var problems, duplicates, unread object.Problems
	var stay []source.Staying
	for _, p := range paths {
		st := s.files[p]
		problems, unread = append(problems, st.problems...), append(unread, st.unread...)
		if st.grace != nil && st.grace.logged {
			stay = append(stay, s.staying(st))
		}
		for _, o := range st.objects {
			if st.covers(o.Key) {
				continue
			}
			if other, dup := next[o.Key]; dup {
				duplicates = append(duplicates, object.Problem{
					Location: o.Location, Object: o.Key.String(), Reason: "same object as at " + other.Location + ", which counts",
					Remedy: "remove one of them",
				})
				continue
			}
			next[o.Key] = o
		}
	}
	// An object that only stays gives way to the same object in another file: the user has moved it there.
	for _, p := range paths {
		for _, o := range s.files[p].objects {
			if s.files[p].covers(o.Key) && next[o.Key] == nil {
				next[o.Key] = o
			}
		}
	}
	held := 0
	for _, o := range next {
		if o.Held {
			held++
		}
	}
	var events []source.Event
	for k := range s.delivered {
		if next[k] == nil {
			events = append(events, source.Event{Key: k})
		}
	}
	for k, o := range next {
		if old := s.delivered[k]; old == nil || old.Digest != o.Digest {
			events = append(events, source.Event{Key: k, Object: o})
		} else {
			next[k] = old
		}
	}
	slices.SortFunc(events, func(a, b source.Event) int { return a.Key.Compare(b.Key) })
	parts := together(events, func(e source.Event) string {
		if e.Object == nil {
			return s.delivered[e.Key].Location
		}
		return e.Object.Location
	})
	s.delivered = next
	s.report(problems, duplicates, unread, c)
	// Problems are visible before the change, synced only after everything has been delivered.
	s.mu.Lock()
	s.problems, s.degraded, s.objects, s.held = problems, c.degraded, len(next), held
	s.duplicates, s.stay, s.unread, s.unreads = duplicates, stay, unread.Sorted()[:min(len(unread), source.MaxUnread)], len(unread)
	s.mu.Unlock()
	for _, part := range parts {
		if len(part) > 0 {
			s.handler(ctx, s.cfg.Name, part)
		}
	}
	s.mu.Lock()
	first := c.complete && !s.synced
	s.synced = s.synced || c.complete
	if s.lastGood = c.lastGood; s.synced {
		s.lastGood = time.Time{}
	}
	s.mu.Unlock()
	if first {
		s.prune()
	}
}

// report logs problems that are new.
func (s *Source) report(problems, duplicates, unread object.Problems, c coverage) {
	now := map[string]bool{}
	logOnce := func(text string, log func()) {
		now[text] = true
		if !s.reported[text] {
			log()
		}
	}
	for _, p := range problems {
		text := p.Error()
		logOnce(text, func() {
			if hold.IsSecurity(p) {
				s.cfg.Log.Error("security object refused, its new content is not enforced", "source", s.cfg.Name, "problem", text)
			} else {
				s.cfg.Log.Warn("object refused, its last good version stays", "source", s.cfg.Name, "problem", text)
			}
		})
	}
	for _, p := range duplicates {
		logOnce(p.Error(), func() {
			s.cfg.Log.Warn("object is in two files, the first is in force", "source", s.cfg.Name, "object", p.Error())
		})
	}
	for _, p := range unread[:min(len(unread), source.MaxUnread)] {
		logOnce(p.Error(), func() {
			s.cfg.Log.Warn("object of a kind that the mesh does not read", "source", s.cfg.Name, "object", p.Error())
		})
	}
	if more := len(unread) - source.MaxUnread; more > 0 {
		logOnce(fmt.Sprint("unread: ", more), func() {
			s.cfg.Log.Warn("more objects of kinds that the mesh does not read", "source", s.cfg.Name, "objects", more)
		})
	}
	if c.degraded != nil {
		logOnce(fmt.Sprint("degraded: ", c.degraded), func() {
			s.cfg.Log.Warn("source cannot be read, its last objects stay", "source", s.cfg.Name, "error", c.degraded)
		})
	}
	if !c.lastGood.IsZero() {
		logOnce(fmt.Sprint("last good: ", c.lastGood), func() {
			s.cfg.Log.Warn("source has not been read since the start, its last good state is served", "source", s.cfg.Name, "saved", c.lastGood)
		})
	}
	s.reported = now
}
