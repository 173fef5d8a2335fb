package gateways

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
)

const (
	// firstDelay and lastDelay bound the back-off of a Gateway that fails.
	firstDelay, lastDelay = time.Second, 5 * time.Minute
	// inTheWay is how often a Gateway is looked at while an object of another owner is in its way, since that object is
	// not watched.
	inTheWay = time.Minute
)

// controller is one term of a leader.
type controller struct {
	*Process
	clock clock.Clock
	// term ends with the lease.
	term  context.Context
	tasks sync.WaitGroup
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	gateways, classes, sets      *optional
	namespaces, configMaps, tags cache.SharedIndexInformer
	children                     map[schema.GroupVersionResource]cache.SharedIndexInformer
	informers                    []cache.SharedIndexInformer
	synced                       []cache.InformerSynced

	mu sync.Mutex
	// known are the Gateways that this term has looked at.
	known map[types.NamespacedName]*known
	// parameters are the contents of ConfigMaps that Gateways refer to, with their versions.
	parameters map[types.NamespacedName]parameters
}

// known is what is known of a Gateway that this replica deploys. Only the worker that has the Gateway changes it, with
// the controller's lock.
type known struct {
	Gateway string `json:"gateway"`
	Result  string `json:"result"`
	Message string `json:"message,omitempty"`

	// told is what an event has said.
	told string
	// written are the objects that this term has written.
	written map[objectKey]written
	// repairs counts repairs that came soon after each other.
	repairs  int
	repaired time.Time
}

// objectKey names an object of a Gateway, whose namespace it has.
type objectKey struct {
	resource schema.GroupVersionResource
	name     string
}

func newController(p *Process) (*controller, error) {
	c := &controller{
		Process: p, clock: clock.Or(p.Clock), children: map[schema.GroupVersionResource]cache.SharedIndexInformer{},
		known: map[types.NamespacedName]*known{}, parameters: map[types.NamespacedName]parameters{},
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstDelay, lastDelay)
	c.queue = fairshare.NewWorkQueue(limiter, func(g types.NamespacedName) string { return g.Namespace })
	return c, c.follow()
}

// run works until ctx ends. It returns when everything that it has begun has ended.
func (c *controller) run(ctx context.Context) {
	c.term = ctx
	defer c.tasks.Wait()
	defer c.queue.ShutDown()
	for _, informer := range c.informers {
		c.tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	// Whose an object is, and what a Gateway has, can be said when all are known.
	synced := append(slices.Clone(c.synced), c.gateways.synced, c.classes.synced, c.sets.synced)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	c.tasks.Go(func() {
		<-ctx.Done()
		c.queue.ShutDown()
	})
	for range c.options.Workers {
		c.tasks.Go(func() {
			for c.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	for _, result := range results {
		c.metrics.gateways.WithLabelValues(result).Set(0)
	}
}

// work takes one Gateway from the queue; it is false after the end.
func (c *controller) work(ctx context.Context) bool {
	key, end := c.queue.Get()
	if end {
		return false
	}
	defer c.queue.Done(key)
	c.metrics.waiting.Set(float64(c.queue.Len()))
	again, err := c.attempt(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.Log.Debug("a look has failed, trying again", "gateway", key.String(), "error", err)
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
		if again > 0 {
			c.queue.AddAfter(key, again)
		}
	}
	return true
}

// attempt looks at a Gateway once. A panic is of that Gateway alone.
func (c *controller) attempt(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.Log.Error("a Gateway made the controller panic", "gateway", key.String(), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if !c.gateways.synced() || !c.classes.synced() || !c.sets.synced() {
		return firstDelay, nil
	}
	return c.reconcile(ctx, key)
}

// note keeps what became of a look at a Gateway, for metrics and /debug.
func (c *controller) note(key types.NamespacedName, result, message string) {
	c.metrics.reconciles.WithLabelValues(result).Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[key]
	if k == nil {
		return
	}
	k.Result, k.Message = result, message
	c.count()
}

// forget drops what is known of a Gateway that is not this replica's to deploy.
func (c *controller) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
	c.count()
}

// count sets the gauge of Gateways; the lock is held.
func (c *controller) count() {
	n := map[string]int{}
	for _, k := range c.known {
		n[k.Result]++
	}
	for _, result := range results {
		c.metrics.gateways.WithLabelValues(result).Set(float64(n[result]))
	}
}

// about returns what is known of a Gateway.
func (c *controller) about(key types.NamespacedName) *known {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[key]
	if k == nil {
		k = &known{Gateway: key.String(), written: map[objectKey]written{}}
		c.known[key] = k
	}
	return k
}

// page are the Gateways, for /debug.
func (c *controller) page() []known {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]known, 0, len(c.known))
	for _, k := range c.known {
		out = append(out, known{Gateway: k.Gateway, Result: k.Result, Message: k.Message})
	}
	slices.SortFunc(out, func(a, b known) int { return cmp.Compare(a.Gateway, b.Gateway) })
	return out
}
