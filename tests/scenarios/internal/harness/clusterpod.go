package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/format"
)

const (
	// podLogs is where the kubelet of the node has what containers write.
	podLogs = "/var/log/pods"
	// stateDir is where injection has an agent keep its state, proxyContainer what it calls the proxy's.
	stateDir       = "/etc/istio/proxy/state"
	proxyContainer = "istio-proxy"
)

// Labels and annotations of Pods that say something to injection and to proxies.
const (
	labelInject        = "sidecar.istio.io/inject"
	labelLocality      = "istio-locality"
	annotationTemplate = "inject.istio.io/templates"
	annotationCapture  = "sidecar.istio.io/interceptionMode"
)

// livePod is where the parts of a Pod are that runs on this machine.
type livePod struct {
	// state is the directory of the agent, and log what it and its proxy write; empty without a proxy.
	state, log string
}

// writePods makes the Pods with their service accounts. The applications have the directory of the topology, where
// their configuration is, and tell there what came.
func (c *Cluster) writePods(ctx context.Context) error {
	return wait.Each(c.order, func(l *workload) error {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: l.spec.ServiceAccount, Namespace: l.spec.Namespace}}
		if _, err := c.node.CoreV1().ServiceAccounts(l.spec.Namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return err
		}
		if l.hasApp() {
			if err := l.prepareApp(); err != nil {
				return err
			}
		}
		pod, err := c.manifest(l)
		if err != nil {
			return fmt.Errorf("Pod %s: %w", l.spec.Name, err)
		}
		_, err = c.node.CoreV1().Pods(l.spec.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// manifest is the Pod of a workload before injection.
func (c *Cluster) manifest(l *workload) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: l.spec.Name, Namespace: l.spec.Namespace,
		Labels: map[string]string{labelInject: fmt.Sprint(l.hasAgent())}, Annotations: map[string]string{}}}
	maps.Copy(p.Labels, l.spec.Labels)
	maps.Copy(p.Annotations, l.spec.Annotations)
	if l.spec.Locality != "" {
		p.Labels[labelLocality] = strings.ReplaceAll(l.spec.Locality, "/", ".")
	}
	var ports []corev1.ContainerPort
	for _, port := range l.spec.Ports {
		ports = append(ports, corev1.ContainerPort{Name: port.Name, ContainerPort: int32(port.TargetPort)}) //nolint:gosec // a port
	}
	soon, no := int64(1), false
	p.Spec = corev1.PodSpec{ServiceAccountName: l.spec.ServiceAccount, TerminationGracePeriodSeconds: &soon, EnableServiceLinks: &no}
	if l.spec.Headless {
		p.Spec.Hostname, p.Spec.Subdomain = l.spec.Name, l.spec.Service
	}
	if l.hasAgent() {
		if err := asOnMachines(p.Annotations); err != nil {
			return nil, err
		}
		if l.spec.Capture != format.Redirect && !l.isGateway() {
			p.Annotations[annotationCapture] = l.spec.Capture
		}
	}
	if l.isGateway() {
		p.Annotations[annotationTemplate] = "gateway"
		p.Spec.Containers = []corev1.Container{{Name: proxyContainer, Image: "auto", ImagePullPolicy: corev1.PullIfNotPresent, Ports: ports}}
		return p, nil
	}
	root := int64(0)
	p.Spec.Containers = []corev1.Container{{
		Name: "app", Image: c.node.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{l.path("app")}, Ports: ports,
		SecurityContext: &corev1.SecurityContext{RunAsUser: &root}, // the keys are root's
		Env: []corev1.EnvVar{
			{Name: "POD_IPS", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIPs"}}}},
		VolumeMounts: []corev1.VolumeMount{{Name: "topology", MountPath: c.options.Dir}},
	}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "topology", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: c.options.Dir}}}}
	return p, nil
}

// asOnMachines has the proxy be as those on machines are: it writes its access log soon, and has one worker, whose
// connections every request can use. What the annotation says otherwise counts.
func asOnMachines(annotations map[string]string) error {
	config, own := document.Tree{"fileFlushInterval": "0.05s", "concurrency": 1}, document.Tree{}
	if err := yaml.Unmarshal([]byte(annotations[proxyconfig.Annotation]), &own); err != nil {
		return fmt.Errorf("annotation %s: %w", proxyconfig.Annotation, err)
	}
	maps.Copy(config, own)
	raw, err := yaml.Marshal(config)
	annotations[proxyconfig.Annotation] = string(raw)
	return err
}

// await waits until the workload's Pod is ready, and finds its parts on this machine.
func (c *Cluster) await(ctx context.Context, l *workload) error {
	var pod *corev1.Pod
	err := wait.Until(ctx, lookAgain, startWithin, func() (err error) {
		if pod, err = c.node.CoreV1().Pods(l.spec.Namespace).Get(ctx, l.spec.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if why := waitsFor(pod); why != "" {
			return fmt.Errorf("%s", why)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if l.host, err = open(pod); err != nil {
		return err
	}
	l.shown, l.ready, l.live = true, true, &livePod{}
	for _, s := range statuses(pod) {
		if s.Name != proxyContainer || !l.hasAgent() {
			continue
		}
		pid, err := processOf(s.ContainerID)
		if err != nil {
			return fmt.Errorf("%s: %w", l.spec.Name, err)
		}
		l.live.state = fmt.Sprintf("/proc/%d/root%s", pid, stateDir)
		l.live.log = filepath.Join(c.node.Root, podLogs, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), proxyContainer, "0.log")
		return nil
	}
	if l.hasAgent() {
		return fmt.Errorf("Pod %s/%s was not injected", pod.Namespace, pod.Name)
	}
	return nil
}

// waitsFor tells why a Pod is not ready; empty if it is.
func waitsFor(p *corev1.Pod) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
	}
	var states []string
	for _, s := range statuses(p) {
		if w := s.State.Waiting; w != nil {
			states = append(states, strings.TrimSpace(s.Name+" waits: "+w.Reason+" "+w.Message))
		} else if d := s.State.Terminated; d != nil && d.ExitCode != 0 {
			states = append(states, fmt.Sprintf("%s has ended with %d", s.Name, d.ExitCode))
		}
	}
	return fmt.Sprintf("Pod %s/%s is not ready (%s): %s", p.Namespace, p.Name, p.Status.Phase, strings.Join(states, ", "))
}

// open is the network of a Pod that runs on this machine.
func open(p *corev1.Pod) (*netns.Host, error) {
	for _, s := range statuses(p) {
		if s.State.Running == nil {
			continue
		}
		pid, err := processOf(s.ContainerID)
		if err != nil {
			return nil, fmt.Errorf("Pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil {
			return nil, fmt.Errorf("Pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		return netns.Open(p.Name, fmt.Sprintf("/proc/%d/ns/net", pid), ip)
	}
	return nil, fmt.Errorf("Pod %s/%s: no container of it runs", p.Namespace, p.Name)
}

// processOf finds a process of a container, which is named RUNTIME://ID, by its control group.
func processOf(container string) (pid int, err error) {
	_, id, _ := strings.Cut(container, "://")
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is a good one
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil || id == "" || !bytes.Contains(raw, []byte("/"+id)) {
			continue // another's, or it has ended
		}
		_, err = fmt.Sscanf(file, "/proc/%d/cgroup", &pid)
		return pid, err
	}
	return 0, fmt.Errorf("container %q has no process on this machine: the cluster must be that of `make cluster-up`", container)
}

// documentOf is an object of the API server as scenarios write it.
func documentOf(p *corev1.Pod) (document.Document, error) {
	p = p.DeepCopy()
	p.APIVersion, p.Kind, p.ManagedFields = "v1", "Pod", nil
	raw, err := json.Marshal(p)
	if err != nil {
		return document.Document{}, err
	}
	d := document.Document{Text: string(raw)}
	return d, json.Unmarshal(raw, &d.Content)
}

// serviceDocuments are the Services of the topology: its own, and those made for workloads.
func (h *Harness) serviceDocuments() (docs []string) {
	written := map[string]bool{}
	for _, doc := range document.Split(h.topology.Services) {
		written[doc.Ref()] = true
		docs = append(docs, doc.Text)
	}
	for _, s := range h.services() {
		if d := (document.Document{Content: s}); !written[d.Ref()] {
			docs = append(docs, document.Encode(s))
		}
	}
	return slices.Clip(docs)
}
