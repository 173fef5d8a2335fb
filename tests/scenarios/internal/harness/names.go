package harness

import (
	"context"
	"net/netip"
	"strings"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// domain is the cluster's.
const domain = "cluster.local"

// dnsPort is where the name server of all machines listens, on the hub.
const dnsPort = 53

// serveNames runs the name server at an address of a machine until Close.
func (h *Harness) serveNames(on *netns.Host, address string, answer resolver.Source) error {
	ctx, stop := context.WithCancel(context.Background())
	packets, err := on.ListenPacket(ctx, "udp", address)
	if err != nil {
		stop()
		return err
	}
	streams, err := on.Listen(ctx, "tcp", address)
	if err != nil {
		packets.Close()
		stop()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- resolver.NewServer(answer).Serve(ctx, packets, streams) }()
	h.stopNames = func() error {
		stop()
		return <-ended
	}
	return nil
}

// answer says what a name is: one of the cluster's, for everybody in it, or one of the world outside.
func (h *Harness) answer(from netip.Addr, name string) resolver.Answer {
	if inCluster, ok := strings.CutSuffix(name, ".svc."+domain); ok {
		if from == h.outside.IP || from == h.outside.IP6 {
			return resolver.Answer{}
		}
		return h.store.Lookup(inCluster)
	}
	return h.outsideName(from, name)
}

// outsideName says what a name of the world outside is.
func (h *Harness) outsideName(_ netip.Addr, name string) resolver.Answer {
	var a resolver.Answer
	for _, workload := range h.topology.DNS[name] {
		if host := h.Host(workload); host != nil {
			a.IPs = append(a.IPs, host.IP)
			if host.IP6.IsValid() {
				a.IPs = append(a.IPs, host.IP6)
			}
		}
	}
	return a
}

// Machine is where the calls of a workload start, or of the machine outside.
func (h *Harness) Machine(name string) (caller.Machine, error) {
	m := caller.Machine{Host: h.outside, Resolver: h.resolver}
	if name == format.Outside {
		return m, nil
	}
	l, err := h.find(name)
	if err != nil {
		return m, err
	}
	m.Host, m.Search, m.Bootstrap = l.host, l.search(), l.bootstrap()
	return m, nil
}

// Via is a workload whose address is dialled instead of what a URL says: the ports of its Service are those that it
// listens on.
func (h *Harness) Via(name string) (*caller.Via, error) {
	l, err := h.find(name)
	if err != nil {
		return nil, err
	}
	via := &caller.Via{IPs: []netip.Addr{l.host.IP}, Ports: map[int]int{}}
	if l.host.IP6.IsValid() {
		via.IPs = append(via.IPs, l.host.IP6)
	}
	for _, p := range l.spec.Ports {
		via.Ports[p.Port] = p.TargetPort
	}
	return via, nil
}
