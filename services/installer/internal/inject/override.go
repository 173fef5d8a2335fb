package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"istio.io/api/annotation"
	meshconfig "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// status is the annotation sidecar.istio.io/status: what the templates had.
type status struct {
	InitContainers   []string `json:"initContainers"`
	Containers       []string `json:"containers"`
	Volumes          []string `json:"volumes"`
	ImagePullSecrets []string `json:"imagePullSecrets"`
	Revision         string   `json:"revision"`
}

// containers is the annotation proxy.istio.io/overrides.
type containers struct {
	Containers     []corev1.Container `json:"containers,omitempty"`
	InitContainers []corev1.Container `json:"initContainers,omitempty"`
}

// autoImage stands for the template's image in a user's own container, where an image is required.
const autoImage = "auto"

// earlier reads what an earlier injection of the Pod left in its annotations.
func earlier(pod *corev1.Pod) (*status, containers, error) {
	var kept containers
	if text, ok := pod.Annotations[annotation.ProxyOverrides.Name]; ok {
		if err := json.Unmarshal([]byte(text), &kept); err != nil {
			return nil, kept, unreadable(annotation.ProxyOverrides.Name, err)
		}
	}
	text, ok := pod.Annotations[annotation.SidecarStatus.Name]
	if !ok {
		return nil, kept, nil
	}
	var before status
	if err := json.Unmarshal([]byte(text), &before); err != nil {
		return nil, kept, unreadable(annotation.SidecarStatus.Name, err)
	}
	return &before, kept, nil
}

func unreadable(name string, err error) error {
	return fmt.Errorf("the annotation %s, which injection writes, cannot be read: %w; remove it and create the Pod again from its own "+
		"manifest", name, err)
}

// original returns the Pod as it was before an earlier injection, so that templates make of it what they made then:
// without the containers of templates, with the user's own, and without the annotations that point Prometheus to the
// agent.
func (in *injection) original() *corev1.Pod {
	pod := in.request.Pod.DeepCopy()
	if in.before != nil {
		pod.Spec.Containers = without(pod.Spec.Containers, in.before.Containers)
		pod.Spec.InitContainers = without(pod.Spec.InitContainers, in.before.InitContainers)
		if port, ok := prometheusPort(pod); ok && port == in.statusPort() {
			clearPrometheus(pod)
		}
		delete(pod.Annotations, annotation.SidecarStatus.Name)
	}
	pod.Spec.Containers = withKept(pod.Spec.Containers, in.overrides.Containers)
	pod.Spec.InitContainers = withKept(pod.Spec.InitContainers, in.overrides.InitContainers)
	return pod
}

func without(list []corev1.Container, names []string) []corev1.Container {
	return slices.DeleteFunc(list, func(c corev1.Container) bool { return slices.Contains(names, c.Name) })
}

func withKept(list, kept []corev1.Container) []corev1.Container {
	for _, c := range kept {
		if container(list, c.Name) == nil {
			list = append(list, c)
		}
	}
	return list
}

// statusPort is the agent's port, where Prometheus and rewritten probes find it.
func (in *injection) statusPort() string {
	return strconv.Itoa(int(in.proxy.GetStatusPort()))
}

// keepOverrides gives the user's own fields of a container that a template has too the last word, and keeps the user's
// container in an annotation for the next injection. A container that an earlier injection has added is the template's,
// unless that injection has kept one of the user's.
func (in *injection) keepOverrides(pod, rendered *corev1.Pod) (*corev1.Pod, error) {
	var found containers
	own := in.request.Pod
	var before status
	if in.before != nil {
		before = *in.before
	}
	apply := func(list string, injected []corev1.Container, earlier []string, kept []corev1.Container, user func(string) *corev1.Container,
		to *[]corev1.Container) error {
		for _, c := range injected {
			match := container(kept, c.Name)
			if match == nil && !slices.Contains(earlier, c.Name) {
				match = user(c.Name)
			}
			if match == nil {
				continue
			}
			o := *match.DeepCopy()
			if o.Image == autoImage {
				o.Image = ""
			}
			*to = append(*to, o)
			merged, err := mergeContainer(pod, list, o)
			if err != nil {
				return fmt.Errorf("its own container %s does not fit to the template's: %w", c.Name, err)
			}
			pod = merged
		}
		return nil
	}
	err := apply("containers", rendered.Spec.Containers, before.Containers, in.overrides.Containers,
		func(name string) *corev1.Container { return container(own.Spec.Containers, name) }, &found.Containers)
	if err == nil {
		err = apply("initContainers", rendered.Spec.InitContainers, before.InitContainers, in.overrides.InitContainers,
			func(name string) *corev1.Container { return anyContainer(own, name) }, &found.InitContainers)
	}
	if err != nil {
		return nil, err
	}
	if in.before == nil && len(found.Containers)+len(found.InitContainers) > 0 {
		text, err := json.Marshal(found)
		if err != nil {
			return nil, err
		}
		annotate(pod, annotation.ProxyOverrides.Name, string(text))
	}
	in.adaptUser(pod)
	return pod, nil
}

func annotate(pod *corev1.Pod, name, value string) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[name] = value
}

// adaptUser makes the init container that redirects traffic, or checks that it is redirected, except the user that the
// Pod's own istio-proxy container names, because the proxy runs as that one. With TPROXY the proxy must be root.
func (in *injection) adaptUser(pod *corev1.Pod) {
	own := anyContainer(in.request.Pod, proxyContainer)
	if own == nil || own.SecurityContext == nil || own.SecurityContext.RunAsUser == nil && own.SecurityContext.RunAsGroup == nil {
		return
	}
	user, group := own.SecurityContext.RunAsUser, own.SecurityContext.RunAsGroup
	setup := container(pod.Spec.InitContainers, initContainer)
	if setup == nil {
		setup = container(pod.Spec.InitContainers, validationContainer)
	}
	if setup == nil {
		return
	}
	tproxy := in.proxy.GetInterceptionMode() == meshconfig.ProxyConfig_TPROXY ||
		pod.Annotations[annotation.SidecarInterceptionMode.Name] == "TPROXY"
	if tproxy && user != nil {
		if proxy := anyContainer(pod, proxyContainer); proxy != nil && proxy.SecurityContext != nil {
			proxy.SecurityContext.RunAsUser = new(int64)
		}
	}
	if !tproxy && setup.Name == validationContainer {
		if setup.SecurityContext == nil {
			setup.SecurityContext = &corev1.SecurityContext{}
		}
		if user != nil {
			setup.SecurityContext.RunAsUser = user
		}
		if group != nil {
			setup.SecurityContext.RunAsGroup = group
		}
	}
	if user == nil || *user == 0 {
		return // a rule that excepts root would let the application's traffic pass too
	}
	if i := slices.Index(setup.Args, "-u"); i >= 0 && i+1 < len(setup.Args) {
		setup.Args[i+1] = strconv.FormatInt(*user, 10)
	}
}

func container(list []corev1.Container, name string) *corev1.Container {
	if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// anyContainer looks for a container first among the containers, then among the init containers.
func anyContainer(pod *corev1.Pod, name string) *corev1.Container {
	if c := container(pod.Spec.Containers, name); c != nil {
		return c
	}
	return container(pod.Spec.InitContainers, name)
}
