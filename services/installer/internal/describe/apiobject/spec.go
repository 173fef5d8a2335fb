package apiobject

import (
	"cmp"
	"fmt"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// spec is what the specs of all kinds have that is shown.
type spec struct {
	GatewayClassName, ControllerName string
	ParentRef                        *reference
	ParentRefs, TargetRefs           []reference
	Hostnames                        []string
	Validation                       struct{ Hostname string }
	Listeners                        []struct {
		Name, Protocol, Hostname string
		Port                     int32
	}
	Rules []rule
}

// reference is a parentRef, backendRef or targetRef.
type reference struct {
	Kind, Name, Namespace, SectionName string
	Port, Weight                       *int32
}

// parent is the reference of a parent, "Gateway infra/edge, section web, port 80", as the status has it.
func (r *reference) parent(namespace string) string {
	text := cmp.Or(r.Kind, "Gateway") + " " + cmp.Or(r.Namespace, namespace) + "/" + r.Name
	if r.SectionName != "" {
		text += ", section " + r.SectionName
	}
	if r.Port != nil {
		text += fmt.Sprintf(", port %d", *r.Port)
	}
	return text
}

func (r *reference) backend(namespace string) string {
	text := cmp.Or(r.Kind, "Service") + " " + cmp.Or(r.Namespace, namespace) + "/" + r.Name
	if r.Port != nil {
		text += fmt.Sprintf(", port %d", *r.Port)
	}
	if r.Weight != nil && *r.Weight != 1 {
		text += fmt.Sprintf(", weight %d", *r.Weight)
	}
	return text
}

type rule struct {
	Name    string
	Matches []struct {
		Path *struct{ Type, Value string }
		// Method is a string in an HTTPRoute, and an object in a GRPCRoute.
		Method               any
		Headers, QueryParams []struct{ Type, Name, Value string }
	}
	Filters []struct {
		Type          string
		RequestMirror *struct{ BackendRef reference }
	}
	BackendRefs []reference
}

// spec takes over what the object says, with what the status says of it.
func (d *Description) spec(s *spec, judged *configv1.ObjectStatus) {
	d.Class, d.Controller, d.Hostnames = s.GatewayClassName, s.ControllerName, s.Hostnames
	refs := s.ParentRefs
	if s.ParentRef != nil {
		refs = []reference{*s.ParentRef}
	}
	if d.Kind == "BackendTLSPolicy" {
		if s.Validation.Hostname != "" {
			d.Hostnames = []string{s.Validation.Hostname}
		}
		for _, t := range s.TargetRefs {
			t.Kind = cmp.Or(t.Kind, "Service")
			d.Targets = append(d.Targets, t.parent(d.Namespace))
		}
		for _, p := range judged.GetParents() {
			d.Parents = append(d.Parents, Parent{Parent: p.GetParent(), Conditions: conditions(p.GetConditions())})
		}
	}
	for i := range refs {
		parent := Parent{Parent: refs[i].parent(d.Namespace)}
		for _, p := range judged.GetParents() {
			if p.GetParent() == parent.Parent {
				parent.Conditions = conditions(p.GetConditions())
			}
		}
		if s.ParentRef != nil { // of a ListenerSet: its own conditions are about it
			parent.Conditions = d.Conditions
		}
		d.Parents = append(d.Parents, parent)
	}
	for _, l := range s.Listeners {
		out := Listener{Name: l.Name, Port: l.Port, Protocol: l.Protocol, Hostname: l.Hostname}
		for _, j := range judged.GetListeners() {
			if j.GetName() == l.Name {
				out.Routes, out.Conditions = j.GetAttachedRoutes(), conditions(j.GetConditions())
			}
		}
		d.Listeners = append(d.Listeners, out)
	}
	problems := problemsOf(judged)
	for i := range s.Rules {
		d.Rules = append(d.Rules, d.rule(i, &s.Rules[i], problems))
	}
}

func (d *Description) rule(i int, r *rule, problems map[string]string) Rule {
	out := Rule{Name: r.Name, Backends: []Backend{}}
	at := fmt.Sprintf("spec.rules[%d]", i)
	for _, m := range r.Matches {
		var parts []string
		if m.Path != nil {
			switch text := m.Path.Value; m.Path.Type {
			case "Exact":
				parts = append(parts, "path "+text)
			case "RegularExpression":
				parts = append(parts, "path like "+text)
			default:
				parts = append(parts, "path "+strings.TrimSuffix(text, "/")+"/*")
			}
		}
		switch method := m.Method.(type) {
		case string:
			parts = append(parts, "method "+method)
		case map[string]any:
			parts = append(parts, fmt.Sprintf("method %v/%v", orAny(method["service"]), orAny(method["method"])))
		}
		for _, h := range m.Headers {
			parts = append(parts, "header "+h.Name+" "+relation(h.Type)+" "+h.Value)
		}
		for _, q := range m.QueryParams {
			parts = append(parts, "query parameter "+q.Name+" "+relation(q.Type)+" "+q.Value)
		}
		out.Matches = append(out.Matches, cmp.Or(strings.Join(parts, ", "), "everything"))
	}
	if len(r.Matches) == 0 { // as the default of the kind is
		out.Matches = []string{"everything"}
	}
	for k, f := range r.Filters {
		text := f.Type
		if f.RequestMirror != nil {
			text += " to " + f.RequestMirror.BackendRef.backend(d.Namespace)
			if p := problems[fmt.Sprintf("%s.filters[%d].requestMirror.backendRef", at, k)]; p != "" {
				text += ": " + p
			}
		}
		out.Filters = append(out.Filters, text)
	}
	for j := range r.BackendRefs {
		out.Backends = append(out.Backends,
			Backend{r.BackendRefs[j].backend(d.Namespace), problems[fmt.Sprintf("%s.backendRefs[%d]", at, j)]})
	}
	return out
}

func orAny(v any) any {
	if v == nil || v == "" {
		return "*"
	}
	return v
}

func relation(kind string) string {
	if kind == "RegularExpression" {
		return "like"
	}
	return "="
}

// problemsOf are the problems of backends by their field, from the condition ResolvedRefs:
// "spec.rules[0].backendRefs[1]: there is no Service ...; spec.rules[1]...".
func problemsOf(judged *configv1.ObjectStatus) map[string]string {
	out := map[string]string{}
	for _, p := range judged.GetParents() {
		for _, c := range p.GetConditions() {
			if c.GetType() != "ResolvedRefs" || c.GetStatus() == "True" {
				continue
			}
			for _, part := range strings.Split(strings.TrimPrefix(c.GetMessage(), "spec."), "; spec.") {
				if field, text, found := strings.Cut(part, ": "); found {
					out["spec."+field] = text
				}
			}
		}
	}
	return out
}
