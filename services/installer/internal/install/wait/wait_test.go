package wait

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestReadiness(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x, namespace: n, generation: 2}\n"
	for name, tc := range map[string]struct {
		text string
		want State
	}{
		"a Deployment whose controller has not seen it": {deployment +
			"spec: {replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, availableReplicas: 1}",
			State{Reason: "its controller has not seen it"}},
		"a Deployment of the old version": {deployment +
			"spec: {replicas: 2}\nstatus: {observedGeneration: 2, replicas: 2, updatedReplicas: 1, availableReplicas: 2}",
			State{Reason: "1 of 2 Pods are of the new version"}},
		"a Deployment with Pods of the old version": {deployment +
			"spec: {replicas: 2}\nstatus: {observedGeneration: 2, replicas: 3, updatedReplicas: 2, availableReplicas: 3}",
			State{Reason: "1 Pods of the old version are still there"}},
		"a Deployment that is not available": {deployment +
			"spec: {}\nstatus: {observedGeneration: 2, replicas: 1, updatedReplicas: 1}", State{Reason: "0 of 1 Pods are ready"}},
		"a Deployment that is ready": {deployment +
			"spec: {replicas: 2}\nstatus: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 2}", State{Ready: true}},
		"a Deployment without replicas": {deployment + "spec: {replicas: 0}\nstatus: {observedGeneration: 2}",
			State{Ready: true}},
		"a Deployment that has timed out": {deployment +
			"spec: {replicas: 1}\nstatus: {observedGeneration: 2, conditions: [{type: Progressing, status: 'False', reason: " +
			"ProgressDeadlineExceeded, message: late}]}", State{Failed: true, Reason: "ProgressDeadlineExceeded: late"}},
		"a Deployment that is deleted": {
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x, deletionTimestamp: '2026-01-01T00:00:00Z'}",
			State{Reason: "it is being deleted"}},
		"a DaemonSet that nodes have": {
			"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: x, generation: 1}\nstatus: {observedGeneration: 1, desiredNumberScheduled: 3, " +
				"updatedNumberScheduled: 3, numberAvailable: 2}", State{Reason: "2 of 3 Pods are ready"}},
		"a DaemonSet without nodes": {
			"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: x, generation: 1}\nstatus: {observedGeneration: 1}", State{Ready: true}},
		"a Job that has failed": {
			"apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nstatus: {conditions: [{type: Failed, status: 'True', reason: " +
				"BackoffLimitExceeded, message: tried}]}", State{Failed: true, Reason: "BackoffLimitExceeded: tried"}},
		"a definition whose names another has": {
			"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}\nstatus: {conditions: [{type: " +
				"NamesAccepted, status: 'False', reason: KindConflict, message: taken}]}", State{Failed: true, Reason: "KindConflict: taken"}},
		"a definition that the API server does not have": {
			"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}", State{Reason: "it is not established"}},
	} {
		got := Of(object(t, tc.text))
		if got.Ready {
			got.Reason = ""
		}
		if got != tc.want {
			t.Errorf("%s: %+v, expected %+v", name, got, tc.want)
		}
	}
}

func TestWorstPodIsNamed(t *testing.T) {
	pod := func(name, status string) unstructured.Unstructured {
		return *object(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+", namespace: n}\nstatus: "+status)
	}
	unready := pod("a", "{containerStatuses: [{name: c, ready: false, state: {running: {}}}]}")
	creating := pod("b", "{containerStatuses: [{name: c, state: {waiting: {reason: ContainerCreating}}}]}")
	pulling := pod("c", "{containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff, message: m}}}]}")
	unscheduled := pod("d", "{conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable}]}")
	ended := pod("e", "{containerStatuses: [{name: c, state: {terminated: {reason: OOMKilled, exitCode: 137}}}]}")
	initial := pod("f", "{initContainerStatuses: [{name: i, state: {terminated: {reason: Completed, exitCode: 0}}}], containerStatuses: "+
		"[{name: c, state: {waiting: {reason: CreateContainerConfigError}}}]}")
	ready := pod("g", "{conditions: [{type: Ready, status: 'True'}]}")
	bare := pod("h", "{phase: Pending}")
	for _, tc := range []struct {
		pods              []unstructured.Unstructured
		pod, reason, said string
	}{
		{[]unstructured.Unstructured{ready, unready, creating, unscheduled, ended, pulling}, "c", "ImagePullBackOff", "m"},
		{[]unstructured.Unstructured{unready, unscheduled, ended}, "e", "OOMKilled", "exit code 137 "},
		{[]unstructured.Unstructured{creating, unready, unscheduled}, "d", "Unschedulable", ""},
		{[]unstructured.Unstructured{creating, unready}, "a", "Unready", ""},
		{[]unstructured.Unstructured{initial}, "f", "CreateContainerConfigError", ""},
		{[]unstructured.Unstructured{bare}, "h", "Pending", ""},
	} {
		got, ok := worst(tc.pods)
		if !ok || got.pod.GetName() != tc.pod || got.reason != tc.reason || got.message != tc.said {
			t.Errorf("%s %s %q, expected %s %s %q", got.pod.GetName(), got.reason, got.message, tc.pod, tc.reason, tc.said)
		}
	}
	if _, ok := worst([]unstructured.Unstructured{ready}); ok {
		t.Error("a ready Pod is in trouble")
	}
}

func TestMessagesAreBounded(t *testing.T) {
	long := make([]rune, 2*maxText)
	for i := range long {
		long[i] = 'é'
	}
	if got := []rune(short(string(long))); len(got) != maxText {
		t.Errorf("%d characters", len(got))
	}
}
