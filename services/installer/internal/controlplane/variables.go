package controlplane

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// resolved returns the arguments that Kubernetes starts a container with: $(NAME) stands for a variable of the
// container's environment. Those whose value is not in the Pod, such as entries of Secrets, stay as they are.
func resolved(pod *corev1.Pod, c *corev1.Container) []string {
	known := map[string]string{}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			known[v.Name] = expand(v.Value, known)
		} else if v.ValueFrom.FieldRef != nil {
			if value := field(pod, v.ValueFrom.FieldRef.FieldPath); value != "" {
				known[v.Name] = value
			}
		}
	}
	args := make([]string, 0, len(c.Args))
	for _, a := range c.Args {
		args = append(args, expand(a, known))
	}
	return args
}

// field is what a container is told of its Pod; empty where that is not known.
func field(pod *corev1.Pod, path string) string {
	switch path {
	case "metadata.name":
		return pod.Name
	case "metadata.namespace":
		return pod.Namespace
	case "metadata.uid":
		return string(pod.UID)
	case "spec.nodeName":
		return pod.Spec.NodeName
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName
	case "status.podIP":
		return pod.Status.PodIP
	case "status.hostIP":
		return pod.Status.HostIP
	}
	return ""
}

// expand replaces each $(NAME) of a text whose value is known. $$ stands for $, so that nothing is replaced in
// $$(NAME).
func expand(text string, known map[string]string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			b.WriteByte('$')
			text = rest
			continue
		}
		name, rest, closed := strings.Cut(after, ")")
		name, opened := strings.CutPrefix(name, "(")
		if value, ok := known[name]; ok && opened && closed {
			b.WriteString(value)
			text = rest
			continue
		}
		b.WriteByte('$')
	}
}
