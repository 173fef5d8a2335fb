package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/local/meshfile"
)

// Istio's labels and annotations that decide a Pod's Kind.
const (
	templatesKey   = "inject.istio.io/templates"
	proxyContainer = "istio-proxy"
	// tlsModeLabel tells callers that a sidecar terminates mutual TLS there; Istio's injection sets it, too.
	tlsModeLabel = "security.istio.io/tlsMode"
)

// planner plans the Pods of one Deployment.
type planner struct {
	meshfile.Deployment
	mesh  *meshfile.Mesh
	o     Options
	addrs *addresses
	kind  Kind
	xds   string
}

// newPods plans the replicas of a Deployment.
func newPods(m *meshfile.Mesh, d meshfile.Deployment, o Options, addrs *addresses) ([]*Pod, error) {
	w := &planner{Deployment: d, mesh: m, o: o, addrs: addrs, xds: joinAddresses(xdsAddresses(addrs, o.XDSServers), netip.AddrPort.String)}
	w.kind = podKind(m, d)
	if err := w.check(); err != nil {
		return nil, err
	}
	var (
		pods []*Pod
		errs []error
	)
	for i := range replicas(d) {
		pod, err := w.pod(i)
		errs = append(errs, err)
		if err != nil {
			break // the other replicas have the same error
		}
		pods = append(pods, pod)
	}
	return pods, errors.Join(errs...)
}

// podKind follows Istio's rules of injection, except that a namespace needs no istio-injection label: a Pod is injected
// unless it or its namespace turns that off.
func podKind(m *meshfile.Mesh, d meshfile.Deployment) Kind {
	t := d.Spec.Template
	switch inject := cmp.Or(t.Labels[contract.InjectLabel], t.Annotations[contract.InjectLabel]); {
	case inject == "false" || inject == "" && m.Namespaces[d.Namespace][contract.InjectionLabel] == "disabled":
		return Plain
	case t.Annotations[templatesKey] == "gateway":
		return Gateway
	case t.Annotations[templatesKey] == "grpc-agent":
		return Proxyless
	default:
		return Sidecar
	}
}

// check returns errors for settings that have no effect without a cluster, so that nothing else runs than what is
// written.
func (w *planner) check() error {
	var errs []error
	refuse := func(field, problem, remedy string) {
		errs = append(errs, w.Source.Refuse(field, problem, remedy))
	}
	if n := replicas(w.Deployment); n < 0 {
		refuse("spec.replicas", fmt.Sprintf("%d is negative", n), "write 0 or more")
	}
	spec := w.Spec.Template.Spec
	if w.Spec.Selector == nil || len(w.Spec.Selector.MatchLabels) == 0 && len(w.Spec.Selector.MatchExpressions) == 0 {
		refuse("spec.selector", "is empty", "give the matchLabels that the template has")
	} else {
		for k, v := range w.Spec.Selector.MatchLabels {
			if w.Spec.Template.Labels[k] != v {
				refuse("spec.template.metadata.labels", fmt.Sprintf("lacks %s=%s of spec.selector", k, v), "add it")
			}
		}
	}
	if len(spec.InitContainers) > 0 {
		refuse("spec.template.spec.initContainers", "are not run on one machine",
			"do their work before `fairlead up`, or in the container's command")
	}
	if len(spec.Volumes) > 0 {
		refuse("spec.template.spec.volumes", "cannot be mounted without containers", "let the program read the files where they are")
	}
	if len(spec.Containers) == 0 {
		refuse("spec.template.spec.containers", "is empty", "name the container to run")
	}
	for i, c := range spec.Containers {
		field := fmt.Sprintf("spec.template.spec.containers[%d]", i)
		switch {
		case c.Name == proxyContainer && w.kind == Plain:
			refuse(field, "is a proxy in a Pod without injection", "remove it, or remove "+contract.InjectLabel+": \"false\"")
		case c.Name == proxyContainer:
		case w.kind == Gateway:
			refuse(field, "is an application in a gateway Pod", "keep only the container istio-proxy, or remove the annotation "+templatesKey)
		case len(c.Command) == 0:
			refuse(field+".command", fmt.Sprintf("is empty, and image %q is not run on one machine", c.Image),
				"name the program to run, found in --bin-dir or PATH")
		}
		if len(c.EnvFrom) > 0 {
			refuse(field+".envFrom", "is not supported", "write the variables under env")
		}
		if c.Lifecycle != nil {
			refuse(field+".lifecycle", "is not supported", "remove it")
		}
	}
	return errors.Join(errs...)
}

// pod plans replica i.
func (w *planner) pod(i int) (*Pod, error) {
	ip, err := w.addrs.pod()
	if err != nil {
		return nil, err
	}
	t := w.Spec.Template
	p := &Pod{
		Name:           fmt.Sprintf("%s-%d", w.Name, i),
		Ordinal:        i,
		Namespace:      w.Namespace,
		Workload:       w.Name,
		ServiceAccount: t.Spec.ServiceAccountName,
		Labels:         maps.Clone(t.Labels),
		Annotations:    maps.Clone(t.Annotations),
		IP:             ip,
		Kind:           w.kind,
		spec:           &t,
	}
	p.ServiceAccount = cmp.Or(p.ServiceAccount, "default")
	p.Labels[InstanceLabel] = p.Name
	if p.Kind == Sidecar && p.Labels[tlsModeLabel] == "" {
		p.Labels[tlsModeLabel] = "istio"
	}

	targets := targetPorts(w.mesh, p)
	listen, err := w.applicationPorts(p, targets)
	if err != nil {
		return nil, err
	}
	proxyURL := ""
	if p.Kind == Sidecar {
		if proxyURL, err = w.sidecar(p, targets, listen); err != nil {
			return nil, err
		}
	}
	if p.Kind == Proxyless {
		p.Agent = &Agent{StateDir: w.o.Layout.Agent(p.ID()), NoEnvoy: true} // containers are told StateDir's files
	}
	for i, c := range t.Spec.Containers {
		if c.Name == proxyContainer {
			continue
		}
		container, err := w.container(p, i, targets, listen, proxyURL)
		if err != nil {
			return nil, err
		}
		p.Containers = append(p.Containers, *container)
	}
	if p.Kind != Plain {
		if err := w.agent(p); err != nil {
			return nil, err
		}
	}
	p.Listens = append(p.Listens, w.requiredAddresses(p, targets)...)
	return p, nil
}

// applicationPorts decides on which address the application listens for each of its ports: without a proxy on the Pod's
// own address; behind a sidecar on a free port of 127.0.0.1, because Istio allows a Sidecar no other defaultEndpoint,
// or where a Sidecar of the mesh files says.
func (w *planner) applicationPorts(p *Pod, targets []targetPort) (map[uint16]netip.AddrPort, error) {
	ports := map[uint16]netip.AddrPort{}
	if p.Kind == Gateway {
		return ports, nil
	}
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	own := userSidecar(w.mesh, p)
	add := func(number uint16) error {
		if _, ok := ports[number]; ok {
			return nil
		}
		if p.Kind == Plain || p.Kind == Proxyless {
			ports[number] = netip.AddrPortFrom(p.IP, number)
			return nil
		}
		if own != nil {
			if addr, ok := userEndpoint(own, number); ok {
				ports[number] = addr
				return nil
			}
			if len(own.Spec.Ingress) == 0 {
				// A Sidecar without ingress listeners makes the proxy forward to the same port.
				ports[number] = netip.AddrPortFrom(local, number)
				return nil
			}
		}
		free, err := w.o.FreePort()
		if err != nil {
			return fmt.Errorf("port for %s: %w", p.ID(), err)
		}
		ports[number] = netip.AddrPortFrom(local, free)
		return nil
	}
	for _, t := range targets {
		if err := add(t.number); err != nil {
			return nil, err
		}
	}
	for _, c := range p.spec.Spec.Containers {
		for _, cp := range c.Ports {
			if cp.Protocol != "" && cp.Protocol != corev1.ProtocolTCP {
				continue
			}
			if err := add(uint16(cp.ContainerPort)); err != nil {
				return nil, err
			}
		}
	}
	return ports, nil
}

// requiredAddresses lists the addresses that the Pod's proxy or application needs.
func (w *planner) requiredAddresses(p *Pod, targets []targetPort) []netip.AddrPort {
	var list []netip.AddrPort
	at := func(ports ...uint16) {
		for _, n := range ports {
			list = append(list, netip.AddrPortFrom(p.IP, n))
		}
	}
	for _, t := range targets {
		at(t.number)
	}
	switch p.Kind {
	case Plain:
	case Proxyless:
		at(AgentPort)
	default:
		at(AgentPort, ReadyPort, StatsPort)
	}
	if p.Sidecar != nil {
		at(ProxyPort)
	}
	return list
}
