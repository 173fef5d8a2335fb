package kuberequest

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/signer"
)

// hub gives each event of the one watch to the request that waits for it. It is the store of a cache.Reflector, and
// keeps nothing that no request waits for.
type hub struct {
	issuer *Issuer
	synced chan struct{}
	// changed tells that the problem has.
	changed notify.Notifier

	mu      sync.Mutex
	waiting map[string]*waiter
	// problem is why the watch does not work; nil while it does.
	problem *signer.Error
}

// waiter is a request that waits for its object. The fields below wake are guarded by hub.mu.
type waiter struct {
	name string
	wake chan struct{}

	// uid is empty until the object is created. Objects of the name with another one are somebody else's.
	uid types.UID
	// last is the newest version of the object; gone is true once it is deleted.
	last *unstructured.Unstructured
	gone bool
	// unsure is true if a new list lacks the object: it was deleted, or made after the list.
	unsure bool
}

func newHub(i *Issuer) *hub {
	return &hub{issuer: i, waiting: map[string]*waiter{}, synced: make(chan struct{})}
}

// run watches until ctx ends.
func (h *hub) run(ctx context.Context) {
	selector := managedBy + "," + processLabel + "=" + h.issuer.process
	client := h.issuer.watched
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			list, err := client.List(ctx, o)
			if err != nil {
				h.note(ctx, err) // that a list succeeds does not mean that a watch will
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			w, err := client.Watch(ctx, o)
			h.note(ctx, err)
			return w, err
		},
	}, client), &unstructured.Unstructured{}, h, cache.ReflectorOptions{
		Name:    h.issuer.kind.Name,
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 5 * time.Second},
	})
	reflector.RunWithContext(ctx)
}

// note remembers and logs whether the watch, or the list before it, works.
func (h *hub) note(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the next list mends the latter
	}
	h.mu.Lock()
	before := h.problem
	h.problem = nil
	if err != nil {
		k := h.issuer.kind
		h.problem = apiError(err, "watch "+k.Resource.GroupResource().String(), k.verbs("get, list and watch"))
	}
	now := h.problem
	h.mu.Unlock()
	h.changed.Notify()
	switch {
	case now != nil && (before == nil || before.Fault != now.Fault):
		h.issuer.deps.Log.Warn("objects of the signer cannot be watched; no certificate is issued until they can", "error", now)
	case now == nil && before != nil:
		h.issuer.deps.Log.Info("objects of the signer are watched again")
	}
}

// ready waits until the watch has begun. It returns an error if that does not happen in time, or cannot happen.
func (h *hub) ready(ctx context.Context) *signer.Error {
	for {
		changed := h.changed.Changed()
		if problem := h.refused(); problem != nil {
			return problem
		}
		select {
		case <-h.synced:
			return nil
		default:
		}
		select {
		case <-h.synced:
		case <-changed:
		case <-ctx.Done():
			if problem := h.failing(); problem != nil {
				return problem
			}
			return signer.Errorf(signer.Away, "the API server's %s are not listed yet", h.issuer.kind.Resource.GroupResource())
		}
	}
}

// failing is why the watch does not work; nil while it does.
func (h *hub) failing() *signer.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.problem
}

// refused returns the problem of the watch if somebody must mend it.
func (h *hub) refused() *signer.Error {
	if problem := h.failing(); problem != nil && problem.Fault == signer.Refused {
		return problem
	}
	return nil
}

// expect makes a waiter for an object that will be created with this name.
func (h *hub) expect(name string) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &waiter{name: name, wake: make(chan struct{}, 1)}
	h.waiting[name] = w
	return w
}

// forget ends a waiter.
func (h *hub) forget(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, w.name)
}

// identify says which object w waits for, and forgets another one that had its name.
func (h *hub) identify(w *waiter, uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.uid = uid
	if w.last != nil && w.last.GetUID() != uid {
		w.last, w.gone = nil, false
	}
}

// look returns the newest of the object, and whether it is gone or may be.
func (h *hub) look(w *waiter) (last *unstructured.Unstructured, gone, unsure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, gone, unsure = w.last, w.gone, w.unsure
	w.unsure = false
	return last, gone, unsure
}

// deliver gives an object to its waiter. The caller holds mu.
func (h *hub) deliver(o any, gone bool) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	object, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	w := h.waiting[object.GetName()]
	if w == nil || w.uid != "" && w.uid != object.GetUID() {
		return
	}
	w.last, w.gone = object, gone
	notify.Wake(w.wake)
}

// Add implements cache.ReflectorStore.
func (h *hub) Add(o any) error { return h.event(o, false) }

// Update implements cache.ReflectorStore.
func (h *hub) Update(o any) error { return h.event(o, false) }

// Delete implements cache.ReflectorStore.
func (h *hub) Delete(o any) error { return h.event(o, true) }

func (h *hub) event(o any, gone bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deliver(o, gone)
	return nil
}

// Replace implements cache.ReflectorStore: it takes a new list.
func (h *hub) Replace(list []any, _ string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := map[string]bool{}
	for _, o := range list {
		if object, ok := o.(*unstructured.Unstructured); ok {
			there[object.GetName()] = true
		}
		h.deliver(o, false)
	}
	for name, w := range h.waiting {
		if w.uid != "" && !there[name] {
			w.unsure = true
			notify.Wake(w.wake)
		}
	}
	select {
	case <-h.synced:
	default:
		close(h.synced)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (h *hub) Resync() error { return nil }

// now asks the API server for the object of a waiter.
func (h *hub) now(ctx context.Context, w *waiter) *signer.Error {
	o, err := h.issuer.objects.Get(ctx, w.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if errors.Is(err, ctx.Err()) {
			return nil // the wait ends with its own error
		}
		return apiError(err, "get "+h.issuer.object(w.name), h.issuer.kind.verbs("get"))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || o.GetUID() != w.uid {
		w.gone = true
		return nil
	}
	w.last = o
	return nil
}
