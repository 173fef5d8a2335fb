package install

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ready writes the status of a Deployment whose Pods are ready, as its controller does.
func (r *rig) ready(t *testing.T, namespace, name string) {
	t.Helper()
	client := r.Client(t).AppsV1().Deployments(namespace)
	eventually(t, func() error {
		d, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := *d.Spec.Replicas
		d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas,
			d.Status.AvailableReplicas = d.Generation, n, n, n, n
		_, err = client.UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
		return err
	})
}

// testWaits: what others must not meet early, and the next component, come when the Deployment is ready.
func testWaits(t *testing.T, r *rig) {
	var said bytes.Buffer
	cmd := r.command(t, r.kubeconfig, "install", "-d", r.manifests, "-y", "--set", "profile=full", "--timeout", "60s")
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := r.Client(t)
	eventually(t, func() error {
		_, err := client.AppsV1().Deployments("mesh").Get(t.Context(), "server", metav1.GetOptions{})
		return err
	})
	eventually(t, func() error { // it waits: it asks for the Deployment, and has done what comes before
		_, err := r.dynamic.Resource(things).Namespace("mesh").Get(t.Context(), "server", metav1.GetOptions{})
		return err
	})
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "server-validator",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the webhook is there before the Deployment is ready: %v", err)
	}
	if _, err := client.AppsV1().DaemonSets("mesh").Get(t.Context(), "agent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the next component is there before the Deployment is ready: %v", err)
	}
	// An API server that is away for a moment does not end the wait.
	r.proxy.set(func(p *proxy) { p.away, p.asked = true, 0 })
	eventually(t, func() error {
		var asked int
		r.proxy.set(func(p *proxy) { asked = p.asked })
		if asked < 2 {
			return fmt.Errorf("%d requests while it is away", asked)
		}
		return nil
	})
	r.proxy.set(func(p *proxy) { p.away = false })
	r.ready(t, "mesh", "server")
	eventually(t, func() error {
		d, err := client.AppsV1().DaemonSets("mesh").Get(t.Context(), "agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		d.Status.ObservedGeneration, d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberAvailable,
			d.Status.NumberReady = d.Generation, 1, 1, 1, 1
		_, err = client.AppsV1().DaemonSets("mesh").UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
		return err
	})
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	order := []string{"CustomResourceDefinitions: 1 created", "base: 2 created", "pilot: Deployment mesh/server: ", "pilot: 7 created",
		"cni: 1 created"}
	for rest := said.String(); len(order) > 0; order = order[1:] {
		_, after, found := strings.Cut(rest, order[0])
		if !found {
			t.Fatalf("%q is not in its place in\n%s", order[0], said.String())
		}
		rest = after
	}
}

// pod makes a Pod of the Deployment with a status.
func (r *rig) pod(t *testing.T, status corev1.PodStatus) {
	t.Helper()
	client := r.Client(t).CoreV1().Pods("mesh")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "server-1", Labels: map[string]string{"app": "server"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "example.com/mesh/server:1"}}},
	}
	pod, err := client.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = status
	if _, err := client.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7, Reason: "Error"}},
	}}}
}

func testNotReady(t *testing.T, r *rig) {
	r.install(t)
	r.proxy.set(func(p *proxy) { p.log = "panic: no certificate\n" })
	defer r.proxy.set(func(p *proxy) { p.log = "" })
	now := int64(0)
	for _, tc := range []struct {
		name   string
		status corev1.PodStatus
		says   []string
	}{
		{"an image that cannot be pulled", waiting("ImagePullBackOff", `Back-off pulling image "example.com/mesh/server:1"`),
			[]string{"Pod mesh/server-1, container server: ImagePullBackOff: Back-off pulling image", "check hub, tag and imagePullSecrets"}},
		{"a container that ends", waiting("CrashLoopBackOff", "back-off 10s"),
			[]string{"Pod mesh/server-1, container server: CrashLoopBackOff: back-off 10s (it ended with exit code 7, Error); it logged last: " +
				"\"panic: no certificate\"", "its log says why it ends"}},
		{"a Pod that fits nowhere", corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/3 nodes are available: 3 Insufficient cpu."}}},
			[]string{"Pod mesh/server-1: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.", "change the component's resources"}},
		{"a probe that fails", corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "server", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
			[]string{"Pod mesh/server-1, container server: Unready", "its readiness probe fails"}},
	} {
		r.pod(t, tc.status)
		_, said := r.does(t, 1, "install", "-d", r.manifests, "-y", "--timeout", "700ms")
		says(t, said, append(tc.says, "component pilot: Deployment mesh/server is not ready: its controller has not seen it; ",
			"run the same command again")...)
		if err := r.Client(t).CoreV1().Pods("mesh").Delete(t.Context(), "server-1", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	_, said := r.does(t, 1, "install", "-d", r.manifests, "-y", "--timeout", "700ms")
	says(t, said, "it has no Pod: see kubectl describe deployment.apps/server -n mesh")
	client := r.Client(t).AppsV1().Deployments("mesh")
	eventually(t, func() error {
		d, err := client.Get(t.Context(), "server", metav1.GetOptions{})
		if err != nil {
			return err
		}
		d.Status.ObservedGeneration = d.Generation
		for _, c := range []struct{ kind, status, reason, message string }{
			{"Progressing", "False", "ProgressDeadlineExceeded", "it has timed out"},
			{"ReplicaFailure", "True", "FailedCreate", `pods "x" is forbidden: violates PodSecurity`},
		} {
			d.Status.Conditions = append(d.Status.Conditions, deploymentCondition(c.kind, c.status, c.reason, c.message))
		}
		_, err = client.UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
		return err
	})
	// Waiting does not help: it ends before the time is over.
	_, said = r.does(t, 1, "install", "-d", r.manifests, "-y", "--timeout", "10m")
	says(t, said, fmt.Sprintf("it has no Pod: FailedCreate: %s: the message says who refuses its Pods",
		`pods "x" is forbidden: violates PodSecurity`))
}

func deploymentCondition(kind, status, reason, message string) appsv1.DeploymentCondition {
	return appsv1.DeploymentCondition{Type: appsv1.DeploymentConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason,
		Message: message}
}
