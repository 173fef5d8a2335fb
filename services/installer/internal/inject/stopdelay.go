package inject

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// StopDelayAnnotation says for how long an application goes on when its Pod ends, before it is told: callers have
	// then heard that the Pod is leaving, so that an application which ends or hangs at once loses no request.
	StopDelayAnnotation = "fairlead.dev/application-stop-delay"
	// defaultGrace is Kubernetes' terminationGracePeriodSeconds.
	defaultGrace = 30
)

var errStopDelay = errors.New("write a time in whole seconds, such as 2s")

// stopDelay reads a StopDelayAnnotation, in seconds.
func stopDelay(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d%time.Second != 0 {
		return 0, errStopDelay
	}
	return int64(d / time.Second), nil
}

// delayStop has kubelet wait before it asks the application's containers to end, but for those with a preStop hook of
// their own. The proxy, which is none of them, is asked at once.
func (in *injection) delayStop(pod, rendered *corev1.Pod) error {
	text, ok := pod.Annotations[StopDelayAnnotation]
	if !ok {
		return nil
	}
	seconds, err := stopDelay(text)
	if err != nil {
		return badAnnotation(StopDelayAnnotation, text, err)
	}
	grace := int64(defaultGrace)
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	if seconds >= grace {
		return badAnnotation(StopDelayAnnotation, text,
			fmt.Errorf("the Pod is killed after terminationGracePeriodSeconds, %d; write a shorter time, or raise that", grace))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if container(rendered.Spec.Containers, c.Name) != nil {
			continue
		}
		c.Lifecycle = cmp.Or(c.Lifecycle, &corev1.Lifecycle{})
		c.Lifecycle.PreStop = cmp.Or(c.Lifecycle.PreStop, &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}})
	}
	return nil
}
