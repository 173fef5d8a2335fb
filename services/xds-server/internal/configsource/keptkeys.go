package configsource

import (
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// withheldKeys is a resource that says that there are no keys of a source, since config-watcher cannot reach it or has
// not tried yet. It does not count before a time: until then the mesh has the keys that it had. A config-watcher that
// starts during an outage of an issuer has no last good ones. The mesh bounds how many are withheld.
type withheldKeys struct {
	resource *configv1.Resource
	until    time.Time
}

// withhold returns the changes of a revision without those that are withheld. It notes the others.
func (a *applier) withhold(r *revision) (upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	upserts, removed = r.upserts(), r.removals()
	for _, k := range removed {
		delete(a.withheld, mesh.KeyOf(k))
	}
	passed := upserts[:0]
	for _, u := range upserts {
		if u.GetKey().GetKind() != mesh.KindJwks || !a.withholds(u) {
			passed = append(passed, u)
		}
	}
	return passed, removed
}

func (a *applier) withholds(r *configv1.Resource) bool {
	key, source := mesh.KeyOf(r.GetKey()), contract.KeySource{URI: r.GetJwks().GetUri(), Issuer: r.GetJwks().GetIssuer()}
	now := a.cfg.Clock.Now()
	former, withheld := a.withheld[key]
	delete(a.withheld, key)
	switch r.GetJwks().GetProblem() {
	case configv1.JwksProblem_JWKS_PROBLEM_PENDING, configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE:
	default:
		return false
	}
	if len(a.state.Jwks(source).GetKeys()) == 0 {
		return false
	}
	if !withheld {
		former.until = now.Add(contract.KeysMaxAge)
		a.cfg.Log.Warn("config-watcher has not reached a source of keys; the last ones stay in use", "source", source.String(),
			"until", former.until)
	} else if !now.Before(former.until) {
		a.cfg.Log.Error("the last keys of a source that config-watcher does not reach have become too old; tokens that they verified are "+
			"refused", "source", source.String())
		return false
	}
	a.withheld[key] = withheldKeys{r, former.until}
	return true
}

// due lists what is withheld and counts by now, and says when the next one will; the zero time if there is none.
func (a *applier) due(now time.Time) (due []change, next time.Time) {
	for _, w := range a.withheld {
		switch {
		case !now.Before(w.until):
			due = append(due, change{key: w.resource.GetKey(), upsert: w.resource})
		case next.IsZero() || w.until.Before(next):
			next = w.until
		}
	}
	return due, next
}

// applyDue applies what was withheld. The lane of endpoints goes with it: everything before the position of the queue
// counts as applied.
func (a *applier) applyDue(due []change) {
	a.apply(a.cfg.Apply, func(q *queue) []*revision {
		r := &revision{}
		r.List = due
		return []*revision{q.takeEndpoints(), r}
	})
}
