package mesh

import (
	"net/netip"
	"slices"
	"strconv"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// anyAddress is the address under which the index has all services of a port.
const anyAddress = "*"

// Addresses of ServicesAt that are none: Within is for services whose clients connect to any address of a network,
// Wherever for those whose hosts are resolved for each connection.
const (
	Within   = "/"
	Wherever = "?"
)

// VIPs lists the addresses given to a service that its clients connect to, in canonical form, without networks and the
// unspecified address.
func VIPs(svc *configv1.Service) []string { return addresses(svc.GetAddresses()) }

// VIPsIn is VIPs for clients in a cluster: those that the service has there, or VIPs if it is not there.
func VIPsIn(svc *configv1.Service, cluster string) []string {
	for _, c := range svc.GetClusterAddresses() {
		if c.GetCluster() == cluster {
			return addresses(c.GetAddresses())
		}
	}
	return VIPs(svc)
}

// allVIPs lists the VIPs of all clusters.
func allVIPs(svc *configv1.Service) []string {
	all := svc.GetAddresses()
	for _, c := range svc.GetClusterAddresses() {
		all = append(slices.Clip(all), c.GetAddresses()...)
	}
	return addresses(all)
}

// AutoVIPs lists the addresses that were allocated for a service; none if the service was given addresses.
func AutoVIPs(svc *configv1.Service) []string {
	if len(svc.GetAddresses()) > 0 {
		return nil
	}
	return addresses(svc.GetAutoAddresses())
}

func addresses(texts []string) []string {
	var out []string
	for _, address := range texts {
		ip, err := netip.ParseAddr(address)
		if network, e := netip.ParsePrefix(address); e == nil && network.IsSingleIP() {
			ip, err = network.Addr(), nil
		}
		if err == nil && !ip.IsUnspecified() && !slices.Contains(out, ip.String()) {
			out = append(out, ip.String())
		}
	}
	return out
}

// Networks lists the networks (CIDRs) given to a service: its clients connect to any address of them.
func Networks(svc *configv1.Service) []netip.Prefix {
	var out []netip.Prefix
	if svc.GetHeadless() {
		return nil
	}
	for _, address := range svc.GetAddresses() {
		if network, err := netip.ParsePrefix(address); err == nil && !network.IsSingleIP() && !slices.Contains(out, network.Masked()) {
			out = append(out, network.Masked())
		}
	}
	return out
}

// indexAddresses indexes a service by every address and port that clients reach it at. Whether allocated addresses
// count depends on the client.
func (w *writer) indexAddresses(v *configv1.Service, add bool) {
	at := append(allVIPs(v), AutoVIPs(v)...)
	switch {
	case len(Networks(v)) > 0:
		at = append(at, Within)
	case len(allVIPs(v)) == 0:
		at = append(at, "")
	}
	if v.GetResolution() == configv1.Resolution_RESOLUTION_DYNAMIC_DNS {
		at = append(at, Wherever)
	}
	for _, p := range v.GetPorts() {
		for _, address := range at {
			w.indexAddress(v, p, address, add)
		}
		put(w, &w.next.addressed, add, addressKey(v, p, anyAddress), v)
		w.touch(SubjectSpeaks, number(p.GetNumber()), protocolKey(p.GetProtocol()))
		w.countPrivate(explicit(v.GetExportedTo()), add, SpeakingTopic(p.GetNumber(), p.GetProtocol()))
		if v.GetHeadless() {
			for _, set := range w.next.Endpoints(v, p.GetNumber()) {
				w.indexPodAddresses(v, set, add)
			}
		}
	}
}

// indexPodAddresses indexes a headless service by the addresses of its endpoints.
func (w *writer) indexPodAddresses(v *configv1.Service, set *configv1.EndpointSet, add bool) {
	for _, p := range v.GetPorts() {
		if p.GetNumber() != set.GetPort() {
			continue
		}
		for _, endpoint := range set.GetEndpoints() {
			if ip, err := netip.ParseAddr(endpoint.GetAddress()); err == nil && !ip.IsUnspecified() {
				w.indexAddress(v, p, ip.String(), add)
			}
		}
	}
}

func (w *writer) indexAddress(v *configv1.Service, p *configv1.ServicePort, address string, add bool) {
	put(w, &w.next.addressed, add, addressKey(v, p, address), v)
	w.touch(SubjectServicesAt, number(p.GetNumber()), address)
	w.countPrivate(explicit(v.GetExportedTo()), add, ServicesAtTopic(p.GetNumber(), address))
}

func addressKey(v *configv1.Service, p *configv1.ServicePort, address string) string {
	return join(number(p.GetNumber()), address, protocolKey(p.GetProtocol()), v.GetHostname(), v.GetNamespace(), v.GetAudience())
}

func protocolKey(p configv1.Protocol) string { return strconv.Itoa(int(p)) }

// ServicesAt lists the services exported to the namespace that clients reach at an address and port, sorted by protocol
// and hostname. The address is one of:
//   - a VIP, given or allocated, or the address of an endpoint of a headless service;
//   - "": services that have no VIP, or only allocated ones;
//   - Within: services that have networks;
//   - Wherever: services with resolution DYNAMIC_DNS.
//
// With protocols, only services are listed that have a port of the number with one of them.
func (s *Snapshot) ServicesAt(to string, port uint32, address string, protocols ...configv1.Protocol) []*configv1.Service {
	prefix := join(number(port), address) + sep
	prefixes := []string{prefix}
	if len(protocols) > 0 {
		prefixes = nil
		for _, p := range protocols {
			prefixes = append(prefixes, prefix+protocolKey(p)+sep)
		}
	}
	var found []*configv1.Service
	for _, p := range prefixes {
		s.addressed.scan(p, func(_ string, svc *configv1.Service) bool {
			if visible(svc.GetExportedTo(), to) && !slices.Contains(found, svc) {
				found = append(found, svc)
			}
			return true
		})
	}
	return found
}

// ServicesAtTopic names the answer of ServicesAt.
func ServicesAtTopic(port uint32, address string) Topic {
	return Topic{SubjectServicesAt, number(port), address}
}

// Speaking calls f for the services exported to the namespace that have a port with the number and the protocol, in
// order of hostname, until f returns false.
func (s *Snapshot) Speaking(to string, port uint32, p configv1.Protocol, f func(*configv1.Service) bool) {
	s.SpeakingAt(to, port, anyAddress, p, f)
}

// SpeakingAt is Speaking for the services that ServicesAt lists for the address. ServicesAtTopic names its answer.
func (s *Snapshot) SpeakingAt(to string, port uint32, address string, p configv1.Protocol, f func(*configv1.Service) bool) {
	s.addressed.scan(join(number(port), address, protocolKey(p))+sep, func(_ string, svc *configv1.Service) bool {
		return !visible(svc.GetExportedTo(), to) || f(svc)
	})
}

// SpeakingTopic names the answer of Speaking.
func SpeakingTopic(port uint32, p configv1.Protocol) Topic {
	return Topic{SubjectSpeaks, number(port), protocolKey(p)}
}
