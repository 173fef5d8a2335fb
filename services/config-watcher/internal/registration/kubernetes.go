package registration

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Bounds of the requests that write WorkloadEntries.
const (
	kubernetesQPS   = 50
	kubernetesBurst = 200
)

// apiVersion is that of the WorkloadEntries that are made.
const apiVersion = kinds.GroupNetworking + "/v1"

// KubernetesWriter writes into an API server, while its replica leads.
type KubernetesWriter struct {
	client dynamic.Interface
	leads  atomic.Bool
}

// NewKubernetesWriter returns a writer with a client of its own, so that it delays no reading of objects.
func NewKubernetesWriter(api *rest.Config) (*KubernetesWriter, error) {
	api = rest.CopyConfig(api)
	api.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(kubernetesQPS, kubernetesBurst)
	client, err := dynamic.NewForConfig(api)
	return &KubernetesWriter{client: client}, err
}

// Lead says whether this replica is the one that writes.
func (w *KubernetesWriter) Lead(leads bool) { w.leads.Store(leads) }

func (w *KubernetesWriter) in(namespace string) dynamic.ResourceInterface {
	return w.client.Resource(schema.GroupVersionResource{Group: kinds.GroupNetworking, Version: "v1",
		Resource: "workloadentries"}).Namespace(namespace)
}

// Create implements Writer. The entry is owned by its group, and goes with it.
func (w *KubernetesWriter) Create(ctx context.Context, e Entry) error {
	if !w.leads.Load() {
		return ErrIdle
	}
	tree, _, err := e.document()
	if err != nil {
		return err
	}
	o := &unstructured.Unstructured{Object: tree}
	if g := e.Group; g.UID != "" {
		controller := true
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: g.APIVersion, Kind: groupKind, Name: g.Key.Name, UID: types.UID(g.UID),
			Controller: &controller}})
	}
	_, err = w.in(e.Key.Namespace).Create(ctx, o, metav1.CreateOptions{FieldManager: "fairlead"})
	return explained("create", err)
}

// Annotate implements Writer.
func (w *KubernetesWriter) Annotate(ctx context.Context, of *object.Object, set map[string]string,
	check func(map[string]string) bool) error {
	o, err := w.checked(ctx, of, check)
	if err != nil {
		return err
	}
	annotations := map[string]any{}
	for k, v := range set {
		annotations[k] = v
		if v == "" {
			annotations[k] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(),
		"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = w.in(of.Key.Namespace).Patch(ctx, of.Key.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "fairlead"})
	return explained("patch", err)
}

// Delete implements Writer.
func (w *KubernetesWriter) Delete(ctx context.Context, of *object.Object, check func(map[string]string) bool) error {
	o, err := w.checked(ctx, of, check)
	if err != nil {
		return err
	}
	uid, version := o.GetUID(), o.GetResourceVersion()
	err = w.in(of.Key.Namespace).Delete(ctx, of.Key.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	return explained("delete", err)
}

// checked reads an entry, and returns it if its annotations pass.
func (w *KubernetesWriter) checked(ctx context.Context, of *object.Object, check func(map[string]string) bool) (*unstructured.Unstructured,
	error) {
	if !w.leads.Load() {
		return nil, ErrIdle
	}
	o, err := w.in(of.Key.Namespace).Get(ctx, of.Key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, explained("get", err)
	}
	if !check(o.GetAnnotations()) {
		return nil, ErrOutdated
	}
	return o, nil
}

func explained(verb string, err error) error {
	switch {
	case apierrors.IsNotFound(err) && verb != "create", apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ErrOutdated
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; allow config-watcher's service account to %s workloadentries.%s; fairlead-keeper binds ClusterRole "+
			"fairlead-config-watcher-registration in namespaces with a WorkloadGroup: see its log", err, verb, kinds.GroupNetworking)
	}
	return err
}

// document is the entry as an object of YAML, and decoded. The error says what is wrong with its group's template.
func (e Entry) document() (map[string]any, *object.Object, error) {
	js, err := protojson.Marshal(e.Spec)
	if err != nil {
		return nil, nil, err
	}
	var spec map[string]any
	if err := json.Unmarshal(js, &spec); err != nil {
		return nil, nil, err
	}
	meta := map[string]any{"name": e.Key.Name, "namespace": e.Key.Namespace}
	for field, texts := range map[string]map[string]string{"labels": e.Labels, "annotations": e.Annotations} {
		values := map[string]any{}
		for k, v := range texts {
			if v != "" || field == "labels" {
				values[k] = v
			}
		}
		if len(values) > 0 {
			meta[field] = values
		}
	}
	tree := map[string]any{"apiVersion": apiVersion, "kind": entryKind, "metadata": meta, "spec": spec}
	o, err := validate.Document(&manifest.Document{Tree: tree})
	if err != nil {
		return nil, nil, fmt.Errorf("the template of %s makes no valid WorkloadEntry: %w", e.Group.Key, err)
	}
	return tree, o, nil
}
