package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Times of a grace.
const (
	// DefaultGrace is how long the objects of a file that is gone, empty or cut off stay. Editors that replace a file
	// take some milliseconds, the switch of a ConfigMap's link too, and a person who moves a file away and back some
	// seconds.
	DefaultGrace = 30 * time.Second
	// MinGrace is longer than any program takes to replace a file.
	MinGrace = time.Second
	// saidAfter is how long a grace lasts before anybody is told: most end with the editor's next system call.
	saidAfter = 400 * time.Millisecond
	// openPoll is how soon a file is looked at again that somebody has open for writing.
	openPoll = 100 * time.Millisecond
)

// Why objects of a file stay, as it follows the file's name.
const (
	isGone      = "is gone"
	isEmpty     = "is empty"
	isBlank     = "holds no object any more"
	isWritten   = "is being written"
	cutLine     = "ends in the middle of a line"
	cutDocument = "ends with an object that is refused, and may be cut off"
)

// grace is the time for which objects of a file outlive what the file says.
type grace struct {
	since time.Time
	why   string
	// kept are the objects that stay beside those of the newest content. It is nil if nothing of the newest content was
	// taken over: then all of the file's objects stay.
	kept map[object.Key]bool
	// said is true once the log has told.
	said bool
}

// covers tells whether an object of the file stays only by its grace. Objects of a file that is being written do not:
// they are the newest that there are.
func (st *fileState) covers(k object.Key) bool {
	return st.grace != nil && st.grace.why != isWritten && (st.grace.kept == nil || st.grace.kept[k])
}

// left is how long the grace of a file still lasts; 0 if it is over.
func (s *Source) left(st *fileState, now time.Time) time.Duration {
	return max(st.grace.since.Add(s.cfg.Grace).Sub(now), 0)
}

// hold begins the grace of a file, or goes on with the one that it has, whose end stays the same. It returns when to
// look again, 0 if the grace is over, and whether what is to be told of the file has changed.
func (s *Source) hold(st *fileState, now time.Time, why string, kept map[object.Key]bool) (again time.Duration, changed bool) {
	if st.grace == nil {
		st.grace = &grace{since: s.savedGrace(st.entry, now)}
		s.saveGrace(st.entry, st.grace.since)
	}
	g := st.grace
	if g.kept != nil && kept == nil {
		// The content beside which objects were kept is not what the file has: if it comes back it is judged again.
		st.info, st.sum = nil, [len(st.sum)]byte{}
	}
	changed = g.said && g.why != why
	g.why, g.kept = why, kept
	left := s.left(st, now)
	if left == 0 {
		return 0, changed
	}
	if until := g.since.Add(saidAfter).Sub(now); !g.said && until > 0 {
		return min(until, left), changed
	}
	if !g.said || changed {
		g.said, changed = true, true
		s.cfg.Log.Warn("file is not whole, its last objects stay for a while", "source", s.cfg.Name, "file", st.entry.path, "file_state", why,
			"objects", len(s.staying(st).Objects), "until", g.since.Add(s.cfg.Grace))
	}
	return left, changed
}

// release ends the grace of a file whose content counts again, and reports whether it was told of.
func (s *Source) release(st *fileState) bool {
	if st.grace == nil {
		return false
	}
	said := st.grace.said
	st.grace = nil
	s.dropGrace(st.entry)
	if said {
		s.cfg.Log.Info("file is whole again, its objects are those that it says", "source", s.cfg.Name, "file", st.entry.path)
	}
	return said
}

// expire ends the grace of a file that did not become whole again, and tells what goes with it.
func (s *Source) expire(st *fileState, next Decoded) {
	lost := st.lost(next)
	gone := slices.DeleteFunc(slices.Clone(st.objects), func(o *object.Object) bool { return !lost[o.Key] })
	s.dropGrace(st.entry)
	s.cfg.Log.Warn("file did not become whole again, its last objects are removed", "source", s.cfg.Name, "file", st.entry.path, "file_state", st.grace.why,
		"objects", len(gone), "names", names(gone))
	st.grace = nil
}

// maxNamed bounds the objects that a log line names.
const maxNamed = 20

func names(objects []*object.Object) []string {
	var out []string
	for _, o := range objects[:min(len(objects), maxNamed)] {
		out = append(out, o.Key.String())
	}
	return out
}

// staying are the objects of a file that stay by its grace.
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

// lost are the objects that new content does not have any more. What stood in for broken objects is none.
func (st *fileState) lost(next Decoded) map[object.Key]bool {
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

// keep returns which objects of the last content stay beside the new one because the new one seems to be cut off: those
// that it lacks, and, where it ends in the middle of a line, the last version of the object that ends there.
func (st *fileState) keep(content []byte, d Decoded, lost map[object.Key]bool) (kept map[object.Key]bool, why string) {
	endsInLine := len(content) > 0 && content[len(content)-1] != '\n'
	switch {
	case endsInLine && (st.wholeLine || !st.seen):
		why = cutLine
		// The last object may be the first half of what it is to be.
		for _, o := range st.objects {
			if st.wholeLine && o.Key == d.Last && !o.Held {
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

// keeping is the content with the kept objects in their last version.
func (st *fileState) keeping(next Decoded, kept map[object.Key]bool) Decoded {
	next.Objects = slices.DeleteFunc(next.Objects, func(o *object.Object) bool { return kept[o.Key] })
	for _, o := range st.objects {
		if kept[o.Key] {
			next.Objects = append(next.Objects, o)
		}
	}
	return next
}

// blank tells content that takes every object away, and how: nobody means that in one stroke more often than a writer
// has come no further yet.
func blank(content []byte) (why string, ok bool) {
	switch {
	case !manifest.Empty(content):
		return "", false
	case len(bytes.TrimSpace(content)) == 0:
		return isEmpty, true
	}
	return isBlank, true
}

// openForWriting tells whether a process has the file open for writing. The kernel knows: it gives a lease for reading
// only while nobody has. It is given up at once. Where leases are not to be had, as on a network file system or of
// somebody else's file, nothing is known and the answer is no.
func openForWriting(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, syscall.EAGAIN)
}

// The begin of a grace is saved beside the objects of the file, so that a restart does not make it longer.
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

// inGrace tells whether an earlier run was in the grace of a file, or this one is.
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

// savedGrace is when the grace of a file has begun: now, unless an earlier run has saved an earlier time. A time to
// come is a clock's that was wrong.
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
		s.cfg.Log.Warn("saved begin of a grace cannot be read, it begins anew", "source", s.cfg.Name, "file", e.path, "error", err)
		return now
	}
	if since.After(now) {
		return now
	}
	return since
}
