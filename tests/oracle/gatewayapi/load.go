package gatewayapi

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"fairlead.dev/tests/internal/kubeapi"
)

// loader applies objects to an API server, with their statuses.
type loader struct {
	client dynamic.Interface
	mapper meta.RESTMapper
}

func newLoader(s *kubeapi.Server) (*loader, error) {
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		return nil, err
	}
	return &loader{client, restmapper.NewDiscoveryRESTMapper(groups)}, nil
}

// reset takes all statuses away, but for those of the inputs.
func (l *loader) reset(ctx context.Context, inputs []*input) error {
	for _, resource := range judged {
		r := l.client.Resource(gatewayAPI(resource))
		list, err := r.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			o := &list.Items[i]
			unstructured.RemoveNestedField(o.Object, "status")
			if _, err := r.Namespace(o.GetNamespace()).UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	for _, in := range inputs {
		var with []*unstructured.Unstructured
		for _, o := range in.objects {
			if o.Object["status"] != nil && o.GroupVersionKind().Group == gatewayGroup {
				with = append(with, o)
			}
		}
		if _, err := l.apply(ctx, with); err != nil {
			return err
		}
	}
	return nil
}

// apply returns why the API server refuses objects: Istio's tests have no API server. Its mesh has no such kind, or a
// rule of the definitions forbids it.
func (l *loader) apply(ctx context.Context, objects []*unstructured.Unstructured) (refused []string, err error) {
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		name := fmt.Sprintf("%s %s/%s", kind.Kind, o.GetNamespace(), o.GetName())
		mapping, err := l.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			refused = append(refused, name+": no such kind")
			continue
		} else if err != nil {
			return nil, err
		}
		var target dynamic.ResourceInterface = l.client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			target = l.client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		_, err = target.Apply(ctx, o.GetName(), o, options)
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			refused = append(refused, name+": "+firstLine(err.Error()))
			continue
		}
		if err == nil && o.Object["status"] != nil {
			_, err = target.ApplyStatus(ctx, o.GetName(), o, options)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return refused, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
