package inject

import (
	"encoding/json"
	"slices"
	"strings"

	"istio.io/api/annotation"
	"istio.io/api/label"
	corev1 "k8s.io/api/core/v1"
)

// complete does what templates cannot: it changes the merged Pod by what the Pod itself has.
func (in *injection) complete(pod, rendered *corev1.Pod) error {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if proxy := anyContainer(pod, proxyContainer); proxy != nil && len(in.env) > 0 {
		in.setEnv(proxy)
	}
	if err := in.mergePrometheus(pod); err != nil {
		return err
	}
	securePrometheus(pod)
	if err := in.rewriteProbes(pod); err != nil {
		return err
	}
	if err := in.delayStop(pod, rendered); err != nil {
		return err
	}
	if network, ok := in.env[networkVariable]; ok {
		pod.Labels[label.TopologyNetwork.Name] = network
	}
	text, err := in.status(rendered)
	if err != nil {
		return err
	}
	pod.Annotations[annotation.SidecarStatus.Name] = text
	for name, value := range in.config.annotations {
		pod.Annotations[name] = value
	}
	in.order(pod)
	return nil
}

// setEnv sets variables after all others, sorted. What an earlier injection has set stays where it is.
func (in *injection) setEnv(c *corev1.Container) {
	for _, name := range sortedKeys(in.env) {
		v := corev1.EnvVar{Name: name, Value: in.env[name]}
		if in.before != nil && slices.Contains(c.Env, v) {
			continue
		}
		c.Env = append(slices.DeleteFunc(c.Env, func(old corev1.EnvVar) bool { return old.Name == name }), v)
	}
}

func (in *injection) status(rendered *corev1.Pod) (string, error) {
	s := status{
		InitContainers: containerNames(rendered.Spec.InitContainers), Containers: containerNames(rendered.Spec.Containers),
		Revision: in.config.revision,
	}
	for i := range rendered.Spec.Volumes {
		s.Volumes = append(s.Volumes, rendered.Spec.Volumes[i].Name)
	}
	for _, secret := range rendered.Spec.ImagePullSecrets {
		s.ImagePullSecrets = append(s.ImagePullSecrets, secret.Name)
	}
	if s.Revision == "" {
		s.Revision = "default"
	}
	text, err := json.Marshal(s)
	return string(text), err
}

func containerNames(list []corev1.Container) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// order puts the containers in their order. A classic proxy is the last container, so that kubectl's commands keep to
// the application, or the first where the application waits for it; redirection is set up after all other init
// containers, and checked before them. A native proxy runs before all other init containers, and after redirection.
func (in *injection) order(pod *corev1.Pod) {
	held := in.proxy.GetHoldApplicationUntilProxyStarts().GetValue() || in.config.known.Global.Proxy.HoldUntilProxyStarts
	pod.Spec.Containers = moved(pod.Spec.Containers, proxyContainer, held)
	init := pod.Spec.InitContainers
	if container(init, proxyContainer) != nil {
		for _, name := range []string{coreDumpContainer, proxyContainer, validationContainer, initContainer} {
			init = moved(init, name, true)
		}
	} else {
		init = moved(init, validationContainer, true)
		init = moved(init, initContainer, false)
		init = moved(init, coreDumpContainer, false)
	}
	pod.Spec.InitContainers = init
}

// moved returns the list with the named container first, or last.
func moved(list []corev1.Container, name string, first bool) []corev1.Container {
	c := container(list, name)
	if c == nil {
		return list
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(c corev1.Container) bool { return c.Name == name })
	if first {
		return append([]corev1.Container{*c}, rest...)
	}
	return append(rest, *c)
}

// EnvOfPath reads the proxy's variables from the path of the webhook's URL: /inject/cluster/NAME/net/NAME, and any
// other pair as a variable of that name in upper case. A slash within a value is written --slash--. Warnings name what
// is left out.
func EnvOfPath(path string) (env map[string]string, warnings []string) {
	env = map[string]string{}
	rest := strings.SplitN(strings.TrimSuffix(path, "/"), "/", 3)
	if len(rest) < 3 {
		return env, nil
	}
	if pairs, ok := strings.CutPrefix(rest[2], ":ENV:"); ok { // the form of older releases
		for pair := range strings.SplitSeq(pairs, ":ENV:") {
			if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
				env[name] = value
			} else {
				warnings = append(warnings, "the path "+path+" of the webhook has "+pair+", which is no NAME=VALUE")
			}
		}
		return env, warnings
	}
	words := strings.Split(rest[2], "/")
	for i := 0; i < len(words); i += 2 {
		name := strings.ToUpper(words[i])
		switch words[i] {
		case "cluster":
			name = clusterVariable
		case "net":
			name = networkVariable
		}
		if i+1 == len(words) {
			warnings = append(warnings, "the path "+path+" of the webhook ends with "+words[i]+", which lacks its value; append /VALUE")
		} else if name != "" {
			env[name] = strings.ReplaceAll(words[i+1], "--slash--", "/")
		}
	}
	return env, warnings
}
