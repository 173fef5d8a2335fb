package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/services/installer/internal/local/programs"
)

// container plans the process of the Pod's container i.
func (w *planner) container(p *Pod, i int, targets []targetPort, appPorts map[uint16]netip.AddrPort, proxyURL string) (*Container, error) {
	c := p.spec.Spec.Containers[i]
	field := fmt.Sprintf("spec.template.spec.containers[%d]", i)
	path, err := w.o.Find(c.Command[0])
	if err != nil {
		problem := err.Error()
		if missing, ok := errors.AsType[*programs.NotFoundError](err); ok {
			problem = missing.Problem() // its remedy is for Fairlead's own programs
		}
		return nil, w.Source.Refuse(field+".command[0]", problem, "build it into --bin-dir, put it into PATH, or write an absolute path")
	}
	out := &Container{Container: c.Name, Ports: containerPorts(c, appPorts)}
	out.Process = Process{
		Name:    p.ID() + "/" + c.Name,
		Path:    path,
		Dir:     c.WorkingDir,
		Log:     w.o.Layout.Log(p.ID() + "." + c.Name),
		Stamped: true,
	}
	env, err := w.environment(p, c, field, out.Ports, proxyURL)
	if err != nil {
		return nil, err
	}
	out.Env = env.list(w.o.BaseEnv)
	for _, a := range append(slices.Clone(c.Command[1:]), c.Args...) {
		out.Args = append(out.Args, expand(a, env.values))
	}
	out.Grace = 30 * time.Second
	if g := p.spec.Spec.TerminationGracePeriodSeconds; g != nil {
		out.Grace = time.Duration(*g) * time.Second
	}
	out.Listens = w.mustListen(c, out.Ports, targets)
	if out.Probe, err = w.probe(p, c, field, appPorts); err != nil {
		return nil, err
	}
	return out, nil
}

// containerPorts lists a container's ports with the addresses to listen on. A container that declares no ports gets
// those of the Services.
func containerPorts(c corev1.Container, appPorts map[uint16]netip.AddrPort) []Port {
	var ports []Port
	for _, cp := range c.Ports {
		if addr, ok := appPorts[uint16(cp.ContainerPort)]; ok {
			ports = append(ports, Port{Name: cp.Name, Number: uint16(cp.ContainerPort), Listen: addr})
		}
	}
	if len(ports) == 0 {
		for number, addr := range appPorts {
			ports = append(ports, Port{Number: number, Listen: addr})
		}
		slices.SortFunc(ports, func(a, b Port) int { return int(a.Number) - int(b.Number) })
	}
	return ports
}

// mustListen lists the addresses on which a container must listen to be ready: the ports that Services lead to, or the
// one of $PORT if there are none. A container without declared ports, beside other containers, need not listen.
func (w *planner) mustListen(c corev1.Container, ports []Port, targets []targetPort) []netip.AddrPort {
	applications := slices.DeleteFunc(slices.Clone(w.Spec.Template.Spec.Containers),
		func(c corev1.Container) bool { return c.Name == proxyContainer })
	if len(ports) == 0 || len(c.Ports) == 0 && len(applications) > 1 {
		return nil
	}
	var list []netip.AddrPort
	for _, p := range ports {
		if slices.ContainsFunc(targets, func(t targetPort) bool { return t.number == p.Number }) {
			list = append(list, p.Listen)
		}
	}
	if len(list) == 0 {
		list = append(list, ports[0].Listen)
	}
	return list
}

// environment is an ordered set of variables. Values may refer to earlier variables as $(NAME).
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

// list returns the environment for exec, base first.
func (e *environment) list(base []string) []string {
	out := slices.Clone(base)
	for _, n := range e.names {
		out = append(out, n+"="+e.values[n])
	}
	return out
}

// environment returns a container's variables: those that the local runtime gives to every application, then those of
// the container's env.
func (w *planner) environment(p *Pod, c corev1.Container, field string, ports []Port, proxyURL string) (*environment, error) {
	e := &environment{values: map[string]string{}}
	e.set("POD_NAME", p.Name)
	e.set("POD_NAMESPACE", p.Namespace)
	e.set("POD_IP", p.IP.String())
	e.set("SERVICE_ACCOUNT", p.ServiceAccount)
	if len(ports) > 0 {
		e.set("HOST", ports[0].Listen.Addr().String())
		e.set("PORT", fmt.Sprint(ports[0].Listen.Port()))
	}
	for _, port := range ports {
		e.set(fmt.Sprintf("PORT_%d", port.Number), fmt.Sprint(port.Listen.Port()))
		if port.Name != "" {
			e.set("PORT_"+envName(port.Name), fmt.Sprint(port.Listen.Port()))
		}
	}
	if p.Kind == Proxyless {
		e.set("GRPC_XDS_BOOTSTRAP", p.Agent.GRPCBootstrap())
	}
	if proxyURL != "" {
		e.set("HTTP_PROXY", proxyURL)
		e.set("http_proxy", proxyURL)
		e.set("NO_PROXY", "")
		e.set("no_proxy", "")
	}
	return e, w.userEnv(e, p, c, field)
}

// userEnv adds the variables of a container's env.
func (w *planner) userEnv(e *environment, p *Pod, c corev1.Container, field string) error {
	for i, v := range c.Env {
		at := fmt.Sprintf("%s.env[%d]", field, i)
		value := expand(v.Value, e.values)
		if v.ValueFrom != nil {
			ref := v.ValueFrom.FieldRef
			if ref == nil {
				return w.Source.Refuse(at+".valueFrom", "is not supported", "write the value itself, or a fieldRef")
			}
			var ok bool
			if value, ok = podField(p, ref.FieldPath); !ok {
				return w.Source.Refuse(at+".valueFrom.fieldRef.fieldPath", fmt.Sprintf("%q is not known here", ref.FieldPath),
					"use metadata.name, metadata.namespace, metadata.labels['x'], metadata.annotations['x'], spec.serviceAccountName, status.podIP or "+
						"status.hostIP")
			}
		}
		e.set(v.Name, value)
	}
	return nil
}

// envName is a port's name as a part of a variable's name.
func envName(port string) string {
	return strings.ToUpper(strings.ReplaceAll(port, "-", "_"))
}

// podField returns the value of a downward API field; false if it is not supported.
func podField(p *Pod, path string) (string, bool) {
	for prefix, values := range map[string]map[string]string{"metadata.labels['": p.Labels, "metadata.annotations['": p.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			key, ok = strings.CutSuffix(key, "']")
			return values[key], ok
		}
	}
	switch path {
	case "metadata.name":
		return p.Name, true
	case "metadata.namespace":
		return p.Namespace, true
	case "metadata.uid":
		return p.ID(), true
	case "spec.serviceAccountName":
		return p.ServiceAccount, true
	case "spec.nodeName":
		return NodeName, true
	case "status.podIP", "status.podIPs", "status.hostIP":
		return p.IP.String(), true
	}
	return "", false
}

// expand replaces $(NAME) by the variable's value, leaves unknown variables, and turns $$ into $ (Kubernetes' rule for
// command, args and env).
func expand(s string, vars map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		switch {
		case s[1] == '$':
			b.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && strings.IndexByte(s, ')') > 0:
			end := strings.IndexByte(s, ')')
			if v, ok := vars[s[2:end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
	return b.String() + s
}

// probe plans the readiness probe with Kubernetes' defaults. It asks the application directly, not through the sidecar,
// as a rewritten probe in a cluster does.
func (w *planner) probe(p *Pod, c corev1.Container, field string, appPorts map[uint16]netip.AddrPort) (*Probe, error) {
	rp := c.ReadinessProbe
	if rp == nil {
		return nil, nil
	}
	field += ".readinessProbe"
	or := func(n, otherwise int32) int {
		if n <= 0 {
			return int(otherwise)
		}
		return int(n)
	}
	probe := &Probe{
		InitialDelay:     time.Duration(rp.InitialDelaySeconds) * time.Second,
		Period:           time.Duration(or(rp.PeriodSeconds, 10)) * time.Second,
		Timeout:          time.Duration(or(rp.TimeoutSeconds, 1)) * time.Second,
		SuccessThreshold: or(rp.SuccessThreshold, 1),
		FailureThreshold: or(rp.FailureThreshold, 3),
	}
	address := func(port intstr.IntOrString, host, at string) (string, error) {
		number := uint16(port.IntValue())
		if port.Type == intstr.String {
			i := slices.IndexFunc(c.Ports, func(cp corev1.ContainerPort) bool { return cp.Name == port.StrVal })
			if i < 0 {
				return "", w.Source.Refuse(at, fmt.Sprintf("%q is no port of container %s", port.StrVal, c.Name), "name one of its ports")
			}
			number = uint16(c.Ports[i].ContainerPort)
		}
		if host != "" {
			return "", w.Source.Refuse(strings.TrimSuffix(at, "port")+"host", "is not supported", "remove it: the probe goes to the Pod")
		}
		addr, ok := appPorts[number]
		if !ok {
			return "", w.Source.Refuse(at, fmt.Sprintf("%d is no port of container %s", number, c.Name), "add it to the container's ports")
		}
		return addr.String(), nil
	}
	switch {
	case rp.HTTPGet != nil:
		addr, err := address(rp.HTTPGet.Port, rp.HTTPGet.Host, field+".httpGet.port")
		if err != nil {
			return nil, err
		}
		scheme := cmp.Or(strings.ToLower(string(rp.HTTPGet.Scheme)), "http")
		probe.URL = scheme + "://" + addr + "/" + strings.TrimPrefix(rp.HTTPGet.Path, "/")
		for _, h := range rp.HTTPGet.HTTPHeaders {
			if strings.EqualFold(h.Name, "Host") {
				probe.Host = h.Value
				continue
			}
			if probe.Headers == nil {
				probe.Headers = map[string]string{}
			}
			probe.Headers[h.Name] = h.Value
		}
	case rp.TCPSocket != nil:
		addr, err := address(rp.TCPSocket.Port, rp.TCPSocket.Host, field+".tcpSocket.port")
		if err != nil {
			return nil, err
		}
		probe.TCP = addr
	default:
		return nil, w.Source.Refuse(field, "is neither httpGet nor tcpSocket", "write one of these")
	}
	return probe, nil
}

// NodeName is spec.nodeName of all Pods.
const NodeName = "localhost"
