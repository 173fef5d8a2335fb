package decode

import (
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// MaxProblems bounds the problems, and the warnings, of one object.
const MaxProblems = 100

// Verdict collects the problems and warnings of one object. Paths are JSON paths within it.
type Verdict struct {
	// Object names the object in problems, as object.Key does.
	Object string
	// Doc has the lines of the fields; nil if the object was no text.
	Doc      *manifest.Document
	Problems object.Problems
	// Warnings are about fields that are accepted.
	Warnings object.Problems
	// missing are the paths that strict decoding has refused, and those that misspelt names stand for.
	missing []string
}

// Fail adds a problem at a path. value is what the user wrote, nil if there is nothing to show.
func (v *Verdict) Fail(path string, value any, reason, remedy string) {
	v.add(&v.Problems, path, value, reason, remedy)
}

// Warn says that the accepted field at a path has no effect, and why.
func (v *Verdict) Warn(path, reason, remedy string) { v.Remark(path, "has no effect: "+reason, remedy) }

// Remark adds a warning about the accepted field at a path.
func (v *Verdict) Remark(path, reason, remedy string) {
	v.add(&v.Warnings, path, nil, reason, remedy)
}

// FailIf is Fail if a field breaks a rule. Its arguments, as those of WarnIf and RemarkIf, are evaluated either way.
func (v *Verdict) FailIf(broken bool, path string, value any, reason, remedy string) {
	if broken {
		v.Fail(path, value, reason, remedy)
	}
}

// WarnIf is Warn if a field breaks a rule.
func (v *Verdict) WarnIf(broken bool, path, reason, remedy string) {
	if broken {
		v.Warn(path, reason, remedy)
	}
}

// RemarkIf is Remark if a field breaks a rule.
func (v *Verdict) RemarkIf(broken bool, path, reason, remedy string) {
	if broken {
		v.Remark(path, reason, remedy)
	}
}

func (v *Verdict) add(to *object.Problems, path string, value any, reason, remedy string) {
	if len(*to) >= MaxProblems || v.follows(path) {
		return
	}
	p := object.Problem{Object: v.Object, Field: path, Value: object.Quote(value), Reason: reason, Remedy: remedy}
	if v.Doc != nil {
		p.Location = v.Doc.FieldLocation(path)
	}
	*to = append(*to, p)
}

// follows reports whether a problem at a path may only be the consequence of a refused field: it lies in that field, in
// the field that a misspelt name stands for, or it is about the object that lacks the field.
func (v *Verdict) follows(path string) bool {
	return slices.ContainsFunc(v.missing, func(m string) bool {
		return path == m || strings.HasPrefix(path, m) && (path[len(m)] == '.' || path[len(m)] == '[') || path == Parent(m)
	})
}

// Parent is the path of the object or list that holds a field.
func Parent(path string) string {
	end := strings.LastIndexAny(path, ".[")
	if strings.HasSuffix(path, `"]`) {
		end = strings.LastIndex(path, `["`)
	}
	return path[:max(end, 0)]
}
