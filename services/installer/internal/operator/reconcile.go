package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// fieldManager is that of what the operator writes into the resources themselves.
const fieldManager = "fairlead-operator"

func (r *reconciler) api(it *resource) dynamic.ResourceInterface {
	return r.client.Dynamic().Resource(Resource).Namespace(it.GetNamespace())
}

// reconcile makes a resource the cluster's. If whole is false and it is installed, only the readiness of its components
// is looked at. It returns after which time it has to be called again. An error says that it has to be tried again;
// what the resource itself has to change is none, but its status.
func (r *reconciler) reconcile(ctx context.Context, k types.NamespacedName, whole bool) (again time.Duration, err error) {
	it := r.resource(k)
	if it == nil {
		r.forget(k)
		return 0, nil
	}
	revision := r.revision(it)
	if foreign, err := r.foreign(ctx, revision); err != nil || foreign {
		r.forget(k)
		return r.options.Resync, err
	}
	switch {
	case it.ignored() && it.deleting() && it.finalized():
		return 0, r.release(ctx, it)
	case it.ignored():
		r.forget(k)
		return 0, nil
	case it.deleting() && it.finalized():
		return 0, r.remove(ctx, it)
	case it.deleting():
		return 0, nil
	}
	records, err := inventory.List(ctx, r.client, it.meshNamespace())
	if err != nil {
		return 0, r.fail(ctx, it, status{}, err)
	}
	if mine := ofHolder(records, it); !whole && len(mine) == 1 && mine[0].State == inventory.Installed {
		return r.look(ctx, it, mine[0])
	}
	req, warnings, err := r.request(it)
	if err != nil {
		return r.refuse(ctx, it, err.Error())
	}
	refused, err := r.claim(ctx, it, req.Revision, req.Namespace, records)
	if err != nil {
		return 0, r.fail(ctx, it, status{}, err)
	}
	if refused != "" {
		return r.refuse(ctx, it, refused)
	}
	plan, err := apply.NewRepair(ctx, r.client, req)
	if err != nil {
		return 0, r.fail(ctx, it, status{}, remedy(err))
	}
	r.warn(k, append(warnings, plan.Notes...))
	if err := r.apply(ctx, it, plan); err != nil {
		return 0, err
	}
	if r.owned.follow(r.term, k, plan.Record.Objects) {
		r.compare(k, lookAgain/5) // what was changed before the watches began
	}
	return r.look(ctx, it, plan.Record)
}

// look writes how ready an installation is.
func (r *reconciler) look(ctx context.Context, it *resource, rec *inventory.Record) (time.Duration, error) {
	s, err := r.health(ctx, rec)
	if err != nil {
		return 0, r.fail(ctx, it, s, err)
	}
	for _, text := range r.warnings(it.key()) {
		s.Message = strings.TrimPrefix(s.Message+"\nwarning: "+text, "\n")
	}
	if err := r.write(ctx, it, s); err != nil {
		return 0, err
	}
	r.metrics.reconciles.WithLabelValues(resultOK).Inc()
	if s.Status != Healthy {
		return lookAgain, nil
	}
	return r.options.Resync, nil
}

// apply makes a plan's changes. What others have changed is taken back at once; a change of the resource is applied
// component by component, each of which is waited for.
func (r *reconciler) apply(ctx context.Context, it *resource, plan *apply.Plan) error {
	holder := inventory.Holder{Namespace: it.GetNamespace(), Name: it.GetName(), Lease: r.lease}
	settled := plan.Settled()
	if settled && !plan.Changed() && plan.Record.Holder != nil && *plan.Record.Holder == holder && it.finalized() {
		return nil
	}
	if !it.finalized() {
		if err := r.finalize(ctx, it, func(list []string) []string { return append(list, Finalizer) }); err != nil {
			return r.fail(ctx, it, status{}, err)
		}
	}
	from := "of an IstioOperator"
	if plan.Record.Stored() && plan.Record.Holder == nil {
		from = "of the command line, which is taken over"
	}
	r.Log.Info("an installation is changed", "resource", it.key().String(), "revision", plan.Revision, "installation", from, "repair", settled,
		"changes", plan.Summary())
	plan.Record.Holder = &holder
	p := r.progress(ctx, it, plan.Components, plan.Package)
	if !settled {
		p.s.Message = plan.Summary()
		p.write()
	}
	repaired := 0
	for _, ch := range plan.Changes {
		if settled && ch.Action != apply.Unchanged {
			repaired++
		}
	}
	if err := plan.Apply(ctx, r.client, apply.Options{Wait: !settled, Timeout: r.options.WaitTimeout, Progress: p}); err != nil {
		return r.fail(ctx, it, p.failed(err), err)
	}
	if repaired > 0 {
		r.metrics.repairs.Add(float64(repaired))
		r.repaired(it.key())
	}
	return nil
}

// refuse says in the status what the resource has to change. Nothing else is written.
func (r *reconciler) refuse(ctx context.Context, it *resource, text string) (time.Duration, error) {
	r.metrics.reconciles.WithLabelValues(resultRefused).Inc()
	return r.options.Resync, r.write(ctx, it, status{Status: Failed, Message: text, Components: componentsOf(it)})
}

// componentsOf are the components that the status has: what is installed is not changed by a refusal.
func componentsOf(it *resource) map[string]component {
	text, err := json.Marshal(it.Object["status"])
	var s status
	if err != nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	return s.Components
}

// fail writes an error into the status, and returns it. What was overtaken by a change of the resource says nothing.
func (r *reconciler) fail(ctx context.Context, it *resource, s status, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s.Status, s.Message = Failed, err.Error()
	if s.Components == nil {
		s.Components = componentsOf(it)
	}
	if failure := r.write(ctx, it, s); failure != nil {
		r.Log.Warn("a status cannot be written", "resource", it.key().String(), "error", failure)
	}
	return err
}

// remedy names the command that has --force: an operator takes nothing from others.
func remedy(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "--force", "`fairlead install --force`"))
}

// maxConflicts bounds how often a finalizer is written again because the resource was changed meanwhile.
const maxConflicts = 5

// finalize changes the finalizers of a resource.
func (r *reconciler) finalize(ctx context.Context, it *resource, edit func([]string) []string) error {
	for range maxConflicts {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"finalizers": edit(slices.Clone(it.GetFinalizers())), "uid": it.GetUID(), "resourceVersion": it.GetResourceVersion(),
		}})
		if err != nil {
			return err
		}
		live, err := r.api(it).Patch(ctx, it.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if apierrors.IsConflict(err) {
			live, err = r.api(it).Get(ctx, it.GetName(), metav1.GetOptions{})
			if err == nil && live.GetUID() == it.GetUID() {
				it.SetFinalizers(live.GetFinalizers())
				it.SetResourceVersion(live.GetResourceVersion())
				continue
			}
		}
		if apierrors.IsNotFound(err) || err == nil && live.GetUID() != it.GetUID() {
			return nil // it is gone
		}
		if err != nil {
			return fmt.Errorf("finalizer %s of %s: %w", Finalizer, it, err)
		}
		it.SetFinalizers(live.GetFinalizers())
		it.SetResourceVersion(live.GetResourceVersion())
		return nil
	}
	return fmt.Errorf("finalizer %s of %s cannot be written: the resource changes all the time", Finalizer, it)
}
