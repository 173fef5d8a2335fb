package authzview

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/authzdiff"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Difference says whose decisions change.
type Difference struct {
	Classes []ClassDifference `json:"classes"`
	// Settings say what changes of MeshConfig that makes other requests of the same ones.
	Settings []string `json:"settings,omitempty"`
	// Providers are those of CUSTOM policies that are defined otherwise.
	Providers []ProviderChange `json:"providers,omitempty"`
	Notes     []string         `json:"notes,omitempty"`
}

// ClassDifference are the changes at workloads to which the same policies apply, before and after.
type ClassDifference struct {
	Workloads []string `json:"workloads"`
	Changes   []Change `json:"changes"`
	// Notes say what else changes, and why there may be more changes.
	Notes []string `json:"notes,omitempty"`
}

// Change is a class of requests whose decision changes.
type Change struct {
	Before Decided `json:"before"`
	After  Decided `json:"after"`
	// Request represents the class.
	Request Seen `json:"request"`
	// Anybody is true if it does not matter who calls. Otherwise Callers are the identities of workloads concerned,
	// with "" for callers without a certificate, and Others is one of no known workload.
	Anybody bool     `json:"anybody,omitempty"`
	Callers []string `json:"callers,omitempty"`
	Others  string   `json:"others,omitempty"`
}

// Decided is a decision and what made it.
type Decided struct {
	Outcome   string   `json:"outcome"`
	Reason    string   `json:"reason"`
	Action    string   `json:"action,omitempty"`
	Policy    string   `json:"policy,omitempty"`
	Rule      *int     `json:"rule,omitempty"`
	Providers []string `json:"providers,omitempty"`
}

// Replace returns the mesh with the policies and the MeshConfig of files in the place of its own: a policy of the same
// name is replaced, and with prune those that the files do not have are gone. A policy that the mesh would refuse is an
// error.
func (m *Mesh) Replace(paths []string, in Input, prune bool) (*Mesh, error) {
	changed, err := Load(paths, in)
	if err != nil {
		return nil, err
	}
	for _, p := range changed.Policies {
		if p.Problem != "" {
			return nil, process.Refusedf("%s: AuthorizationPolicy %s: %s", p.Location, policyName(p), p.Problem)
		}
	}
	for _, t := range changed.Tokens {
		if t.Problem != "" {
			return nil, process.Refusedf("%s: RequestAuthentication %s: %s", t.Location, tokensName(t), t.Problem)
		}
	}
	if len(changed.twice) > 0 {
		return nil, process.Refusedf("%s", changed.twice[0])
	}
	if len(changed.Policies)+len(changed.Tokens) == 0 && !changed.SettingsKnown {
		return nil, process.Refusedf("%s: no AuthorizationPolicy, RequestAuthentication or MeshConfig is in it", strings.Join(paths, ", "))
	}
	out := *m
	out.Notes = slices.Clone(m.Notes)
	for _, o := range changed.describe.Objects {
		out.Notes = append(out.Notes, fmt.Sprintf("%s %s/%s of the change is passed over: this compares no modes of mutual TLS",
			o.Kind, o.Namespace, o.Name))
	}
	if changed.SettingsKnown {
		out.Settings, out.SettingsKnown = changed.Settings, true
	}
	for _, p := range changed.Policies {
		out.unselected("AuthorizationPolicy "+policyName(p), p.Location, p.Namespace, p.Spec)
	}
	for _, t := range changed.Tokens {
		out.unselected("RequestAuthentication "+tokensName(t), t.Location, t.Namespace, t.Spec)
	}
	out.Policies = replaced(m.Policies, changed.Policies, policyName, prune)
	out.Tokens = replaced(m.Tokens, changed.Tokens, tokensName, prune)
	return &out, nil
}

// unselected notes that an object applies to no workload, and why.
func (m *Mesh) unselected(object, location, namespace string, spec authz.Attached) {
	namespace = cmp.Or(namespace, m.Settings.GetRootNamespace())
	if slices.ContainsFunc(m.Workloads, func(w *Workload) bool { return w.Proxy != NoProxy && m.selection(w).Applies(namespace, spec) }) {
		return
	}
	selector := spec.GetSelector().GetMatchLabels()
	labels := strings.Join(lists.Map(sortedKeys(selector), func(k string) string { return k + "=" + selector[k] }), ", ")
	why := ""
	switch inNamespace := m.WorkloadsIn(namespace); {
	case len(authz.Targets(spec)) > 0:
		why = "what spec.targetRefs names has none: correct it"
	case namespace != m.Settings.GetRootNamespace() && len(inNamespace) == 0:
		why = fmt.Sprintf("namespace %s has none: correct metadata.namespace (an object that names none is in namespace %s)", namespace,
			objectfile.DefaultNamespace)
	case labels != "":
		why = fmt.Sprintf("none of namespace %s has the labels %s: correct spec.selector.matchLabels", namespace, labels)
		if namespace == m.Settings.GetRootNamespace() {
			why = fmt.Sprintf("none has the labels %s: correct spec.selector.matchLabels", labels)
		}
	default:
		why = "no proxy of such a workload is connected"
	}
	m.Notes = append(m.Notes, fmt.Sprintf("%s: %s applies to no workload with a proxy: %s", location, object, why))
}

func replaced[T any](old, changed []T, name func(T) string, prune bool) []T {
	out := slices.Clone(changed)
	for _, o := range old {
		if !prune && !slices.ContainsFunc(changed, func(c T) bool { return name(c) == name(o) }) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(name(a), name(b)) })
	return out
}

// Diff compares the decisions of a mesh with those after a change, at every workload. The error is that of ctx.
func (m *Mesh) Diff(ctx context.Context, after *Mesh) (*Difference, error) {
	d := &Difference{Classes: []ClassDifference{}, Settings: settingsChanges(m, after), Providers: providerChanges(m, after),
		Notes: after.Notes}
	type pair struct {
		before, after []Policy
		was, is       []Tokens
		workloads     []*Workload
	}
	var order []string
	pairs := map[string]*pair{}
	for _, w := range m.Workloads {
		if w.Proxy == NoProxy {
			continue
		}
		p := &pair{before: m.PoliciesOf(w), after: after.PoliciesOf(w), was: m.tokensOf(w), is: after.tokensOf(w)}
		k := fmt.Sprint(lists.Map(p.before, policyName), lists.Map(p.after, policyName), lists.Map(p.was, tokensName),
			lists.Map(p.is, tokensName))
		if pairs[k] == nil {
			pairs[k] = p
			order = append(order, k)
		}
		pairs[k].workloads = append(pairs[k].workloads, w)
	}
	for _, k := range order {
		p := pairs[k]
		c := ClassDifference{Workloads: lists.Map(p.workloads, (*Workload).ID), Changes: []Change{}, Notes: tokenChanges(p.was, p.is)}
		before, now := m.sentBy(p.before, p.was), after.sentBy(p.after, p.is)
		for _, tcp := range []bool{false, true} {
			result := authzdiff.Compare(ctx, before, now, authzdiff.Options{
				TCP: tcp, Identities: m.Identities(), Ports: m.ports(p.workloads),
				Answers: [2]map[string]authz.Answer{m.answers(before, tcp), after.answers(now, tcp)},
			})
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for _, b := range result.Bounded {
				c.Notes = append(c.Notes, "there may be more changes: "+b)
			}
			for _, f := range result.Changes {
				seen := seen(f.Request)
				c.Changes = append(c.Changes, Change{Before: m.decided(before, f.Old), After: after.decided(now, f.New), Request: seen,
					Anybody: f.Anybody, Callers: f.Callers, Others: f.Others})
			}
		}
		if len(c.Changes)+len(c.Notes) > 0 {
			d.Classes = append(d.Classes, c)
		}
	}
	return d, nil
}

func (m *Mesh) decided(set *authz.Set, d authz.Decision) Decided {
	r := Result{}
	r.decide(set, d)
	for _, p := range m.Policies {
		if p.Problem != "" && policyName(p) == r.Policy {
			r.Rule, r.Reason = nil, closedText(p)
		}
	}
	return Decided{Outcome: r.Outcome, Reason: r.Reason, Action: r.Action, Policy: r.Policy, Rule: r.Rule, Providers: r.Providers}
}

// ports are those of the workloads, as far as they are known.
func (m *Mesh) ports(workloads []*Workload) []uint32 {
	var out []uint32
	for _, w := range workloads {
		for _, p := range w.Ports {
			out = append(out, p)
		}
		for _, s := range m.Services {
			if s.selects(w) {
				out = append(out, lists.Map(s.Ports, func(p ServicePort) uint32 { return p.targetOn(w) })...)
			}
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(p uint32) bool { return p == 0 })
}

// settingsChanges says what MeshConfig makes of the same requests otherwise.
func settingsChanges(before, after *Mesh) (out []string) {
	was, is := before.Settings.GetPathNormalization().GetNormalization(), after.Settings.GetPathNormalization().GetNormalization()
	if was != is {
		out = append(out, fmt.Sprintf("pathNormalization changes from %s to %s: rules see other paths of the same requests, and the paths "+
			"here are those that they see", was, is))
	}
	if was, is := before.Settings.GetTrustDomain(), after.Settings.GetTrustDomain(); was != is {
		out = append(out, fmt.Sprintf("the trust domain changes from %s to %s: callers are named by the identities that they have before",
			was, is))
	}
	return out
}

// tokenChanges says which tokens are verified otherwise.
func tokenChanges(was, is []Tokens) []string {
	issuers := func(list []Tokens) map[string]string {
		out := map[string]string{}
		for _, t := range list {
			for _, rule := range t.Spec.GetJwtRules() {
				text, err := proto.MarshalOptions{Deterministic: true}.Marshal(rule)
				if err != nil {
					text = []byte(err.Error())
				}
				out[rule.GetIssuer()] += string(text)
			}
		}
		return out
	}
	before, after := issuers(was), issuers(is)
	var out []string
	for _, issuer := range sortedKeys(before) {
		now, ok := after[issuer]
		switch {
		case !ok && len(after) == 0:
			out = append(out, fmt.Sprintf("tokens of issuer %q are no longer verified: rules see none of their claims", issuer))
		case !ok:
			out = append(out, fmt.Sprintf("tokens of issuer %q are no longer accepted: they are answered with 401", issuer))
		case now != before[issuer]:
			out = append(out, fmt.Sprintf("tokens of issuer %q are verified by other jwtRules", issuer))
		}
	}
	for _, issuer := range sortedKeys(after) {
		if _, ok := before[issuer]; !ok {
			out = append(out, fmt.Sprintf("tokens of issuer %q are verified, and rules see their claims", issuer))
		}
	}
	if len(before) == 0 && len(after) > 0 {
		out = append(out, "other tokens, which were passed on unverified, are answered with 401")
	}
	return out
}

// Changed reports whether anything changes, tokens and providers included.
func (d *Difference) Changed() bool { return len(d.Classes)+len(d.Settings)+len(d.Providers) > 0 }

// Count is the number of changes.
func (d *Difference) Count() (n int) {
	for _, c := range d.Classes {
		n += len(c.Changes)
	}
	return n
}

// Print prints the difference for people.
func (d *Difference) Print(out io.Writer) error {
	for i, c := range d.Classes {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "at %s:\n", few(c.Workloads))
		for _, change := range c.Changes {
			change.print(out)
		}
		for _, n := range c.Notes {
			fmt.Fprintln(out, "  note: "+n)
		}
	}
	if d.Count() == 0 {
		fmt.Fprintln(out, "no decision of a policy changes")
	}
	for _, p := range d.Providers {
		fmt.Fprintln(out, p.text())
	}
	return printNotes(out, slices.Concat(d.Settings, d.Notes))
}

func (c *Change) print(out io.Writer) {
	fmt.Fprintf(out, "  %s -> %s: %s\n", c.Before.text(), c.After.text(), c.Request.text())
	fmt.Fprintf(out, "    before   %s\n    after    %s\n    callers  %s\n", c.Before.Reason, c.After.Reason, c.callers())
}

func (d Decided) text() string {
	if len(d.Providers) > 0 {
		return d.Outcome + " " + strings.Join(d.Providers, " and ")
	}
	return d.Outcome
}

func (c *Change) callers() string {
	if c.Anybody {
		return "anybody"
	}
	var parts []string
	for _, who := range c.Callers {
		parts = append(parts, cmp.Or(who, "without a certificate"))
	}
	text := few(parts)
	switch {
	case c.Others == "":
	case len(parts) == 0:
		text = "none of a known workload; such as " + c.Others
	default:
		text += ", and others such as " + c.Others
	}
	return text
}

// text describes a request in a line.
func (s Seen) text() string {
	parts := []string{"a TCP connection"}
	if !s.TCP {
		parts = []string{s.Method + " " + s.Path}
	}
	for _, p := range []struct{ name, value string }{
		{"host", s.Host}, {"server name", s.SNI}, {"from address", s.SourceIP}, {"client address", s.RemoteIP}, {"to address", s.DestinationIP},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if s.Port != 0 {
		parts = append(parts, fmt.Sprint("port ", s.Port))
	}
	for _, name := range sortedKeys(s.Headers) {
		parts = append(parts, fmt.Sprintf("header %s=%s", name, strings.Join(s.Headers[name], ",")))
	}
	for _, name := range sortedKeys(s.Claims) {
		parts = append(parts, fmt.Sprintf("claim %s=%v", name, s.Claims[name]))
	}
	for _, name := range sortedKeys(s.Metadata) {
		parts = append(parts, fmt.Sprintf("metadata %s=%v", name, s.Metadata[name]))
	}
	return strings.Join(parts, ", ")
}

// maxShown bounds the items of a line.
const maxShown = 6

func few(list []string) string {
	if len(list) <= maxShown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:maxShown], ", "), len(list)-maxShown)
}
