package kubernetes

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/notify"
)

const (
	// discoverEvery is the interval of asking which kinds the API server has. A change of a CustomResourceDefinition
	// makes it ask at once, and then every discoverSoon for discoverLong, because it serves a new kind a moment later.
	discoverEvery = 10 * time.Second
	discoverSoon  = time.Second
	discoverLong  = 15 * time.Second
	// A kind that the API server has never had is known to be absent after absentFirst answers without it. One that it
	// had is gone after goneAnswers of them over at least goneAfter: while an API server starts, its answers lack the
	// kinds of CustomResourceDefinitions.
	absentFirst = 2
	goneAnswers = 3
	goneAfter   = 10 * time.Second
)

// discovering keeps the watchers in line with the kinds that the API server has.
func (s *Source) discovering(ctx context.Context) error {
	var hurry time.Time // until when to ask every discoverSoon
	for {
		now := s.cfg.Clock.Now()
		unsure := s.discoverOnce(ctx)
		wait := discoverEvery
		if unsure || now.Before(hurry) {
			wait = discoverSoon
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.cfg.Clock.After(wait):
		case <-s.rediscover:
			hurry = s.cfg.Clock.Now().Add(discoverLong)
		}
	}
}

// discoverOnce asks once. It reports whether to ask again soon.
func (s *Source) discoverOnce(ctx context.Context) (unsure bool) {
	if s.gate.wait(ctx) != nil {
		return false
	}
	have, err := s.api.Load().served(ctx)
	if ctx.Err() != nil {
		return false
	}
	var saved map[*kind][]*entry
	if err == nil {
		saved = s.savedAbsent(have)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer notify.Wake(s.wake)
	if err != nil {
		f := &failure{err: err, since: s.cfg.Clock.Now()}
		var answer apierrors.APIStatus
		switch {
		case !errors.As(err, &answer) && !errors.Is(err, errNotReady):
			s.gate.failed(err)
		case s.discover != nil:
			f.since = s.discover.since
			s.discover = f
		default:
			s.cfg.Log.Warn("API server does not tell which kinds it has", "source", s.name, "error", err)
			s.discover = f
		}
		return true
	}
	s.discover = nil
	for gk, k := range s.kinds {
		if !s.isLookedFor(gk, k) {
			continue
		}
		switch now, known := have.find(k.desc.Versions, gk); {
		case !known:
			unsure = unsure || !k.settled
		case now == served{}:
			unsure = s.missing(k, saved[k]) || unsure
		default:
			k.absent = 0
			if w := k.watchers[types.NamespacedName{}]; w == nil || k.served != now {
				s.cfg.Log.Debug("kind is watched", "source", s.name, "kind", k.String(), "version", now.version)
				k.served = now
				s.start(k, types.NamespacedName{})
			}
		}
	}
	return unsure
}

// missing counts an answer without the kind, and takes over that it is gone when that is certain. saved are its objects
// of an earlier run if none has been read in this one. It reports whether it is not certain yet. It is called with mu
// held.
func (s *Source) missing(k *kind, saved []*entry) (unsure bool) {
	now := s.cfg.Clock.Now()
	if k.absent++; k.absent == 1 {
		k.absentSince = now
	}
	w := k.watchers[types.NamespacedName{}]
	if w == nil && len(k.objects) == 0 {
		if k.absent < absentFirst && !k.settled {
			return true
		}
		if !k.read {
			s.restore(k, saved)
			k.readAll(s, nil, 0, "")
		}
		k.settled = true
		return !k.guard.Due().IsZero()
	}
	if k.absent < goneAnswers || now.Sub(k.absentSince) < goneAfter {
		return true
	}
	if w != nil && w.failure == nil {
		return true // it is still served
	}
	if k.guard.Due().IsZero() {
		s.cfg.Log.Warn("kind is gone from the API server", "source", s.name, "kind", k.String(), "objects", len(k.objects))
	}
	s.halt(k, types.NamespacedName{})
	k.served, k.settled = served{}, true
	k.readAll(s, nil, 0, "")
	return !k.guard.Due().IsZero() // the next answer confirms it
}

// resources is an answer about the kinds that an API server has.
type resources struct {
	kinds map[schema.GroupVersionKind]served
	// broken are the group versions of which nothing is known.
	broken map[schema.GroupVersion]bool
}

// find returns what the API server calls a kind in the first of the versions that it has; known is false if it may have
// an earlier one of which nothing is known. The result is empty if it has none.
func (r *resources) find(versions []string, gk schema.GroupKind) (found served, known bool) {
	for _, v := range versions {
		if r.broken[schema.GroupVersion{Group: gk.Group, Version: v}] {
			return served{}, false
		}
		if s, ok := r.kinds[gk.WithVersion(v)]; ok {
			return s, true
		}
	}
	return served{}, true
}

var errNotReady = errors.New("it is not ready yet")

// served asks the API server which kinds it has that can be listed and watched.
func (c *clients) served(ctx context.Context) (*resources, error) {
	if known, err := c.ready(ctx); err != nil {
		return nil, err
	} else if !known {
		return nil, errNotReady
	}
	_, lists, err := discovery.ServerGroupsAndResources(c.discovery)
	out := &resources{kinds: map[schema.GroupVersionKind]served{}, broken: map[schema.GroupVersion]bool{}}
	var partly *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &partly) {
		for gv := range partly.Groups {
			out.broken[gv] = true
		}
	} else if err != nil {
		return nil, err
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				out.kinds[gv.WithKind(r.Kind)] = served{version: gv.Version, resource: r.Name}
			}
		}
	}
	return out, nil
}

// watchDefinitions asks again for the kinds of the API server when a CustomResourceDefinition changes. Without the
// right to watch these, a change is found at the next interval.
func (s *Source) watchDefinitions(ctx context.Context) error {
	definitions := s.api.Load().metadata.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := s.gate.wait(ctx); err != nil {
				return nil, err
			}
			return definitions.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := s.gate.wait(ctx); err != nil {
				return nil, err
			}
			return definitions.Watch(ctx, o)
		},
	}
	logger := klog.FromContext(ctx)
	wake := func() error { notify.Wake(s.rediscover); return nil }
	store := ReflectorStore{func(any, bool) error { return wake() }, func([]any, string) error { return wake() }}
	cache.NewReflectorWithOptions(lw, nil, store, cache.ReflectorOptions{
		Logger: &logger, Name: s.name, TypeDescription: "CustomResourceDefinition", Backoff: new(*s.cfg.Backoff),
	}).RunWithContext(ctx)
	return nil
}
