package store

import (
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// balance has, for each port of each address of a Service, the ready Pods behind it: what Kubernetes' own proxy makes
// of Services, for connections that no sidecar takes care of. The caller holds s.mu.
func (s *Store) balance() map[netip.AddrPort][]netip.AddrPort {
	to := map[netip.AddrPort][]netip.AddrPort{}
	for _, service := range s.applied {
		if service.Kind() != "Service" || service.Member("spec", "clusterIP") == "None" {
			continue
		}
		for _, at := range service.List("spec", "ports") {
			port, ok := at.(document.Tree)
			if !ok {
				continue
			}
			for _, ip := range service.ClusterIPs() {
				if from := netip.AddrPortFrom(ip, number(port["port"])); from.Port() != 0 {
					to[from] = append(to[from], s.backends(service, port, ip.Is6())...)
				}
			}
		}
	}
	for _, backends := range to {
		slices.SortFunc(backends, netip.AddrPort.Compare)
	}
	return to
}

// backends are the ready Pods of a Service with the port that one of its ports leads to.
func (s *Store) backends(service document.Document, port document.Tree, ip6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, pod := range s.pods(service) {
		target := targetPort(port, pod)
		for _, ip := range pod.PodIPs() {
			if ip.Is6() == ip6 && target != 0 {
				out = append(out, netip.AddrPortFrom(ip, target))
			}
		}
	}
	return out
}

// pods are the Pods of a Service that take connections. The caller holds s.mu.
func (s *Store) pods(service document.Document) []document.Document {
	var out []document.Document
	for _, pod := range s.applied {
		if service.Selects(pod) && service.Takes(pod) {
			out = append(out, pod)
		}
	}
	return out
}

// targetPort is the number of a Service's port at a Pod; 0 if the Pod has none of that name.
func targetPort(port document.Tree, pod document.Document) uint16 {
	switch target := port["targetPort"].(type) {
	case nil:
		return number(port["port"])
	case string:
		for _, c := range pod.List("spec", "containers") {
			container, _ := c.(document.Tree)
			ports, _ := container["ports"].([]any)
			for _, p := range ports {
				if named, ok := p.(document.Tree); ok && named["name"] == target {
					return number(named["containerPort"])
				}
			}
		}
		return 0
	default:
		return number(target)
	}
}

// number is a port as JSON has it.
func number(v any) uint16 {
	f, _ := v.(float64)
	return uint16(f) //nolint:gosec // validated
}

// endpointsOf are the Pods of each Service that has a selector, by namespace/name.
func endpointsOf(held set) map[string]apiserver.Endpoints {
	out := map[string]apiserver.Endpoints{}
	for _, service := range held {
		if service.Kind() != "Service" || len(service.Strings("spec", "selector")) == 0 ||
			service.Member("spec", "type") == "ExternalName" {
			continue
		}
		endpoints := apiserver.Endpoints{}
		for _, pod := range held {
			if !service.Selects(pod) {
				continue
			}
			for _, ip := range pod.PodIPs() {
				if service.HasFamily(ip.Is6()) {
					endpoints[ip] = service.Takes(pod)
				}
			}
		}
		out[service.Namespace()+"/"+service.Name()] = endpoints
	}
	return out
}

// Lookup answers for [HOSTNAME.]SERVICE.NAMESPACE.
func (s *Store) Lookup(name string) resolver.Answer {
	parts := strings.Split(name, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return resolver.Answer{}
	}
	hostname := ""
	if len(parts) == 3 {
		hostname, parts = parts[0], parts[1:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	service, ok := s.applied[document.Ref("Service", parts[1], parts[0])]
	if !ok {
		return resolver.Answer{}
	}
	if service.Member("spec", "type") == "ExternalName" {
		return resolver.Answer{Name: service.Member("spec", "externalName")}
	}
	a := resolver.Answer{Exists: hostname == ""}
	if service.Member("spec", "clusterIP") != "None" {
		if hostname == "" {
			a.IPs = service.ClusterIPs()
		}
		return a
	}
	for _, pod := range s.pods(service) {
		if hostname == "" || pod.Member("spec", "hostname") == hostname && pod.Member("spec", "subdomain") == parts[0] {
			a.Exists, a.IPs = true, append(a.IPs, pod.PodIPs()...)
		}
	}
	slices.SortFunc(a.IPs, netip.Addr.Compare)
	return a
}
