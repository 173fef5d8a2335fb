// Package accounts tells whether the service account behind a credential still exists in Kubernetes, and whether it is
// the same one: a token says the UID of its account and of its Pod, and lives on when both are gone. Registry follows
// accounts and Pods by watches of their metadata, and asks the API server about what these do not have. Package
// issuance calls Check before it issues.
package accounts

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/services/ca/internal/rejection"
)

const (
	// askTimeout bounds one question to the API server, and askAtOnce and askEach how many are asked at once, in all
	// and for one identity.
	askTimeout = 2 * time.Second
	askAtOnce  = 32
	askEach    = 4
	// refusedFor is how long an answer that refuses a token is remembered, and maxRefused how many are.
	refusedFor = 5 * time.Second
	maxRefused = 4096
	// leeway is how far the clocks of API server and ca may differ, and the seconds that a creation's time leaves out.
	leeway = 30 * time.Second
)

var (
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	pods            = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// Registry knows the service accounts and Pods of a cluster. It is safe for concurrent use.
type Registry struct {
	client   metadata.Interface
	clock    clock.Clock
	accounts *kind
	pods     *kind

	// asking are the questions that are being asked, by identity.
	asking *fairshare.Pool

	mu      sync.Mutex
	refused map[string]refusal
}

// refusal is a verdict that is remembered.
type refusal struct {
	err   error
	until time.Time
}

// kind is what is followed of one resource.
type kind struct {
	resource schema.GroupVersionResource
	what     string
	store    cache.Store
	informer cache.Controller
}

// New makes a Registry. Run must be called for it to know anything without asking.
func New(client metadata.Interface, clk clock.Clock) *Registry {
	r := &Registry{client: client, clock: clock.Or(clk), refused: map[string]refusal{},
		asking: fairshare.New(fairshare.Config{Places: askAtOnce, PerOwner: askEach})}
	r.accounts, r.pods = r.follow(serviceAccounts, "service account"), r.follow(pods, "Pod")
	return r
}

func (r *Registry) follow(resource schema.GroupVersionResource, what string) *kind {
	k := &kind{resource: resource, what: what}
	k.store, k.informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return r.client.Resource(resource).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return r.client.Resource(resource).Watch(ctx, o)
			},
		}, r.client),
		ObjectType: &metav1.PartialObjectMetadata{},
		Handler:    cache.ResourceEventHandlerFuncs{},
		Transform:  compact,
	})
	return k
}

// compact keeps what is compared, which is a few hundred bytes.
func compact(o any) (any, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, CreationTimestamp: m.CreationTimestamp, ResourceVersion: m.ResourceVersion,
	}}, nil
}

// Run follows accounts and Pods until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	var both sync.WaitGroup
	for _, k := range []*kind{r.accounts, r.pods} {
		both.Go(func() { k.informer.RunWithContext(ctx) })
	}
	both.Wait()
	return nil
}

// Ready returns why questions are asked of the API server that the watches will answer later; it is a readiness check.
func (r *Registry) Ready() error {
	for _, k := range []*kind{r.accounts, r.pods} {
		if !k.informer.HasSynced() {
			return fmt.Errorf("the %ss of the cluster are not read yet", k.what)
		}
	}
	return nil
}

// Check returns nil if the account of a caller exists and is the one that its credential was given to: by a token, the
// UIDs that the token names; by a certificate, an account that is no younger than since, when the certificate's owner
// last showed a token. Its errors are rejections.
func (r *Registry) Check(ctx context.Context, caller auth.Peer, since time.Time) error {
	namespace, name, ok := auth.WorkloadOf(caller.ID)
	if !ok {
		return rejection.New(rejection.Denied, rejection.AccountGone, "%s is no service account", caller.ID)
	}
	if caller.Token == nil {
		return r.check(ctx, caller.ID, r.accounts, namespace, name, "", func(m *metav1.PartialObjectMetadata) error {
			if m.CreationTimestamp.After(since.Add(leeway)) {
				return rejection.New(rejection.Denied, rejection.AccountReplaced,
					"service account %s/%s was made at %s, after the certificate's owner last showed a token; send a token", namespace, name,
					m.CreationTimestamp.UTC().Format(time.RFC3339))
			}
			return nil
		})
	}
	t := caller.Token
	if t.AccountUID == "" {
		return rejection.New(rejection.Denied, rejection.TokenClaims,
			"the token does not name the UID of its service account; send one that Kubernetes' TokenRequest API has made (kubectl create token, "+
				"or a projected volume)")
	}
	err := r.check(ctx, caller.ID, r.accounts, namespace, name, t.AccountUID, func(m *metav1.PartialObjectMetadata) error {
		if string(m.UID) != t.AccountUID {
			return rejection.New(rejection.Denied, rejection.AccountReplaced,
				"the token is of a service account %s/%s that was deleted; there is another one of that name now", namespace, name)
		}
		return nil
	})
	if err != nil || t.Pod == "" {
		return err
	}
	return r.check(ctx, caller.ID, r.pods, namespace, t.Pod, t.PodUID, func(m *metav1.PartialObjectMetadata) error {
		if string(m.UID) != t.PodUID {
			return rejection.New(rejection.Denied, rejection.PodGone,
				"the token is of a Pod %s/%s that was deleted; there is another one of that name now", namespace, t.Pod)
		}
		return nil
	})
}

// check judges an object: as the watch has it, and, if that is not enough to issue, as the API server has it now. The
// watch may lag behind what was just made. What refuses a token, whose UID is proof, is remembered for a moment.
func (r *Registry) check(ctx context.Context, caller spiffeid.ID, k *kind, namespace, name, proof string,
	judge func(*metav1.PartialObjectMetadata) error) error {
	if o, found, _ := k.store.GetByKey(namespace + "/" + name); found { // a map's error: never
		if m, ok := o.(*metav1.PartialObjectMetadata); ok && judge(m) == nil {
			return nil
		}
	}
	key := k.resource.Resource + "/" + namespace + "/" + name + "/" + proof
	if err := r.remembered(key); err != nil {
		return err
	}
	place, err := r.asking.Take(caller.String(), 0, nil)
	if err != nil {
		return rejection.New(rejection.Unavailable, rejection.APIUnavailable,
			"too many questions to the API server at once, about %s %s/%s; try again", k.what, namespace, name)
	}
	defer place.Release()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := r.client.Resource(k.resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		err = k.goneError(namespace, name)
	case err != nil:
		return rejection.New(rejection.Unavailable, rejection.APIUnavailable,
			"the API server does not say whether %s %s/%s exists: %v; try again", k.what, namespace, name, err)
	default:
		err = judge(m)
	}
	if err != nil && proof != "" {
		r.remember(key, err)
	}
	return err
}

func (k *kind) goneError(namespace, name string) error {
	reason := rejection.AccountGone
	if k.resource == pods {
		reason = rejection.PodGone
	}
	return rejection.New(rejection.Denied, reason, "%s %s/%s does not exist any more; its credentials are of no use", k.what, namespace, name)
}

func (r *Registry) remembered(key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.refused[key]; ok && r.clock.Now().Before(known.until) {
		return known.err
	}
	return nil
}

func (r *Registry) remember(key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if len(r.refused) >= maxRefused {
		maps.DeleteFunc(r.refused, func(_ string, known refusal) bool { return !now.Before(known.until) })
	}
	if len(r.refused) < maxRefused {
		r.refused[key] = refusal{err, now.Add(refusedFor)}
	}
}
