package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

const (
	// retryEvery is the time between two attempts at what the cluster is not ready for.
	retryEvery = 200 * time.Millisecond
	// establish bounds how long a kind is waited for after its definition was applied.
	establish = 30 * time.Second
)

// run is one Apply.
type run struct {
	*Plan
	client *cluster.Client
	Options
	// until ends when waiting does.
	until context.Context
}

// Apply makes the plan's changes. It stops at the first error; what is done is in the inventory, so that the next
// installation of the revision completes it. A plan is applied once.
func (p *Plan) Apply(ctx context.Context, c *cluster.Client, o Options) error {
	if err := p.MayRecreate(o); err != nil {
		return err
	}
	until, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	r := &run{Plan: p, client: c, Options: o, until: until}
	if err := r.stage(ctx, stageNamespaces, r.changesAt(0)); err != nil {
		return err
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.definitions(ctx); err != nil {
		return err
	}
	// An autoscaler that goes would put the replicas back.
	if err := r.prune(ctx, isAutoscaler); err != nil {
		return err
	}
	for i, component := range p.Components {
		if err := r.component(ctx, component, r.changesAt(2+i)); err != nil {
			return fmt.Errorf("component %s: %w", component, err)
		}
	}
	if err := r.prune(ctx, func(id cluster.ID) bool { return !isAutoscaler(id) }); err != nil {
		return err
	}
	return r.finish(ctx)
}

// changesAt returns the changes of one place: namespaces, definitions, or a component.
func (r *run) changesAt(place int) []*Change {
	var out []*Change
	for _, ch := range r.Changes {
		if r.place(ch.Entry) == place {
			out = append(out, ch)
		}
	}
	return out
}

// now is the installation with the time.
func (r *run) now() inventory.Installation {
	now := r.Installation
	now.At = time.Now().UTC().Format(time.RFC3339)
	return now
}

// begin stores the union of what was installed and what will be, unless nothing is to be done.
func (r *run) begin(ctx context.Context) error {
	if !r.Changed() {
		return nil
	}
	r.Record.Begin(r.now())
	r.Record.Objects = inventory.Union(r.entries(), r.Record.Objects)
	return r.Record.Save(ctx, r.client)
}

// finish reselects the inventory to what is installed, and to what Keep keeps.
func (r *run) finish(ctx context.Context) error {
	r.Record.Remember(r.now())
	var kept []inventory.Entry
	for _, v := range r.Prunes {
		if v.Fate == Keep {
			kept = append(kept, v.Entry)
		}
	}
	r.Record.Objects = inventory.Union(r.entries(), kept)
	return r.Record.Save(ctx, r.client)
}

// definitions applies the CustomResourceDefinitions, and waits until the API server has their kinds.
func (r *run) definitions(ctx context.Context) error {
	changes := r.changesAt(1)
	if err := r.stage(ctx, stageDefinitions, changes); err != nil {
		return err
	}
	var changed []cluster.ID
	for _, ch := range changes {
		if ch.Action != Unchanged {
			changed = append(changed, ch.ID)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	until, cancel := context.WithTimeout(ctx, establish)
	defer cancel()
	err := wait.Ready(until, r.client, changed, func(string) {})
	r.client.Reset()
	return err
}

// stage applies changes and ends them with a line of progress.
func (r *run) stage(ctx context.Context, name string, changes []*Change) error {
	if len(changes) == 0 {
		return nil
	}
	if err := r.applyAll(ctx, name, changes, 0, len(changes)); err != nil {
		return err
	}
	r.Progress.Done(name, summary(changes))
	return nil
}

// component applies a component: what others must not meet before it is ready comes after the wait for it.
func (r *run) component(ctx context.Context, name string, changes []*Change) error {
	var early, late []*Change
	var workloads []cluster.ID
	for _, ch := range changes {
		if strings.HasSuffix(ch.Kind, "WebhookConfiguration") || strings.HasPrefix(ch.Kind, "ValidatingAdmissionPolicy") ||
			reselects(ch, changes) {
			late = append(late, ch)
			continue
		}
		if early = append(early, ch); wait.Waits(ch.ID) {
			workloads = append(workloads, ch.ID)
		}
	}
	if err := r.applyAll(ctx, name, early, 0, len(changes)); err != nil {
		return err
	}
	if r.Wait && len(workloads) > 0 {
		tell := func(text string) { r.Progress.Step(name, len(early), len(changes), text) }
		if err := wait.Ready(r.until, r.client, workloads, tell); err != nil {
			return err
		}
	}
	if err := r.applyAll(ctx, name, late, len(early), len(changes)); err != nil {
		return err
	}
	r.Progress.Done(name, summary(changes))
	return nil
}

// reselects reports whether a change gives a Service another selector, while the one that it has leads to Pods of the
// component's workloads before and after the change: until the new Pods are ready, the new selector might lead to none.
func reselects(ch *Change, component []*Change) bool {
	if ch.Kind != "Service" || ch.Live == nil || ch.After == nil {
		return false
	}
	was, _, _ := unstructured.NestedStringMap(ch.Live.Object, "spec", "selector")
	now, _, _ := unstructured.NestedStringMap(ch.After.Object, "spec", "selector")
	if len(was) == 0 || maps.Equal(was, now) {
		return false
	}
	leadsTo := labels.SelectorFromSet(was)
	return slices.ContainsFunc(component, func(w *Change) bool {
		if w.After == nil || w.Namespace != ch.Namespace || !wait.Waits(w.ID) {
			return false
		}
		pods, _, _ := unstructured.NestedStringMap(w.After.Object, "spec", "template", "metadata", "labels")
		return leadsTo.Matches(labels.Set(pods))
	})
}

func (r *run) applyAll(ctx context.Context, name string, changes []*Change, done, total int) error {
	for i, ch := range changes {
		if ch.Action == Unchanged {
			continue
		}
		r.Progress.Step(name, done+i, total, ch.String())
		tell := func(text string) { r.Progress.Step(name, done+i, total, text) }
		if err := r.prove(ctx, ch, tell); err != nil {
			return err
		}
		if err := r.applyOne(ctx, ch, tell); err != nil {
			return err
		}
	}
	return nil
}

// applyOne applies one object, and tells what it waits for. It tries again while the cluster is not ready for it: while
// the object is being deleted, while its kind was only just defined, and while an admission webhook of the installation
// starts.
func (r *run) applyOne(ctx context.Context, ch *Change, tell func(string)) error {
	if ch.Action == Recreate {
		if err := r.client.Delete(ctx, ch.ID, ch.Live.GetUID()); err != nil {
			return err
		}
	}
	if ch.Action == Recreate || ch.Live != nil && ch.Live.GetDeletionTimestamp() != nil {
		if err := wait.Gone(r.until, r.client, []cluster.ID{ch.ID}, tell); err != nil {
			return fmt.Errorf("%s is being deleted, and cannot be made again before: %w", ch.ID, err)
		}
	}
	for began := time.Now(); ; {
		_, err := r.client.Apply(ctx, ch.want, cluster.ApplyOptions{Force: ch.force})
		down, conflict := (*cluster.WebhookDown)(nil), (*cluster.Conflict)(nil)
		switch {
		case err == nil:
			return nil
		case ch.held && errors.As(err, &conflict): // the autoscaler has changed them since the plan was made
			ch.want, ch.held = yield(ch.want, conflict.Fields, true), false
			continue
		case errors.As(err, &down) && r.Wait && r.until.Err() == nil:
			tell(fmt.Sprintf("%s: admission webhook %s does not answer", ch.ID, down.Webhook))
		case cluster.IsUnserved(err) && time.Since(began) < establish:
			r.client.Reset()
		default:
			return err
		}
		timer := time.NewTimer(retryEvery)
		select {
		case <-timer.C:
		case <-r.until.Done():
			timer.Stop()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
	}
}

// summary counts changes, for people.
func summary(changes []*Change) string {
	n := map[Action]int{}
	for _, ch := range changes {
		n[ch.Action]++
	}
	var parts []string
	for _, p := range []struct {
		action Action
		word   string
	}{{Create, "created"}, {Configure, "configured"}, {Recreate, "made anew"}, {Unchanged, "unchanged"}} {
		if n[p.action] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[p.action], p.word))
		}
	}
	return strings.Join(parts, ", ")
}

// prune deletes what the last installation has and this one has not, of some kinds.
func (r *run) prune(ctx context.Context, which func(cluster.ID) bool) error {
	var gone []Verdict
	for _, v := range r.Prunes {
		if v.Fate == Delete && which(v.ID) {
			gone = append(gone, v)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	// Another installation that ran meanwhile may have applied what would be deleted.
	if err := r.Record.Unchanged(ctx, r.client); err != nil {
		return err
	}
	d := deletion{client: r.client, Options: r.Options, until: r.until, stage: stagePrune}
	if err := d.run(ctx, gone); err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	r.Progress.Done(stagePrune, fmt.Sprintf("%d deleted", len(gone)))
	return nil
}
