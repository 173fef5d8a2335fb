package binder

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/proto/fairlead/contract"
)

// Kinds that needs come from.
const (
	kindGateway = "Gateway"
	kindRule    = "DestinationRule"
)

var (
	gateways  = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "gateways"}
	rules     = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "destinationrules"}
	groups    = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadgroups"}
	entries   = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadentries"}
	ingresses = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}
	pods      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// byNamespace names the index of the stores.
const byNamespace = cache.NamespaceIndex

// following is a running watch.
type following struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	// absent is true while the API server does not have the kind.
	absent atomic.Bool
}

// known reports whether it is known which objects there are.
func (f *following) known() bool { return f.absent.Load() || f.informer.HasSynced() }

// run starts an informer that calls wake for what comes and goes.
func run(ctx context.Context, informer cache.SharedIndexInformer, keep cache.TransformFunc, wake func()) (*following, error) {
	f := &following{informer: informer}
	changed := func() {
		f.absent.Store(false)
		wake()
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	failed := func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			if !f.absent.Swap(true) {
				wake()
			}
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}
	if err = errors.Join(err, informer.SetTransform(keep), informer.SetWatchErrorHandlerWithContext(failed)); err != nil {
		return nil, err
	}
	ctx, f.stop = context.WithCancel(ctx)
	go informer.RunWithContext(ctx)
	return f, nil
}

// followObjects watches all objects of a kind.
func followObjects(ctx context.Context, client dynamic.Interface, of schema.GroupVersionResource, wake func()) (*following, error) {
	return run(ctx, dynamicinformer.NewFilteredDynamicInformer(client, of, "", 0, cache.Indexers{}, nil).Informer(), trim, wake)
}

// followPods watches where Pods with the labels of a selector are.
func followPods(ctx context.Context, client metadata.Interface, selector string, wake func()) (*following, error) {
	informer := metadatainformer.NewFilteredMetadataInformer(client, pods, "", 0, cache.Indexers{byNamespace: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.LabelSelector = selector
		}).Informer()
	return run(ctx, informer, place, wake)
}

// objects are those of a watch.
func (f *following) objects() []*unstructured.Unstructured {
	if f.absent.Load() {
		return nil
	}
	all := f.informer.GetStore().List()
	out := make([]*unstructured.Unstructured, 0, len(all))
	for _, o := range all {
		if u, ok := o.(*unstructured.Unstructured); ok {
			out = append(out, u)
		}
	}
	return out
}

// namespaces are those of a watch of Pods.
func (f *following) namespaces() []string {
	return slices.DeleteFunc(f.informer.GetIndexer().ListIndexFuncValues(byNamespace), func(n string) bool {
		in, err := f.informer.GetIndexer().IndexKeys(byNamespace, n)
		return err != nil || len(in) == 0
	})
}

// trim keeps of an object what package binder reads.
func trim(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{"kind": u.GetKind(), "apiVersion": u.GetAPIVersion()}}
	out.SetName(u.GetName())
	out.SetNamespace(u.GetNamespace())
	out.SetResourceVersion(u.GetResourceVersion())
	out.SetCreationTimestamp(u.GetCreationTimestamp())
	spec, _ := u.Object["spec"].(map[string]any)
	kept, read := map[string]any{}, fields
	if u.GroupVersionKind().Group == contract.GroupGatewayAPI {
		read = fieldsOfAPI
	}
	for _, field := range read[u.GetKind()] {
		if v, ok := spec[field]; ok {
			kept[field] = v
		}
	}
	if u.GetKind() == kindRule && !namesCredential(u) {
		kept = map[string]any{} // most of them, in a large mesh
	}
	out.Object["spec"] = kept
	return out, nil
}

// fields are those of the specs of kinds that are read.
var fields = map[string][]string{
	kindGateway: {"selector", "servers"}, kindRule: {"workloadSelector", "trafficPolicy", "subsets", "exportTo"}, "Ingress": {"tls"},
	"WorkloadEntry": {"labels"},
}

// place keeps of a Pod where it is.
func place(o any) (any, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace,
		ResourceVersion: m.ResourceVersion}}, nil
}

// settle is how long changes are collected until what is needed is computed again.
const settle = 100 * time.Millisecond
