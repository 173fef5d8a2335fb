package inject

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// jobOfCronJob matches the names that a CronJob gives its Jobs.
var jobOfCronJob = regexp.MustCompile(`^(.+)-\d{8,10}$`)

// OwnerOf derives a Pod's workload from its controller and the labels that controllers set: a Deployment from the hash
// of its ReplicaSet, a CronJob from the time in its Job's name. A Pod without a generated name owns itself.
func OwnerOf(pod *corev1.Pod) Owner {
	o := Owner{
		Type: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		Name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || pod.GenerateName == "" {
		return o
	}
	o.Type.Kind, o.Type.APIVersion, o.Name.Name = controller.Kind, controller.APIVersion, controller.Name
	switch controller.Kind {
	case "ReplicaSet":
		if name, ok := withoutHash(controller.Name, pod.Labels["pod-template-hash"]); ok {
			o.Type.Kind, o.Name.Name = "Deployment", name
		} else if name, ok := withoutHash(controller.Name, pod.Labels["rollouts-pod-template-hash"]); ok {
			o.Type.Kind, o.Type.APIVersion, o.Name.Name = "Rollout", "v1alpha1", name
		}
	case "ReplicationController":
		if name := pod.Labels["deploymentconfig"]; name != "" {
			o.Type.Kind, o.Name.Name = "DeploymentConfig", name
		}
	case "Job":
		if m := jobOfCronJob.FindStringSubmatch(controller.Name); m != nil {
			o.Type.Kind, o.Type.APIVersion, o.Name.Name = "CronJob", "batch/v1", m[1]
		}
	}
	if o.Name.Name == "" {
		o.Name.Name = pod.Name
	}
	return o
}

// withoutHash cuts a ReplicaSet's hash from its name.
func withoutHash(name, hash string) (string, bool) {
	if hash == "" || !strings.HasSuffix(name, hash) {
		return "", false
	}
	return strings.TrimSuffix(name, "-"+hash), true
}
