package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

var webhook = regexp.MustCompile(`failed calling webhook "([^"]*)"`)

// explain names the object in an error of a request, and says what to do about it.
func (c *Client) explain(ctx context.Context, id ID, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if found := conflict(id, err); found != nil {
		return found
	}
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot "):
		return fmt.Errorf("%s: %w; grant it by RBAC, or use a kubeconfig that may", id, err)
	case apierrors.IsUnauthorized(err):
		return c.unreachable(err)
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "immutable"):
		return fmt.Errorf("%s: %w; delete the object and run this again: kubectl delete %s", id, err, id.Command())
	}
	if m := webhook.FindStringSubmatch(err.Error()); m != nil {
		return &WebhookDown{ID: id, Webhook: m[1], Config: c.webhookConfig(ctx, m[1]), Cause: err}
	}
	return fmt.Errorf("%s: %w", id, err)
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
