package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// owned watches what was installed: every kind that an inventory has, of each object a hash. A watch goes on until the
// term ends, so that there are at most as many as the install package has kinds.
type owned struct {
	r     *reconciler
	tasks sync.WaitGroup

	mu sync.Mutex
	// holders are the resources that an object is of.
	holders map[cluster.ID]map[types.NamespacedName]bool
	watched map[schema.GroupVersionResource]bool
	ended   bool
}

func newOwned(r *reconciler) *owned {
	return &owned{r: r, holders: map[cluster.ID]map[types.NamespacedName]bool{}, watched: map[schema.GroupVersionResource]bool{}}
}

// follow replaces what is watched for a resource. The context is that of the term. It
// returns whether a watch has begun, which tells nothing about what was changed before.
func (o *owned) follow(ctx context.Context, k types.NamespacedName, entries []inventory.Entry) (begun bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, by := range o.holders {
		if delete(by, k); len(by) == 0 {
			delete(o.holders, id)
		}
	}
	for _, e := range entries {
		if o.holders[e.Key()] == nil {
			o.holders[e.Key()] = map[types.NamespacedName]bool{}
		}
		o.holders[e.Key()][k] = true
		kind, err := o.r.client.Resource(e.ID)
		if err != nil || o.watched[kind] || o.ended {
			continue // a kind that is not there is missed when everything is compared
		}
		o.watched[kind] = true
		informer := o.r.informer(ctx, kind, "", apply.ComponentLabel)
		if err := informer.SetTransform(digest); err != nil {
			continue
		}
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(after any, initial bool) {
				if !initial { // what is there was compared before it was watched
					o.tell(after, true)
				}
			},
			UpdateFunc: func(before, after any) {
				a, b := before.(*unstructured.Unstructured).GetAnnotations(), after.(*unstructured.Unstructured).GetAnnotations()
				if a[digestKey] != b[digestKey] || a[readyKey] != b[readyKey] {
					o.tell(after, a[digestKey] != b[digestKey])
				}
			},
			DeleteFunc: func(before any) { o.tell(before, true) },
		})
		if err != nil {
			continue
		}
		begun = true
		o.tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	return begun
}

// wait waits for the watches to end. None begins afterwards.
func (o *owned) wait() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.tasks.Wait()
}

// tell has the resources of an object looked at; whole says that more than its status has changed.
func (o *owned) tell(object any, whole bool) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.holders[cluster.Of(u).Key()] {
		if whole {
			o.r.compare(k, max(gather, o.r.patience(k)))
		} else {
			o.r.queue.AddAfter(k, gather)
		}
	}
}

// Annotations of a digest.
const (
	digestKey = "install.fairlead.dev/digest"
	readyKey  = "install.fairlead.dev/ready"
)

// digest is a cache.TransformFunc: of an object it leaves the name, a hash of all but its status, and how ready it is.
func digest(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || len(u.Object) == 3 && u.GetAnnotations()[digestKey] != "" {
		return object, nil // it may be called twice
	}
	text, err := json.Marshal(apply.Plain(u))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	small := &unstructured.Unstructured{Object: map[string]any{}}
	small.SetGroupVersionKind(u.GroupVersionKind())
	small.SetNamespace(u.GetNamespace())
	small.SetName(u.GetName())
	small.SetUID(u.GetUID())
	small.SetResourceVersion(u.GetResourceVersion())
	marks := map[string]string{digestKey: hex.EncodeToString(sum[:])}
	if id := cluster.Of(u); wait.Waits(id) && !id.IsCRD() {
		if state := wait.Of(u); state.Ready {
			marks[readyKey] = "ready"
		} else {
			marks[readyKey] = state.Reason
		}
	}
	small.SetAnnotations(marks)
	return small, nil
}
