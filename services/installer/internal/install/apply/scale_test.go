package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
	"fairlead.dev/services/installer/internal/install/inventory"
)

const (
	two       = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: server, namespace: mesh}, spec: {replicas: 2, paused: false}}"
	unset     = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: server, namespace: mesh}, spec: {paused: false}}"
	automatic = "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: NAME, namespace: mesh}, spec: {minReplicas: " +
		"2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}}}"
)

func autoscalerNamed(name string) string { return strings.Replace(automatic, "NAME", name, 1) }

func replicas(s *clustertest.Server) int64 {
	n, _, _ := unstructured.NestedInt64(s.Get("Deployment", "mesh", "server").Object, "spec", "replicas")
	return n
}

func TestAnAutoscalerTakesOverTheNumberThatThereIs(t *testing.T) {
	s := clustertest.Start(t, "")
	c := s.Client(t)
	for _, req := range []*Request{request(t, two), request(t, unset, autoscalerNamed("own"))} {
		if _, err := installed(t, c, req, Options{}); err != nil {
			t.Fatal(err)
		}
		if n := replicas(s); n != 2 {
			t.Fatalf("%d replicas", n)
		}
	}
	// Until the autoscaler changes the number, and afterwards, there is nothing to do.
	for _, want := range []int64{2, 3} {
		plan, err := installed(t, c, request(t, unset, autoscalerNamed("own")), Options{})
		if n := replicas(s); err != nil || plan.Changed() || n != want {
			t.Errorf("%v, %d replicas", err, n)
		}
		s.Scale(t, "mesh", "server", 3)
	}
}

func TestAnAutoscalerThatGoesIsNoForeignManager(t *testing.T) {
	s := clustertest.Start(t, "")
	c := s.Client(t)
	if _, err := installed(t, c, request(t, unset, autoscalerNamed("own")), Options{}); err != nil {
		t.Fatal(err)
	}
	s.Scale(t, "mesh", "server", 3)
	before := len(s.Writes())
	if _, err := installed(t, c, request(t, two), Options{}); err != nil {
		t.Fatal(err)
	}
	if writes := s.Writes()[before:]; !slices.Equal(writes,
		[]string{"delete HorizontalPodAutoscaler mesh/own", "apply Deployment mesh/server"}) || replicas(s) != 2 {
		t.Errorf("%q, %d replicas", writes, replicas(s))
	}
	// One that is gone has left its number behind; so it is in clusters that an earlier release has changed.
	s.Scale(t, "mesh", "server", 3)
	if _, err := installed(t, c, request(t, two), Options{}); err != nil || replicas(s) != 2 {
		t.Errorf("%v, %d replicas", err, replicas(s))
	}
	// A user's own stays, and so does its number.
	s.Add(t, autoscalerNamed("theirs"))
	s.Scale(t, "mesh", "server", 3)
	if _, err := installed(t, c, request(t, two), Options{}); err == nil ||
		!strings.Contains(err.Error(), "Deployment mesh/server: .spec.replicas is managed by kube-controller-manager (scale)") ||
		replicas(s) != 3 {
		t.Errorf("%v, %d replicas", err, replicas(s))
	}
}

// An autoscaler does nothing for a workload that somebody has scaled to 0, and an API server begins with one Pod.
func TestNoWorkloadHasFewerPodsThanItsAutoscaler(t *testing.T) {
	s := clustertest.Start(t, "")
	c := s.Client(t)
	req := func() *Request { return request(t, unset, autoscalerNamed("own")) }
	if _, err := installed(t, c, req(), Options{}); err != nil || replicas(s) != 2 {
		t.Fatalf("%v, %d replicas at first", err, replicas(s))
	}
	for _, n := range []int64{0, 1} {
		s.Scale(t, "mesh", "server", n)
		records, err := inventory.List(t.Context(), c, "mesh")
		if err != nil || len(records) != 1 {
			t.Fatalf("%d inventories, %v", len(records), err)
		}
		found, err := Verify(t.Context(), c, records[0])
		if err != nil || !slices.ContainsFunc(found, func(f Finding) bool {
			return f.Name == "server" && strings.Contains(f.Problem,
				fmt.Sprintf("it is scaled to %d Pods, where the installation asks for 2 at least", n))
		}) {
			t.Errorf("at %d replicas: %v, %v", n, found, err)
		}
		if plan, err := installed(t, c, req(), Options{}); err != nil || !plan.Changed() || replicas(s) != 2 {
			t.Errorf("from %d: %v, %d replicas", n, err, replicas(s))
		}
	}
	s.Scale(t, "mesh", "server", 5)
	if plan, err := installed(t, c, req(), Options{}); err != nil || plan.Changed() || replicas(s) != 5 {
		t.Errorf("the autoscaler's number: %v, %d replicas", err, replicas(s))
	}
}

// A workload whose number is the installation's is checked, too.
func TestAWorkloadThatWasScaledDownIsNamed(t *testing.T) {
	s := clustertest.Start(t, "")
	c := s.Client(t)
	plan, err := installed(t, c, request(t, two), Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Scale(t, "mesh", "server", 0)
	found, err := Verify(t.Context(), c, plan.Record)
	if err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.Problem, "it is scaled to 0 Pods") }) {
		t.Errorf("%v, %v", found, err)
	}
}

// An autoscaler that may scale to 0 leaves the number of a new workload to the API server.
func TestAnAutoscalerMayHaveNoMinimum(t *testing.T) {
	s := clustertest.Start(t, "")
	none := strings.Replace(autoscalerNamed("own"), "minReplicas: 2", "minReplicas: 0", 1)
	if _, err := installed(t, s.Client(t), request(t, unset, none), Options{}); err != nil {
		t.Error(err)
	}
}
