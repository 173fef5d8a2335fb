package apply

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/manifest"
)

// silent is a Progress that tells nobody.
type silent struct{}

func (silent) Step(string, int, int, string) {}
func (silent) Done(string, string)           {}

// request is an installation of component "server" in namespace mesh. Its hash is that of the documents.
func request(t *testing.T, documents ...string) *Request {
	t.Helper()
	req := &Request{Revision: "default", Namespace: "mesh", Components: []string{"server"}}
	req.Hash = strings.Join(documents, "")
	for _, text := range documents {
		req.Objects = append(req.Objects, &manifest.Object{Component: "server", Tree: clustertest.Object(t, text).Object})
	}
	return req
}

// installed plans and applies a request, and returns the plan.
func installed(t *testing.T, c *cluster.Client, req *Request, o Options) (*Plan, error) {
	t.Helper()
	plan, err := NewPlan(t.Context(), c, req, false)
	if err != nil {
		return nil, err
	}
	o.Progress, o.Timeout = silent{}, 30*time.Second
	return plan, plan.Apply(t.Context(), c, o)
}

// ready makes Deployments ready, and gives a Pod of an image that is not there the status that a node gives it.
func ready(u *unstructured.Unstructured) {
	switch u.GetKind() {
	case "Deployment":
		replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		u.Object["status"] = map[string]any{"observedGeneration": u.GetGeneration(), "replicas": replicas, "updatedReplicas": replicas,
			"availableReplicas": replicas}
	case "Pod":
		list, _, _ := unstructured.NestedSlice(u.Object, "spec", "containers")
		one := list[0].(map[string]any)
		state := map[string]any{"terminated": map[string]any{"exitCode": int64(0)}}
		if image := one["image"].(string); strings.HasSuffix(image, ":missing") {
			state = map[string]any{"waiting": map[string]any{"reason": "InvalidImageName", "message": "there is no " + image}}
		}
		u.Object["status"] = map[string]any{"containerStatuses": []any{map[string]any{"name": one["name"], "state": state}}}
	}
}

func deployment(strategy, image string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: mesh}
spec:
  replicas: 1
  strategy: {type: ` + strategy + `}
  selector: {matchLabels: {app: server}}
  template: {metadata: {labels: {app: server}}, spec: {containers: [{name: server, image: "example.com/server:` + image + `"}]}}
`
}

func TestAnImageIsProvenBeforeTheOldPodEnds(t *testing.T) {
	s := clustertest.Start(t, "")
	s.Stored = ready
	c := s.Client(t)
	if _, err := installed(t, c, request(t, deployment("Recreate", "1")), Options{Wait: true}); err != nil {
		t.Fatal(err)
	}
	before := len(s.Writes())
	plan, err := installed(t, c, request(t, deployment("Recreate", "missing")), Options{Wait: true})
	if err == nil || !strings.Contains(err.Error(),
		"component server: Deployment mesh/server is not changed, and goes on: image example.com/server:missing: ") ||
		!strings.Contains(err.Error(), "InvalidImageName: there is no example.com/server:missing; check hub and tag") {
		t.Fatal(err)
	}
	writes := s.Writes()[before:]
	if len(writes) != 2 || !strings.HasPrefix(writes[0], "create Pod mesh/server-image-") ||
		!strings.HasPrefix(writes[1], "delete Pod mesh/server-image-") {
		t.Errorf("%q", writes)
	}
	// What failed is recorded, and what was completed is the way back.
	records, err := inventory.List(t.Context(), c, "mesh")
	if err != nil || len(records) != 1 || records[0].Now().Hash != plan.Hash || len(records[0].Earlier()) != 1 ||
		records[0].Earlier()[0].Hash != deployment("Recreate", "1") {
		t.Errorf("%v, %+v", err, records)
	}
	before = len(s.Writes())
	if _, err := installed(t, c, request(t, deployment("Recreate", "2")), Options{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if writes = s.Writes()[before:]; len(writes) != 3 || !strings.HasPrefix(writes[1], "delete Pod") ||
		writes[2] != "apply Deployment mesh/server" {
		t.Errorf("%q", writes)
	}
}

func TestAnImageThatComesBesideTheOldPodIsNotProven(t *testing.T) {
	s := clustertest.Start(t, "")
	s.Stored = ready
	c := s.Client(t)
	for _, image := range []string{"1", "2"} {
		if _, err := installed(t, c, request(t, deployment("RollingUpdate", image)), Options{Wait: true}); err != nil {
			t.Fatal(err)
		}
	}
	if slices.ContainsFunc(s.Writes(), func(w string) bool { return strings.Contains(w, "Pod ") }) {
		t.Errorf("%q", s.Writes())
	}
}
