// Package coverage relates the fields of Istio's traffic API to the scenarios that show them.
package coverage

import (
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

// kinds of the traffic API, in the page's order.
var kinds = []struct {
	name    string
	message protoreflect.Message
}{
	{"VirtualService", (&networking.VirtualService{}).ProtoReflect()},
	{"DestinationRule", (&networking.DestinationRule{}).ProtoReflect()},
	{"ServiceEntry", (&networking.ServiceEntry{}).ProtoReflect()},
	{"WorkloadEntry", (&networking.WorkloadEntry{}).ProtoReflect()},
	{"Gateway", (&networking.Gateway{}).ProtoReflect()},
	{"Sidecar", (&networking.Sidecar{}).ProtoReflect()},
	{"PeerAuthentication", (&security.PeerAuthentication{}).ProtoReflect()},
	{"ProxyConfig", (&networkingbeta.ProxyConfig{}).ProtoReflect()},
	{"EnvoyFilter", (&networking.EnvoyFilter{}).ProtoReflect()},
	{"MeshConfig", (&mesh.MeshConfig{}).ProtoReflect()},
}

// whole are messages whose fields have no rows of their own, because they say one thing or have their rows elsewhere.
var whole = map[protoreflect.FullName]string{
	"istio.networking.v1alpha3.StringMatch":                     "",
	"istio.networking.v1alpha3.Percent":                         "",
	"istio.networking.v1alpha3.PortSelector":                    "",
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting":     "",
	"istio.networking.v1alpha3.TrafficPolicy.PortTrafficPolicy": "as DestinationRule.trafficPolicy",
	"istio.mesh.v1alpha1.ProxyConfig":                           "",
	"istio.type.v1beta1.WorkloadSelector":                       "",
	"istio.type.v1beta1.PolicyTargetReference":                  "",
	"istio.networking.v1alpha3.WorkloadSelector":                "",
}

// elsewhere are fields whose message has its rows at another field.
var elsewhere = map[string]string{
	"DestinationRule.subsets.trafficPolicy":   "as DestinationRule.trafficPolicy",
	"VirtualService.http.mirrors.destination": "as VirtualService.http.route.destination",
	"VirtualService.http.mirror":              "as VirtualService.http.route.destination",
	"VirtualService.tcp.route.destination":    "as VirtualService.http.route.destination",
	"VirtualService.tls.route.destination":    "as VirtualService.http.route.destination",
	"VirtualService.http.route.headers":       "as VirtualService.http.headers",
	"ServiceEntry.endpoints":                  "as WorkloadEntry",
	"MeshConfig.defaultHttpRetryPolicy":       "as VirtualService.http.retries",
	"Sidecar.inboundConnectionPool":           "as DestinationRule.trafficPolicy.connectionPool",
	"Sidecar.ingress.connectionPool":          "as DestinationRule.trafficPolicy.connectionPool",
	"Sidecar.ingress.tls":                     "as Gateway.servers.tls",
}

// Row is a field of the API, or a value of an enum that something is said of.
type Row struct {
	// Path is kind and JSON path without indices, as in VirtualService.http.match.uri.
	Path string
	// Depth in the object, 0 for a field directly below spec.
	Depth int
	// Note replaces the state, if there is one.
	Note string
	// Refused tells that an object which sets it is refused.
	Refused bool
	// Scenarios that show it, sorted.
	Scenarios []string
}

// Section is the rows of a kind.
type Section struct {
	Kind string
	Rows []*Row
}

// Table is everything the page says.
type Table struct {
	Sections []Section
	// Features are what scenarios cover besides fields of the API.
	Features []*Row
}

// New relates the API to scenarios. refused has the paths of fields and of enum values that are refused.
func New(scenarios []*format.Scenario, refused []string) *Table {
	t := &Table{}
	rows := map[string]*Row{}
	enums := map[string]map[string]string{} // by path of a message: enum value → path of its field
	for _, k := range kinds {
		s := Section{Kind: k.name}
		w := walker{rows: &s.Rows, enums: enums}
		w.message(k.name, 0, k.message.Descriptor(), nil)
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
		row := &Row{Path: at + "." + last, Depth: strings.Count(at, ".")}
		values[at] = append(values[at], row)
		return row
	}
	for _, path := range refused {
		if row := find(path); row != nil {
			row.Refused = true
		}
	}
	features := map[string]*Row{}
	for _, s := range scenarios {
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
		}
	}
	return t
}

// inherit marks what is below a refused field.
func inherit(rows []*Row) {
	refused := ""
	for _, row := range rows {
		switch {
		case refused != "" && strings.HasPrefix(row.Path, refused+"."):
			row.Refused = true
		case row.Refused:
			refused = row.Path
		}
	}
}

func (t *Table) lists() [][]*Row {
	var lists [][]*Row
	for _, s := range t.Sections {
		lists = append(lists, s.Rows)
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
		row := &Row{Path: at, Depth: depth, Note: elsewhere[at]}
		*w.rows = append(*w.rows, row)
		if f.Enum() != nil {
			w.values(path, at, f.Enum())
		}
		message := f.Message()
		if f.IsMap() {
			message = f.MapValue().Message()
		}
		if message == nil || row.Note != "" || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
			continue
		}
		if note, ok := whole[message.FullName()]; ok {
			row.Note = note
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

// Markdown is the page.
func (t *Table) Markdown() []byte {
	var b strings.Builder
	fields, shown, refused := 0, 0, 0
	for _, list := range t.lists() {
		for _, row := range list {
			fields++
			if row.Refused {
				refused++
			}
			if len(row.Scenarios) > 0 {
				shown++
			}
		}
	}
	fmt.Fprintf(&b, `# The traffic API, field by field

Generated from Istio's own messages, from what validation refuses, and from the `+"`covers`"+` of the scenarios in `+"`tests/scenarios`"+` by
`+"`make golden`"+`; each scenario runs on real Envoys (`+"`make scenarios`"+`). A field that is not supported is refused with its name and a remedy, never ignored.
%d rows, %d refused, %d shown by a scenario; a field that no scenario shows is marked "no scenario".

`, fields, refused, shown)
	for _, s := range t.Sections {
		fmt.Fprintf(&b, "## %s\n\n| field | state | scenarios |\n|---|---|---|\n", s.Kind)
		for _, row := range s.Rows {
			fmt.Fprintf(&b, "| %s%s | %s | %s |\n", strings.Repeat("&nbsp;&nbsp;", row.Depth), row.name(), row.state(), strings.Join(row.Scenarios, ", "))
		}
		b.WriteByte('\n')
	}
	b.WriteString("## Beyond fields\n\n| what | scenarios |\n|---|---|\n")
	for _, row := range t.Features {
		fmt.Fprintf(&b, "| %s | %s |\n", row.Path, strings.Join(row.Scenarios, ", "))
	}
	return []byte(b.String())
}

func (r *Row) name() string {
	_, last := cut(r.Path)
	return "`" + last + "`"
}

func (r *Row) state() string {
	switch {
	case r.Refused:
		return "refused"
	case len(r.Scenarios) == 0 && r.Note != "":
		return r.Note
	case len(r.Scenarios) == 0:
		return "supported, no scenario"
	}
	return "supported"
}
