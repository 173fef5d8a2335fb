package apply

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
)

const (
	two       = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: server, namespace: mesh}, spec: {replicas: 2, paused: false}}"
	unset     = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: server, namespace: mesh}, spec: {paused: false}}"
	automatic = "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: NAME, namespace: mesh}, spec: {minReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}}}"
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
	if writes := s.Writes()[before:]; !slices.Equal(writes, []string{"delete HorizontalPodAutoscaler mesh/own", "apply Deployment mesh/server"}) || replicas(s) != 2 {
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
	if _, err := installed(t, c, request(t, two), Options{}); err == nil || !strings.Contains(err.Error(), "Deployment mesh/server: .spec.replicas is managed by kube-controller-manager (scale)") || replicas(s) != 3 {
		t.Errorf("%v, %d replicas", err, replicas(s))
	}
}
