package apply

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
)

// immutable refuses another selector of a Deployment that is there, and a Service without ports.
func immutable(_ *http.Request, live, want *unstructured.Unstructured) *metav1.Status {
	field, message := "spec.ports", "Required value"
	switch want.GetKind() {
	case "Deployment":
		field, message = "spec.selector", "Invalid value: field is immutable"
		if live == nil || reflect.DeepEqual(live.Object["spec"].(map[string]any)["selector"], want.Object["spec"].(map[string]any)["selector"]) {
			return nil
		}
	case "Service":
	default:
		return nil
	}
	return &metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: field + ": " + message,
		Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: field, Message: message}},
		}}
}

func selects(app string) string {
	return "{apiVersion: apps/v1, kind: Deployment, metadata: {name: server, namespace: mesh}, spec: {selector: {matchLabels: {app: " + app +
		"}}}}"
}

func TestAnObjectIsMadeAnewWhereItIsAskedFor(t *testing.T) {
	s := clustertest.Start(t, "")
	s.Refuse = immutable
	c := s.Client(t)
	if _, err := installed(t, c, request(t, selects("old")), Options{}); err != nil {
		t.Fatal(err)
	}
	before := s.Writes()
	plan, err := installed(t, c, request(t, selects("new")), Options{})
	if err == nil || !strings.Contains(err.Error(),
		"nothing was changed: 1 objects cannot be changed as they are, and have to be made anew:\nDeployment mesh/server: spec.selector cannot "+
			"be changed while it is there\n") ||
		!strings.Contains(err.Error(), "--recreate") || !strings.Contains(err.Error(), "kubectl delete deployment.apps/server -n mesh") {
		t.Fatal(err)
	}
	if plan.Summary() != "1 made anew, 1 unchanged" || !slices.Equal(s.Writes(), before) {
		t.Errorf("%s; %q", plan.Summary(), s.Writes())
	}
	if _, err := installed(t, c, request(t, selects("new")), Options{Recreate: true}); err != nil {
		t.Fatal(err)
	}
	if writes := s.Writes()[len(before):]; !slices.Equal(writes, []string{"delete Deployment mesh/server", "apply Deployment mesh/server"}) {
		t.Errorf("%q", writes)
	}
	match, _, _ := unstructured.NestedStringMap(s.Get("Deployment", "mesh", "server").Object, "spec", "selector", "matchLabels")
	if match["app"] != "new" {
		t.Errorf("%v", match)
	}
}

func TestWhatIsWrongInItselfIsNotMadeAnew(t *testing.T) {
	const service = "{apiVersion: v1, kind: Service, metadata: {name: server, namespace: mesh}, spec: {type: ClusterIP}}"
	s := clustertest.Start(t, service)
	s.Refuse = immutable
	_, err := installed(t, s.Client(t), request(t, service), Options{Recreate: true})
	if err == nil || !strings.Contains(err.Error(), "Service mesh/server: spec.ports: Required value") || len(s.Writes()) != 0 {
		t.Errorf("%v; %q", err, s.Writes())
	}
}
