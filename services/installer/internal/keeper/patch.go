package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch collects what is to change in the webhooks of an object. Each webhook that changes is named, so that the patch
// fails, and is made again, if somebody else has changed their order.
type patch []operation

// bundle sets caBundle of the webhook at index i.
func (p *patch) bundle(i int, name string, client registrationv1.WebhookClientConfig, roots []byte) {
	if !bytes.Equal(client.CABundle, roots) {
		p.add(i, name, "clientConfig/caBundle", roots)
	}
}

func (p *patch) add(i int, name, field string, value any) {
	at := fmt.Sprintf("/webhooks/%d", i)
	*p = append(*p, operation{"test", at + "/name", name}, operation{"add", at + "/" + field, value})
}

// send gives a patch to write, unless it is empty.
func (p *patch) send(ctx context.Context, write func(ctx context.Context, text []byte) error) (written bool, err error) {
	if len(*p) == 0 {
		return false, nil
	}
	text, err := json.Marshal(*p)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return true, write(ctx, text)
}

// client is that of a kind of webhook configurations.
type client[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// follow keeps the object of a name in a store until ctx ends, and calls wake when it has changed. It waits until
// the store has the object, if there is one, when wait says so.
func follow[L runtime.Object](ctx context.Context, from client[L], kind runtime.Object, name string, wait bool, wake func()) cache.Store {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = one
				return from.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = one
				return from.Watch(ctx, o)
			},
		},
		ObjectType: kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
		},
	})
	go informer.RunWithContext(ctx)
	if wait {
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	}
	return store
}
