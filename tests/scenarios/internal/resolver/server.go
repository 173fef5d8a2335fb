package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// lifetime of an answer, in seconds: short, because endpoints come and go under the caller.
const lifetime = 1

// Answer is what a name is.
type Answer struct {
	// Exists is true for a name without addresses, too.
	Exists bool
	// Name is another name that the asked one stands for (ExternalName); its addresses are found by asking again.
	Name string
	IPs  []netip.Addr
}

// Source answers for a name in lower case without the last dot, on behalf of whoever asks from an address.
type Source func(from netip.Addr, name string) Answer

// Server answers over UDP and TCP.
type Server struct {
	source Source
	turn   atomic.Uint32
}

// NewServer makes one.
func NewServer(source Source) *Server { return &Server{source: source} }

// Serve answers until ctx ends, and closes what it was given.
func (s *Server) Serve(ctx context.Context, packets net.PacketConn, streams net.Listener) error {
	udp := &dns.Server{PacketConn: packets, Handler: s}
	tcp := &dns.Server{Listener: streams, Handler: s}
	failed := make(chan error, 2)
	go func() { failed <- udp.ActivateAndServe() }()
	go func() { failed <- tcp.ActivateAndServe() }()
	stop := context.AfterFunc(ctx, func() {
		packets.Close()
		streams.Close()
	})
	defer stop()
	first := <-failed
	packets.Close()
	streams.Close()
	second := <-failed
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(first, second)
}

// links bounds how many names one may stand for the other.
const links = 8

// ServeDNS implements dns.Handler.
func (s *Server) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.Authoritative, reply.RecursionAvailable = true, true
	if len(query.Question) == 1 {
		s.answer(sender(w.RemoteAddr()), query.Question[0], reply)
	} else {
		reply.Rcode = dns.RcodeFormatError
	}
	size := dns.MinMsgSize
	if opt := query.IsEdns0(); opt != nil {
		size = max(size, int(opt.UDPSize()))
		reply.SetEdns0(dns.DefaultMsgSize, false)
	}
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		reply.Truncate(size)
	}
	_ = w.WriteMsg(reply)
}

func sender(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

func (s *Server) answer(from netip.Addr, q dns.Question, reply *dns.Msg) {
	name := q.Name
	for range links {
		found := s.source(from, strings.ToLower(strings.TrimSuffix(name, ".")))
		switch {
		case found.Name != "":
			reply.Answer = append(reply.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: dns.Fqdn(found.Name)})
			name = dns.Fqdn(found.Name)
			continue
		case !found.Exists && len(found.IPs) == 0:
			reply.Rcode = dns.RcodeNameError
			return
		}
		s.addresses(name, q.Qtype, found.IPs, reply)
		return
	}
	reply.Rcode = dns.RcodeServerFailure
}

// addresses adds those of the asked kind, another one first each time, as a cluster's DNS does.
func (s *Server) addresses(name string, kind uint16, ips []netip.Addr, reply *dns.Msg) {
	start := 0
	if len(ips) > 1 {
		start = int(s.turn.Add(1)) % len(ips)
	}
	for i := range ips {
		ip := ips[(start+i)%len(ips)]
		switch {
		case ip.Is4() && kind == dns.TypeA:
			reply.Answer = append(reply.Answer, &dns.A{Hdr: header(name, dns.TypeA), A: ip.AsSlice()})
		case ip.Is6() && kind == dns.TypeAAAA:
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: lifetime}
}
