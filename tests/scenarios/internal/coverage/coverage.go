// Package coverage relates the fields of Istio's traffic and security APIs to the scenarios that show them.
package coverage

import (
	_ "embed" // the table of messages without rows
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/tests/scenarios/internal/format"
)

// API is what one page is about.
type API string

// The APIs. Beyond fields, Traffic has the rest.
const (
	Traffic  API = "traffic"
	Security API = "security"
)

// kinds of each API, in its page's order.
var kinds = []struct {
	name    string
	message protoreflect.Message
	api     API
}{
	{"VirtualService", (&networking.VirtualService{}).ProtoReflect(), Traffic},
	{"DestinationRule", (&networking.DestinationRule{}).ProtoReflect(), Traffic},
	{"ServiceEntry", (&networking.ServiceEntry{}).ProtoReflect(), Traffic},
	{"WorkloadEntry", (&networking.WorkloadEntry{}).ProtoReflect(), Traffic},
	{"Gateway", (&networking.Gateway{}).ProtoReflect(), Traffic},
	{"Sidecar", (&networking.Sidecar{}).ProtoReflect(), Traffic},
	{"PeerAuthentication", (&security.PeerAuthentication{}).ProtoReflect(), Traffic},
	{"ProxyConfig", (&networkingbeta.ProxyConfig{}).ProtoReflect(), Traffic},
	{"EnvoyFilter", (&networking.EnvoyFilter{}).ProtoReflect(), Traffic},
	{"MeshConfig", (&mesh.MeshConfig{}).ProtoReflect(), Traffic},
	{"AuthorizationPolicy", (&security.AuthorizationPolicy{}).ProtoReflect(), Security},
	{"RequestAuthentication", (&security.RequestAuthentication{}).ProtoReflect(), Security},
}

// conditions are the keys of AuthorizationPolicy.rules.when, which have rows below it.
var conditions = []string{
	"request.headers", "source.ip", "remote.ip", "source.namespace", "source.principal", "source.serviceAccount", "source.trustDomain",
	"request.auth.principal", "request.auth.audiences",
	"request.auth.presenter", "request.auth.claims", "destination.ip", "destination.port", "connection.sni", "experimental.envoy.filters",
}

const whenPath = "AuthorizationPolicy.rules.when"

//go:embed rows.txt
var rowsTable string

// elsewhere has the messages and fields without rows below them, and where those rows are, if anywhere.
var elsewhere = parseRows(rowsTable)

func parseRows(table string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(table) {
		if name, at, ok := strings.Cut(line, "|"); ok && !strings.HasPrefix(line, "#") {
			out[strings.TrimSpace(name)] = strings.TrimSpace(at)
		}
	}
	return out
}

// Row is a field of the API, or a value of an enum that something is said of.
type Row struct {
	// Path is kind and JSON path without indices, as in VirtualService.http.match.uri.
	Path string
	// Name is what the row is called, if that is not the last part of the path.
	Name string
	// Depth in the object, 0 for a field directly below spec.
	Depth int
	// As is the path at which the fields of the same message have their rows, if that is elsewhere.
	As string
	// State is what an object that sets it meets.
	State State
	// Scenarios are those that are about it, sorted.
	Scenarios []string
	// SetBy are the scenarios that set it in passing, sorted.
	SetBy []string
	// Goldens are the inputs of translators' goldens that set it, sorted.
	Goldens []string
}

// State of a field or value.
type State string

// The states: acted on; refused by validation; accepted with a warning that it has no effect.
const (
	Supported State = "supported"
	Refused   State = "refused"
	NoEffect  State = "no effect, with a warning"
)

// Section is the rows of a kind.
type Section struct {
	Kind string
	API  API
	Rows []*Row
}

// Table is everything the page says.
type Table struct {
	Sections []Section
	// Features are what scenarios cover besides fields of the API.
	Features []*Row
}

// Evidence is what the API is related to.
type Evidence struct {
	Scenarios []*format.Scenario
	// Goldens are the inputs of the translators' goldens, by name.
	Goldens map[string]string
	// Refused and Ineffective are the paths of fields, and of enum values, that are not supported.
	Refused, Ineffective []string
}

// New relates the API to the evidence.
func New(e Evidence) (*Table, error) {
	t := &Table{}
	rows := map[string]*Row{}
	enums := map[string]map[string]string{} // by path of a message: enum value → path of its field
	for _, k := range kinds {
		s := Section{Kind: k.name, API: k.api}
		w := walker{rows: &s.Rows, enums: enums}
		w.message(k.name, 0, k.message.Descriptor(), nil)
		s.Rows = withConditions(s.Rows)
		for _, row := range s.Rows {
			rows[row.Path] = row
		}
		t.Sections = append(t.Sections, s)
	}
	values := map[string][]*Row{} // rows of enum values by their field's path
	find := func(path string) *Row {
		if row := rows[path]; row != nil {
			return row
		}
		parent, last := cut(path)
		at, ok := enums[parent][last]
		if !ok {
			return nil
		}
		for _, row := range values[at] {
			if strings.HasSuffix(row.Path, "."+last) {
				return row
			}
		}
		row := &Row{Path: at + "." + last, Depth: strings.Count(at, "."), State: Supported}
		values[at] = append(values[at], row)
		return row
	}
	for state, paths := range map[State][]string{Refused: e.Refused, NoEffect: e.Ineffective} {
		for _, path := range paths {
			if row := find(path); row != nil {
				row.State = state
			}
		}
	}
	features := map[string]*Row{}
	for _, name := range slices.Sorted(maps.Keys(e.Goldens)) {
		if err := translated(rows, name, e.Goldens[name]); err != nil {
			return nil, err
		}
	}
	for _, s := range e.Scenarios {
		set(rows, s, s.Steps)
		for _, path := range s.Covers {
			path = strings.ReplaceAll(path, ".spec.", ".")
			marked := false
			for at := path; at != ""; at, _ = cut(at) {
				row := find(at)
				if row == nil {
					continue
				}
				row.Scenarios = append(row.Scenarios, s.Name)
				marked = true
				if field, _ := cut(row.Path); row.Path != at || rows[at] == nil {
					rows[field].Scenarios = append(rows[field].Scenarios, s.Name)
				}
			}
			if !marked {
				if features[path] == nil {
					features[path] = &Row{Path: path}
				}
				features[path].Scenarios = append(features[path].Scenarios, s.Name)
			}
		}
	}
	for i := range t.Sections {
		s := &t.Sections[i]
		var all []*Row
		for _, row := range s.Rows {
			all = append(all, row)
			more := values[row.Path]
			slices.SortFunc(more, func(a, b *Row) int { return strings.Compare(a.Path, b.Path) })
			all = append(all, more...)
		}
		s.Rows = all
		inherit(s.Rows)
	}
	for _, path := range slices.Sorted(maps.Keys(features)) {
		t.Features = append(t.Features, features[path])
	}
	for _, list := range append(t.lists(), t.Features) {
		for _, row := range list {
			slices.Sort(row.Scenarios)
			row.Scenarios = slices.Compact(row.Scenarios)
			slices.Sort(row.SetBy)
		}
	}
	return t, nil
}

// withConditions adds the rows of the keys of conditions, if there are any, before the fields of a condition.
func withConditions(rows []*Row) []*Row {
	at := slices.IndexFunc(rows, func(r *Row) bool { return r.Path == whenPath })
	if at < 0 {
		return rows
	}
	var all []*Row
	for _, key := range conditions {
		all = append(all, &Row{Path: whenPath + "." + key, Name: key, Depth: rows[at].Depth + 1, State: Supported})
	}
	return slices.Insert(rows, at+1, all...)
}

// inherit gives what is below a field that is not supported its state.
func inherit(rows []*Row) {
	above := &Row{State: Supported}
	for _, row := range rows {
		switch {
		case above.State != Supported && strings.HasPrefix(row.Path, above.Path+"."):
			row.State = above.State
		default:
			above = row
		}
	}
}

func (t *Table) lists(of ...API) [][]*Row {
	var lists [][]*Row
	for _, s := range t.Sections {
		if len(of) == 0 || slices.Contains(of, s.API) {
			lists = append(lists, s.Rows)
		}
	}
	return lists
}

func cut(path string) (parent, last string) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

type walker struct {
	rows  *[]*Row
	enums map[string]map[string]string
}

func (w *walker) message(path string, depth int, d protoreflect.MessageDescriptor, above []protoreflect.FullName) {
	if slices.Contains(above, d.FullName()) {
		return
	}
	above = append(above, d.FullName())
	fields := d.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := path + "." + f.JSONName()
		row := &Row{Path: at, Depth: depth, State: Supported}
		*w.rows = append(*w.rows, row)
		if f.Enum() != nil {
			w.values(path, at, f.Enum())
		}
		message := f.Message()
		if f.IsMap() {
			message = f.MapValue().Message()
		}
		if message == nil || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
			continue
		}
		whole := false
		for _, name := range []string{at, string(message.FullName())} {
			if as, ok := elsewhere[name]; ok && !whole {
				row.As, whole = as, true
			}
		}
		if whole {
			continue
		}
		w.message(at, depth+1, message, above)
	}
}

// values lets an enum's value be named below its field, and below the message that has the field.
func (w *walker) values(message, at string, e protoreflect.EnumDescriptor) {
	for _, below := range []string{message, at} {
		if w.enums[below] == nil {
			w.enums[below] = map[string]string{}
		}
		for i := range e.Values().Len() {
			w.enums[below][string(e.Values().Get(i).Name())] = at
		}
	}
}

// Markdown is the page of an API.
func (t *Table) Markdown(of API) []byte {
	var b strings.Builder
	counts := map[string]int{}
	for _, list := range t.lists(of) {
		for _, row := range list {
			counts["rows"]++
			counts[string(row.State)]++
			switch {
			case row.State != Supported:
			case len(row.Scenarios) > 0:
				counts["shown"]++
			case row.As != "":
				counts["as"]++
			case len(row.SetBy) > 0:
				counts["set"]++
			case len(row.Goldens) > 0:
				counts["golden"]++
			default:
				counts["none"]++
			}
		}
	}
	fmt.Fprintf(&b, `# The %s API, field by field

Generated from Istio's own messages, from config-watcher's tables of what is refused and of what has no effect, and from the scenarios in `+
		"`tests/scenarios`"+` by
`+"`make golden`"+`; each scenario runs on real Envoys (`+"`make scenarios`"+
		`). A field that is not supported is refused with its name and a remedy; some that every Istio
installation has are accepted with a warning that says that they have no effect yet. None is ignored in silence.

The last column has the scenarios that are about the field (their `+"`covers`"+
		`). "as PATH" is a message whose fields have their rows at another path. Where no scenario is about the
field, "set by" names some that set it in passing, else "golden" those of the translators' goldens that do, whose results Envoy's own validation accepts; "no scenario" is what none of
these shows.

%d rows: %d refused, %d without an effect, %d supported. Of those, scenarios are about %d; %d stand elsewhere, %d are set in passing, %d in goldens only, %d nowhere.

`, of, counts["rows"], counts[string(Refused)], counts[string(NoEffect)], counts[string(Supported)], counts["shown"], counts["as"],
		counts["set"], counts["golden"], counts["none"])
	for _, s := range t.Sections {
		if s.API != of {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n| field | state | scenarios |\n|---|---|---|\n", s.Kind)
		for _, row := range s.Rows {
			fmt.Fprintf(&b, "| %s%s | %s | %s |\n", strings.Repeat("&nbsp;&nbsp;", row.Depth), row.name(), row.State, row.evidence())
		}
		b.WriteByte('\n')
	}
	if of != Traffic {
		return []byte(strings.TrimSuffix(b.String(), "\n"))
	}
	b.WriteString("## Beyond fields\n\n| what | scenarios |\n|---|---|\n")
	for _, row := range t.Features {
		fmt.Fprintf(&b, "| %s | %s |\n", row.Path, strings.Join(row.Scenarios, ", "))
	}
	return []byte(b.String())
}

func (r *Row) name() string {
	if r.Name != "" {
		return "`" + r.Name + "`"
	}
	_, last := cut(r.Path)
	return "`" + last + "`"
}

// maxNamed bounds what is named for setting a field in passing.
const maxNamed = 3

func some(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// evidence is the last column of the row.
func (r *Row) evidence() string {
	var parts []string
	if len(r.Scenarios) > 0 {
		parts = append(parts, strings.Join(r.Scenarios, ", "))
	}
	if r.As != "" {
		parts = append(parts, "as "+r.As)
	}
	switch {
	case len(parts) > 0 || r.State != Supported:
	case len(r.SetBy) > 0:
		parts = append(parts, "set by "+some(r.SetBy))
	case len(r.Goldens) > 0:
		parts = append(parts, "golden "+some(r.Goldens))
	default:
		parts = append(parts, "no scenario")
	}
	return strings.Join(parts, "; ")
}
