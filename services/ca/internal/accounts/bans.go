package accounts

import (
	"context"
	"errors"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/rejection"
)

var identityBans = schema.GroupVersionResource{Group: "fairlead.dev", Version: "v1", Resource: "identitybans"}

// byIdentity indexes IdentityBans by the identity that they name.
const byIdentity = "identity"

// Bans knows the IdentityBans of a cluster. It is safe for concurrent use.
type Bans struct {
	informer cache.SharedIndexInformer
	clock    clock.Clock
	// needed are identities without which there is no mesh; config-watcher does not enforce bans of these either.
	needed map[string]bool
}

// NewBans makes Bans. Run must be called for it to know any.
func NewBans(client dynamic.Interface, clk clock.Clock, needed ...spiffeid.ID) *Bans {
	b := &Bans{clock: clock.Or(clk), needed: map[string]bool{}}
	for _, id := range needed {
		b.needed[id.String()] = true
	}
	b.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := client.Resource(identityBans).List(ctx, o)
			if apierrors.IsNotFound(err) { // there is no such kind, and so no ban
				return &unstructured.UnstructuredList{Object: map[string]any{"metadata": map[string]any{"resourceVersion": "0"}}}, nil
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(identityBans).Watch(ctx, o)
		},
	}, listed{}), &unstructured.Unstructured{}, 0, cache.Indexers{byIdentity: func(o any) ([]string, error) {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return nil, nil
		}
		identity, _, _ := unstructured.NestedString(u.Object, "spec", "identity")
		return []string{identity}, nil
	}})
	return b
}

// listed has bans read by a list and not by a watch, which has no answer for a kind that there is not.
type listed struct{}

// IsWatchListSemanticsUnSupported is asked by client-go.
func (listed) IsWatchListSemanticsUnSupported() bool { return true }

// Run follows the bans until ctx ends.
func (b *Bans) Run(ctx context.Context) error {
	b.informer.RunWithContext(ctx)
	return nil
}

// Ready returns nil when the bans have been read; it is a readiness check.
func (b *Bans) Ready() error {
	if !b.informer.HasSynced() {
		return errors.New("the IdentityBans of the cluster are not read yet")
	}
	return nil
}

// Check returns a rejection if a ban names the identity and is not over.
func (b *Bans) Check(id spiffeid.ID) error {
	if b.needed[id.String()] {
		return nil
	}
	if err := b.Ready(); err != nil {
		return rejection.New(rejection.Unavailable, rejection.APIUnavailable, "%v; try again", err)
	}
	found, err := b.informer.GetIndexer().ByIndex(byIdentity, id.String())
	if err != nil {
		return err
	}
	for _, o := range found {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		until, _, _ := unstructured.NestedString(u.Object, "spec", "until")
		if end, err := time.Parse(time.RFC3339, until); err == nil && !b.clock.Now().Before(end) {
			continue
		}
		reason, _, _ := unstructured.NestedString(u.Object, "spec", "reason")
		return rejection.New(rejection.Denied, rejection.Banned, "%s is banned by IdentityBan %s: %s", id, u.GetName(), reason)
	}
	return nil
}
