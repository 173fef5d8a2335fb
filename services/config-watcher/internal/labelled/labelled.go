// Package labelled follows which objects of an API server have a label. It reads their names and labels alone.
package labelled

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/notify"
)

// Config of Follow. All fields but Namespace are required.
type Config struct {
	API      *rest.Config
	Resource schema.GroupVersionResource
	// Namespace of the objects; "" is every one.
	Namespace string
	// Label is the key that the objects have.
	Label string
	// Changed is called with all of them, sorted by namespace and name, when they are known and after each change.
	Changed func([]Object)
	Log     *slog.Logger
}

// Object is an object that has the label.
type Object struct {
	types.NamespacedName
	Labels map[string]string
}

// Follow works until ctx ends. While the API server refuses, the last objects stay, and it is tried again.
func Follow(ctx context.Context, cfg Config) error {
	client, err := metadata.NewForConfig(cfg.API)
	if err != nil {
		return err
	}
	informer := metadatainformer.NewFilteredMetadataInformer(client, cfg.Resource, cfg.Namespace, 0, cache.Indexers{},
		func(l *metav1.ListOptions) { l.LabelSelector = cfg.Label }).Informer()
	told := ""
	// None of these can fail before the informer runs.
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && told != err.Error() {
			told = err.Error()
			cfg.Log.Warn("labels of objects cannot be read, the last ones stay", "resource", cfg.Resource.GroupResource().String(),
				"label", cfg.Label, "error", err, "remedy", "let config-watcher's service account list and watch them")
		}
	})
	_ = informer.SetTransform(func(o any) (any, error) {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			m.ManagedFields, m.Annotations, m.OwnerReferences, m.Finalizers = nil, nil, nil, nil
		}
		return o, nil
	})
	wake := make(chan struct{}, 1)
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify.Wake(wake) }, UpdateFunc: func(any, any) { notify.Wake(wake) }, DeleteFunc: func(any) { notify.Wake(wake) },
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	defer func() { <-ended }()
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil
	}
	for {
		cfg.Changed(objectsOf(informer.GetStore()))
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}

func objectsOf(store cache.Store) []Object {
	var out []Object
	for _, o := range store.List() {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			out = append(out, Object{types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, m.Labels})
		}
	}
	slices.SortFunc(out, func(a, b Object) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}
