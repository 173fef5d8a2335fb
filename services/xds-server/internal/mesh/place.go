package mesh

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// anyAddress stands in the index of places for all services of a port, whatever their addresses.
const anyAddress = "*"

// Addresses of ServicesAt for services whose clients connect to all addresses of some networks, and for those whose hosts are looked up one
// by one.
const (
	Within   = "/"
	Wherever = "?"
)

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// VIPs lists the addresses given to a service that its clients connect to, in canonical form: networks, the unspecified address and what is
// no address are left out.
func VIPs(svc *configv1.Service) []string { return addresses(svc.GetAddresses()) }

// AutoVIPs lists the addresses allocated for a service; none if it was given any.
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

// Networks lists the networks given to a service: its clients connect to any of their addresses.
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

// place posts a service under every address and port it can be reached at. Whether allocated addresses count depends on the client.
func (w *writer) place(e *entry, v *configv1.Service, add bool) {
	places := append(VIPs(v), AutoVIPs(v)...)
	switch {
	case len(Networks(v)) > 0:
		places = append(places, Within)
	case len(VIPs(v)) == 0:
		places = append(places, "")
	}
	if v.GetResolution() == configv1.Resolution_RESOLUTION_DYNAMIC_DNS {
		places = append(places, Wherever)
	}
	for _, p := range v.GetPorts() {
		for _, address := range places {
			w.placeAt(e, v, p, address, add)
		}
		put(w.state.places, add, placeKey(v, p, anyAddress), e)
		w.touch(SubjectSpeaks, number(p.GetNumber()), protocolKey(p.GetProtocol()))
		w.differs(explicit(v.GetExportedTo()), add, SpeakingTopic(p.GetNumber(), p.GetProtocol()))
	}
	if !v.GetHeadless() {
		return
	}
	for _, p := range v.GetPorts() {
		for _, set := range w.state.Endpoints(v, p.GetNumber()) {
			w.placePods(e, set, add)
		}
	}
}

// placePods posts a headless service under the addresses of its endpoints.
func (w *writer) placePods(e *entry, set *configv1.EndpointSet, add bool) {
	svc := e.value.(*configv1.Service)
	for _, p := range svc.GetPorts() {
		if p.GetNumber() != set.GetPort() {
			continue
		}
		for _, endpoint := range set.GetEndpoints() {
			if ip, err := netip.ParseAddr(endpoint.GetAddress()); err == nil && !ip.IsUnspecified() {
				w.placeAt(e, svc, p, ip.String(), add)
			}
		}
	}
}

func (w *writer) placeAt(e *entry, v *configv1.Service, p *configv1.ServicePort, address string, add bool) {
	put(w.state.places, add, placeKey(v, p, address), e)
	w.touch(SubjectPlace, number(p.GetNumber()), address)
	w.differs(explicit(v.GetExportedTo()), add, ServicesAtTopic(p.GetNumber(), address))
}

func placeKey(v *configv1.Service, p *configv1.ServicePort, address string) string {
	return join(number(p.GetNumber()), address, protocolKey(p.GetProtocol()), v.GetHostname(), v.GetNamespace(), v.GetAudience())
}

func protocolKey(p configv1.Protocol) string { return strconv.Itoa(int(p)) }

// ServicesAt lists the services exported to the namespace that are reached at an address and port, sorted by protocol and hostname: by
// a VIP, also one that was allocated, or as a headless service by the address of an endpoint. Address "" means the services that have neither,
// and those whose VIPs are allocated; Within those with networks, Wherever those with resolution DYNAMIC_DNS. With protocols, only
// services that have a port of the number and one of them are listed.
func (s *Snapshot) ServicesAt(to string, port uint32, address string, protocols ...configv1.Protocol) []*configv1.Service {
	prefix := join(number(port), address) + sep
	if len(protocols) == 0 {
		return s.placed(nil, to, prefix)
	}
	var found []*configv1.Service
	for _, p := range protocols {
		found = s.placed(found, to, prefix+protocolKey(p)+sep)
	}
	return found
}

// ServicesAtTopic names the answer of ServicesAt.
func ServicesAtTopic(port uint32, address string) Topic {
	return Topic{SubjectPlace, number(port), address}
}

// Speaking calls f for the services exported to the namespace one of whose ports has the number and the protocol, in order of hostname,
// until f returns false.
func (s *Snapshot) Speaking(to string, port uint32, p configv1.Protocol, f func(*configv1.Service) bool) {
	s.SpeakingAt(to, port, anyAddress, p, f)
}

// SpeakingAt is Speaking for those that ServicesAt lists for the address; ServicesAtTopic names its answer, too.
func (s *Snapshot) SpeakingAt(to string, port uint32, address string, p configv1.Protocol, f func(*configv1.Service) bool) {
	s.places.scan(join(number(port), address, protocolKey(p))+sep, func(_ string, e *entry) bool {
		svc := e.value.(*configv1.Service)
		return !visible(svc.GetExportedTo(), to) || f(svc)
	})
}

// SpeakingTopic names the answer of Speaking.
func SpeakingTopic(port uint32, p configv1.Protocol) Topic {
	return Topic{SubjectSpeaks, number(port), protocolKey(p)}
}

func (s *Snapshot) placed(found []*configv1.Service, to, prefix string) []*configv1.Service {
	s.places.scan(prefix, func(_ string, e *entry) bool {
		if svc := e.value.(*configv1.Service); visible(svc.GetExportedTo(), to) && !slices.Contains(found, svc) {
			found = append(found, svc)
		}
		return true
	})
	return found
}

// AnyUnder reports whether there is a service exported to the namespace that the wildcard host covers.
func (s *Snapshot) AnyUnder(to, wildcard string) bool {
	found := false
	for _, t := range []string{"*", to} {
		s.suffixes.scan(join(t, reversed(strings.TrimPrefix(wildcard, "*"))), func(string, int) bool {
			found = true
			return false
		})
	}
	return found
}

// AnyUnderTopic names the answer of AnyUnder.
func AnyUnderTopic(wildcard string) Topic { return Topic{SubjectSuffix, wildcard, ""} }

// reversed returns the text backwards, so that what ends alike sorts together.
func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// Hosts calls f for every name that services have and that VirtualServices of the gateway name, each once.
func (s *Snapshot) Hosts(gateway string, f func(host string)) {
	last := ""
	s.services.m.Scan(func(key string, _ *entry) bool {
		host, _, _ := strings.Cut(key, sep)
		if host != last {
			last = host
			f(host)
		}
		return true
	})
	last = ""
	s.hostRoutes.scan(gateway+sep, func(key string, _ *VirtualService) bool {
		host, _, _ := strings.Cut(key[len(gateway)+len(sep):], sep)
		if host != last {
			last = host
			if !s.HasHost(host) {
				f(host)
			}
		}
		return true
	})
}

// HasHost reports whether some service has the name.
func (s *Snapshot) HasHost(host string) bool {
	found := false
	s.services.scan(host+sep, func(string, *entry) bool {
		found = true
		return false
	})
	return found
}

// NamesHost reports whether some VirtualService of the gateway names exactly the host.
func (s *Snapshot) NamesHost(gateway, host string) bool {
	found := false
	s.hostRoutes.scan(join(gateway, host)+sep, func(string, *VirtualService) bool {
		found = true
		return false
	})
	return found
}

// HostOf returns the name in whose existence, as Hosts means it, a topic has a part; ok is false for all other topics.
func HostOf(gateway string, t Topic) (host string, ok bool) {
	switch {
	case t.Subject == SubjectService:
		return t.A, true
	case t.Subject == SubjectHostRoutes && t.A == gateway:
		return t.B, true
	default:
		return "", false
	}
}
