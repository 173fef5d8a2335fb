package whole

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkPortNames finds ports of Services that name no protocol, so that proxies have to detect it.
func checkPortNames(r *run) {
	for o, s := range bodies[*corev1.Service](r, "Service") {
		if slices.Contains(contract.SystemNamespaces, o.Key.Namespace) || o.Key.Namespace == r.settings.GetRootNamespace() ||
			s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		for i, p := range s.Spec.Ports {
			if portProtocol(p) == configv1.Protocol_PROTOCOL_UNSPECIFIED {
				r.report(o, finding.PortWithoutProtocol, fmt.Sprintf("spec.ports[%d].name", i), cmp.Or(p.Name, "(unnamed)"),
					fmt.Sprintf("port %d names no protocol, so that proxies detect it for each connection", p.Port),
					`name the port "<protocol>-<anything>", as in http-web, or set appProtocol`)
			}
		}
	}
}

func portProtocol(p corev1.ServicePort) configv1.Protocol {
	return contract.PortProtocol(p.Port, p.Name, string(p.Protocol), p.AppProtocol)
}

// checkExternalNames finds Services of type ExternalName that do not do what they look like.
func checkExternalNames(r *run) {
	for o, s := range bodies[*corev1.Service](r, "Service") {
		if s.Spec.Type != corev1.ServiceTypeExternalName {
			continue
		}
		for i, p := range s.Spec.Ports {
			if protocol := portProtocol(p); protocol == configv1.Protocol_PROTOCOL_UNSPECIFIED || protocol == configv1.Protocol_PROTOCOL_TCP {
				r.report(o, finding.ExternalNamePort, fmt.Sprintf("spec.ports[%d].name", i), p.Name,
					fmt.Sprintf("port %d of an ExternalName Service is not HTTP or TLS: a proxy that listens on the port for every address takes other "+
						"services' connections", p.Port),
					"name the port after the protocol, as in https, or use a ServiceEntry")
			}
		}
		if _, err := netip.ParseAddr(s.Spec.ExternalName); err == nil {
			r.report(o, finding.ExternalNameTrap, "spec.externalName", s.Spec.ExternalName, "is an address, and DNS has no name like that",
				"use a ServiceEntry with the address, or an EndpointSlice")
			continue
		}
		target := normalise.Host(strings.TrimSuffix(s.Spec.ExternalName, ".")+".", "", "")
		own := normalise.Host(o.Key.Name, o.Key.Namespace, r.cfg.Domain)
		if target == own {
			r.report(o, finding.ExternalNameTrap, "spec.externalName", s.Spec.ExternalName, "stands for itself", "name the host that is meant")
		} else if ns, name, ours := r.serviceName(target); ours && r.get("", "Service", ns, name) == nil {
			r.report(o, finding.ExternalNameTrap, "spec.externalName", s.Spec.ExternalName, fmt.Sprintf("there is no Service %s/%s", ns, name),
				"correct the name")
		}
	}
}

// serviceName reads the host of a Kubernetes Service.
func (m *Mesh) serviceName(host string) (namespace, name string, ok bool) {
	rest, ok := strings.CutSuffix(host, ".svc."+m.cfg.Domain)
	name, namespace, found := strings.Cut(rest, ".")
	return namespace, name, ok && found && !strings.Contains(namespace, ".")
}

// checkServiceSelectors finds Services that select nothing.
func checkServiceSelectors(r *run) {
	for o, s := range bodies[*corev1.Service](r, "Service") {
		if len(s.Spec.Selector) == 0 || s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if len(r.selected(o.Key.Namespace, s.Spec.Selector)) == 0 {
			r.report(o, finding.ServiceSelectsNothing, "spec.selector", object.LabelText(s.Spec.Selector),
				"no workload of the namespace has these labels: requests are answered 503",
				"start the workload, or write the labels that it has")
		}
	}
}

// portUse is one port of a Service of a workload.
type portUse struct {
	service *Object
	index   int
	port    corev1.ServicePort
}

// checkSharedPorts finds workloads of which two Services tell the proxy different things about one port.
func checkSharedPorts(r *run) {
	seen := map[string]bool{}
	for _, w := range r.workloads {
		services := r.servicesOf(w)
		if len(services) < 2 || !r.inMesh(w) {
			continue
		}
		byPort, byTarget := map[int32][]portUse{}, map[string][]portUse{}
		for _, s := range services {
			for i, p := range s.Body.(*corev1.Service).Spec.Ports {
				use := portUse{s, i, p}
				byPort[p.Port] = append(byPort[p.Port], use)
				byTarget[targetOf(p)] = append(byTarget[targetOf(p)], use)
			}
		}
		r.portsDiffer(w, byPort, byTarget, seen)
	}
}

func targetOf(p corev1.ServicePort) string {
	if t := p.TargetPort.String(); t != "" && t != "0" {
		return t
	}
	return fmt.Sprint(p.Port)
}

// portsDiffer reports the differences. seen are pairs of ports that were reported for another workload of theirs.
func (r *run) portsDiffer(w *workload, byPort map[int32][]portUse, byTarget map[string][]portUse, seen map[string]bool) {
	first := func(a, b portUse) bool {
		key := fmt.Sprint(a.service.Key, a.index, b.service.Key, b.index)
		if seen[key] {
			return false
		}
		seen[key] = true
		return true
	}
	for _, uses := range byPort {
		for _, use := range uses[1:] {
			one, other := transport(uses[0].port), transport(use.port)
			if one != other && uses[0].service != use.service && first(uses[0], use) {
				r.report(w.Object, finding.ServiceProtocolsDiffer, "", nil,
					fmt.Sprintf("Services %s and %s select it with port %d, for %s and for %s", uses[0].service.Key.Name, use.service.Key.Name,
						use.port.Port, one, other),
					"give the Services ports of their own, or the same protocol")
			}
		}
	}
	for target, uses := range byTarget {
		for _, use := range uses[1:] {
			if use.port.Port != uses[0].port.Port && uses[0].service != use.service && transport(use.port) == transport(uses[0].port) &&
				first(uses[0], use) {
				r.report(w.Object, finding.TargetPortShared, "", nil,
					fmt.Sprintf("Services %s and %s lead to its port %s from ports %d and %d, and a proxy knows a port by one of them",
						uses[0].service.Key.Name,
						use.service.Key.Name, target, uses[0].port.Port, use.port.Port), "use one port number in both Services")
			}
		}
	}
}

func transport(p corev1.ServicePort) string { return string(cmp.Or(p.Protocol, corev1.ProtocolTCP)) }

// checkHiddenServices finds ServiceEntries for hosts of Kubernetes Services.
func checkHiddenServices(r *run) {
	for _, o := range r.kind("ServiceEntry") {
		for i, host := range o.Body.(*networking.ServiceEntry).GetHosts() {
			ns, name, ours := r.serviceName(strings.TrimSuffix(strings.ToLower(host), "."))
			if !ours {
				continue
			}
			if s := r.get("", "Service", ns, name); s != nil && s.Body != nil {
				r.report(o, finding.ServiceHidden, fmt.Sprintf("spec.hosts[%d]", i), host,
					fmt.Sprintf("Service %s/%s has the host as well: proxies join the two, and the Service's ports and endpoints count", ns, name),
					"use another host, or add a DestinationRule or a WorkloadEntry to the Service")
			}
		}
	}
}

// checkGatewayPorts finds ports of Gateways to which no Service of their workloads leads.
func checkGatewayPorts(r *run) {
	for o, g := range bodies[*networking.Gateway](r, "Gateway") {
		served := map[string]bool{}
		workloads := r.selected("", g.GetSelector())
		found := !r.cfg.Partial // a Service may be elsewhere; without Kubernetes there is none
		for _, w := range workloads {
			for _, s := range r.servicesOf(w) {
				found = true
				for _, p := range s.Body.(*corev1.Service).Spec.Ports {
					served[targetOf(p)], served[fmt.Sprint(p.Port)] = true, true // a Service's port becomes its target port
					if w.spec != nil {
						served[fmt.Sprint(r.namedPort(w, p.TargetPort.StrVal))] = true
					}
				}
			}
		}
		for i, s := range g.GetServers() {
			if len(workloads) > 0 && found && !served[fmt.Sprint(s.GetPort().GetNumber())] {
				r.report(o, finding.GatewayPortNotInService, fmt.Sprintf("spec.servers[%d].port.number", i), s.GetPort().GetNumber(),
					"no Service of the gateway's workloads leads to the port",
					"add the port to the Service, or use a port or target port of one that it has")
			}
		}
	}
}
