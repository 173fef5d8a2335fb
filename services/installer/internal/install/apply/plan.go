package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

const (
	// parallel bounds the requests at a time while nothing is changed.
	parallel = 8
	// maxErrors bounds the objects that one error names.
	maxErrors = 20
)

// Action is what an installation does with an object.
type Action string

// The actions.
const (
	Create    Action = "create"
	Configure Action = "configure"
	Unchanged Action = "unchanged"
	Recreate  Action = "recreate"
	Prune     Action = "prune"
)

// Change is one object of a plan.
type Change struct {
	inventory.Entry
	Action Action
	// Live is the object now, nil if it is not there; After is what it will be, nil for Prune.
	Live, After *unstructured.Unstructured
	// Fields are those that cannot be changed, of Recreate.
	Fields []string
	// Managed are those with other values that others manage, of NewComparison. After has the installation's values.
	Managed []cluster.ConflictField
	// Unsure is set if an admission webhook did not answer, so that only applying shows what happens.
	Unsure bool

	want *unstructured.Unstructured
	// force takes over the fields of others.
	force bool
	// repaired is set for a change that takes back what somebody has edited.
	repaired bool
	// held is set for a workload whose replicas stay until an autoscaler changes them, and raised if it has fewer now
	// than the autoscaler's minimum.
	held, raised bool
	// left is set for what others have made and is left as it is: their namespaces, and their definitions.
	left bool
	// definition is set for a definition that is left.
	definition *definition
}

// Plan is what an installation would change.
type Plan struct {
	*Request
	// Changes in the order in which they are made.
	Changes []*Change
	// Notes say what stays as others have made it, for people.
	Notes []string
	// Prunes are the objects of the last installation of the revision that this one has not.
	Prunes []Verdict
	// Record is the inventory as it is stored.
	Record *inventory.Record
}

// NewPlan compares a request with the cluster; it changes nothing. Force takes over the fields that others manage;
// otherwise they are an error, which names all of them.
func NewPlan(ctx context.Context, c *cluster.Client, req *Request, force bool) (*Plan, error) {
	return newPlan(ctx, c, req, comparison{force: force})
}

// NewComparison is NewPlan for a plan that is shown and not applied: what others manage is not an error, but is named
// in the changes.
func NewComparison(ctx context.Context, c *cluster.Client, req *Request, force bool) (*Plan, error) {
	return newPlan(ctx, c, req, comparison{force: force, show: true})
}

// newPlan is NewPlan, with what a comparison is told.
func newPlan(ctx context.Context, c *cluster.Client, req *Request, look comparison) (*Plan, error) {
	force := look.force
	if err := c.Check(ctx); err != nil {
		return nil, err
	}
	records, err := inventory.List(ctx, c, req.Namespace)
	if err != nil {
		return nil, err
	}
	p := &Plan{Request: req, Record: recordOf(req, records)}
	for _, r := range records {
		if r.Revision == req.Revision && r.Namespace != req.Namespace && r.State != inventory.Removed {
			return nil, fmt.Errorf("revision %s is installed in namespace %s: its objects in the whole cluster would be those of both; uninstall "+
				"it, or choose another --revision", r.Revision, r.Namespace)
		}
	}
	if err := alone(req, records); err != nil {
		return nil, err
	}
	if err := p.beside(ctx, c, force); err != nil {
		return nil, err
	}
	all, err := items(req, c)
	if err != nil {
		return nil, err
	}
	look.record, look.others = p.Record, records
	if err := p.compare(ctx, c, all, look); err != nil {
		return nil, err
	}
	if err := inventory.Fits(p.Revision, p.Installation, inventory.Union(p.entries(), p.Record.Objects)); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	gone := inventory.Difference(p.Record.Objects, p.entries())
	p.Prunes, err = judge(ctx, c, gone, inventory.Others(records, p.Record), RemovalOptions{})
	if err != nil {
		return nil, err
	}
	return p, p.keysStay(force)
}

// Changed says whether Apply would change anything but the inventory.
func (p *Plan) Changed() bool {
	return slices.ContainsFunc(p.Changes, func(c *Change) bool { return c.Action != Unchanged }) ||
		slices.ContainsFunc(p.Prunes, func(v Verdict) bool { return v.Fate == Delete })
}

// entries are the objects that the plan leaves.
func (p *Plan) entries() []inventory.Entry {
	var out []inventory.Entry
	for _, c := range p.Changes {
		out = append(out, c.Entry)
	}
	return out
}

// compare fills Changes: namespaces, CustomResourceDefinitions, and the rest by component.
func (p *Plan) compare(ctx context.Context, c *cluster.Client, all []item, look comparison) error {
	for _, name := range namespaces(p.Request, all) {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
		u.SetName(name)
		mark(u, stageNamespaces)
		all = append(all, item{inventory.Entry{ID: cluster.Of(u)}, u})
	}
	slices.SortStableFunc(all, func(a, b item) int { return p.place(a.Entry) - p.place(b.Entry) })
	look.client, look.scaled = c, scaled(all)
	look.prepare(p.Request)
	changes, failed := make([]*Change, len(all)), make([]error, len(all))
	compareAll := func(which func(item) bool) error {
		var g errgroup.Group
		g.SetLimit(parallel)
		for i, it := range all {
			if which(it) {
				g.Go(func() error {
					changes[i], failed[i] = look.change(ctx, it)
					return nil
				})
			}
		}
		_ = g.Wait() // the functions return nil
		return ctx.Err()
	}
	// The others are compared with knowledge of the namespaces and definitions that are made.
	first := func(it item) bool { return it.IsNamespace() || it.IsCRD() }
	if err := compareAll(first); err != nil {
		return err
	}
	look.made, look.defined = map[string]bool{}, map[cluster.ID]bool{}
	for _, ch := range changes {
		switch {
		case ch == nil || ch.Action != Create:
		case ch.IsNamespace():
			look.made[ch.Name] = true
		default:
			look.defined[wait.Defines(ch.want)] = true
		}
	}
	if err := compareAll(func(it item) bool { return !first(it) }); err != nil {
		return err
	}
	for _, ch := range changes {
		if ch == nil || ch.left && cluster.OwnedFields(ch.Live) == "" {
			continue // it is somebody else's, and stays as it is
		}
		if ch.IsNamespace() {
			ch.Adopted = adopted(p.Record, ch)
		}
		p.Changes = append(p.Changes, ch)
	}
	p.Notes = append(p.Notes, left(changes)...)
	return report(failed)
}

// adopted says whether a namespace was there before the first installation, by an inventory that says so. Releases that
// wrote labels to such namespaces have written these.
func adopted(r *inventory.Record, ch *Change) bool {
	return ch.Live != nil && slices.ContainsFunc(r.Objects, func(e inventory.Entry) bool { return e.Key() == ch.Key() && e.Adopted })
}

// place is where an object comes: namespaces, definitions, and then each component.
func (p *Plan) place(e inventory.Entry) int {
	switch {
	case e.IsNamespace():
		return 0
	case e.IsCRD():
		return 1
	}
	return 2 + slices.Index(p.Components, e.Component)
}

// report joins errors: conflicts first, with their remedy.
func report(failed []error) error {
	var conflicts, others []string
	fields := 0
	for _, err := range failed {
		found := (*cluster.Conflict)(nil)
		switch {
		case err == nil:
		case errors.As(err, &found):
			conflicts = append(conflicts, err.Error())
			fields += len(found.Fields)
		case len(others) < maxErrors:
			others = append(others, err.Error())
		}
	}
	if len(conflicts) > 0 {
		lines := strings.Split(strings.Join(conflicts, "\n"), "\n")
		if more := len(lines) - maxErrors; more > 0 {
			lines = append(lines[:maxErrors], fmt.Sprintf("and %d more", more))
		}
		others = append(others, fmt.Sprintf(
			"%d fields have other values, which others manage:\n%s\nSet the same values, have their managers give them up, choose other names or "+
				"another --revision, or take them over with --force",
			fields, strings.Join(lines, "\n")))
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed: %s", strings.Join(others, "\n"))
}

// scope says whether a kind is in namespaces; kinds of the installation's own definitions are known beforehand.
func scope(c *cluster.Client, planned map[cluster.ID]bool, id cluster.ID) (bool, error) {
	if namespaced, ok := planned[kind(id)]; ok {
		return namespaced, nil
	}
	namespaced, err := c.Scope(id)
	if meta.IsNoMatchError(err) {
		return false, fmt.Errorf("%s: the API server has no kind %s of %s/%s: install its CustomResourceDefinition first, or an API server "+
			"that has it", id, id.Kind, id.Group, id.Version)
	}
	return namespaced, err
}

// comparison compares single objects.
type comparison struct {
	client *cluster.Client
	// made are the namespaces that the installation makes, defined the kinds whose definitions it makes.
	made    map[string]bool
	defined map[cluster.ID]bool
	// scaled are the workloads that HorizontalPodAutoscalers of the installation scale, with the fewest Pods of each.
	scaled map[cluster.ID]int64
	force  bool
	// show is true if nothing will be applied.
	show bool
	// repair is described at NewRepair; record and others are the inventories of the revision, and all.
	repair bool
	record *inventory.Record
	others []*inventory.Record
	newer  inventory.Holders
}

// change decides what is done with an object, by applying it without effect.
func (l *comparison) change(ctx context.Context, it item) (*Change, error) {
	live, err := l.client.Get(ctx, it.ID)
	if err != nil {
		return nil, err
	}
	ch := &Change{Entry: it.Entry, Action: Configure, Live: live, want: it.object}
	l.hold(ch)
	if l.defined[kind(it.ID)] {
		// What is there goes with the definition that is being deleted.
		ch.Action, ch.Live, ch.After = Create, nil, ch.want
		return ch, nil
	}
	if live == nil || live.GetDeletionTimestamp() != nil {
		ch.Action = Create
	}
	if (it.IsNamespace() || it.IsCRD() && !l.force) && ch.Action != Create && cluster.OwnedFields(live) == "" {
		return ch, ch.leave()
	}
	if ch.Action == Create && (l.made[it.Namespace] || live != nil) {
		ch.After = ch.want
		return ch, nil
	}
	after, err := l.dryRun(ctx, ch)
	down, conflict := (*cluster.WebhookDown)(nil), (*cluster.Conflict)(nil)
	switch {
	case errors.As(err, &down):
		ch.Unsure, ch.After = true, ch.want
		return ch, nil
	case it.IsCRD() && ch.Action != Create && errors.As(err, &conflict):
		return ch, ch.leave()
	case ch.Action == Create && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)):
		// The Role of a binding is applied before it, and so is the definition that serves a version.
		ch.After = ch.want
		return ch, nil
	case err != nil:
		if err := l.cannotChange(ctx, ch, err); err != nil {
			return nil, err
		}
	case staysHeadless(ch, after):
		ch.Action, ch.After, ch.Fields = Recreate, ch.want, append(ch.Fields, clusterIP)
	case ch.Action != Create && equal(live, after):
		ch.Action, ch.After = Unchanged, after
	default:
		ch.After = after
	}
	if _, held := l.newer[ch.Key()]; held && (ch.Action == Configure || ch.Action == Recreate) {
		ch.Action, ch.After = Unchanged, live
	}
	return ch, nil
}

// dryRun applies without effect. Fields that the cluster decides are left to it; with force the others are taken over.
func (l *comparison) dryRun(ctx context.Context, ch *Change) (*unstructured.Unstructured, error) {
	after, err := l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true})
	found := (*cluster.Conflict)(nil)
	if !errors.As(err, &found) {
		return after, err
	}
	_, autoscaled := l.scaled[ch.Key()]
	if ch.want = yield(ch.want, found.Fields, autoscaled && !ch.raised); ch.want != nil {
		after, err = l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true})
	}
	if errors.As(err, &found) && raisedAlone(ch, found) {
		ch.force = true
		return l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true, Force: true})
	}
	if errors.As(err, &found) && l.record.Has(ch.ID) {
		if found, err = l.lapsed(ctx, ch, found); err != nil {
			return nil, err
		}
		if found == nil {
			ch.force = true
			return l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true, Force: true})
		}
		err = found
	}
	if errors.As(err, &found) && l.mayRepair(ch) {
		if ch.want, ch.repaired = yieldScale(ch.want, found.Fields), true; ch.want != nil {
			after, err = l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true})
		}
	}
	if errors.As(err, &found) && l.show && !l.force {
		ch.Managed = found.Fields
	}
	if errors.As(err, &found) && (l.force || ch.repaired || l.show) {
		ch.force = true
		after, err = l.client.Apply(ctx, ch.want, cluster.ApplyOptions{DryRun: true, Force: true})
	}
	return after, err
}

// WhoManages says which fields others manage; "" if there are none.
func (ch *Change) WhoManages() string {
	var list []string
	for _, f := range ch.Managed {
		list = append(list, fmt.Sprintf("%s is managed by %s", f.Field, f.Manager))
	}
	return strings.Join(list, ", ")
}

// Summary counts what the plan does, for people.
func (p *Plan) Summary() string {
	text := summary(p.Changes)
	pruned := 0
	for _, v := range p.Prunes {
		if v.Fate == Delete {
			pruned++
		}
	}
	if pruned > 0 {
		text += fmt.Sprintf(", %d deleted", pruned)
	}
	return text
}
