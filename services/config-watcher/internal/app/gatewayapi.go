package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// completeWithin is how long the first revision waits for the Secrets and ConfigMaps that objects of the Gateway API
// name.
const completeWithin = 5 * time.Second

// referred is what objects of the Gateway API refer to, which a source reads one by one.
type referred struct {
	wanted *credential.Wanted // nil without such a source
	lookup credential.Lookup
	table  *credential.Table
	clock  clock.Clock

	mu    sync.Mutex
	keys  []object.Key
	since time.Time
}

// want takes over what is wanted.
func (r *referred) want(keys []object.Key) {
	if r.wanted == nil {
		return
	}
	r.mu.Lock()
	if r.keys = keys; r.since.IsZero() {
		r.since = r.clock.Now()
	}
	r.mu.Unlock()
	r.wanted.Judge(keys)
}

// complete reports whether it is known of all that is wanted whether it is there, or whether that takes too long.
func (r *referred) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.keys) == 0 || r.clock.Now().Sub(r.since) >= completeWithin {
		return true
	}
	for _, k := range r.keys {
		if _, reading := r.lookup.Reading(k); reading && !r.table.Has(k) {
			return false
		}
	}
	return true
}

// accessEnded records that a proxy may not have a Secret any more that it was handed.
func (s *Server) accessEnded(to *audit.Recorder) func(credential.Ref, string) {
	return func(ref credential.Ref, identity string) {
		secret := object.Key{Kind: "Secret", Namespace: ref.Namespace, Name: ref.Name}
		s.Log.Info("a proxy may not have a Secret any more that it was handed", "identity", identity, "object", secret.String())
		if err := to.Ended(identity, secret); err != nil {
			s.Log.Error("the end of an access was not audited", "identity", identity, "object", secret.String(), "error", err)
		}
	}
}

// grantsEnded records that ReferenceGrants have ended that were in use.
func (s *Server) grantsEnded(to *audit.Recorder, ended map[gatewayapi.Access]struct{}) {
	who := map[string][]object.Key{}
	for a := range ended {
		identity := a.Kind + "s of namespace " + a.Namespace
		who[identity] = append(who[identity], a.To)
	}
	for identity, objects := range who {
		slices.SortFunc(objects, object.Key.Compare)
		if err := to.Revoked(identity, objects...); err != nil {
			s.Log.Error("the end of an access was not audited", "identity", identity, "objects", len(objects), "first", objects[0].String(),
				"error", err)
		}
	}
}

// expiryInterval is how long a warning that a certificate has expired may be late.
const expiryInterval = time.Minute

// passTime has expired certificates noticed, until ctx ends.
func (s *Server) passTime(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Clock.After(expiryInterval):
			s.pipeline.Submit(ctx, []normalise.Change{normalise.TimePassed()})
		}
	}
}
