// Package secretwatch follows the Secrets of one namespace that have a label. Packages remote and consul read by it
// which clusters and registries are declared.
package secretwatch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
)

// DeniedAfter is how long the Secrets must be forbidden until State.Denied. Rights that are granted at the same time as
// the process starts come in time.
const DeniedAfter = 5 * time.Second

// backoff is how long to wait after an error until the Secrets are asked for again.
var backoff = wait.Backoff{Duration: 300 * time.Millisecond, Factor: 2, Jitter: 0.3, Steps: 10, Cap: 5 * time.Second}

// Config of Secrets. All fields but Event are required.
type Config struct {
	Secrets   corev1client.SecretInterface
	Namespace string
	// Label is a selector, such as "istio/multiCluster=true".
	Label string
	// What completes "the Secrets of", for messages: "remote clusters".
	What string
	// Wake is woken by each change.
	Wake chan struct{}
	// Event is told what a watch says of a Secret, before State has it. before is nil if the Secret was not known,
	// now is nil if it is gone. A list is no event.
	Event func(before, now *corev1.Secret)
	Log   *slog.Logger
	Clock clock.Clock
}

// Secrets follows Secrets; Run reads. It is safe for concurrent use.
type Secrets struct {
	cfg Config

	mu     sync.Mutex
	lists  uint64
	unread error
	// forbiddenSince is zero unless reading is forbidden.
	forbiddenSince time.Time
	byName         map[string]*corev1.Secret
	again          context.CancelFunc
}

// New returns Secrets.
func New(cfg Config) *Secrets { return &Secrets{cfg: cfg, byName: map[string]*corev1.Secret{}} }

// State is what is known of the Secrets.
type State struct {
	// Lists counts how often they have been read whole.
	Lists uint64
	// Denied is true if they have been forbidden for DeniedAfter.
	Denied bool
	// Unread is why they cannot be read now; nil if they can.
	Unread error
	// ByName has their content, creation time and name, by namespace/name. It must not be changed.
	ByName map[string]*corev1.Secret
}

// State tells what is known now.
func (s *Secrets) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{Lists: s.lists, ByName: maps.Clone(s.byName)}
	st.Denied = !s.forbiddenSince.IsZero() && s.cfg.Clock.Now().Sub(s.forbiddenSince) >= DeniedAfter
	if s.unread != nil {
		st.Unread = fmt.Errorf("the Secrets of namespace %s with the label %s cannot be read, the %s that are known stay: %w; "+
			"allow config-watcher's service account to get, list and watch Secrets there", s.cfg.Namespace, s.cfg.Label, s.cfg.What, s.unread)
	}
	return st
}

// Run follows the Secrets until ctx ends.
func (s *Secrets) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(slog.DiscardHandler)) // an error becomes a state, once
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = s.cfg.Label
			list, err := s.cfg.Secrets.List(ctx, o)
			if s.asked(ctx, err); err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = s.cfg.Label
			w, err := s.cfg.Secrets.Watch(ctx, o)
			s.asked(ctx, err)
			return w, err
		},
	}
	logger := klog.FromContext(ctx)
	for ctx.Err() == nil { // once for each Relist
		running, stop := context.WithCancel(ctx)
		s.mu.Lock()
		s.again = stop
		s.mu.Unlock()
		cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, paged{}), &corev1.Secret{},
			kubernetes.ReflectorStore{Put: s.Put, All: s.Replace},
			cache.ReflectorOptions{
				Logger: &logger, Name: s.cfg.What, TypeDescription: "Secret " + s.cfg.Label, Backoff: new(backoff),
			}).RunWithContext(running)
		stop()
	}
}

// Relist makes Run list the Secrets again, because they may be others than the watch says.
func (s *Secrets) Relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again != nil {
		s.again()
	}
}

// paged says that lists are not streamed: there are few Secrets.
type paged struct{}

// IsWatchListSemanticsUnSupported is asked by client-go.
func (paged) IsWatchListSemanticsUnSupported() bool { return true }

// asked takes over whether the Secrets can be read.
func (s *Secrets) asked(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.unread == nil:
		s.cfg.Log.Warn("labelled Secrets cannot be read, what is known stays", "of", s.cfg.What, "namespace", s.cfg.Namespace, "label",
			s.cfg.Label, "error", err)
	case err == nil && s.unread != nil:
		s.cfg.Log.Info("labelled Secrets can be read again", "of", s.cfg.What)
	}
	if forbidden := apierrors.IsForbidden(err); !forbidden {
		s.forbiddenSince = time.Time{}
	} else if s.forbiddenSince.IsZero() {
		s.forbiddenSince = s.cfg.Clock.Now()
	}
	s.unread = err
}

// Put takes over an event of the Secrets, from the reflector.
func (s *Secrets) Put(o any, gone bool) error {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return fmt.Errorf("%T is no Secret", o)
	}
	name, now := nameOf(secret), trimmed(secret)
	if gone {
		now = nil
	}
	s.mu.Lock()
	before := s.byName[name]
	s.mu.Unlock()
	if s.cfg.Event != nil {
		s.cfg.Event(before, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone {
		delete(s.byName, name)
	} else {
		s.byName[name] = now
	}
	notify.Wake(s.cfg.Wake)
	return nil
}

func nameOf(s *corev1.Secret) string { return s.Namespace + "/" + s.Name }

// trimmed is what is read of a Secret.
func trimmed(s *corev1.Secret) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, CreationTimestamp: s.CreationTimestamp},
		Data: s.Data}
}

// Replace takes over a list of the Secrets, from the reflector.
func (s *Secrets) Replace(list []any, _ string) error {
	all := make(map[string]*corev1.Secret, len(list))
	for _, o := range list {
		secret, ok := o.(*corev1.Secret)
		if !ok {
			return fmt.Errorf("%T is no Secret", o)
		}
		all[nameOf(secret)] = trimmed(secret)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName = all
	s.lists++
	notify.Wake(s.cfg.Wake)
	return nil
}
