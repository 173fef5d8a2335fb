package plan

import (
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/local/meshfile"
)

// targetPort is a port of a Pod that a Service leads to.
type targetPort struct {
	number uint16
	// service is the Service's port number.
	service uint16
	name    string
	// protocol is in the spelling of Sidecar: HTTP, TCP, ...; empty if proxies detect it.
	protocol string
}

// selects reports whether labels has all labels of selector; an empty selector selects nothing.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// servicesOf lists the Services that lead to the Pod.
func servicesOf(m *meshfile.Mesh, p *Pod) []*corev1.Service {
	return lists.Filter(m.Services, func(s *corev1.Service) bool { return s.Namespace == p.Namespace && selects(s.Spec.Selector, p.Labels) })
}

// targetPorts lists the ports that Services lead to, each once, sorted. The first Service decides the protocol.
func targetPorts(m *meshfile.Mesh, p *Pod) []targetPort {
	var list []targetPort
	for _, s := range servicesOf(m, p) {
		for _, sp := range s.Spec.Ports {
			if sp.Protocol != "" && sp.Protocol != corev1.ProtocolTCP {
				continue
			}
			number, ok := resolveTargetPort(sp, p)
			if !ok || slices.ContainsFunc(list, func(t targetPort) bool { return t.number == number }) {
				continue
			}
			list = append(list, targetPort{number: number, service: uint16(sp.Port), name: sp.Name, protocol: describe.Protocol(sp)})
		}
	}
	slices.SortFunc(list, func(a, b targetPort) int { return int(a.number) - int(b.number) })
	return list
}

// resolveTargetPort returns the Pod's port that a Service port leads to; false if it is named and no container has the
// name.
func resolveTargetPort(sp corev1.ServicePort, p *Pod) (uint16, bool) {
	switch {
	case sp.TargetPort.Type == intstr.String && sp.TargetPort.StrVal != "":
		for _, c := range p.spec.Spec.Containers {
			for _, cp := range c.Ports {
				if cp.Name == sp.TargetPort.StrVal {
					return uint16(cp.ContainerPort), true
				}
			}
		}
		return 0, false
	case sp.TargetPort.IntVal != 0:
		return uint16(sp.TargetPort.IntVal), true
	default:
		return uint16(sp.Port), true
	}
}

// gatewayURLs lists the URLs of a gateway Pod: one for each server of the Gateways that select it. A server's port is a
// port of the gateway's Service, which leads to a port of the Pod.
func gatewayURLs(m *meshfile.Mesh, p *Pod) (urls []URL, warnings []string) {
	for _, g := range m.Gateways {
		if !selects(g.Spec.Selector, p.Labels) && len(g.Spec.Selector) > 0 {
			continue
		}
		for i, server := range g.Spec.Servers {
			port := gatewayPort(m, p, server)
			if port < 1024 {
				warnings = append(warnings, fmt.Sprintf(
					"Gateway %s/%s: spec.servers[%d].port: %d is not open to ordinary users on this machine; give the gateway's Service a targetPort of "+
						"1024 or more",
					g.Namespace, g.Name, i, port))
			}
			urls = append(urls, URL{Pod: p.ID(), URL: fmt.Sprintf("%s://%s:%d/", scheme(server), p.IP, port), Hosts: server.Hosts})
		}
	}
	return urls, warnings
}

// gatewayPort is the Pod's port for a server of a Gateway.
func gatewayPort(m *meshfile.Mesh, p *Pod, server *networkingv1alpha3.Server) uint16 {
	number := uint16(server.GetPort().GetNumber())
	for _, s := range servicesOf(m, p) {
		for _, sp := range s.Spec.Ports {
			if uint16(sp.Port) == number {
				if t, ok := resolveTargetPort(sp, p); ok {
					return t
				}
			}
		}
	}
	return number
}

func scheme(server *networkingv1alpha3.Server) string {
	switch protocol := contract.ParseProtocol(server.GetPort().GetProtocol()); {
	case contract.IsHTTP(protocol):
		return "http"
	case protocol == configv1.Protocol_PROTOCOL_HTTPS:
		return "https"
	default:
		return "tcp"
	}
}
