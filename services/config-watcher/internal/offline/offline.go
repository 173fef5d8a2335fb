// Package offline judges files of objects without a mesh: it decodes and validates them as the file source does, and
// says of each object what the source would say of it. Command `config-watcher validate` prints what it says.
package offline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Stdin names the standard input among paths, and StdinName in verdicts.
const (
	Stdin     = "-"
	StdinName = "stdin"
)

// Verdict is what is said of one object. Text that cannot be attributed to an object has one of its own, without a
// kind.
type Verdict struct {
	File      string `json:"file"`
	Line      int    `json:"line"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Ignored is true of an object whose kind config-watcher does not read.
	Ignored bool `json:"ignored,omitempty"`
	// Errors are why the object is refused; it is accepted if there are none.
	Errors []Finding `json:"errors"`
	// Warnings are of what is accepted and has no effect, or another one than it seems.
	Warnings []Finding `json:"warnings"`
}

// Finding is one error or one warning.
type Finding struct {
	Line    int    `json:"line"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Object is "VirtualService apps/server", empty if the kind is not known.
func (v Verdict) Object() string {
	if v.Kind == "" {
		return ""
	}
	return object.Key{Kind: v.Kind, Namespace: v.Namespace, Name: v.Name}.String()
}

// Judge judges the objects of the files that paths name, one after the other, and hands each verdict to say. A path is
// a file, a directory with its subdirectories, a named pipe, or Stdin, which is read from in. Its error names a path
// that cannot be read; then nothing was judged.
func Judge(paths []string, in io.Reader, say func(Verdict)) error {
	var named []string
	for _, p := range paths {
		if p != Stdin {
			named = append(named, p)
		}
	}
	files, err := file.Files(named)
	if err != nil {
		return err
	}
	j := judge{say: say, seen: map[object.Key]string{}}
	if len(named) < len(paths) {
		content, err := file.Bounded(in)
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		j.content(StdinName, content, true)
	}
	for _, f := range files {
		content, err := file.Content(f)
		if err != nil {
			j.say(whole(f, []Finding{{Line: 1, Message: "cannot be read: " + err.Error() + "; make it a file that can be read, or do not name it"}}, nil))
			continue
		}
		j.content(f, content, slices.Contains(named, f))
	}
	return nil
}

// judge is one call of Judge.
type judge struct {
	say func(Verdict)
	// seen are the locations of the objects accepted so far.
	seen map[object.Key]string
}

// whole is the verdict on a file as a whole.
func whole(name string, errs, warnings []Finding) Verdict {
	return Verdict{File: name, Line: 1, Errors: append([]Finding{}, errs...), Warnings: append([]Finding{}, warnings...)}
}

// content judges what a file holds. A file that the caller has named must hold something.
func (j *judge) content(name string, content []byte, named bool) {
	if isMeshConfig(name, content) {
		j.meshConfig(name, content)
		return
	}
	found := false
	problems := manifest.Each(name, content, func(doc *manifest.Document) {
		found = true
		j.document(doc)
	})
	for _, p := range problems {
		found = true
		v := Verdict{File: name, Errors: findings(p), Warnings: []Finding{}}
		v.Line = v.Errors[0].Line
		j.say(v)
	}
	switch nothing := (Finding{Line: 1, Message: "holds no object; write one, or do not name it"}); {
	case found:
	case named:
		j.say(whole(name, []Finding{nothing}, nil))
	default:
		nothing.Message = "holds no object; write one, or remove it"
		j.say(whole(name, nil, []Finding{nothing}))
	}
}

func (j *judge) document(doc *manifest.Document) {
	key, _ := validate.Identify(doc.Tree)
	v := Verdict{File: doc.File, Line: doc.Line, Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, Errors: []Finding{}, Warnings: []Finding{}}
	o, err := validate.Document(doc)
	var problems object.Problems
	switch {
	case err == nil:
		v.Warnings = append(v.Warnings, findings(o.Warnings...)...)
		if first, twice := j.seen[key]; twice {
			v.Warnings = append(v.Warnings, Finding{Line: doc.Line, Message: "same object as at " + first + ", which counts; remove one of them"})
		} else {
			j.seen[key] = doc.Location()
		}
	case errors.Is(err, validate.ErrIgnored):
		v.Ignored = true
	case errors.As(err, &problems):
		v.Errors = append(v.Errors, findings(problems...)...)
	default:
		v.Errors = append(v.Errors, Finding{Line: doc.Line, Message: err.Error()})
	}
	j.say(v)
}

// meshConfig judges a bare mesh configuration.
func (j *judge) meshConfig(name string, content []byte) {
	_, warnings, problems := validate.MeshConfig(name, content)
	v := Verdict{File: name, Line: 1, Kind: "MeshConfig", Name: validate.MeshName, Namespace: validate.MeshNamespace}
	v.Errors, v.Warnings = findings(problems...), findings(warnings...)
	j.say(v)
}

// isMeshConfig tells whether the content is a bare mesh configuration, as --mesh-config-file takes it.
func isMeshConfig(name string, content []byte) bool {
	if bytes.Contains(content, []byte("apiVersion")) {
		return false // parsed once only: no field of MeshConfig has this name
	}
	docs, _ := manifest.Parse(name, content)
	return len(docs) > 0 && validate.IsBareMeshConfig(docs[0].Tree)
}

// findings are problems without what a verdict says of the object.
func findings(problems ...object.Problem) []Finding {
	out := make([]Finding, 0, len(problems))
	for _, p := range problems {
		out = append(out, Finding{Line: max(manifest.LineOf(p.Location), 1), Field: p.Field, Message: p.Description()})
	}
	return out
}

// Summary counts verdicts.
type Summary struct {
	// Objects is the number of verdicts, those of text that is no object included.
	Objects  int `json:"objects"`
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`
	// Warned is how many of the accepted ones have warnings.
	Warned int `json:"warned"`
	// Ignored is how many are of kinds that config-watcher does not read, and Kinds which those are.
	Ignored int      `json:"ignored"`
	Kinds   []string `json:"ignoredKinds,omitempty"`
}

// Add counts one more.
func (s *Summary) Add(v Verdict) {
	s.Objects++
	switch {
	case len(v.Errors) > 0:
		s.Refused++
		return
	case v.Ignored:
		s.Ignored++
		if !slices.Contains(s.Kinds, v.Kind) {
			s.Kinds = append(s.Kinds, v.Kind)
			slices.Sort(s.Kinds)
		}
		return
	}
	s.Accepted++
	if len(v.Warnings) > 0 {
		s.Warned++
	}
}

// String is the summary as a sentence's worth of counts.
func (s Summary) String() string {
	out := fmt.Sprintf("%d objects: %d accepted, %d refused, %d with warnings", s.Objects, s.Accepted, s.Refused, s.Warned)
	if s.Objects == 1 {
		out = strings.Replace(out, "objects", "object", 1)
	}
	if s.Ignored > 0 {
		out += fmt.Sprintf(", %d of kinds that config-watcher does not read (%s)", s.Ignored, strings.Join(s.Kinds, ", "))
	}
	return out
}
