package kubernetes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source"
)

// backoff of a watcher whose requests are answered with errors, such as "forbidden". While nothing answers, the gate
// holds requests back instead.
var backoff = wait.Backoff{Duration: 300 * time.Millisecond, Factor: 2, Jitter: 0.3, Steps: 10, Cap: 5 * time.Second}

// deniedAfter is how long a kind must have been forbidden, without an answer before, until the first revision does not
// wait for it any more. Rights that are granted at the same time as the process starts come in time.
const deniedAfter = 5 * time.Second

// watcher follows all objects of a kind, or one of them. Its reflector calls replace with the result of each list, and
// put with events. Source.mu guards the fields below name.
type watcher struct {
	source *Source
	kind   *kind
	// name is the one object that is watched; empty for all.
	name types.NamespacedName

	stop    context.CancelFunc
	stopped bool
	// listed is true after the first list, delivered after the handler was called with it.
	listed    bool
	delivered bool
	opened    bool
	failure   *failure
	// seen is the resource version of the newest change that was put into the lanes, taking what that was when deliver
	// took the lanes, and version the one up to which all changes were delivered.
	seen, taking, version string
	// again is true while the next request must be a list; open is the watch that is open.
	again bool
	open  *converted
}

// served is what the API server calls a kind.
type served struct{ version, resource string }

// start starts a watcher, in place of the one of the same name. It is called with mu held.
func (s *Source) start(k *kind, name types.NamespacedName) {
	gvk := schema.GroupVersionKind{Group: k.desc.Group, Version: k.served.version, Kind: k.desc.Name}
	calls, err := s.api.Load().requests(gvk, k.served.resource, name.Namespace, k.desc.NewBody != nil)
	if err != nil {
		s.cfg.Log.Error("kind cannot be watched", "source", s.name, "kind", k.String(), "error", err)
		return
	}
	s.halt(k, name)
	ctx, cancel := context.WithCancel(s.ctx)
	w := &watcher{source: s, kind: k, name: name, stop: cancel}
	k.watchers[name] = w
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(&listWatch{source: s, watcher: w, requests: calls}, nil, ReflectorStore{w.put, w.replace},
		cache.ReflectorOptions{
			Logger: &logger, Name: s.name, TypeDescription: gvk.String(), Backoff: new(*s.cfg.Backoff),
		})
	s.watchers.Go(func() { r.RunWithContext(ctx) })
}

// halt stops a watcher. What it has delivered stays. It is called with mu held.
func (s *Source) halt(k *kind, name types.NamespacedName) {
	if w := k.watchers[name]; w != nil {
		w.stopped = true
		w.stop()
		delete(k.watchers, name)
	}
}

// asked takes over the outcome of a request of a watcher, a watch or a list. A list that succeeds does not prove that
// the kind can be watched.
func (s *Source) asked(ctx context.Context, w *watcher, watch bool, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := w.failure
	if err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		if before != nil && (watch || !before.watch) {
			w.failure = nil
			if before.reason() != source.ReasonUnreachable {
				s.cfg.Log.Info("kind can be read again", "source", s.name, "kind", w.kind.String(), "object", w.name.String())
			}
		}
		return
	}
	f := &failure{err: err, since: s.cfg.Clock.Now(), watch: watch}
	if before != nil && before.reason() == f.reason() {
		f.since = before.since
	}
	if f.reason() == source.ReasonUnreachable {
		s.gate.failed(err) // which says so once, for all kinds
	} else if !w.stopped && (before == nil || before.reason() != f.reason()) {
		level := slog.LevelWarn
		if w.failure = f; w.awaitsRights() && !w.listed {
			level = slog.LevelInfo // the keeper gives the right where a Gateway is new
		}
		s.cfg.Log.Log(ctx, level, "kind cannot be read, its last objects stay", "source", s.name, "kind", w.kind.String(), "object",
			w.name.String(), "error", err)
	}
	w.failure = f
	if w.kind.byName() {
		s.lookedUp()
	}
	notify.Wake(s.wake)
}

// awaitsRights reports whether the API server refuses a Secret or ConfigMap that an object refers to. Rights for these
// come one namespace at a time. It is called with Source.mu held.
func (w *watcher) awaitsRights() bool {
	return w.name.Name != "" && w.name != meshConfig && w.failure != nil && w.failure.reason() == source.ReasonForbidden
}

// watching takes over that a watch is open.
func (s *Source) watching(w *watcher, c *converted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.kind.watches++
	if w.opened {
		w.kind.restarts++
	}
	w.opened, w.open = true, c
}

// watched takes over that a watch has ended.
func (s *Source) watched(w *watcher, c *converted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.kind.watches--
	if w.open == c {
		w.open = nil
	}
}

// mustList reports whether the next request must be a list.
func (w *watcher) mustList() bool {
	w.source.mu.Lock()
	defer w.source.mu.Unlock()
	return w.again
}

// denied reports whether the watcher has been forbidden to read for so long that nobody should wait for it. A
// credential that the API server does not know denies nothing: it says nothing about the kind. It is called with mu
// held.
func (w *watcher) denied(now time.Time) bool {
	return !w.listed && w.failure != nil && apierrors.IsForbidden(w.failure.err) && now.Sub(w.failure.since) >= deniedAfter
}

var errNoEntry = errors.New("no entry")

// put makes an entry wait for delivery, in place of an older one of the same object; gone removes the object.
func (w *watcher) put(o any, gone bool) error {
	e, ok := o.(*entry)
	if !ok {
		return errNoEntry
	}
	w.source.mu.Lock()
	defer w.source.mu.Unlock()
	if w.stopped {
		return nil
	}
	w.seen, w.kind.newest = e.version, e.version
	w.kind.saw(w.source, e.version)
	w.kind.guard.Forget(e.name)
	if w.kind.namespaces() {
		w.source.noteNamespace(e, gone)
		w.kind.sawSystem(e)
	}
	if gone {
		w.kind.change(w.source, e.name, nil)
	} else {
		w.kind.change(w.source, e.name, e)
	}
	notify.Wake(w.source.wake)
	return nil
}

// change makes an entry wait for delivery; nil means that the object is gone. It is called with Source.mu held.
func (k *kind) change(s *Source, name types.NamespacedName, e *entry) {
	s.lanes[k.lane][k.key(name)] = e
}

// replace takes over a list, which is all that there is.
func (w *watcher) replace(list []any, version string) error {
	s, k := w.source, w.kind
	list = w.withSaved(list)
	lacks, saved := w.savedMissing(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.stopped {
		return nil
	}
	there := make(map[types.NamespacedName]*entry, len(list))
	for _, o := range list {
		e, ok := o.(*entry)
		if !ok {
			return errNoEntry
		}
		there[e.name] = e
	}
	switch {
	case w.name.Name == "":
		s.restore(k, lacks)
		k.readAll(s, there, saved, version)
	case there[w.name] == nil:
		k.change(s, w.name, nil)
	}
	for name, e := range there {
		k.change(s, name, e)
	}
	w.listed, w.again, w.seen = true, false, version
	k.saw(s, version)
	notify.Wake(s.wake)
	return nil
}

// withSaved gives the refused objects of the watcher's first list their saved versions. After that list, the last good
// version of each object has been delivered. It reads the disk, and only the watcher's reflector waits for that.
func (w *watcher) withSaved(list []any) []any {
	s, k := w.source, w.kind
	s.mu.Lock()
	listed := w.listed
	s.mu.Unlock()
	if s.cfg.Saved == nil || listed {
		return list
	}
	list = slices.Clone(list)
	shards := map[int]savedShard{}
	for i, o := range list {
		e, ok := o.(*entry)
		if !ok || e.problems == nil {
			continue
		}
		n := shardOf(e.name)
		shard, read := shards[n]
		if !read {
			shard = s.readShard(k, n, nil)
			shards[n] = shard
		}
		with := *e
		with.saved, with.lost = shard.version(e.name), shard.err
		list[i] = &with
	}
	return list
}
