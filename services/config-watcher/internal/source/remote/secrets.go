package remote

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
)

// Label marks the Secrets that name remote clusters, as in Istio.
const Label = "istio/multiCluster=true"

// secretsBackoff is how long to wait after an error until the Secrets are asked for again.
var secretsBackoff = wait.Backoff{Duration: 300 * time.Millisecond, Factor: 2, Jitter: 0.3, Steps: 10, Cap: 5 * time.Second}

// entry is one key of a Secret: a cluster and its kubeconfig.
type entry struct {
	secret, id string
	created    time.Time
	kubeconfig []byte
	hash       [sha256.Size]byte
}

// String names the entry's Secret, as object.Key does.
func (e *entry) String() string { return "Secret " + e.secret }

// entriesOf lists the entries of Secrets by age: the first of an id counts.
func entriesOf(secrets map[string]*corev1.Secret) []*entry {
	var out []*entry
	for name, s := range secrets {
		for id, kubeconfig := range s.Data {
			out = append(out, &entry{secret: name, id: id, created: s.CreationTimestamp.Time, kubeconfig: kubeconfig,
				hash: sha256.Sum256(kubeconfig)})
		}
	}
	slices.SortFunc(out, func(a, b *entry) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.secret+" "+a.id, b.secret+" "+b.id)
	})
	return out
}

// watchSecrets keeps Clusters.secrets until ctx ends.
func (c *Clusters) watchSecrets(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(slog.DiscardHandler)) // an error becomes a state, once
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = Label
			list, err := c.cfg.Secrets.List(ctx, o)
			if c.asked(ctx, err); err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = Label
			w, err := c.cfg.Secrets.Watch(ctx, o)
			c.asked(ctx, err)
			return w, err
		},
	}
	logger := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, paged{}), &corev1.Secret{},
		kubernetes.ReflectorStore{Put: c.put, All: c.replace},
		cache.ReflectorOptions{
			Logger: &logger, Name: Name, TypeDescription: "Secret " + Label, Backoff: new(secretsBackoff),
		}).RunWithContext(ctx)
}

// paged says that lists are not streamed: there are few Secrets.
type paged struct{}

// IsWatchListSemanticsUnSupported is asked by client-go.
func (paged) IsWatchListSemanticsUnSupported() bool { return true }

// asked takes over whether the Secrets can be read.
func (c *Clusters) asked(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && c.unread == nil:
		c.cfg.Log.Warn("the Secrets of remote clusters cannot be read, the clusters that are known stay", "namespace", c.cfg.Namespace, "label",
			Label, "error", err)
	case err == nil && c.unread != nil:
		c.cfg.Log.Info("the Secrets of remote clusters can be read again")
	}
	if forbidden := apierrors.IsForbidden(err); !forbidden {
		c.forbiddenSince = time.Time{}
	} else if c.forbiddenSince.IsZero() {
		c.forbiddenSince = c.cfg.Clock.Now()
	}
	c.unread = err
}

// put takes over an event of the Secrets.
func (c *Clusters) put(o any, gone bool) error {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return fmt.Errorf("%T is no Secret", o)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := nameOf(secret); gone {
		delete(c.secrets, name)
	} else {
		c.secrets[name] = trimmed(secret)
	}
	notify.Wake(c.wake)
	return nil
}

func nameOf(s *corev1.Secret) string { return s.Namespace + "/" + s.Name }

// trimmed is what is read of a Secret.
func trimmed(s *corev1.Secret) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, CreationTimestamp: s.CreationTimestamp},
		Data: s.Data}
}

// replace takes over a list of the Secrets.
func (c *Clusters) replace(list []any, _ string) error {
	all := make(map[string]*corev1.Secret, len(list))
	for _, o := range list {
		secret, ok := o.(*corev1.Secret)
		if !ok {
			return fmt.Errorf("%T is no Secret", o)
		}
		all[nameOf(secret)] = trimmed(secret)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets, c.listed = all, true
	notify.Wake(c.wake)
	return nil
}
