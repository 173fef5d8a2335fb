package file

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	kjson "k8s.io/apimachinery/pkg/util/json"

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
func manifests(log *slog.Logger, saved bool) Decoder {
	return Decoder{Decode: func(name string, content []byte) Decoded { return decodeManifests(log, saved, name, content) }, Restore: restoreManifest}
}

func decodeManifests(log *slog.Logger, saved bool, name string, content []byte) Decoded {
	d := Decoded{}
	problems := manifest.Each(name, content, func(doc *manifest.Document) {
		o, err := validate.Document(doc)
		var text []byte
		if err == nil && saved {
			text, err = json.Marshal(doc.Tree)
		}
		var ps object.Problems
		switch {
		case err == nil:
			d.Objects, d.Contents = append(d.Objects, o), append(d.Contents, text)
		case errors.Is(err, validate.ErrIgnored):
			key, _ := validate.Identify(doc.Tree)
			log.Debug("object ignored", "object", key.String(), "location", doc.Location())
		case errors.As(err, &ps):
			d.Problems = append(d.Problems, ps...)
			// A kind that does not exist may be the misspelt one of any object.
			key, _ := validate.Identify(doc.Tree)
			if _, known := validate.ScopeOf(key.Group, key.Kind); known && key.Name != "" {
				d.Refused = append(d.Refused, key)
			} else {
				d.Unreadable = true
			}
			if hold, ok := validate.HoldOf(doc); ok {
				d.Holds = append(d.Holds, hold)
			}
		default:
			d.Problems = append(d.Problems, object.Problem{Location: doc.Location(), Reason: err.Error()})
			d.Unreadable = true
		}
	})
	if len(problems) > 0 {
		d.Unreadable = true
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
	// problems of the newest content.
	problems object.Problems
	// since is when the file was first seen missing or empty while it has objects.
	since time.Time
	// seen is true once the file's content has been taken over in this run. Until then objects are those that an
	// earlier run has saved, if any.
	seen bool
	// restored is when they were saved; zero if there are none.
	restored time.Time
	// failure says why a file that has not been seen cannot be read.
	failure error
}

// read brings the state up to date with the file. It returns when to look again, 0 if there is no need, and whether objects or problems may
// have changed.
func (s *Source) read(st *fileState, f entry, full bool, now time.Time) (again time.Duration, changed bool, err error) {
	unchanged := st.info != nil && os.SameFile(st.info, f.info) && st.info.Size() == f.info.Size() && st.info.ModTime().Equal(f.info.ModTime())
	if unchanged && !full {
		st.since = time.Time{}
		return 0, false, nil
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
		st.problems = object.Problems{{Location: f.path, Reason: "cannot be read: " + failure.Error(), Remedy: "make it a file that config-watcher can read, or remove it"}}
		return time.Second, true, nil
	}
	st.failure = nil
	sum := sha256.Sum256(content)
	if st.seen && sum == st.sum && !unreadable(st.problems) {
		st.info, st.since = f.info, time.Time{}
		return 0, false, nil
	}
	d := s.cfg.Decode.Decode(f.name, content)
	age := now.Sub(f.info.ModTime())
	fresh := age >= 0 && age < quiet
	if !st.seen && (d.Unreadable || len(d.Refused) > 0 || len(content) == 0 || fresh) {
		// The last good versions may be needed.
		if err := s.restore(st); err != nil {
			return 0, false, err
		}
	}
	if len(content) == 0 && len(st.objects) > 0 {
		// Either somebody is writing it just now, or it is empty for good.
		if wait := st.missing(now); wait > 0 {
			return wait, false, nil
		}
	}
	next := st.next(d, s.cfg.Name)
	if len(next.Objects) < len(st.objects) && fresh {
		// Perhaps only the first part has been written yet.
		return quiet - age, false, nil
	}
	s.save(f, next, d)
	st.info, st.since, st.sum = f.info, time.Time{}, sum
	st.objects, st.problems = next.Objects, next.Problems
	st.seen, st.restored = true, time.Time{}
	return 0, true, nil
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

// missing tells how long to wait before the file counts as gone; 0 if it does.
func (st *fileState) missing(now time.Time) time.Duration {
	if len(st.objects) == 0 {
		return 0
	}
	if st.since.IsZero() {
		st.since = now
	}
	if wait := goneAfter - now.Sub(st.since); wait > 0 {
		return wait
	}
	return 0
}

// readFile reads a file with a bound. What has become a pipe or a device since it was found is not waited for.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	content, err := readRegular(f)
	return content, errors.Join(err, f.Close())
}

func readRegular(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	return Bounded(f)
}
