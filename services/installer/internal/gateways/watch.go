package gateways

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metafields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/gateways/objects"
)

// Resources that are watched beside the objects of Gateways.
var (
	gatewayResource = ofGatewayAPI("gateways")
	classResource   = ofGatewayAPI("gatewayclasses")
	setResource     = ofGatewayAPI("listenersets")

	namespaceResource = corev1.SchemeGroupVersion.WithResource("namespaces")
	configMapResource = corev1.SchemeGroupVersion.WithResource("configmaps")
	hookResource      = schema.GroupVersionResource{
		Group:    "admissionregistration.k8s.io",
		Version:  "v1",
		Resource: "mutatingwebhookconfigurations",
	}
	definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

func ofGatewayAPI(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: gatewayv1.GroupVersion.Version, Resource: resource}
}

// Indices of the stores.
const (
	byClass      = "class"
	byParameters = "parameters"
	byParent     = "parent"
	byOwner      = "owner"
)

// optional is a kind of the Gateway API, which a cluster need not have. While it has none there are no objects of it.
type optional struct {
	resource schema.GroupVersionResource
	// start makes the watch and runs it until its context ends.
	start func(ctx context.Context) cache.SharedIndexInformer
	// definition watches whether the cluster has the kind.
	definition cache.SharedIndexInformer

	mu sync.Mutex
	// informer is nil while the cluster does not have the kind.
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	// unserved is that the API server does not know the kind, or not in this version.
	unserved bool
}

// defined is called when the kind comes and goes. It is false if nothing changes.
func (o *optional) defined(ctx context.Context, there bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case there && o.informer == nil:
		var own context.Context
		own, o.stop = context.WithCancel(ctx)
		o.unserved, o.informer = false, o.start(own)
	case !there && o.informer != nil:
		o.stop()
		o.informer = nil
	default:
		return false
	}
	return true
}

// synced reports whether all objects are known.
func (o *optional) synced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.definition.HasSynced() && (o.informer == nil || o.unserved || o.informer.HasSynced())
}

func (o *optional) setUnserved() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unserved = true
}

// indexer is the store; an empty one while the cluster does not have the kind.
func (o *optional) indexer() cache.Indexer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.informer == nil {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, indices())
	}
	return o.informer.GetIndexer()
}

// indices are those of all stores; each kind has keys in those that are about it.
func indices() cache.Indexers {
	return cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		byClass: func(o any) ([]string, error) {
			if gw, ok := o.(*gatewayv1.Gateway); ok {
				return []string{string(gw.Spec.GatewayClassName)}, nil
			}
			return nil, nil
		},
		byParameters: func(o any) ([]string, error) {
			if gw, ok := o.(*gatewayv1.Gateway); ok {
				if name, err := gatewaydeploy.Parameters(gw); err == nil && name != "" {
					return []string{gw.Namespace + "/" + name}, nil
				}
			}
			return nil, nil
		},
		byParent: func(o any) ([]string, error) {
			if set, ok := o.(*gatewayv1.ListenerSet); ok {
				if namespace, name, ok := gatewaydeploy.Parent(set); ok {
					return []string{namespace + "/" + name}, nil
				}
			}
			return nil, nil
		},
		byOwner: func(o any) ([]string, error) {
			if u, ok := o.(*unstructured.Unstructured); ok {
				if owner, ok := ownerOf(u); ok {
					return []string{u.GetNamespace() + "/" + owner.Name}, nil
				}
			}
			return nil, nil
		},
	}
}

// ownerOf is the Gateway that owns an object.
func ownerOf(o metav1.Object) (metav1.OwnerReference, bool) {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Gateway" && groupOf(ref.APIVersion) == gatewayv1.GroupName {
			return ref, true
		}
	}
	return metav1.OwnerReference{}, false
}

func groupOf(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return ""
	}
	return gv.Group
}

// follow sets up all watches.
func (c *controller) follow() error {
	c.gateways = c.optional(gatewayResource, func(u *unstructured.Unstructured) (any, error) { return typed(u, &gatewayv1.Gateway{}) },
		cache.ResourceEventHandlerFuncs{AddFunc: c.gatewayAdded, UpdateFunc: c.gatewayUpdated, DeleteFunc: c.gatewayAdded})
	c.classes = c.optional(classResource, func(u *unstructured.Unstructured) (any, error) { return typed(u, &gatewayv1.GatewayClass{}) },
		changed(c.classChanged))
	c.sets = c.optional(setResource, func(u *unstructured.Unstructured) (any, error) { return typed(u, &gatewayv1.ListenerSet{}) },
		changed(c.setChanged))
	for _, o := range []*optional{c.gateways, c.classes, c.sets} {
		name := o.resource.GroupResource().String()
		o.definition = metadatainformer.NewFilteredMetadataInformer(
			c.metadata,
			definitionResource,
			"",
			0,
			cache.Indexers{},
			func(l *metav1.ListOptions) {
				l.FieldSelector = metafields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
			},
		).Informer()
		there := func(is bool) func(any) {
			return func(any) {
				if o.defined(c.term, is) {
					c.Log.Debug("a kind of the Gateway API has come or gone", "kind", name, "there", is)
				}
			}
		}
		if err := c.add(o.definition, bare, cache.ResourceEventHandlerFuncs{AddFunc: there(true), UpdateFunc: func(_, to any) { there(true)(to) },
			DeleteFunc: there(false)}); err != nil {
			return err
		}
	}
	c.namespaces = metadatainformer.NewFilteredMetadataInformer(c.metadata, namespaceResource, "", 0, cache.Indexers{}, nil).Informer()
	c.configMaps = metadatainformer.NewFilteredMetadataInformer(c.metadata, configMapResource, "", 0, indices(), nil).Informer()
	c.tags = metadatainformer.NewFilteredMetadataInformer(c.metadata, hookResource, "", 0, cache.Indexers{}, func(l *metav1.ListOptions) {
		l.LabelSelector = contract.TagLabel
	}).Informer()
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.namespaces, relabelled(c.namespaceChanged)}, {c.configMaps, changed(c.configMapChanged)}, {c.tags, relabelled(func(any) { c.all() })},
	} {
		if err := c.add(w.informer, bare, w.handler); err != nil {
			return err
		}
	}
	for _, kind := range objects.Kinds() {
		informer := dynamicinformer.NewFilteredDynamicInformer(c.objects, kind.Resource, "", 0, indices(), func(l *metav1.ListOptions) {
			l.LabelSelector = gatewaydeploy.ManagedLabel
		}).Informer()
		c.children[kind.Resource] = informer
		if err := c.add(informer, trim, changed(c.childChanged)); err != nil {
			return err
		}
	}
	return nil
}

// add completes an informer that run starts.
func (c *controller) add(informer cache.SharedIndexInformer, keep cache.TransformFunc, handler cache.ResourceEventHandler) error {
	if err := informer.SetTransform(keep); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(c.watchFailed(nil)); err != nil {
		return err
	}
	registered, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	c.informers = append(c.informers, informer)
	c.synced = append(c.synced, registered.HasSynced)
	return nil
}

// optional makes the watch of a kind of the Gateway API.
func (c *controller) optional(of schema.GroupVersionResource, keep func(*unstructured.Unstructured) (any, error),
	handler cache.ResourceEventHandler,
) *optional {
	o := &optional{resource: of}
	o.start = func(ctx context.Context) cache.SharedIndexInformer {
		informer := dynamicinformer.NewFilteredDynamicInformer(c.objects, of, "", 0, indices(), nil).Informer()
		// None of these can fail before the informer runs.
		_ = informer.SetTransform(func(o any) (any, error) {
			if u, ok := o.(*unstructured.Unstructured); ok {
				return keep(u)
			}
			return o, nil
		})
		_ = informer.SetWatchErrorHandlerWithContext(c.watchFailed(o))
		_, _ = informer.AddEventHandler(handler)
		c.tasks.Go(func() { informer.RunWithContext(ctx) })
		return informer
	}
	return o
}

// watchFailed counts and logs failures of a watch, each text once. A kind that the API server does not have is none.
func (c *controller) watchFailed(o *optional) cache.WatchErrorHandlerWithContext {
	last := ""
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		switch {
		case ctx.Err() != nil:
		case o != nil && apierrors.IsNotFound(err):
			c.Log.Debug("a kind of the Gateway API is not served yet, or not in version v1", "kind", o.resource.Resource)
			o.setUnserved()
		default:
			c.metrics.watchFails.Inc()
			if text := err.Error(); text != last {
				last = text
				c.Log.Warn("the API server refuses a watch, or has broken it off; trying again", "error", err)
			}
		}
	}
}

func typed(u *unstructured.Unstructured, into metav1.Object) (any, error) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		return nil, err
	}
	into.SetManagedFields(nil)
	switch o := into.(type) {
	case *gatewayv1.Gateway:
		o.Status = gatewayv1.GatewayStatus{}
	case *gatewayv1.ListenerSet:
		o.Status = gatewayv1.ListenerSetStatus{}
	}
	return into, nil
}

// bare keeps of metadata what is read here.
func bare(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations, m.OwnerReferences, m.Finalizers = nil, nil, nil, nil
	}
	return o, nil
}

// trim keeps of an object of a Gateway what is compared, and who has written it.
func trim(o any) (any, error) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		delete(u.Object, "status")
		by := u.GetManagedFields()
		for i := range by {
			by[i].FieldsV1 = nil
		}
		u.SetManagedFields(by)
	}
	return o, nil
}

// changed is a handler for whatever happens to an object.
func changed(call func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: call, UpdateFunc: func(from, to any) { call(from); call(to) },
		DeleteFunc: func(o any) { call(last(o)) }}
}

// relabelled is a handler for changes of labels.
func relabelled(call func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: call, DeleteFunc: func(o any) { call(last(o)) }, UpdateFunc: func(from, to any) {
		a, isA := from.(metav1.Object)
		b, isB := to.(metav1.Object)
		if isA && isB && !maps.Equal(a.GetLabels(), b.GetLabels()) {
			call(to)
		}
	}}
}

// last is what an object was when it was deleted.
func last(o any) any {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return o
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (c *controller) gatewayAdded(o any) {
	if gw, ok := last(o).(*gatewayv1.Gateway); ok {
		c.queue.Add(keyOf(gw))
	}
}

// gatewayUpdated leaves out changes of the status, which say nothing here.
func (c *controller) gatewayUpdated(from, to any) {
	a, isA := from.(*gatewayv1.Gateway)
	b, isB := to.(*gatewayv1.Gateway)
	if isA && isB && (a.UID != b.UID || a.Generation != b.Generation || !maps.Equal(a.Labels, b.Labels) ||
		!maps.Equal(a.Annotations, b.Annotations)) {
		c.queue.Add(keyOf(b))
	}
}

func (c *controller) classChanged(o any) {
	if class, ok := o.(*gatewayv1.GatewayClass); ok {
		c.indexed(byClass, class.Name)
	}
}

func (c *controller) setChanged(o any) {
	if set, ok := o.(*gatewayv1.ListenerSet); ok {
		if namespace, name, ok := gatewaydeploy.Parent(set); ok {
			c.queue.Add(types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
}

// namespaceChanged looks at the Gateways of a namespace, and at those that its ListenerSets belong to.
func (c *controller) namespaceChanged(o any) {
	namespace, ok := o.(metav1.Object)
	if !ok {
		return
	}
	c.indexed(cache.NamespaceIndex, namespace.GetName())
	sets, _ := c.sets.indexer().ByIndex(cache.NamespaceIndex, namespace.GetName())
	for _, set := range sets {
		c.setChanged(set)
	}
}

func (c *controller) configMapChanged(o any) {
	m, ok := o.(metav1.Object)
	if !ok {
		return
	}
	c.indexed(byParameters, m.GetNamespace()+"/"+m.GetName())
	if class := m.GetLabels()[gatewaydeploy.DefaultsLabel]; class != "" && m.GetNamespace() == c.options.RootNamespace {
		c.indexed(byClass, class)
	}
}

func (c *controller) childChanged(o any) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		if owner, ok := ownerOf(u); ok {
			c.queue.Add(types.NamespacedName{Namespace: u.GetNamespace(), Name: owner.Name})
		}
	}
}

// indexed looks at the Gateways of an index.
func (c *controller) indexed(index, key string) {
	found, _ := c.gateways.indexer().ByIndex(index, key)
	for _, o := range found {
		c.gatewayAdded(o)
	}
}

// all looks at all Gateways.
func (c *controller) all() {
	for _, o := range c.gateways.indexer().List() {
		c.gatewayAdded(o)
	}
}
