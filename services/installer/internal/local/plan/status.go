package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is the Pod's .status; changed is when its readiness last changed.
func (p *Pod) Status(ready bool, changed time.Time) corev1.PodStatus {
	state := corev1.ConditionFalse
	if ready {
		state = corev1.ConditionTrue
	}
	at := metav1.NewTime(changed.UTC().Truncate(time.Second))
	return corev1.PodStatus{
		Phase:  corev1.PodRunning,
		HostIP: p.IP.String(),
		PodIP:  p.IP.String(),
		PodIPs: []corev1.PodIP{{IP: p.IP.String()}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: state, LastTransitionTime: at},
			{Type: corev1.ContainersReady, Status: state, LastTransitionTime: at},
		},
	}
}
