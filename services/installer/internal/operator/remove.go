package operator

import (
	"context"
	"slices"

	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// remove uninstalls what a resource that is deleted has installed, as `fairlead uninstall --revision` does, and then
// lets it go.
func (r *reconciler) remove(ctx context.Context, it *resource) error {
	all, err := inventory.List(ctx, r.client, it.meshNamespace())
	if err != nil {
		return r.fail(ctx, it, status{}, err)
	}
	if mine := ofHolder(all, it); len(mine) > 0 {
		removal, err := apply.NewRemoval(ctx, r.client, mine, all, apply.RemovalOptions{})
		if err != nil {
			return r.fail(ctx, it, status{}, err)
		}
		r.Log.Info("an installation is removed", "resource", it.key().String(), "revisions", inventory.Revisions(mine))
		for _, v := range removal.Verdicts {
			if v.Fate == apply.Keep && v.Component == "tag" {
				r.Log.Warn("a tag stays", "resource", it.key().String(), "object", v.String(), "reason", v.Reason)
			}
		}
		// What is deleted is not made again.
		r.owned.follow(ctx, it.key(), nil)
		p := r.progress(ctx, it, nil, "")
		if err := removal.Run(ctx, r.client, apply.Options{Wait: true, Timeout: r.options.WaitTimeout, Progress: p}); err != nil {
			return r.fail(ctx, it, p.failed(err), err)
		}
	}
	if err := r.letGo(ctx, it); err != nil {
		return r.fail(ctx, it, status{}, err)
	}
	r.forget(it.key())
	return nil
}

// release lets a resource that is ignored and deleted go; what it has installed stays, as an installation of the
// command line.
func (r *reconciler) release(ctx context.Context, it *resource) error {
	all, err := inventory.List(ctx, r.client, it.meshNamespace())
	if err != nil {
		return err
	}
	for _, rec := range ofHolder(all, it) {
		rec.Holder = nil
		if err := rec.Save(ctx, r.client); err != nil {
			return err
		}
	}
	r.forget(it.key())
	return r.letGo(ctx, it)
}

// ofHolder are the records that a resource holds.
func ofHolder(all []*inventory.Record, it *resource) []*inventory.Record {
	return slices.DeleteFunc(slices.Clone(all), func(rec *inventory.Record) bool { return !rec.Holder.Is(it.GetNamespace(), it.GetName()) })
}

func (r *reconciler) letGo(ctx context.Context, it *resource) error {
	return r.finalize(ctx, it, func(list []string) []string {
		return slices.DeleteFunc(list, func(name string) bool { return name == Finalizer })
	})
}
