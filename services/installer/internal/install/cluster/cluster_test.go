package cluster

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"fairlead.dev/services/installer/internal/install/manifest"
)

func TestConflictNamesManagerAndField(t *testing.T) {
	id := ID{Group: "apps", Kind: "Deployment", Namespace: "mesh", Name: "server"}
	cause := func(message, field string) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: message, Field: field}
	}
	err := apierrors.NewApplyConflict([]metav1.StatusCause{
		cause(`conflict with "kubectl" using apps/v1 at 2026-01-01T00:00:00Z`, ".spec.strategy.type"),
		cause(`conflict with "hpa" with subresource "scale" using apps/v1`, ".spec.replicas"),
		cause("something new", ".spec.x"),
	}, "conflict")
	want := "Deployment mesh/server: .spec.strategy.type is managed by kubectl\nDeployment mesh/server: .spec.replicas is managed by hpa " +
		"(scale)\nDeployment mesh/server: .spec.x is managed by something new"
	if c := conflict(id, err); c == nil || c.Error() != want {
		t.Errorf("%v", c)
	}
	for _, other := range []error{errors.New("x"), apierrors.NewConflict(schema.GroupResource{Resource: "x"}, "x", errors.New("version"))} {
		if c := conflict(id, other); c != nil {
			t.Errorf("%v is taken for a conflict of fields: %v", other, c)
		}
	}
}

func TestServerThatCannotBeReached(t *testing.T) {
	c, err := Connect(&rest.Config{Host: "http://127.0.0.1:1", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the API server at http://127.0.0.1:1 cannot be reached") ||
		!strings.Contains(err.Error(), "check --kubeconfig and --context") {
		t.Error(err)
	}
	if _, err := c.Get(t.Context(), Namespace("x")); err == nil {
		t.Error("an object of a server that cannot be reached is not there, without an error")
	}
}

func TestWarningsAreKeptOnceAndBounded(t *testing.T) {
	c := &Client{}
	for range 2 {
		c.HandleWarningHeaderWithContext(t.Context(), 299, "", "old")
	}
	if w := c.Warnings(); len(w) != 1 || len(c.Warnings()) != 0 {
		t.Errorf("%v", w)
	}
	for i := range 2 * maxWarnings {
		c.HandleWarningHeaderWithContext(t.Context(), 299, "", strings.Repeat("x", i+1))
	}
	if n := len(c.Warnings()); n != maxWarnings {
		t.Errorf("%d warnings", n)
	}
}

func TestObjectIsSentAsItWasRendered(t *testing.T) {
	u, err := Object(&manifest.Object{Tree: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}, "n": 3, "whole": json.Number("4"),
		"part": json.Number("1.5"), "on": true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if u.Object["n"] != int64(3) || u.Object["whole"] != int64(4) || u.Object["part"] != 1.5 || u.Object["on"] != true ||
		Of(u).String() != "ConfigMap x" || Of(u).Command() != "configmap/x" {
		t.Errorf("%v", u.Object)
	}
}
