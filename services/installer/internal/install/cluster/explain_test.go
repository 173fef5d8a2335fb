package cluster_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
)

func configMap() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	u.SetName("x")
	u.SetNamespace("mesh")
	return u
}

func TestWhatIsForbiddenHasTheRemedyOfItsCause(t *testing.T) {
	for _, tc := range []struct {
		name, message string
		denied        bool
	}{
		{"a right that is missing", "configmaps is forbidden", true},
		{"a quota, whose text sounds like one", "you cannot have more than 3 ConfigMaps", false},
	} {
		s := clustertest.Start(t, "")
		s.Denied = func(verb, resource string) bool { return tc.denied && verb == "patch" && resource == "configmaps" }
		s.Refuse = func(*http.Request, *unstructured.Unstructured, *unstructured.Unstructured) *metav1.Status {
			return &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: tc.message}
		}
		_, err := s.Client(t).Apply(t.Context(), configMap(), cluster.ApplyOptions{})
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "grant it by RBAC") != tc.denied {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestOnlyTheAPIServerSaysThatAWebhookIsDown(t *testing.T) {
	const text = `failed calling webhook "guard.example.com": connection refused`
	down := (*cluster.WebhookDown)(nil)
	for name, tc := range map[string]struct {
		status metav1.Status
		want   bool
	}{
		"the API server's own error": {apierrors.NewInternalError(errors.New(text)).Status(), true},
		"a webhook that answers so": {
			metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "admission webhook denied the request: " +
				text}, false,
		},
	} {
		s := clustertest.Start(t, "")
		s.Refuse = func(*http.Request, *unstructured.Unstructured, *unstructured.Unstructured) *metav1.Status {
			return &tc.status
		}
		_, err := s.Client(t).Apply(t.Context(), configMap(), cluster.ApplyOptions{})
		if errors.As(err, &down) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAKindThatIsNotServedIsNoMissingObject(t *testing.T) {
	s := clustertest.Start(t, "")
	c := s.Client(t)
	s.Refuse = func(*http.Request, *unstructured.Unstructured, *unstructured.Unstructured) *metav1.Status {
		return &metav1.Status{Message: "404 page not found"} // as before a definition is established
	}
	if _, err := c.Apply(t.Context(), configMap(), cluster.ApplyOptions{}); !cluster.IsUnserved(err) {
		t.Errorf("a path that is not served: %v", err)
	}
	s.Refuse = func(*http.Request, *unstructured.Unstructured, *unstructured.Unstructured) *metav1.Status {
		return &metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: "the server could not find the requested resource in namespaces \"mesh\""}
	}
	if _, err := c.Apply(t.Context(), configMap(), cluster.ApplyOptions{}); err == nil || cluster.IsUnserved(err) {
		t.Errorf("a namespace that is missing: %v", err)
	}
}
