package file

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Decoded is the decoded content of a file.
type Decoded struct {
	Objects []*object.Object
	// Contents are the saved forms of Objects, in the same order: JSON that Decoder.Restore takes. Empty if nothing is
	// saved.
	Contents [][]byte
	// Refused are the keys of objects that are not valid.
	Refused []object.Key
	// Unreadable is true if a part of the content belongs to no known object.
	Unreadable bool
	// Last is the object at the end of the content, empty if it could not be read. LastRefused is true if it was
	// refused.
	Last        object.Key
	LastRefused bool
	// Unread are problems of objects of kinds that the mesh does not read.
	Unread object.Problems
	// Holds replace refused security objects of which no good version is known.
	Holds    []hold.Hold
	Problems object.Problems
}

// Decoder decodes files. name is the file's name in locations: the last element of the configured path and what is
// below it.
type Decoder struct {
	// Decode decodes a file's content.
	Decode func(name string, content []byte) Decoded
	// Restore makes an object again from its saved form.
	Restore func(name string, line int, saved []byte) (*object.Object, error)
}

// manifests decodes files of Kubernetes' and Istio's objects.
func manifests(saved bool) Decoder {
	return Decoder{Decode: func(name string, content []byte) Decoded { return decodeManifests(saved, name, content) },
		Restore: restoreManifest}
}

func decodeManifests(saved bool, name string, content []byte) Decoded {
	d, line := Decoded{}, 0
	problems := manifest.Each(name, content, func(doc *manifest.Document) {
		line = doc.Line
		o, err := validate.Document(doc)
		var text []byte
		if err == nil && saved {
			text, err = doc.JSON()
		}
		var ps object.Problems
		var unread *validate.UnreadError
		if errors.As(err, &unread) {
			if holds := hold.Of(doc); len(holds) > 0 {
				// A security object in a misspelt group would have closed something: it is refused and held, not
				// ignored.
				d.Holds, ps = append(d.Holds, holds...), object.Problems{unread.Problem}
				err = ps
			}
		}
		d.LastRefused = false
		d.Last, _ = decode.Identify(doc.Tree)
		switch {
		case err == nil:
			d.Objects, d.Contents = append(d.Objects, o), append(d.Contents, text)
		case errors.Is(err, validate.ErrIgnored):
			d.Unread = append(d.Unread, unread.Problem)
		case errors.As(err, &ps):
			d.Problems = append(d.Problems, ps...)
			d.LastRefused = true
			// The kind is unknown: the object may be a misspelt version of any former object.
			key := d.Last
			if key.Name != "" && kinds.Find(key.Group, key.Kind) != nil {
				d.Refused = append(d.Refused, key)
			} else {
				d.Unreadable = true
			}
			if unread == nil {
				d.Holds = append(d.Holds, hold.Of(doc)...)
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
		d.Holds = append(hold.In(name, content), d.Holds...)
	}
	d.Problems = append(problems, d.Problems...)
	return d
}

// restoreManifest makes an object again from the tree of its document.
func restoreManifest(name string, line int, saved []byte) (*object.Object, error) {
	doc := &manifest.Document{File: name, Line: line}
	if err := kjson.Unmarshal(saved, &doc.Tree); err != nil {
		return nil, err
	}
	return validate.Document(doc)
}

// fileState is the state of one file.
type fileState struct {
	entry entry
	info  fs.FileInfo
	sum   [sha256.Size]byte
	// objects are those of the newest content, the last good versions of those that it has in an invalid form, and
	// holds.
	objects []*object.Object
	// problems and unread are those of the newest content.
	problems, unread object.Problems
	// grace is set while objects stay that the file no longer has.
	grace *grace
	// wholeLine is true if the newest complete content ended with a line break.
	wholeLine bool
	// seen is true after this run has taken over content of the file. Until then objects are those that an earlier run
	// has saved.
	seen bool
	// restored is when the saved objects were saved; zero if there are none.
	restored time.Time
	// failure is why a file that has not been seen cannot be read.
	failure error
}

// read brings the state up to date with the file, whose content may have been decoded before, early. It returns when to
// read again, 0 for no need, and whether objects or problems may have changed. Content that removes objects is taken
// over at once if it is complete and valid and the file is at rest; otherwise the objects stay for a grace.
func (s *Source) read(st *fileState, f entry, early decodedContent, full bool, now time.Time) (again time.Duration, changed bool,
	err error) {
	expired := st.grace != nil && s.graceLeft(st, now) == 0
	if sameFile(st.info, f.info) && !full && !expired {
		again, changed = s.unchanged(st, now)
		return again, changed, nil
	}
	content, failure := readFile(f.path)
	if failure != nil {
		st.info = nil
		if !st.seen {
			if err := s.restore(st); err != nil {
				return 0, false, err
			}
			st.failure = failure
		}
		// A file that cannot be read says nothing: the last objects stay meanwhile.
		s.endGrace(st)
		st.problems = object.Problems{{Location: f.path, Reason: "cannot be read: " + failure.Error(),
			Remedy: "make it a file that config-watcher can read, or remove it"}}
		return time.Second, true, nil
	}
	st.failure = nil
	sum := sha256.Sum256(content)
	if st.seen && sum == st.sum && !unreadable(st.problems) && (!expired || st.grace.kept == nil) {
		st.info = f.info
		again, changed = s.unchanged(st, now)
		return again, changed, nil
	}
	d := early.decoded
	if early.sum != sum || d == nil {
		d = new(s.cfg.Decode.Decode(f.name, content))
	}
	age := now.Sub(f.info.ModTime())
	rest := quiet
	if st.grace != nil {
		rest = quietInGrace
	}
	fresh := age >= 0 && age < rest
	why, none := emptiness(content)
	endsInLine := len(content) > 0 && content[len(content)-1] != '\n'
	if !st.seen && (d.Unreadable || len(d.Refused) > 0 || none || fresh || endsInLine || s.inGrace(f)) {
		// The last good versions may be needed.
		if err := s.restore(st); err != nil {
			return 0, false, err
		}
	}
	next := st.merge(*d, s.cfg.Name)
	lost := st.removed(next)
	if len(st.objects) > 0 && !expired {
		switch {
		case none:
		case fresh && (len(lost) > 0 || st.grace != nil && (d.Unreadable || d.LastRefused)):
			// Perhaps only the first part has been written so far.
			why = isWritten
		}
		if why != "" {
			if again, changed = s.extendGrace(st, now, why, nil); again > 0 {
				if why == isWritten {
					again = min(again, rest-age)
				}
				return again, changed, nil
			}
			expired = true
		}
	}
	if kept, why := st.keptBy(content, *d, lost); len(kept) > 0 && !expired {
		if again, _ = s.extendGrace(st, now, why, kept); again > 0 {
			next = st.withKept(next, kept)
		} else {
			expired = true
		}
	}
	switch {
	case again > 0:
	case expired:
		s.expireGrace(st, next)
	default:
		s.endGrace(st)
	}
	s.save(f, next, *d)
	st.info, st.sum, st.wholeLine = f.info, sum, !endsInLine || again > 0
	st.objects, st.problems, st.unread = next.Objects, next.Problems, d.Unread
	st.seen, st.restored = true, time.Time{}
	return again, true, nil
}

// sameFile reports whether nothing says that a file has changed since it was last read.
func sameFile(before, now fs.FileInfo) bool {
	return before != nil && os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}

// unchanged continues the grace of a file that is the same as when it was last read.
func (s *Source) unchanged(st *fileState, now time.Time) (again time.Duration, changed bool) {
	switch {
	case st.grace == nil:
		return 0, false
	case st.grace.kept == nil:
		return 0, s.endGrace(st)
	}
	return s.extendGrace(st, now, st.grace.why, st.grace.kept)
}

func unreadable(ps object.Problems) bool {
	return len(ps) == 1 && strings.HasPrefix(ps[0].Reason, "cannot be read: ")
}

// merge returns the objects after new content: its valid ones, and the last good version of those that it has in an
// invalid form. If a part of the content belongs to no known object, every former object that is missing may be meant
// by it and stays. A security object without a good version is replaced by its hold.
func (st *fileState) merge(d Decoded, source string) Decoded {
	next := Decoded{Objects: slices.Clone(d.Objects), Problems: slices.Clone(d.Problems)}
	have := map[object.Key]bool{}
	for _, o := range d.Objects {
		have[o.Key] = true
	}
	stays := map[string]bool{} // kinds with an object that stays because a part of the content belongs to no known object
	for _, old := range st.objects {
		if !old.Held && !have[old.Key] && (d.Unreadable || slices.Contains(d.Refused, old.Key)) {
			next.Objects = append(next.Objects, old)
			have[old.Key], stays[old.Key.Kind] = true, true
		}
	}
	for _, h := range d.Holds {
		known := h.Uncertain && slices.ContainsFunc(h.Kinds, func(kind string) bool { return stays[kind] })
		if k := h.Object.Key; !have[k] && !known {
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
