// Package mcs reads the Multi-Cluster Services API (KEP-1645): which Services other clusters may use (ServiceExport),
// and which have a host in all clusters together (ServiceImport). Changes of all clusters pass Table on their way to
// the pipeline: it adds to each Service what the exports and imports of its name say (object.ClusterSet), by the rules
// of judge.go, and hands the conditions of the own cluster's exports to the sinks of statuses. Exporter makes exports.
package mcs

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/normalise/clusterlocal"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/status"
)

// Config of a Table.
type Config struct {
	// Cluster is the id of the own cluster, Domain the DNS suffix of services.
	Cluster, Domain string
	// Discovery is true if exports decide which endpoints clients of other clusters find. Otherwise Services pass
	// unchanged, and Hosts and Strict have no effect.
	Discovery bool
	// Hosts is true if Services that are imported have a host in all clusters together.
	Hosts bool
	// Strict is true if clients use the ordinary host of a Service for endpoints of their own cluster alone.
	Strict bool
	// Next receives the changes, in order. It must not block.
	Next func(context.Context, []normalise.Change)
}

// Table holds the Services, exports and imports of all clusters. It is safe for concurrent use.
type Table struct {
	cfg Config
	// wake tells Exporter that a Service may lack its export.
	wake chan struct{}

	mu     sync.Mutex
	groups map[name]*group
	// local are the services that are never exported; settings is what they were read of.
	local    clusterlocal.Hosts
	settings *mesh.MeshConfig
	// discovered are the own cluster's Services and exports that the mesh discovers.
	discovered map[object.Key]bool
	// due are exports whose conditions a sink may not have; sent are the sources whose sink has those of an export.
	due  map[object.Key]bool
	sent map[object.Key]string
}

type name struct{ namespace, name string }

// group is all that has one name.
type group struct {
	// members by the cluster of their keys.
	members map[string]*member
	// given are the Services as they were handed on, by the cluster of their keys.
	given map[string]*object.Object
}

// NewTable returns an empty table.
func NewTable(c Config) *Table {
	return &Table{cfg: c, wake: make(chan struct{}, 1), groups: map[name]*group{}, discovered: map[object.Key]bool{},
		due: map[object.Key]bool{}, sent: map[object.Key]string{}}
}

// isService, isExport and isImport tell kinds apart.
func isService(k object.Key) bool { return k.Group == "" && k.Kind == "Service" }
func isExport(k object.Key) bool  { return k.Group == kinds.GroupMCS && k.Kind == kinds.ServiceExport }
func isImport(k object.Key) bool  { return k.Group == kinds.GroupMCS && k.Kind == kinds.ServiceImport }

// Submit takes over the changes, and passes them on to Config.Next with what is now known of the Services.
func (t *Table) Submit(ctx context.Context, changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]normalise.Change, 0, len(changes))
	var touched []name
	for _, c := range changes {
		if !isService(c.Key) {
			out = append(out, c)
		}
		if isService(c.Key) || isExport(c.Key) || isImport(c.Key) {
			t.take(c)
			touched = append(touched, name{c.Key.Namespace, c.Key.Name})
		}
	}
	slices.SortFunc(touched, func(a, b name) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	for _, n := range slices.Compact(touched) {
		out = append(out, t.give(n)...)
	}
	if len(out) > 0 {
		t.cfg.Next(ctx, out)
	}
}

// take takes over one object.
func (t *Table) take(c normalise.Change) {
	n := name{c.Key.Namespace, c.Key.Name}
	g := t.groups[n]
	if g == nil {
		g = &group{members: map[string]*member{}, given: map[string]*object.Object{}}
		t.groups[n] = g
	}
	m := g.members[c.Key.Cluster]
	if m == nil {
		m = &member{cluster: cmp.Or(c.Key.Cluster, t.cfg.Cluster), own: c.Key.Cluster == ""}
		g.members[c.Key.Cluster] = m
	}
	switch {
	case isService(c.Key):
		m.service = c.Object
	case isExport(c.Key):
		m.export = c.Object
	default:
		m.imported = c.Object
	}
	if m.empty() {
		delete(g.members, c.Key.Cluster)
	}
}

// give returns the Services of a name that are to be handed on: those that have changed, that are gone, or of which
// exports and imports say something else.
func (t *Table) give(n name) (out []normalise.Change) {
	g := t.groups[n]
	all := g.all()
	now := object.ClusterSet{Strict: t.cfg.Strict}
	if t.cfg.Discovery && t.cfg.Hosts {
		if now.Service, now.VIPs = joined(all); now.Service != nil {
			now.Host = contract.ClusterSetHost(n.name, n.namespace)
		}
	}
	for _, m := range all {
		at := clusterOf(m)
		if m.export != nil && m.own {
			t.due[m.export.Key] = true
		}
		if m.service == nil {
			continue
		}
		set := now
		set.Exported = m.export != nil
		if m.spec() == nil {
			set.Host, set.Service, set.VIPs = "", nil, nil // it has no endpoints
		}
		given := *m.service
		if t.cfg.Discovery {
			given.ClusterSet = &set
		}
		if before := g.given[at]; before != nil && before.Body == given.Body && reflect.DeepEqual(before.ClusterSet, given.ClusterSet) {
			continue
		}
		g.given[at] = &given
		out = append(out, normalise.Change{Key: given.Key, Object: &given})
	}
	for at, o := range g.given {
		if m := g.members[at]; m == nil || m.service == nil {
			delete(g.given, at)
			out = append(out, normalise.Change{Key: o.Key})
		}
	}
	if len(g.members) == 0 {
		delete(t.groups, n)
	}
	return out
}

// all are the members of the own cluster, and then the others by id.
func (g *group) all() []*member {
	out := make([]*member, 0, len(g.members))
	for _, m := range g.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *member) int { return strings.Compare(clusterOf(a), clusterOf(b)) })
	return out
}

// clusterOf is the cluster of the keys of a member's objects: "" for the own one, which so comes first.
func clusterOf(m *member) string {
	if m.own {
		return ""
	}
	return m.cluster
}

// Discovered takes over which objects of the own cluster the mesh discovers, and the mesh configuration, and hands
// conditions of exports to the sinks of their sources. The pipeline calls it after each commit: before the first one a
// Service that was not read yet would count as missing.
func (t *Table) Discovered(changes []normalise.Change, settings *mesh.MeshConfig, sinks map[string]status.Sink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if settings != t.settings {
		t.settings, t.local = settings, clusterlocal.Of(settings, t.cfg.Domain)
	}
	for _, c := range changes {
		if !isService(c.Key) && !isExport(c.Key) {
			continue
		}
		delete(t.discovered, c.Key)
		if c.Object != nil {
			t.discovered[c.Key] = true
		}
		if isExport(c.Key) {
			t.due[c.Key] = true
		}
	}
	due := t.due
	t.due = map[object.Key]bool{}
	for k := range due {
		t.offer(k, sinks)
	}
	notify.Wake(t.wake)
}

// offer hands the conditions of an export to its sink, or takes them back if the export is gone or not discovered.
func (t *Table) offer(k object.Key, sinks map[string]status.Sink) {
	var export *object.Object
	if g := t.groups[name{k.Namespace, k.Name}]; g != nil && g.members[k.Cluster] != nil && t.discovered[k] {
		export = g.members[k.Cluster].export
	}
	if old, had := t.sent[k]; had && (export == nil || export.Source != old) {
		delete(t.sent, k)
		sinks[old].Forget(k)
	}
	if export == nil || sinks[export.Source] == nil {
		return
	}
	g := t.groups[name{k.Namespace, k.Name}]
	st := &status.Status{Generation: export.Generation, ConditionsAlone: true, Conditions: conditions(g.members[k.Cluster], g.all())}
	to := status.Target{Key: k, APIVersion: export.APIVersion, UID: export.UID, Generation: export.Generation}
	if sinks[export.Source].Put(to, st) {
		t.sent[k] = export.Source
	} else {
		t.due[k] = true
	}
}

// candidate is a Service that a ServiceExport can be made for, and whether it has one.
type candidate struct {
	service  *object.Object
	exported bool
}

// candidates are the own cluster's Services of a source, sorted, without ExternalNames and without those that are
// cluster-local.
func (t *Table) candidates(source string) (out []candidate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, g := range t.groups {
		m := g.members[""]
		if m == nil || m.spec() == nil || m.service.Source != source || !t.discovered[m.service.Key] ||
			t.local.Has(normalise.Host(n.name, n.namespace, t.cfg.Domain)) {
			continue
		}
		out = append(out, candidate{m.service, m.export != nil})
	}
	slices.SortFunc(out, func(a, b candidate) int { return a.service.Key.Compare(b.service.Key) })
	return out
}
