package inject

import (
	"fmt"

	"istio.io/api/annotation"
	corev1 "k8s.io/api/core/v1"
)

// Bounds of a Pod that is injected: the API server judges its size only afterwards, and the time that injection takes
// grows with each of them.
const (
	// maxAnnotations is the size of all annotations, in bytes, that the API server takes.
	maxAnnotations = 256 << 10
	// maxContainers bounds the containers of each kind, and those that annotations of injection name.
	maxContainers = 256
	// maxEntries bounds the volumes, the pull secrets, and the variables, mounts and ports of each container: the time
	// to merge them grows with the square.
	maxEntries = 1024
	// maxTemplates bounds the templates of one Pod, aliases resolved.
	maxTemplates = 16
)

// checkSize returns an error for a Pod that is beyond the bounds.
func checkSize(pod *corev1.Pod) error {
	size := 0
	for name, value := range pod.Annotations {
		size += len(name) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("its annotations have %d bytes, more than the %d that the API server takes; shorten them", size, maxAnnotations)
	}
	if n := max(len(pod.Spec.Containers), len(pod.Spec.InitContainers)); n > maxContainers {
		return fmt.Errorf("it has %d containers of one kind, and at most %d are injected; make several Pods", n, maxContainers)
	}
	if n := max(len(pod.Spec.Volumes), len(pod.Spec.ImagePullSecrets)); n > maxEntries {
		return fmt.Errorf("it has %d volumes or imagePullSecrets, more than %d; remove some", n, maxEntries)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := checkContainer(&list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkContainer(c *corev1.Container) error {
	if n := max(len(c.Env), len(c.VolumeMounts), len(c.Ports)); n > maxEntries {
		return fmt.Errorf("its container %s has %d variables, volumeMounts or ports, more than %d; put them into a ConfigMap or a file", c.Name,
			n, maxEntries)
	}
	return nil
}

// checkEarlier returns an error if annotations that an earlier injection writes name more than that can have made.
func checkEarlier(before *status, kept containers) error {
	if n := max(len(kept.Containers), len(kept.InitContainers)); n > maxContainers {
		return unreadable(annotation.ProxyOverrides.Name, fmt.Errorf("it has %d containers", n))
	}
	for _, list := range [][]corev1.Container{kept.InitContainers, kept.Containers} {
		for i := range list {
			if err := checkContainer(&list[i]); err != nil {
				return unreadable(annotation.ProxyOverrides.Name, err)
			}
		}
	}
	if before != nil {
		if n := max(len(before.Containers), len(before.InitContainers)); n > 2*maxContainers {
			return unreadable(annotation.SidecarStatus.Name, fmt.Errorf("it has %d containers", n))
		}
	}
	return nil
}

// checkTemplates returns an error for a Pod that names too many templates.
func checkTemplates(names []string) error {
	if len(names) > maxTemplates {
		return fmt.Errorf("it has %d templates, and at most %d are rendered; shorten the annotation %s, or defaultTemplates and aliases of the "+
			"injection configuration",
			len(names), maxTemplates, annotation.InjectTemplates.Name)
	}
	return nil
}
