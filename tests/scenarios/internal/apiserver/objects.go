package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/tests/internal/wait"
)

// Denied is the error of an object that the API server does not take; nothing was changed.
type Denied struct {
	// Webhook is true if our webhook has said no, false if Kubernetes has: its own validation, or a schema.
	Webhook bool
	Text    string
}

// Error implements error.
func (d *Denied) Error() string { return d.Text }

// fromWebhook tells whether the webhook has denied an object.
func fromWebhook(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), webhookName)
}

// explain turns an answer into Denied if it is about the object.
func explain(err error) error {
	switch {
	case fromWebhook(err):
		return &Denied{Webhook: true, Text: err.Error()}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), meta.IsNoMatchError(err):
		return &Denied{Text: err.Error()}
	}
	return err
}

// Written is what has become of an object.
type Written struct {
	// Kind is as in config-watcher's Status.Versions: kind and group, and for what is watched one by one also its name.
	Kind string
	// Version is its resource version, which grows with every write to the API server.
	Version uint64
}

// makeNamespace makes the namespace of an object, if it is not there: only some topologies write theirs.
func (s *Server) makeNamespace(ctx context.Context, name string) error {
	s.mu.Lock()
	known := s.namespaces[name]
	s.mu.Unlock()
	if known || name == "" {
		return nil
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
	_, err := s.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Create(ctx, u, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespaces[name] = true
	return nil
}

// Put creates or replaces an object with its status; replaces tells that it is there. A new object of a kind outside of
// the core group is younger than those that Put has created before. An object that the API server does not take is a
// *Denied. As kubectl does, Put has the API server refuse fields that the kind lacks.
func (s *Server) Put(ctx context.Context, object map[string]any, replaces bool) (Written, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return Written{}, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return Written{}, &Denied{Text: err.Error()}
	}
	status := u.Object["status"]
	delete(u.Object, "status")
	resource, err := s.resource(u)
	if err != nil {
		return Written{}, explain(err)
	}
	if err := s.makeNamespace(ctx, u.GetNamespace()); err != nil {
		return Written{}, err
	}
	var now *unstructured.Unstructured
	if replaces {
		now, err = replace(ctx, resource, u)
	} else {
		now, err = s.create(ctx, resource, u)
	}
	if err == nil && status != nil {
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"status": status}); err == nil {
			now, err = resource.Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		}
	}
	if err != nil {
		return Written{}, explain(err)
	}
	return written(now)
}

// attempts of a replacement while config-watcher writes the object's status.
const attempts = 20

// create creates an object without its status, in place of one that somebody else has written.
func (s *Server) create(ctx context.Context, resource dynamic.ResourceInterface, u *unstructured.Unstructured) (*unstructured.Unstructured,
	error) {
	aged := u.GroupVersionKind().Group != ""
	if aged {
		if err := s.awaitTurn(ctx, u); err != nil {
			return nil, err
		}
	}
	now, err := resource.Create(ctx, u, strictCreate)
	if apierrors.IsAlreadyExists(err) {
		return replace(ctx, resource, u)
	}
	if err == nil && aged {
		s.created(now)
	}
	return now, err
}

// As kubectl has it.
var (
	strictCreate = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	strictUpdate = metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict}
)

// replace replaces an object without its status.
func replace(ctx context.Context, resource dynamic.ResourceInterface, u *unstructured.Unstructured) (now *unstructured.Unstructured,
	err error) {
	for range attempts {
		var old *unstructured.Unstructured
		if old, err = resource.Get(ctx, u.GetName(), metav1.GetOptions{}); err != nil {
			return nil, err
		}
		next := u.DeepCopy()
		next.SetResourceVersion(old.GetResourceVersion())
		if u.GetKind() == "Pod" {
			// Its specification cannot change, and is what the topology says.
			if maps.Equal(old.GetLabels(), u.GetLabels()) && maps.Equal(old.GetAnnotations(), u.GetAnnotations()) {
				return old, nil
			}
			next.Object["spec"] = old.Object["spec"]
		}
		now, err = resource.Update(ctx, next, strictUpdate)
		switch {
		case apierrors.IsConflict(err):
			continue
		case isImmutable(err):
			// As `kubectl replace --force` does.
			if err = remove(ctx, resource, u.GetName()); err == nil {
				now, err = resource.Create(ctx, u, strictCreate)
			}
		}
		return now, err
	}
	return nil, err
}

// isImmutable tells whether the API server keeps a field as it is.
func isImmutable(err error) bool {
	return apierrors.IsInvalid(err) && !fromWebhook(err) &&
		(strings.Contains(err.Error(), "may not change once set") || strings.Contains(err.Error(), "field is immutable"))
}

func remove(ctx context.Context, resource dynamic.ResourceInterface, name string) error {
	now := int64(0)
	return resource.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

func written(u *unstructured.Unstructured) (Written, error) {
	version, err := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	w := Written{Kind: u.GroupVersionKind().GroupKind().String(), Version: version}
	if u.GroupVersionKind().Group == "" && (u.GetKind() == "Secret" || u.GetKind() == "ConfigMap") {
		w.Kind += " " + u.GetNamespace() + "/" + u.GetName()
	}
	return w, err
}

// ErrNotFound is wrapped by the error of Delete if there is no such object.
var ErrNotFound = errors.New("not found")

// Delete removes an object at once. apiVersion may be empty if Put has written an object of the kind. A group after the
// kind's name is left to apiVersion.
func (s *Server) Delete(ctx context.Context, apiVersion, kind, namespace, name string) error {
	kind, _, _ = strings.Cut(kind, ".")
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	if apiVersion == "" {
		found, err := s.kinds.named(kind)
		if err != nil {
			return err
		}
		gvk = found
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace(namespace)
	resource, err := s.resource(u)
	if err != nil {
		return err
	}
	if err := remove(ctx, resource, name); apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s/%s: %w", kind, namespace, name, ErrNotFound)
	} else if err != nil {
		return err
	}
	if gvk.Group == "" && kind == "Service" {
		return s.removeSlices(ctx, namespace, name)
	}
	return nil
}

// newest is the youngest object of a kind.
type newest struct {
	created time.Time
	key     string
}

func keyOf(u *unstructured.Unstructured) string { return u.GetNamespace() + "/" + u.GetName() }

// awaitTurn returns when a new object will count as younger than those of its kind that Put has created before. The API
// server counts age in seconds, and of two objects of one second the mesh takes that for the older whose name is first.
func (s *Server) awaitTurn(ctx context.Context, u *unstructured.Unstructured) error {
	s.mu.Lock()
	last := s.newest[u.GroupVersionKind()]
	s.mu.Unlock()
	left := time.Until(last.created.Add(time.Second))
	if left <= 0 || last.key < keyOf(u) {
		return nil
	}
	return wait.Pause(ctx, left)
}

// created remembers an object for awaitTurn.
func (s *Server) created(u *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, this := s.newest[u.GroupVersionKind()], newest{u.GetCreationTimestamp().Time, keyOf(u)}
	if this.created.After(last.created) || this.created.Equal(last.created) && this.key > last.key {
		s.newest[u.GroupVersionKind()] = this
	}
}
