package operator

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Resource is what the API server calls IstioOperators.
var Resource = schema.GroupVersionResource{Group: "install.istio.io", Version: "v1alpha1", Resource: "istiooperators"}

const (
	// firstDelay and lastDelay bound the back-off of a resource that fails.
	firstDelay, lastDelay = time.Second, 5 * time.Minute
	// gather is how long changes of objects are waited for before they are looked at.
	gather = 300 * time.Millisecond
	// lookAgain is the time between two looks at components that are not ready.
	lookAgain = 10 * time.Second
)

// reconciler is one term of a leader.
type reconciler struct {
	*Operator
	// term ends with the lease.
	term      context.Context
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	informers []cache.SharedIndexInformer
	owned     *owned

	mu sync.Mutex
	// due are resources whose objects have to be compared; of the others only the readiness is looked at.
	due map[types.NamespacedName]bool
	// compared is when that was done last.
	compared map[types.NamespacedName]time.Time
	// running are the resources that are being reconciled, with what ends that.
	running map[types.NamespacedName]context.CancelFunc
	// repairs are those of late, by which the next one is put off.
	repairs map[types.NamespacedName]repairs
	// warned is what was said of resources that are installed.
	warned map[types.NamespacedName][]string
	// seen are what became of resources, for metrics and /debug.
	seen map[types.NamespacedName]seen
}

// repairs counts the repairs of a resource that came soon after each other.
type repairs struct {
	n    int
	last time.Time
}

// seen is what became of a resource.
type seen struct {
	Resource string `json:"resource"`
	Revision string `json:"revision,omitempty"`
	Status   string `json:"status"`
	Message  string `json:"message,omitempty"`
}

func newReconciler(op *Operator) *reconciler {
	r := &reconciler{
		Operator: op, due: map[types.NamespacedName]bool{}, compared: map[types.NamespacedName]time.Time{},
		running: map[types.NamespacedName]context.CancelFunc{}, repairs: map[types.NamespacedName]repairs{},
		warned: map[types.NamespacedName][]string{}, seen: map[types.NamespacedName]seen{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstDelay,
			lastDelay)),
	}
	r.owned = newOwned(r)
	return r
}

// run reconciles until ctx ends. It returns when everything that it has begun has ended.
func (r *reconciler) run(ctx context.Context) {
	r.term = ctx
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer r.queue.ShutDown()
	var synced []cache.InformerSynced
	for _, namespace := range r.namespaces {
		informer := r.informer(ctx, Resource, namespace, "")
		registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: r.added, UpdateFunc: r.updated,
			DeleteFunc: r.deleted})
		if err != nil {
			r.Log.Error("IstioOperators cannot be watched", "namespace", namespace, "error", err)
			return
		}
		r.informers, synced = append(r.informers, informer), append(synced, registered.HasSynced)
		tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	// Whose a revision is can be said when all resources are known.
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	tasks.Go(func() {
		<-ctx.Done()
		r.queue.ShutDown()
	})
	for range r.options.Workers {
		tasks.Go(func() {
			for r.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.owned.wait()
}

// informer watches a kind: in one namespace, or in all if it is empty.
func (r *reconciler) informer(ctx context.Context, kind schema.GroupVersionResource, namespace, selector string) cache.SharedIndexInformer {
	resource := r.watches.Dynamic().Resource(kind).Namespace(namespace)
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return resource.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	last := ""
	// The informer has not started yet, so that this cannot fail.
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() != nil {
			return
		}
		r.metrics.watchFails.Inc()
		if text := err.Error(); text != last {
			last = text
			r.Log.Warn("a kind cannot be watched, trying again", "kind", kind.GroupResource().String(), "namespace", namespace, "error", err)
		}
	})
	return informer
}

// resources are all that are watched, the oldest first.
func (r *reconciler) resources() []*resource {
	var all []*resource
	for _, informer := range r.informers {
		for _, item := range informer.GetStore().List() {
			all = append(all, &resource{item.(*unstructured.Unstructured)})
		}
	}
	slices.SortFunc(all, func(a, b *resource) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.key().String(), b.key().String()))
	})
	return all
}

// resource returns one; nil if it is not there.
func (r *reconciler) resource(k types.NamespacedName) *resource {
	for _, informer := range r.informers {
		item, found, err := informer.GetStore().GetByKey(k.String())
		if err == nil && found {
			return &resource{item.(*unstructured.Unstructured).DeepCopy()}
		}
	}
	return nil
}

func (r *reconciler) added(o any) {
	r.changed((&resource{o.(*unstructured.Unstructured)}).key())
}

// updated ignores what says nothing about the installation: statuses, and labels.
func (r *reconciler) updated(before, after any) {
	a, b := &resource{before.(*unstructured.Unstructured)}, &resource{after.(*unstructured.Unstructured)}
	if a.GetUID() != b.GetUID() || a.GetGeneration() != b.GetGeneration() || a.ignored() != b.ignored() || a.deleting() != b.deleting() ||
		a.finalized() != b.finalized() {
		r.changed(b.key())
	}
}

func (r *reconciler) deleted(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	r.changed((&resource{u}).key())
	// Another resource may have waited for the revision.
	for _, other := range r.resources() {
		r.compare(other.key(), 0)
	}
}

// changed has a resource reconciled anew, and ends what is being done for what it was.
func (r *reconciler) changed(k types.NamespacedName) {
	r.mu.Lock()
	if stop := r.running[k]; stop != nil {
		stop()
	}
	r.mu.Unlock()
	r.compare(k, 0)
}

// compare has the objects of a resource compared after a time.
func (r *reconciler) compare(k types.NamespacedName, after time.Duration) {
	r.mu.Lock()
	r.due[k] = true
	r.mu.Unlock()
	r.queue.AddAfter(k, after)
}

// attempt calls reconcile. A panic over one resource is its error, so that the others are reconciled.
func (r *reconciler) attempt(ctx context.Context, k types.NamespacedName, whole bool) (again time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return r.reconcile(ctx, k, whole)
}

// work reconciles the next resource. It returns false when the queue ends.
func (r *reconciler) work(ctx context.Context) bool {
	k, ended := r.queue.Get()
	if ended {
		return false
	}
	defer r.queue.Done(k)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := r.Clock.Now()
	r.mu.Lock()
	r.running[k] = cancel
	whole := r.due[k] || began.Sub(r.compared[k]) >= r.options.Resync
	delete(r.due, k)
	r.mu.Unlock()
	again, err := r.attempt(ctx, k, whole)
	r.mu.Lock()
	delete(r.running, k)
	overtaken := ctx.Err() != nil
	if whole && err == nil {
		r.compared[k] = began
	} else if err != nil {
		r.due[k] = true
	}
	r.mu.Unlock()
	r.metrics.duration.Observe(r.Clock.Now().Sub(began).Seconds())
	switch {
	case overtaken: // the change that did it is in the queue, or the term ends
	case err != nil:
		r.metrics.reconciles.WithLabelValues(resultFailed).Inc()
		r.Log.Warn("an IstioOperator is not what the cluster has, trying again", "resource", k.String(), "error", err)
		r.queue.AddRateLimited(k)
	default:
		r.queue.Forget(k)
		if again > 0 {
			r.queue.AddAfter(k, again)
		}
	}
	return true
}

// note keeps what became of a resource.
func (r *reconciler) note(k types.NamespacedName, s seen) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Status == "" {
		delete(r.seen, k)
	} else {
		s.Resource = k.String()
		r.seen[k] = s
	}
	n := map[string]int{}
	for _, s := range r.seen {
		n[s.Status]++
	}
	for _, status := range statuses {
		r.metrics.resources.WithLabelValues(status).Set(float64(n[status]))
	}
}

func (r *reconciler) page() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []seen{}
	for _, s := range r.seen {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b seen) int { return strings.Compare(a.Resource, b.Resource) })
	return all
}

// forget removes what is kept about a resource that is gone.
func (r *reconciler) forget(k types.NamespacedName) {
	r.mu.Lock()
	delete(r.compared, k)
	delete(r.due, k)
	delete(r.repairs, k)
	delete(r.warned, k)
	r.mu.Unlock()
	r.note(k, seen{})
	r.owned.follow(context.Background(), k, nil)
}

// repaired counts a repair. Somebody who changes the same again and again is answered ever more slowly.
func (r *reconciler) repaired(k types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, before := r.Clock.Now(), r.repairs[k]
	if now.Sub(before.last) > 2*delay(before.n) {
		before.n = 0
	}
	r.repairs[k] = repairs{before.n + 1, now}
}

// patience is how long the next repair of a resource has to wait.
func (r *reconciler) patience(k types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repairs[k].last.Add(delay(r.repairs[k].n)).Sub(r.Clock.Now())
}

// delay is the time between two repairs after so many in a row.
func delay(n int) time.Duration {
	if n < 1 {
		return 0
	}
	return min(firstDelay<<min(n-1, 10), lastDelay)
}

func (r *reconciler) warn(k types.NamespacedName, warnings []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warned[k] = warnings
}

func (r *reconciler) warnings(k types.NamespacedName) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.warned[k]
}
