package object

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodOf(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want Pod
	}{
		"empty":     {},
		"succeeded": {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, Pod{Ended: true}},
		"failed":    {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, Pod{Ended: true}},
		"running":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, Pod{}},
		"ready": {corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}}}, Pod{Ready: true}},
		"not ready": {corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse},
		}}}, Pod{}},
		"to be deleted": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, Pod{Ending: true}},
		"identity and place": {corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "a", NodeName: "n", Hostname: "h", Subdomain: "s"}},
			Pod{ServiceAccount: "a", Node: "n", Hostname: "h", Subdomain: "s"}},
		"addresses": {corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}},
			Pod{Addresses: []string{"10.0.0.1", "fd00::1"}}},
		"ports with names, the first of a name": {corev1.Pod{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}},
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 81}, {ContainerPort: 82}, {Name: "grpc", ContainerPort: 83}}}},
		}}, Pod{Ports: map[string]uint32{"http": 80, "grpc": 83}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := PodOf(&c.pod); !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got %+v, want %+v", *got, c.want)
			}
		})
	}
}
