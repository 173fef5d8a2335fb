package plan

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/services/installer/internal/local/meshfile"
)

// target is a port of a Pod that some Service leads to.
type target struct {
	number uint16
	// service is the Service's port number.
	service uint16
	name    string
	// protocol in the words of Sidecar: HTTP, TCP, ...; empty if the Service does not declare it.
	protocol string
}

// selects tells whether all labels of selector are there; an empty selector selects nothing.
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
	var list []*corev1.Service
	for _, s := range m.Services {
		if s.Namespace == p.Namespace && selects(s.Spec.Selector, p.Labels) {
			list = append(list, s)
		}
	}
	return list
}

// targetPorts lists the ports that Services lead to, each once, sorted. Where two Services disagree about the protocol
// the first one decides.
func targetPorts(m *meshfile.Mesh, p *Pod) []target {
	var list []target
	for _, s := range servicesOf(m, p) {
		for _, sp := range s.Spec.Ports {
			if sp.Protocol != "" && sp.Protocol != corev1.ProtocolTCP {
				continue
			}
			number, ok := targetPort(sp, p)
			if !ok || slices.ContainsFunc(list, func(t target) bool { return t.number == number }) {
				continue
			}
			list = append(list, target{number: number, service: uint16(sp.Port), name: sp.Name, protocol: protocol(sp)})
		}
	}
	slices.SortFunc(list, func(a, b target) int { return int(a.number) - int(b.number) })
	return list
}

// targetPort resolves a Service port to the Pod's port; false if it is named and no container has the name.
func targetPort(sp corev1.ServicePort, p *Pod) (uint16, bool) {
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

// protocols are the ones a port can be declared to speak (Istio, "Protocol Selection").
var protocols = []string{"HTTP", "HTTPS", "GRPC", "HTTP2", "MONGO", "TCP", "TLS", "REDIS", "MYSQL", "GRPC-WEB"}

// protocol is what a Service port is declared to speak, by appProtocol or by the prefix of its name; empty if it is
// not.
func protocol(sp corev1.ServicePort) string {
	if app := sp.AppProtocol; app != nil {
		switch strings.ToLower(*app) {
		case "kubernetes.io/h2c":
			return "HTTP2"
		case "kubernetes.io/ws":
			return "HTTP"
		case "kubernetes.io/wss":
			return "HTTPS"
		}
		return known(*app)
	}
	if strings.HasPrefix(strings.ToLower(sp.Name), "grpc-web") {
		return "GRPC-WEB"
	}
	prefix, _, _ := strings.Cut(sp.Name, "-")
	return known(prefix)
}

func known(name string) string {
	if name = strings.ToUpper(name); slices.Contains(protocols, name) {
		return name
	}
	return ""
}

// gatewayURLs tells how the gateway Pod is reached: the servers of the Gateways that select it. A server's port is a
// port of the gateway's Service, which leads to the port that the Pod listens on.
func gatewayURLs(m *meshfile.Mesh, p *Pod) (urls []URL, warnings []string) {
	for _, g := range m.Gateways {
		if !selects(g.Spec.Selector, p.Labels) && len(g.Spec.Selector) > 0 {
			continue
		}
		for i, server := range g.Spec.Servers {
			port := gatewayPort(m, p, server)
			if port < 1024 {
				warnings = append(warnings, fmt.Sprintf(
					"Gateway %s/%s: spec.servers[%d].port: %d is not open to ordinary users on this machine; give the gateway's Service a targetPort of 1024 or more",
					g.Namespace, g.Name, i, port))
			}
			urls = append(urls, URL{Pod: p.ID(), URL: fmt.Sprintf("%s://%s:%d/", scheme(server), p.IP, port), Hosts: server.Hosts})
		}
	}
	return urls, warnings
}

// gatewayPort is the port that the gateway Pod listens on for a server.
func gatewayPort(m *meshfile.Mesh, p *Pod, server *networkingv1alpha3.Server) uint16 {
	number := uint16(server.GetPort().GetNumber())
	for _, s := range servicesOf(m, p) {
		for _, sp := range s.Spec.Ports {
			if uint16(sp.Port) == number {
				if t, ok := targetPort(sp, p); ok {
					return t
				}
			}
		}
	}
	return number
}

func scheme(server *networkingv1alpha3.Server) string {
	switch strings.ToUpper(server.GetPort().GetProtocol()) {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return "http"
	case "HTTPS":
		return "https"
	default:
		return "tcp"
	}
}
