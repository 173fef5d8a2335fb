package kube

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// retryPeriod is how soon what failed is tried again, and maxRetryPeriod how late.
	retryPeriod    = time.Second
	maxRetryPeriod = 30 * time.Second
	// writers is how many ConfigMaps are written at once.
	writers = 4
)

// withoutRoot are the namespaces of Kubernetes itself, which have no workloads of a mesh. Istio leaves them out, too.
var withoutRoot = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// RunRoots keeps the ConfigMap with the roots in every namespace until ctx ends.
func (s *Sync) RunRoots(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryPeriod, maxRetryPeriod))
	defer queue.ShutDown()
	namespaces := coreinformers.NewNamespaceInformer(s.cfg.API, 0, cache.Indexers{})
	roots := coreinformers.NewFilteredConfigMapInformer(s.cfg.API, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.cfg.RootConfigMap).String()
	})
	for informer, name := range map[cache.SharedIndexInformer]func(metav1.Object) string{
		namespaces: metav1.Object.GetName, roots: metav1.Object.GetNamespace,
	} {
		if err := errors.Join(informer.SetTransform(slim), informer.SetWatchErrorHandlerWithContext(s.watchFailed)); err != nil {
			return err
		}
		add := func(v any) {
			if gone, ok := v.(cache.DeletedFinalStateUnknown); ok {
				v = gone.Obj
			}
			if o, ok := v.(metav1.Object); ok {
				queue.Add(name(o))
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, v any) { add(v) },
			DeleteFunc: add}); err != nil {
			return err
		}
		go informer.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), namespaces.HasSynced, roots.HasSynced) {
		return nil // ctx has ended
	}
	s.seen.mu.Lock()
	s.seen.namespaces, s.seen.roots = namespaces.GetStore(), roots.GetStore()
	s.seen.mu.Unlock()
	for range writers {
		go func() {
			for s.writeNext(ctx, queue, namespaces.GetStore(), roots.GetStore()) {
			}
		}()
	}
	for {
		_, changed := s.cfg.Roots()
		for _, name := range namespaces.GetStore().ListKeys() {
			queue.Add(name)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// slim keeps of an object in the cache what is looked at.
func slim(v any) (any, error) {
	switch o := v.(type) {
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: meta(o.ObjectMeta), Status: corev1.NamespaceStatus{Phase: o.Status.Phase}}, nil
	case *corev1.ConfigMap:
		return &corev1.ConfigMap{ObjectMeta: meta(o.ObjectMeta), Data: map[string]string{RootKey: o.Data[RootKey]}}, nil
	}
	return v, nil
}

func meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
}

func (s *Sync) watchFailed(_ context.Context, _ *cache.Reflector, err error) {
	s.cfg.Log.Warn("Kubernetes' API server cannot be watched; the ConfigMaps with the roots are not kept until it can", "error", err)
}

// writeNext looks after the next namespace of the queue. It returns false when the queue is shut down.
func (s *Sync) writeNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], namespaces, roots cache.Store) bool {
	name, ended := queue.Get()
	if ended {
		return false
	}
	defer queue.Done(name)
	if err := s.writeRoot(ctx, name, namespaces, roots); err != nil && ctx.Err() == nil {
		if queue.NumRequeues(name) == 0 {
			s.cfg.Log.Error("root of trust not written; it is tried again", "namespace", name, "error", err)
		}
		queue.AddRateLimited(name)
		return true
	}
	queue.Forget(name)
	return true
}

// hasRoot reports whether a namespace is to have the root.
func hasRoot(namespace *corev1.Namespace) bool {
	return namespace.Status.Phase != corev1.NamespaceTerminating && !slices.Contains(withoutRoot, namespace.Name)
}

// writeRoot writes the root into one namespace, unless it is there.
func (s *Sync) writeRoot(ctx context.Context, name string, namespaces, roots cache.Store) error {
	found, ok, err := namespaces.GetByKey(name)
	namespace, _ := found.(*corev1.Namespace)
	if err != nil || !ok || !hasRoot(namespace) {
		return err
	}
	pem, _ := s.cfg.Roots()
	cached, _, err := roots.GetByKey(name + "/" + s.cfg.RootConfigMap)
	if err != nil {
		return err
	}
	if m, ok := cached.(*corev1.ConfigMap); ok && m.Data[RootKey] == pem {
		return nil
	}
	err = keep(ctx, s.cfg.API, name, s.cfg.RootConfigMap, map[string]string{RootKey: pem})
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
