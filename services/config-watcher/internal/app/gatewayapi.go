package app

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/labelled"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/status"

	"context"
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

	mu   sync.Mutex
	keys []object.Key
	// defaults are the ConfigMaps with overlays for the Gateways of a class.
	defaults []object.Key
	since    time.Time
}

// want takes over what is wanted.
func (r *referred) want(keys []object.Key) {
	if r.wanted == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys = keys; r.since.IsZero() {
		r.since = r.clock.Now()
	}
	r.judge()
}

// setDefaults takes over the ConfigMaps with overlays for the Gateways of a class.
func (r *referred) setDefaults(maps []labelled.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.defaults = nil
	for _, m := range maps {
		r.defaults = append(r.defaults, object.Key{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name})
	}
	r.judge()
}

// judge tells the source what is wanted. It is called with mu held.
func (r *referred) judge() {
	all := slices.SortedFunc(slices.Values(slices.Concat(r.keys, r.defaults)), object.Key.Compare)
	r.wanted.Judge(slices.Compact(all))
}

// followLabels follows what labels alone say: which revisions tags stand for, and which ConfigMaps are a class's.
func (s *Server) followLabels(cluster *kubernetes.Source, owner *status.Owner, references *referred, root *rootNamespace) {
	s.Task("revision tags", func(ctx context.Context) error {
		return labelled.Follow(ctx, labelled.Config{
			API: cluster.API(), Label: contract.TagLabel, Log: s.Log, Resource: admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"),
			Changed: func(hooks []labelled.Object) {
				tags := map[string]string{}
				for _, h := range hooks {
					tags[h.Labels[contract.TagLabel]] = h.Labels[contract.RevisionLabel]
				}
				owner.SetTags(tags)
			},
		})
	})
	s.Task("defaults of GatewayClasses", func(ctx context.Context) error {
		return root.follow(ctx, func(ctx context.Context, namespace string) error {
			return labelled.Follow(ctx, labelled.Config{
				API: cluster.API(), Namespace: namespace, Label: gatewaydeploy.DefaultsLabel, Log: s.Log,
				Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Changed: references.setDefaults,
			})
		})
	})
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
