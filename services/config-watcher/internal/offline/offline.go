// Package offline validates files of objects without a mesh, exactly as the file source would. Command `config-watcher
// validate` calls Validate and prints the verdicts.
package offline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/validate"
	"fairlead.dev/services/config-watcher/internal/validate/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// Stdin is the path that stands for the standard input; StdinName is its name in verdicts.
const (
	Stdin     = "-"
	StdinName = "stdin"
)

// Verdict is the result for one object. Text that belongs to no object has a verdict without a kind.
type Verdict struct {
	File      string `json:"file"`
	Line      int    `json:"line"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Ignored is true for an object of a kind that config-watcher does not read.
	Ignored bool `json:"ignored,omitempty"`
	// Errors are the reasons why the object is refused; it is accepted if there are none.
	Errors []Finding `json:"errors"`
	// Warnings are about accepted fields that have no effect, or another one than expected.
	Warnings []Finding `json:"warnings"`
	// Spec is that of an accepted object of the Gateway API with its defaults, if they are asked for.
	Spec any `json:"spec,omitempty"`
}

// Finding is one error or one warning.
type Finding struct {
	Line    int    `json:"line"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Object is "VirtualService apps/server"; empty if the kind is not known.
func (v Verdict) Object() string {
	if v.Kind == "" {
		return ""
	}
	return object.Key{Kind: v.Kind, Namespace: v.Namespace, Name: v.Name}.String()
}

// Validate validates the objects in the files that paths name and passes each verdict to report. A path is a file, a
// directory with its subdirectories, a named pipe, or Stdin, which is read from in. An error names a path that cannot
// be read; then nothing was validated. With defaults, verdicts on objects of the Gateway API have their Spec.
func Validate(paths []string, in io.Reader, defaults bool, report func(Verdict)) error {
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
	run := validation{report: report, defaults: defaults, seen: map[object.Key]string{}}
	if len(named) < len(paths) {
		content, err := file.Bounded(in)
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		run.content(StdinName, content, true)
	}
	for _, f := range files {
		content, err := file.Content(f)
		if err != nil {
			run.report(fileVerdict(f, []Finding{
				{Line: 1, Message: "cannot be read: " + err.Error() + "; make it a file that can be read, or do not name it"}}, nil))
			continue
		}
		run.content(f, content, slices.Contains(named, f))
	}
	return nil
}

// validation is one call of Validate.
type validation struct {
	report   func(Verdict)
	defaults bool
	// seen has the locations of the objects accepted so far.
	seen map[object.Key]string
}

// fileVerdict is the verdict on a file as a whole.
func fileVerdict(name string, errs, warnings []Finding) Verdict {
	return Verdict{File: name, Line: 1, Errors: append([]Finding{}, errs...), Warnings: append([]Finding{}, warnings...)}
}

// content validates the content of a file. A file that the caller has named must hold an object.
func (run *validation) content(name string, content []byte, named bool) {
	if isMeshConfig(name, content) {
		run.meshConfig(name, content)
		return
	}
	if len(content) > configv1.MaxApplyBytes {
		run.report(fileVerdict(name, nil,
			[]Finding{
				{
					Line: 1, Message: fmt.Sprintf(
						"has more than the %d bytes that are applied at once; divide it, unless config-watcher reads the file itself",
						configv1.MaxApplyBytes)}}))
	}
	found := false
	problems := manifest.Each(name, content, func(doc *manifest.Document) {
		found = true
		run.document(doc)
	})
	for _, p := range problems {
		found = true
		v := Verdict{File: name, Errors: findings(p), Warnings: []Finding{}}
		v.Line = v.Errors[0].Line
		run.report(v)
	}
	switch nothing := (Finding{Line: 1, Message: "holds no object; write one, or do not name it"}); {
	case found:
	case named:
		run.report(fileVerdict(name, []Finding{nothing}, nil))
	default:
		nothing.Message = "holds no object; write one, or remove it"
		run.report(fileVerdict(name, nil, []Finding{nothing}))
	}
}

func (run *validation) document(doc *manifest.Document) {
	key, _ := decode.Identify(doc.Tree)
	v := Verdict{File: doc.File, Line: doc.Line, Kind: key.KindName(), Namespace: key.Namespace, Name: key.Name, Errors: []Finding{},
		Warnings: []Finding{}}
	o, err := validate.Document(doc)
	var problems object.Problems
	switch {
	case err == nil && run.seen[o.Key] != "":
		v.Errors = append(v.Errors, Finding{Line: doc.Line, Message: "same object as at " + run.seen[o.Key] + "; remove one of them"})
	case err == nil:
		v.Warnings = append(v.Warnings, findings(o.Warnings...)...)
		run.seen[o.Key] = doc.Location()
		if run.defaults && o.Key.Group == kinds.GroupGatewayAPI {
			_, version, _ := strings.Cut(o.APIVersion, "/")
			v.Spec = gatewayapi.Filled(o.Key.Kind, version, doc.Tree)
		}
	case errors.Is(err, validate.ErrIgnored):
		v.Ignored = true
	case errors.As(err, &problems):
		v.Errors = append(v.Errors, findings(problems...)...)
	default:
		v.Errors = append(v.Errors, Finding{Line: doc.Line, Message: err.Error()})
	}
	run.report(v)
}

// meshConfig validates a mesh configuration without an object around it.
func (run *validation) meshConfig(name string, content []byte) {
	_, warnings, problems := meshconfig.Parse(name, content)
	v := Verdict{File: name, Line: 1, Kind: "MeshConfig", Name: kinds.MeshName, Namespace: kinds.MeshNamespace}
	v.Errors, v.Warnings = findings(problems...), findings(warnings...)
	run.report(v)
}

// isMeshConfig reports whether the content is a mesh configuration without an object around it, as --mesh-config-file
// takes it.
func isMeshConfig(name string, content []byte) bool {
	if bytes.Contains(content, []byte("apiVersion")) {
		return false // avoids parsing twice: no field of MeshConfig has this name
	}
	docs, _ := manifest.Parse(name, content)
	return len(docs) > 0 && meshconfig.IsBare(docs[0].Tree)
}

// findings returns problems without the parts that the verdict has.
func findings(problems ...object.Problem) []Finding {
	out := make([]Finding, 0, len(problems))
	for _, p := range problems {
		out = append(out, Finding{Line: max(manifest.LineOf(p.Location), 1), Field: p.Field, Message: p.Description()})
	}
	return out
}

// Summary counts verdicts.
type Summary struct {
	// Objects is the number of verdicts, including those of text that is no object.
	Objects  int `json:"objects"`
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`
	// Warned is the number of accepted objects with warnings.
	Warned int `json:"warned"`
	// Ignored is the number of objects of kinds that config-watcher does not read; Kinds are those kinds.
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

// String writes the counts as a sentence.
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
