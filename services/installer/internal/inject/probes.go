package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"istio.io/api/annotation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probersVariable tells the agent where the application's own probes are (node-agent's package appprobe reads it).
const probersVariable = "ISTIO_KUBE_APP_PROBERS"

// prober is an entry of probersVariable, under the path at which the agent serves it.
type prober struct {
	HTTPGet        *corev1.HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket      *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC           *corev1.GRPCAction      `json:"grpc,omitempty"`
	TimeoutSeconds int32                   `json:"timeoutSeconds,omitempty"`
}

// rewriteProbes makes kubelet ask the agent in place of the application, because what kubelet sends is not mutual TLS:
// probes and hooks of kind httpGet, tcpSocket and grpc of every container but the proxy.
func (in *injection) rewriteProbes(pod *corev1.Pod) error {
	proxy := anyContainer(pod, proxyContainer)
	if proxy == nil || !in.wantsProbes(pod.Annotations) {
		return nil
	}
	r := probeRewriter{in: in, found: map[string]*prober{}, meshPort: in.proxy.GetStatusPort(), port: in.proxy.GetStatusPort()}
	if text, ok := pod.Annotations[annotation.SidecarStatusPort.Name]; ok {
		port, err := parsePort(text)
		if err != nil {
			return badAnnotation(annotation.SidecarStatusPort.Name, text, err)
		}
		r.port = int32(port)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name != proxyContainer {
				r.container(&list[i])
			}
		}
	}
	if len(r.found) == 0 {
		return nil
	}
	return in.setProbers(proxy, r.found)
}

// wantsProbes reports what the annotation says, or the values.
func (in *injection) wantsProbes(annotations map[string]string) bool {
	text, ok := annotations[annotation.SidecarRewriteAppHTTPProbers.Name]
	if !ok {
		return in.config.known.SidecarInjectorWebhook.RewriteAppHTTPProbe
	}
	want, err := strconv.ParseBool(text)
	if err != nil {
		in.warn("the annotation %s is %q, which has no effect; say true or false", annotation.SidecarRewriteAppHTTPProbers.Name, text)
		return in.config.known.SidecarInjectorWebhook.RewriteAppHTTPProbe
	}
	return want
}

// setProbers adds the variable. What an earlier injection has found is no longer in the probes, so that its entries
// stay.
func (in *injection) setProbers(proxy *corev1.Container, found map[string]*prober) error {
	i := slices.IndexFunc(proxy.Env, func(v corev1.EnvVar) bool { return v.Name == probersVariable })
	if in.before != nil && i >= 0 {
		var old map[string]*prober
		if err := json.Unmarshal([]byte(proxy.Env[i].Value), &old); err != nil {
			return fmt.Errorf("the variable %s of its container %s cannot be read: %w; remove it", probersVariable, proxyContainer, err)
		}
		maps.Copy(found, old)
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	v := corev1.EnvVar{Name: probersVariable, Value: string(text)}
	if in.before != nil && i >= 0 {
		proxy.Env[i] = v
	} else {
		proxy.Env = append(proxy.Env, v)
	}
	return nil
}

// probeRewriter rewrites the probes of a Pod. A probe at meshPort is one that an earlier injection has rewritten.
type probeRewriter struct {
	in             *injection
	found          map[string]*prober
	meshPort, port int32
}

func (r *probeRewriter) container(c *corev1.Container) {
	ports := map[string]int32{}
	for _, p := range c.Ports {
		if p.Name != "" {
			ports[p.Name] = p.ContainerPort
		}
	}
	health, hook := "/app-health/"+c.Name+"/", "/app-lifecycle/"+c.Name+"/"
	r.probe(&c.ReadinessProbe, health+"readyz", ports)
	r.probe(&c.LivenessProbe, health+"livez", ports)
	r.probe(&c.StartupProbe, health+"startupz", ports)
	if c.Lifecycle != nil {
		r.hook(c.Lifecycle.PreStop, hook+"prestopz", ports)
		r.hook(c.Lifecycle.PostStart, hook+"poststartz", ports)
	}
}

func (r *probeRewriter) probe(probe **corev1.Probe, path string, ports map[string]int32) {
	p := *probe
	if p == nil {
		return
	}
	one := &prober{TimeoutSeconds: p.TimeoutSeconds}
	switch {
	case p.HTTPGet != nil:
		one.HTTPGet = p.HTTPGet
	case p.TCPSocket != nil:
		one.TCPSocket = p.TCPSocket
	case p.GRPC != nil:
		one.GRPC = p.GRPC
	default:
		return
	}
	r.keep(path, one, ports)
	p.HTTPGet, p.TCPSocket, p.GRPC = r.action(one.HTTPGet, path), nil, nil
}

func (r *probeRewriter) hook(h *corev1.LifecycleHandler, path string, ports map[string]int32) {
	if h == nil || h.HTTPGet == nil && h.TCPSocket == nil {
		return
	}
	one := &prober{HTTPGet: h.HTTPGet}
	if h.HTTPGet == nil {
		one.TCPSocket = h.TCPSocket
	}
	r.keep(path, one, ports)
	h.HTTPGet, h.TCPSocket = r.action(one.HTTPGet, path), nil
}

// keep notes the application's own probe, named ports resolved. It notes nothing for a port name that the container
// lacks, which no kubelet can ask either.
func (r *probeRewriter) keep(path string, p *prober, ports map[string]int32) {
	if p.GRPC != nil {
		r.found[path] = p
		return
	}
	var port *intstr.IntOrString
	if p.HTTPGet != nil {
		p.HTTPGet = p.HTTPGet.DeepCopy()
		port = &p.HTTPGet.Port
	} else {
		p.TCPSocket = p.TCPSocket.DeepCopy()
		port = &p.TCPSocket.Port
	}
	if port.Type == intstr.String {
		number, ok := ports[port.StrVal]
		if !ok {
			r.in.warn("the probe behind %s asks the port %q, which its container does not have; name a port of the container", path, port.StrVal)
			return
		}
		*port = intstr.FromInt32(number)
	} else if port.IntVal == r.meshPort {
		return
	}
	r.found[path] = p
}

// action asks the agent, without TLS.
func (r *probeRewriter) action(own *corev1.HTTPGetAction, path string) *corev1.HTTPGetAction {
	out := &corev1.HTTPGetAction{}
	if own != nil {
		out = own.DeepCopy()
	}
	if out.Scheme == corev1.URISchemeHTTPS {
		out.Scheme = corev1.URISchemeHTTP
	}
	out.Path, out.Port = path, intstr.FromInt32(r.port)
	return out
}
