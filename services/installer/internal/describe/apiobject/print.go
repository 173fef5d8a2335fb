package apiobject

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/kinds"
)

// Print prints the description for people.
func (d *Description) Print(out io.Writer) error {
	var errs []error
	line := func(depth int, form string, args ...any) {
		_, err := fmt.Fprintf(out, strings.Repeat("  ", depth)+form+"\n", args...)
		errs = append(errs, err)
	}
	kind, _, _ := strings.Cut(d.Kind, ".")
	where := d.Location
	if where == "" {
		where = d.Source
	}
	line(0, "%s %s (%s)", kind, kinds.FullName(d.Namespace, d.Name), where)
	for _, l := range [][2]string{{"Class", d.Class}, {"Controller", d.Controller}, {"Addresses", strings.Join(d.Addresses, ", ")},
		{"Hosts", strings.Join(d.Hostnames, ", ")}, {"Targets", strings.Join(d.Targets, "; ")}, {"Gateways", strings.Join(d.Gateways, ", ")}} {
		if l[1] != "" {
			line(1, "%s: %s", l[0], l[1])
		}
	}
	for _, c := range d.Conditions {
		if len(d.Parents) == 0 || c.Type == "Programmed" || d.Kind == "ListenerSet" {
			line(1, "%s", c)
		}
	}
	for _, p := range d.Parents {
		switch {
		case len(p.Conditions) == 0:
			line(1, "Parent %s: %s", p.Parent, p.Note)
		case d.Kind == "ListenerSet":
			line(1, "Parent %s", p.Parent)
		default:
			line(1, "Parent %s: %s", p.Parent, summary(d.shortened(p.Conditions)))
		}
	}
	for _, l := range d.Listeners {
		host := "any host"
		if l.Hostname != "" {
			host = "host " + l.Hostname
		}
		line(1, "Listener %s: %s, port %d, %s, routes: %d; %s", l.Name, l.Protocol, l.Port, host, l.Routes, summary(l.Conditions))
	}
	for i, r := range d.Rules {
		name := ""
		if r.Name != "" {
			name = " (" + r.Name + ")"
		}
		line(1, "Rule %d%s: %s", i+1, name, strings.Join(r.Matches, " or "))
		for _, f := range r.Filters {
			line(2, "filter %s", f)
		}
		for _, b := range r.Backends {
			if b.Problem == "" {
				line(2, "to %s", b.Backend)
			} else {
				line(2, "to %s: not resolved: %s", b.Backend, b.Problem)
			}
		}
	}
	for _, a := range d.Attached {
		section := ""
		if a.Section != "" {
			section = " by " + a.Section
		}
		if a.Accepted {
			line(1, "%s, attached%s", a.Object, section)
		} else {
			line(1, "%s, not attached%s: %s", a.Object, section, a.Because)
		}
	}
	for _, n := range d.Notes {
		line(1, "%s", n)
	}
	return errors.Join(errs...)
}

// shortened leaves out the message of ResolvedRefs where the rules show it.
func (d *Description) shortened(list []Condition) []Condition {
	out := slices.Clone(list)
	for i := range out {
		if c := &out[i]; c.Type == "ResolvedRefs" && c.Status != "True" && len(d.Rules) > 0 {
			c.Message = "see the rules"
		}
	}
	return out
}

// String is "Accepted", or "not Accepted (Reason): message".
func (c Condition) String() string {
	switch {
	case c.Type == "Conflicted" && c.Status == "False", c.Type == "PartiallyInvalid" && c.Status == "False":
		return ""
	case c.Type == "Conflicted" || c.Type == "PartiallyInvalid" || c.Type == "OverlappingTLSConfig":
		return fmt.Sprintf("%s (%s): %s", c.Type, c.Reason, c.Message)
	case c.Status == "True" && (c.Type == "Programmed" || strings.Contains(c.Message, "; ")):
		return c.Type + ": " + c.Message
	case c.Status == "True":
		return c.Type
	case c.Status == "Unknown":
		return fmt.Sprintf("not known whether %s (%s): %s", c.Type, c.Reason, c.Message)
	}
	return fmt.Sprintf("not %s (%s): %s", c.Type, c.Reason, c.Message)
}

// summary is a line for conditions: those that hold by their names, and the others with what they say.
func summary(list []Condition) string {
	text := lists.Map(list, Condition.String)
	out := text[:0]
	for _, t := range text {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "; ")
}
