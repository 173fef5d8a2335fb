package file

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Times of a grace.
const (
	// DefaultGrace is how long the objects of a file that is gone, empty or cut off stay. Editors, and the switch of a
	// ConfigMap volume's link, take milliseconds to replace a file; a person who moves a file away and back takes
	// seconds.
	DefaultGrace = 30 * time.Second
	// MinGrace is longer than any program takes to replace a file.
	MinGrace = time.Second
	// loggedAfter is how old a grace is when it is logged. Most end before, with the editor's next system call.
	loggedAfter = 400 * time.Millisecond
)

// Reasons why objects of a file stay; they follow the file's name in messages.
const (
	isGone      = "is gone"
	isEmpty     = "is empty"
	isBlank     = "holds no object any more"
	isWritten   = "is being written"
	cutLine     = "ends in the middle of a line"
	cutDocument = "ends with an object that is refused, and may be cut off"
)

// grace is the time for which objects stay that the file no longer has.
type grace struct {
	since time.Time
	why   string
	// kept are the objects that stay beside those of the newest content. Nil means that nothing of the newest content
	// was taken over and all former objects stay.
	kept map[object.Key]bool
	// logged is true after the grace has been logged.
	logged bool
}

// covers reports whether an object stays only because of the grace. While a file is being written its objects are the
// newest known, so they do not count as such.
func (st *fileState) covers(k object.Key) bool {
	return st.grace != nil && st.grace.why != isWritten && (st.grace.kept == nil || st.grace.kept[k])
}

// graceLeft is the remaining time of the file's grace; 0 if it is over.
func (s *Source) graceLeft(st *fileState, now time.Time) time.Duration {
	return max(st.grace.since.Add(s.cfg.Grace).Sub(now), 0)
}

// extendGrace begins a grace or continues the present one, whose end does not change. It returns when to read again, 0
// if the grace is over, and whether the state that users see has changed.
func (s *Source) extendGrace(st *fileState, now time.Time, why string, kept map[object.Key]bool) (again time.Duration, changed bool) {
	if st.grace == nil {
		st.grace = &grace{since: s.savedGrace(st.entry, now)}
		s.saveGrace(st.entry, st.grace.since)
	}
	g := st.grace
	if g.kept != nil && kept == nil {
		// The content beside which objects were kept is gone; if it comes back it must be decoded again.
		st.info, st.sum = nil, [len(st.sum)]byte{}
	}
	changed = g.logged && g.why != why
	g.why, g.kept = why, kept
	left := s.graceLeft(st, now)
	if left == 0 {
		return 0, changed
	}
	if until := g.since.Add(loggedAfter).Sub(now); !g.logged && until > 0 {
		return min(until, left), changed
	}
	if !g.logged || changed {
		g.logged, changed = true, true
		s.cfg.Log.Warn("file is gone, empty or incomplete, its last objects stay for a while", "source", s.cfg.Name, "file", st.entry.path,
			"file_state", why,
			"objects", len(s.staying(st).Objects), "until", g.since.Add(s.cfg.Grace))
	}
	return left, changed
}

// endGrace ends the grace of a file whose content is in force again, and reports whether it was logged.
func (s *Source) endGrace(st *fileState) bool {
	if st.grace == nil {
		return false
	}
	logged := st.grace.logged
	st.grace = nil
	s.dropGrace(st.entry)
	if logged {
		s.cfg.Log.Info("file is complete again, its objects are in force", "source", s.cfg.Name, "file", st.entry.path)
	}
	return logged
}

// expireGrace removes the objects of a file that was not restored in time.
func (s *Source) expireGrace(st *fileState, next Decoded) {
	lost := st.removed(next)
	gone := slices.DeleteFunc(slices.Clone(st.objects), func(o *object.Object) bool { return !lost[o.Key] })
	s.dropGrace(st.entry)
	s.cfg.Log.Warn("file was not completed in time, its last objects are removed", "source", s.cfg.Name, "file", st.entry.path, "file_state",
		st.grace.why,
		"objects", len(gone), "names", names(gone))
	st.grace = nil
}

// maxNamed bounds the objects that a log line names.
const maxNamed = 20

func names(objects []*object.Object) []string {
	return lists.Map(objects[:min(len(objects), maxNamed)], func(o *object.Object) string { return o.Key.String() })
}

// staying describes the objects of a file that stay because of its grace.
func (s *Source) staying(st *fileState) source.Staying {
	out := source.Staying{File: st.entry.name, Why: st.grace.why, Until: st.grace.since.Add(s.cfg.Grace)}
	for _, o := range st.objects {
		if st.grace.kept == nil || st.grace.kept[o.Key] {
			out.Objects = append(out.Objects, o)
		}
	}
	slices.SortFunc(out.Objects, func(a, b *object.Object) int { return a.Key.Compare(b.Key) })
	return out
}

// removed are the objects that new content no longer has, without holds.
func (st *fileState) removed(next Decoded) map[object.Key]bool {
	have := map[object.Key]bool{}
	for _, o := range next.Objects {
		have[o.Key] = true
	}
	lost := map[object.Key]bool{}
	for _, o := range st.objects {
		if !o.Held && !have[o.Key] {
			lost[o.Key] = true
		}
	}
	return lost
}

// keptBy returns which former objects stay beside new content that seems to be cut off: those that it lacks, and the
// last version of the object in whose middle the content ends.
func (st *fileState) keptBy(content []byte, d Decoded, lost map[object.Key]bool) (kept map[object.Key]bool, why string) {
	endsInLine := len(content) > 0 && content[len(content)-1] != '\n'
	switch {
	case endsInLine && (st.wholeLine || !st.seen):
		why = cutLine
		// The last object may be incomplete. After a restart nobody knows how the former content ended.
		for _, o := range st.objects {
			if o.Key == d.Last && !o.Held && (st.wholeLine || !d.has(o)) {
				lost[o.Key] = true
			}
		}
	case d.LastRefused:
		why = cutDocument
	default:
		return nil, ""
	}
	if len(lost) == 0 {
		return nil, ""
	}
	return lost, why
}

// has reports whether an object stands there as it was.
func (d *Decoded) has(former *object.Object) bool {
	return slices.ContainsFunc(d.Objects, func(o *object.Object) bool { return o.Key == former.Key && o.Digest == former.Digest })
}

// withKept returns the new content with the kept objects in their former version.
func (st *fileState) withKept(next Decoded, kept map[object.Key]bool) Decoded {
	next.Objects = slices.DeleteFunc(next.Objects, func(o *object.Object) bool { return kept[o.Key] })
	for _, o := range st.objects {
		if kept[o.Key] {
			next.Objects = append(next.Objects, o)
		}
	}
	return next
}

// emptiness reports whether content has no object, and why. More often the writer has not written them yet than the
// user has removed all of them at once.
func emptiness(content []byte) (why string, ok bool) {
	switch {
	case !manifest.Empty(content):
		return "", false
	case len(bytes.TrimSpace(content)) == 0:
		return isEmpty, true
	}
	return isBlank, true
}

// The start of a grace is saved beside the file's objects, so that a restart does not prolong it.
const graceSuffix = ".grace"

func (s *Source) graceFile(e entry) string {
	return strings.TrimSuffix(s.savedFile(e), savedSuffix) + graceSuffix
}

func (s *Source) saveGrace(e entry, since time.Time) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Put(s.graceFile(e), []byte(since.UTC().Format(time.RFC3339Nano)+"\n"))
	}
}

func (s *Source) dropGrace(e entry) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Remove(s.graceFile(e))
	}
}

// inGrace reports whether a file is in a grace of this run or of an earlier one.
func (s *Source) inGrace(e entry) bool {
	if st := s.files[e.path]; st != nil {
		return st.grace != nil
	}
	if s.cfg.Saved == nil {
		return false
	}
	_, _, err := s.cfg.Saved.Get(s.graceFile(e))
	return err == nil
}

// savedGrace is when the grace of a file began: now, unless an earlier run has saved an earlier time. A time in the
// future comes from a wrong clock and is ignored.
func (s *Source) savedGrace(e entry, now time.Time) time.Time {
	if s.cfg.Saved == nil {
		return now
	}
	text, _, err := s.cfg.Saved.Get(s.graceFile(e))
	if errors.Is(err, fs.ErrNotExist) {
		return now
	}
	since, parseErr := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text)))
	if err = errors.Join(err, parseErr); err != nil {
		s.cfg.Log.Warn("saved start of a grace cannot be read, the grace starts now", "source", s.cfg.Name, "file", e.path, "error", err)
		return now
	}
	if since.After(now) {
		return now
	}
	return since
}
