package harness

import (
	"net/netip"
	"slices"
)

// balance has, for each port of each address of a Service, the ready Pods behind it: what Kubernetes' own proxy makes
// of Services, for connections that no sidecar takes care of. The caller holds s.mu.
func (s *store) balance() map[netip.AddrPort][]netip.AddrPort {
	to := map[netip.AddrPort][]netip.AddrPort{}
	for _, service := range s.applied {
		if service.kind() != "Service" || service.member("spec", "clusterIP") == "None" {
			continue
		}
		own := addressesOf(append([]any{service.member("spec", "clusterIP")}, service.list("spec", "clusterIPs")...))
		for _, at := range service.list("spec", "ports") {
			port, ok := at.(tree)
			if !ok {
				continue
			}
			for _, ip := range own {
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
func (s *store) backends(service document, port tree, ip6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, pod := range s.pods(service) {
		target := targetPort(port, pod)
		for _, ip := range pod.addresses() {
			if ip.Is6() == ip6 && target != 0 {
				out = append(out, netip.AddrPortFrom(ip, target))
			}
		}
	}
	return out
}

// pods are the Pods of a Service that take connections. The caller holds s.mu.
func (s *store) pods(service document) []document {
	var out []document
	for _, pod := range s.applied {
		if pod.kind() == "Pod" && pod.member("metadata", "namespace") == service.member("metadata", "namespace") &&
			pod.hasLabels(service.strings("spec", "selector")) &&
			(pod.ready() || service.at("spec", "publishNotReadyAddresses") == true) {
			out = append(out, pod)
		}
	}
	return out
}

// addresses are those of a Pod.
func (d document) addresses() []netip.Addr {
	var ips []any
	for _, ip := range d.list("status", "podIPs") {
		if m, ok := ip.(tree); ok {
			ips = append(ips, m["ip"])
		}
	}
	return addressesOf(append(ips, d.member("status", "podIP")))
}

// targetPort is the number of a Service's port at a Pod; 0 if the Pod has none of that name.
func targetPort(port tree, pod document) uint16 {
	switch target := port["targetPort"].(type) {
	case nil:
		return number(port["port"])
	case string:
		for _, c := range pod.list("spec", "containers") {
			container, _ := c.(tree)
			ports, _ := container["ports"].([]any)
			for _, p := range ports {
				if named, ok := p.(tree); ok && named["name"] == target {
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
