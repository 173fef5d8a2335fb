package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Conflict says that other field managers have other values for fields that are applied.
type Conflict struct {
	ID     ID
	Fields []ConflictField
}

// ConflictField is one such field.
type ConflictField struct {
	// Manager is the field's, with the subresource if it wrote through one: "kubectl", "kube-controller-manager
	// (scale)".
	Manager string
	// Field is its path, ".spec.replicas".
	Field string
}

// Error names each field with its manager.
func (c *Conflict) Error() string {
	var b strings.Builder
	for i, f := range c.Fields {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: %s is managed by %s", c.ID, f.Field, f.Manager)
	}
	return b.String()
}

// manager is in the message of a cause: `conflict with "kubectl" with subresource "scale" using apps/v1`.
var manager = regexp.MustCompile(`conflict with "([^"]*)"(?: with subresource "([^"]*)")?`)

func conflict(id ID, err error) *Conflict {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	c := &Conflict{ID: id}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		f := ConflictField{Manager: cause.Message, Field: cause.Field}
		if m := manager.FindStringSubmatch(cause.Message); m != nil {
			if f.Manager = m[1]; m[2] != "" {
				f.Manager += " (" + m[2] + ")"
			}
		}
		c.Fields = append(c.Fields, f)
	}
	if len(c.Fields) == 0 {
		return nil
	}
	return c
}

// WebhookDown is the failure of an admission webhook that did not answer.
type WebhookDown struct {
	ID ID
	// Webhook is its name, Config the configuration that has it, if it was found.
	Webhook string
	Config  *ID
	Cause   error
}

// Error names the webhook and its configuration.
func (w *WebhookDown) Error() string {
	where := ""
	remedy := "start it again"
	if w.Config != nil {
		where = " of " + w.Config.String()
		remedy += ", or delete its configuration: kubectl delete " + w.Config.Command()
	}
	return fmt.Sprintf("%s: admission webhook %s%s does not answer: %v; %s", w.ID, w.Webhook, where, w.Cause, remedy)
}

// Unwrap returns what the API server said.
func (w *WebhookDown) Unwrap() error { return w.Cause }

// webhook is in the cause of the internal error by which an API server tells that it could not call a webhook.
var webhook = regexp.MustCompile(`^failed calling webhook "([^"]*)"`)

// webhookOf returns the name of the webhook that an API server could not call.
func webhookOf(err error) (name string, ok bool) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInternalError(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}
	for _, cause := range status.Status().Details.Causes {
		if m := webhook.FindStringSubmatch(cause.Message); m != nil {
			return m[1], true
		}
	}
	return "", false
}

// IsUnserved says whether an API server does not serve the kind of a request, rather than not have its object: it
// answers such a path with a page that is no Status.
func IsUnserved(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

// explain names the object in an error of a request, and says what to do about it. The verbs are the rights that the
// request needs.
func (c *Client) explain(ctx context.Context, id ID, err error, verbs ...string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if found := conflict(id, err); found != nil {
		return found
	}
	switch {
	case apierrors.IsForbidden(err) && c.lacks(ctx, id, verbs):
		return fmt.Errorf("%s: %w; grant it by RBAC, or use a kubeconfig that may", id, err)
	case apierrors.IsUnauthorized(err):
		return c.unreachable(err)
	}
	if name, down := webhookOf(err); down {
		return &WebhookDown{ID: id, Webhook: name, Config: c.webhookConfig(ctx, name), Cause: err}
	}
	return fmt.Errorf("%s: %w", id, err)
}

// reviews are the questions to an API server about the rights of who asks.
var reviews = ID{Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview"}

// lacks says whether the user has no right to one of the verbs. What else is forbidden, admission forbids: a quota, or
// Pod Security.
func (c *Client) lacks(ctx context.Context, id ID, verbs []string) bool {
	m, err := c.mapping(id)
	if err != nil {
		return false
	}
	r, err := c.resource(reviews)
	if err != nil {
		return false
	}
	for _, verb := range verbs {
		answer, err := r.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": reviews.Kind, "spec": map[string]any{"resourceAttributes": map[string]any{
				"verb": verb, "group": m.Resource.Group, "resource": m.Resource.Resource, "namespace": id.Namespace, "name": id.Name,
			}},
		}}, metav1.CreateOptions{})
		if err != nil {
			return false
		}
		if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !allowed {
			return true
		}
	}
	return false
}

// webhookConfig finds the configuration that has a webhook.
func (c *Client) webhookConfig(ctx context.Context, name string) *ID {
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		list, err := c.List(ctx, ID{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind}, metav1.ListOptions{})
		if err != nil {
			return nil
		}
		for i := range list {
			hooks, _, _ := unstructured.NestedSlice(list[i].Object, "webhooks")
			for _, h := range hooks {
				if h, ok := h.(map[string]any); ok && h["name"] == name {
					id := Of(&list[i])
					return &id
				}
			}
		}
	}
	return nil
}
