package object

import (
	"fmt"
	"sort"
	"strings"
)

// Problem is one mistake in a user's configuration. It names the place, the object, the field, the value and the
// remedy, so that the user can repair it without asking.
type Problem struct {
	// Location is "mesh.yaml:12"; empty if the input was no file.
	Location string
	// Object is "VirtualService apps/server"; empty if the mistake comes before an object could be identified.
	Object string
	// Field is the JSON path, "spec.http[0].route[0].weight"; empty if the mistake is in the object as a whole.
	Field string
	// Value is the offending value as written, shortened; empty if there is none.
	Value string
	// Reason says what is wrong.
	Reason string
	// Remedy says what to write instead.
	Remedy string
}

// Error renders the problem on one line.
func (p Problem) Error() string {
	var b strings.Builder
	for _, part := range []string{p.Location, p.Object, p.Field} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(p.Description())
	return b.String()
}

// Description is the problem without location, object and field.
func (p Problem) Description() string {
	out := p.Reason
	if p.Value != "" {
		out = p.Value + ": " + out
	}
	if p.Remedy != "" {
		out += "; " + p.Remedy
	}
	return out
}

// Problems is every problem found in one input.
type Problems []Problem

// Error renders one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems as an error, nil if there are none.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Sorted returns the problems ordered by place, for stable listings.
func (ps Problems) Sorted() Problems {
	out := append(Problems(nil), ps...)
	sort.SliceStable(out, func(i, j int) bool {
		return fmt.Sprint(out[i].Location, "\x00", out[i].Object, "\x00", out[i].Field) < fmt.Sprint(out[j].Location, "\x00", out[j].Object,
			"\x00", out[j].Field)
	})
	return out
}

// maxValue bounds how many bytes of a user's value an error repeats.
const maxValue = 120

// Quote renders a value for Problem.Value: quoted if a string, cut if long.
func Quote(v any) string {
	var s string
	switch t := v.(type) {
	case string:
		s = fmt.Sprintf("%q", Cut(t, maxValue))
	case nil:
		return ""
	default:
		s = Cut(fmt.Sprint(t), maxValue)
	}
	return s
}

// Cut shortens s to n bytes at a rune boundary.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "..."
}
