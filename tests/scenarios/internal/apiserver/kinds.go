package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// kinds are those that Put has written, and where the API server has them.
type kinds struct {
	mapper meta.RESTMapper
	mu     sync.Mutex
	known  map[schema.GroupVersionKind]*meta.RESTMapping
}

// of finds where objects of a kind are.
func (k *kinds) of(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.known[gvk]; m != nil {
		return m, nil
	}
	m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err == nil {
		k.known[gvk] = m
	}
	return m, err
}

// named is the known kind of a name.
func (k *kinds) named(kind string) (schema.GroupVersionKind, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for gvk := range k.known {
		if gvk.Kind == kind {
			return gvk, nil
		}
	}
	return schema.GroupVersionKind{}, fmt.Errorf("nobody has written a %s: %w", kind, ErrNotFound)
}

func (k *kinds) all() (out []*meta.RESTMapping) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.known {
		out = append(out, m)
	}
	return out
}

// resource is where an object is, or is to be.
func (s *Server) resource(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	m, err := s.kinds.of(u.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		u.SetNamespace("")
		return s.client.Resource(m.Resource), nil
	}
	if u.GetNamespace() == "" {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return s.client.Resource(m.Resource).Namespace(u.GetNamespace()), nil
}

// Clean removes everything that a fleet has written, for the next one: the objects of every kind that Put knows, what
// controllers have made of them, and the claim to write statuses. Namespaces stay, without labels.
func (s *Server) Clean(ctx context.Context) error {
	for _, gvk := range []schema.GroupVersionKind{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		coordinationv1.SchemeGroupVersion.WithKind("Lease")} {
		if _, err := s.kinds.of(gvk); err != nil {
			return err
		}
	}
	// A controller that has not heard of it yet makes an EndpointSlice once more.
	for {
		if n, err := s.pass(ctx); err != nil || n == 0 {
			return err
		}
	}
}

// pass removes what there is, and tells how much that was.
func (s *Server) pass(ctx context.Context) (n int, err error) {
	var tasks errgroup.Group
	tasks.SetLimit(8)
	for _, m := range s.kinds.all() {
		list, err := s.client.Resource(m.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return n, errors.Join(err, tasks.Wait())
		}
		for i := range list.Items {
			if u := &list.Items[i]; !isKubernetes(u) && (u.GetKind() != "Namespace" || isLabelled(u)) {
				n++
				tasks.Go(func() error { return s.clean(ctx, u) })
			}
		}
	}
	return n, tasks.Wait()
}

// isLabelled tells whether a namespace has labels besides the one with its name, which every namespace has.
func isLabelled(u *unstructured.Unstructured) bool { return len(u.GetLabels()) > 1 }

// clean removes an object, and of a namespace its labels.
func (s *Server) clean(ctx context.Context, u *unstructured.Unstructured) error {
	resource, err := s.resource(u)
	if err == nil && u.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Namespace") {
		u.SetLabels(nil)
		_, err = resource.Update(ctx, u, metav1.UpdateOptions{})
	} else if err == nil {
		err = remove(ctx, resource, u.GetName())
	}
	if apierrors.IsNotFound(err) {
		return nil // a controller was faster
	}
	return err
}

// isKubernetes tells of what Kubernetes itself has made.
func isKubernetes(u *unstructured.Unstructured) bool {
	namespace := u.GetNamespace()
	if u.GetKind() == "Namespace" {
		namespace = u.GetName()
	}
	return strings.HasPrefix(namespace, "kube-") || u.GetKind() == "Service" && namespace == metav1.NamespaceDefault &&
		u.GetName() == "kubernetes"
}
