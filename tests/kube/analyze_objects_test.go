package kube

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"fairlead.dev/tests/internal/kubeapi"
)

// apply applies YAML documents with the namespaces that they name.
func apply(t *testing.T, s *kubeapi.Server, text string) error {
	t.Helper()
	objects := decode(t, text)
	known := map[string]bool{"": true}
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			known[o.GetName()] = true
		}
	}
	var namespaces []*unstructured.Unstructured
	for _, o := range objects {
		if ns := o.GetNamespace(); !known[ns] {
			known[ns] = true
			n := &unstructured.Unstructured{}
			n.SetAPIVersion("v1")
			n.SetKind("Namespace")
			n.SetName(ns)
			namespaces = append(namespaces, n)
		}
	}
	return kubeapi.Apply(t.Context(), s.Config, append(namespaces, objects...)...)
}

// remove deletes objects, except namespaces, which stay until a controller that does not run has emptied them.
func remove(t *testing.T, s *kubeapi.Server, objects []*unstructured.Unstructured) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	now := int64(0)
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			continue
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			target = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		if err := target.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil &&
			!apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}
