package status

import (
	"reflect"
	"strings"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// refusal is a version of an object that its source has refused.
type refusal struct {
	source.Refused
}

func (r *refusal) equal(o *refusal) bool { return reflect.DeepEqual(r, o) }

// refusals are the refused objects of all sources.
func refusals(sources []source.Source) map[ID]*refusal {
	out := map[ID]*refusal{}
	for _, s := range sources {
		for _, r := range source.RefusedOf(s) {
			out[ID{s.Name(), r.Key}] = &refusal{r}
		}
	}
	return out
}

// maxProblems bounds the problems in a message.
const maxProblems = 5

// text names the problems, without the object, which the reader knows.
func (r *refusal) text() string {
	var parts []string
	for i, p := range r.Problems {
		if i == maxProblems {
			parts = append(parts, "and more")
			break
		}
		text := p.Description()
		if p.Field != "" {
			text = p.Field + ": " + text
		}
		parts = append(parts, text)
	}
	return object.Cut(strings.Join(parts, "; "), maxMessage/2)
}

// status is that of a refused version. inForce is the version of the same source that is in force, nil if there is
// none.
func (r *refusal) status(inForce *object.Object) *Status {
	message, generation := r.text(), r.Generation
	switch {
	case inForce == nil:
		message += ". No earlier version is known: the object has no effect"
	case inForce.Held:
		message += ". No earlier version is known: until it is corrected, its workloads are held closed: " + hold.Effect(inForce.Key.Kind)
	default:
		message += ". The last good version stays in force"
		if generation == 0 {
			generation = inForce.Generation
		}
	}
	return notAccepted(generation, reasonInvalid, message)
}

// notAccepted is the status of a version that the mesh does not use.
func notAccepted(generation int64, reason, message string) *Status {
	return &Status{Generation: generation, Conditions: []Condition{
		{Type: Accepted, Reason: reason, Message: message},
		{Type: Programmed, Reason: reason, Message: "this version is not accepted"},
	}}
}

func refusedRow(id ID, r *refusal) *Row {
	return &Row{ID: id, APIVersion: r.APIVersion, UID: r.UID, Location: r.Location(), Status: r.status(nil)}
}

// overriddenRow is the row of a version that another source's version overrides. refused is not nil if the newest
// version of the overridden one is refused, too.
func overriddenRow(id ID, o, inForce *object.Object, refused *refusal) *Row {
	row := &Row{ID: id, APIVersion: o.APIVersion, UID: o.UID, Location: o.Location}
	if refused != nil {
		row.Status = refused.status(o)
		return row
	}
	row.Status = notAccepted(o.Generation, reasonOverridden, "the same object of "+inForce.Place()+" is in force; remove one of them")
	return row
}

// withFindings adds to the condition that an object is accepted what has no effect: the warnings of validation, and
// what is found about the object in its mesh.
func withFindings(c Condition, warnings object.Problems, findings []finding.Finding) Condition {
	var texts []string
	for _, w := range warnings {
		texts = append(texts, w.Field+": "+w.Description())
	}
	for _, f := range findings {
		texts = append(texts, f.Field+": "+f.Description()+" ["+string(f.Code)+"]")
	}
	for i, text := range texts {
		if i == maxProblems {
			c.Message += "; and more"
			break
		}
		c.Message += "; " + text
	}
	c.Message = object.Cut(c.Message, maxMessage)
	return c
}

// codes are the codes of findings, each once.
func codes(findings []finding.Finding) []string {
	var out []string
	for _, f := range findings {
		if code := string(f.Code); len(out) == 0 || out[len(out)-1] != code {
			out = append(out, code)
		}
	}
	return out
}
