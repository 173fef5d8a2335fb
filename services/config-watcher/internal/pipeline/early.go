package pipeline

import (
	"maps"
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// complete takes over what is in the queue before the first revision, and reports whether all is known that it needs.
func (p *Pipeline) complete() bool {
	if p.ends.Complete == nil {
		return true
	}
	known := p.ends.Complete() // before the queue is taken: what is known then is in it
	p.mu.Lock()
	taken := p.queue.takeAll()
	p.mu.Unlock()
	delta := p.apply(taken.changes)
	p.early = joined(p.early, delta)
	if !delta.Judged.Rewanted {
		return known
	}
	p.ends.Wanted(delta.Judged.Wanted)
	return false
}

// joined is the effect of two deltas before the first revision, of which the second came later. Nothing is removed:
// there is no earlier revision.
func joined(first, second normalise.Delta) normalise.Delta {
	upserts := map[resource.Key]*configv1.Resource{}
	statuses, resources := map[object.Key]*gatewayapi.Status{}, map[object.Key]bool{}
	out := normalise.Delta{}
	for _, d := range []normalise.Delta{first, second} {
		for _, r := range d.Upserts {
			upserts[resource.KeyOf(r.GetKey())] = r
		}
		for _, k := range d.Removed {
			delete(upserts, k)
		}
		maps.Copy(statuses, d.Judged.Statuses)
		for _, k := range d.Judged.Resources {
			resources[k] = true
		}
		out.Errors, out.Discovered = append(out.Errors, d.Errors...), append(out.Discovered, d.Discovered...)
		if d.Judged.Rewanted {
			out.Judged.Wanted, out.Judged.Rewanted = d.Judged.Wanted, true
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(upserts), resource.Key.Compare) {
		out.Upserts = append(out.Upserts, upserts[k])
	}
	out.Judged.Statuses, out.Judged.Resources = statuses, slices.SortedFunc(maps.Keys(resources), object.Key.Compare)
	return out
}
