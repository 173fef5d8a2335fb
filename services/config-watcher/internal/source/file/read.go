package file

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Decoded is what a file's content says.
type Decoded struct {
	Objects []*object.Object
	// Contents are the Objects as they are saved, each at its object's place: JSON that Decoder.Restore takes. Where
	// nothing is saved there are none.
	Contents [][]byte
	// Refused are objects that were recognised but are not valid.
	Refused []object.Key
	// Unreadable is true if part of the file could not even be attributed to an object.
	Unreadable bool
	// Last is the object that the content ends with, empty if that could not be read; LastRefused tells that it was
	// refused.
	Last        object.Key
	LastRefused bool
	// Unread are objects of kinds that nobody reads.
	Unread object.Problems
	// Holds take the place of security objects that are refused, if no good version is known.
	Holds    []validate.Hold
	Problems object.Problems
}

// Decoder makes objects of files. name is for locations: the last element of the configured path and what is below it.
type Decoder struct {
	// Decode reads a file's content.
	Decode func(name string, content []byte) Decoded
	// Restore makes an object of what was saved of it, as Decode made it then.
	Restore func(name string, line int, saved []byte) (*object.Object, error)
}

// manifests decodes files of Kubernetes' and Istio's objects.
func manifests(saved bool) Decoder {
	return Decoder{Decode: func(name string, content []byte) Decoded { return decodeManifests(saved, name, content) }, Restore: restoreManifest}
}

func decodeManifests(saved bool, name string, content []byte) Decoded {
	d, line := Decoded{}, 0
	problems := manifest.Each(name, content, func(doc *manifest.Document) {
		line = doc.Line
		o, err := validate.Document(doc)
		var text []byte
		if err == nil && saved {
			text, err = json.Marshal(doc.Tree)
		}
		var ps object.Problems
		var unread *validate.UnreadError
		if errors.As(err, &unread) {
			if hold, ok := validate.HoldOf(doc); ok {
				// It would have closed something: nobody reads it, and that is no reason to leave it open.
				d.Holds, ps = append(d.Holds, hold), object.Problems{unread.Problem}
				err = ps
			}
		}
		d.LastRefused = false
		d.Last, _ = validate.Identify(doc.Tree)
		switch {
		case err == nil:
			d.Objects, d.Contents = append(d.Objects, o), append(d.Contents, text)
		case errors.Is(err, validate.ErrIgnored):
			d.Unread = append(d.Unread, unread.Problem)
		case errors.As(err, &ps):
			d.Problems = append(d.Problems, ps...)
			d.LastRefused = true
			// A kind that does not exist may be the misspelt one of any object.
			key := d.Last
			if _, known := validate.ScopeOf(key.Group, key.Kind); known && key.Name != "" {
				d.Refused = append(d.Refused, key)
			} else {
				d.Unreadable = true
			}
			if hold, ok := validate.HoldOf(doc); ok && unread == nil {
				d.Holds = append(d.Holds, hold)
			}
		default:
			d.Problems = append(d.Problems, object.Problem{Location: doc.Location(), Reason: err.Error()})
			d.Unreadable = true
		}
	})
	if len(problems) > 0 {
		d.Unreadable = true
		if manifest.LineOf(problems[len(problems)-1].Location) > line {
			d.Last = object.Key{}
		}
		d.Holds = append(validate.HoldsIn(name, content), d.Holds...)
	}
	d.Problems = append(problems, d.Problems...)
	return d
}

// restoreManifest makes the object again of its document's tree.
func restoreManifest(name string, line int, saved []byte) (*object.Object, error) {
	doc := &manifest.Document{File: name, Line: line}
	if err := kjson.Unmarshal(saved, &doc.Tree); err != nil {
		return nil, err
	}
	return validate.Document(doc)
}

// fileState is what is known of one file.
type fileState struct {
	entry entry
	info  fs.FileInfo
	sum   [sha256.Size]byte
	// objects are the file's: those of its newest content, the last good versions of those that are refused in it, and
	// holds.
	objects []*object.Object
	// problems of the newest content, and its objects of kinds that nobody reads.
	problems, unread object.Problems
	// grace is set while objects outlive what the file says.
	grace *grace
	// wholeLine is true if the content that was taken over last, and not for cut off, ended with a line's end.
	wholeLine bool
	// seen is true once the file's content has been taken over in this run. Until then objects are those that an
	// earlier run has saved, if any.
	seen bool
	// restored is when they were saved; zero if there are none.
	restored time.Time
	// failure says why a file that has not been seen cannot be read.
	failure error
}

// read brings the state up to date with the file. It returns when to look again, 0 if there is no need, and whether
// objects or problems may have changed. What takes objects away counts at once if the content is whole and valid and
// nobody is writing it; otherwise the objects stay for the grace.
func (s *Source) read(st *fileState, f entry, full bool, now time.Time) (again time.Duration, changed bool, err error) {
	expired := st.grace != nil && s.left(st, now) == 0
	unchanged := st.info != nil && os.SameFile(st.info, f.info) && st.info.Size() == f.info.Size() && st.info.ModTime().Equal(f.info.ModTime())
	if unchanged && !full && !expired {
		again, changed = s.same(st, now)
		return again, changed, nil
	}
	writing := openForWriting(f.path)
	content, failure := readFile(f.path)
	if failure != nil {
		st.info = nil
		if !st.seen {
			if err := s.restore(st); err != nil {
				return 0, false, err
			}
			st.failure = failure
		}
		// What cannot be read says nothing: the last objects stay as long as that lasts.
		s.release(st)
		st.problems = object.Problems{{Location: f.path, Reason: "cannot be read: " + failure.Error(), Remedy: "make it a file that config-watcher can read, or remove it"}}
		return time.Second, true, nil
	}
	st.failure = nil
	sum := sha256.Sum256(content)
	if st.seen && sum == st.sum && !unreadable(st.problems) && (!expired || st.grace.kept == nil) {
		st.info = f.info
		again, changed = s.same(st, now)
		return again, changed, nil
	}
	d := s.cfg.Decode.Decode(f.name, content)
	age := now.Sub(f.info.ModTime())
	rest := quiet
	if st.grace != nil {
		rest = quietInGrace
	}
	fresh := age >= 0 && age < rest
	why, none := blank(content)
	endsInLine := len(content) > 0 && content[len(content)-1] != '\n'
	if !st.seen && (d.Unreadable || len(d.Refused) > 0 || none || fresh || writing || endsInLine || s.inGrace(f)) {
		// The last good versions may be needed.
		if err := s.restore(st); err != nil {
			return 0, false, err
		}
	}
	next := st.next(d, s.cfg.Name)
	lost := st.lost(next)
	if len(st.objects) > 0 && !expired {
		switch {
		case none:
		case writing:
			why = isWritten
		case fresh && (len(lost) > 0 || st.grace != nil && (d.Unreadable || d.LastRefused)):
			// Perhaps only the first part has been written yet.
			why = isWritten
		}
		if why != "" {
			if again, changed = s.hold(st, now, why, nil); again > 0 {
				if why == isWritten {
					again = min(again, max(rest-age, openPoll))
				}
				return again, changed, nil
			}
			expired = true
		}
	}
	if kept, why := st.keep(content, d, lost); len(kept) > 0 && !expired {
		if again, _ = s.hold(st, now, why, kept); again > 0 {
			next = st.keeping(next, kept)
		} else {
			expired = true
		}
	}
	switch {
	case again > 0:
	case expired:
		s.expire(st, next)
	default:
		s.release(st)
	}
	s.save(f, next, d)
	st.info, st.sum, st.wholeLine = f.info, sum, !endsInLine || again > 0
	st.objects, st.problems, st.unread = next.Objects, next.Problems, d.Unread
	st.seen, st.restored = true, time.Time{}
	return again, true, nil
}

// same goes on with a file that is as it was read last.
func (s *Source) same(st *fileState, now time.Time) (again time.Duration, changed bool) {
	switch {
	case st.grace == nil:
		return 0, false
	case st.grace.kept == nil:
		return 0, s.release(st)
	}
	return s.hold(st, now, st.grace.why, st.grace.kept)
}

func unreadable(ps object.Problems) bool {
	return len(ps) == 1 && strings.HasPrefix(ps[0].Reason, "cannot be read: ")
}

// next are the objects after new content: its valid ones, and the last good version of those that it has in a form that
// is not valid; if part of the content cannot be attributed, any object that is not in the rest may be meant by it and
// stays. A security object of which there is no good version is held.
func (st *fileState) next(d Decoded, source string) Decoded {
	next := Decoded{Objects: slices.Clone(d.Objects), Problems: slices.Clone(d.Problems)}
	have := map[object.Key]bool{}
	for _, o := range d.Objects {
		have[o.Key] = true
	}
	stays := map[string]bool{} // kinds of which an object stays because part of the content cannot be attributed
	for _, old := range st.objects {
		if !old.Held && !have[old.Key] && (d.Unreadable || slices.Contains(d.Refused, old.Key)) {
			next.Objects = append(next.Objects, old)
			have[old.Key], stays[old.Key.Kind] = true, true
		}
	}
	for _, h := range d.Holds {
		if k := h.Object.Key; !have[k] && (!h.Uncertain || !stays[k.Kind]) {
			have[k] = true
			next.Objects, next.Problems = append(next.Objects, h.Object), append(next.Problems, h.Problem())
		}
	}
	for _, o := range next.Objects {
		if o.Source == "" {
			o.Source = source
		}
	}
	return next
}

// readFile reads a file with a bound. What has become a pipe or a device since it was found is not waited for.
func readFile(path string) ([]byte, error) {
	f, err := fileio.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	content, err := Bounded(f)
	return content, errors.Join(err, f.Close())
}
