// Package nameserver is the agent's DNS proxy: it answers the workload's DNS queries. Names of the mesh come from the
// name table (NDS) that the xds-server sends, other names from the upstream servers of resolv.conf, by way of a cache.
//
// Package app calls New and Server.Run, and gives Server.Take to package relay, which calls it with every new name
// table.
package nameserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/node-agent/internal/protocount"
)

const (
	networkUDP = "udp"
	networkTCP = "tcp"

	// idle is how long a TCP connection may be without a query. begin is how long it may take to send its first query,
	// and to read an answer.
	idle  = 10 * time.Second
	begin = 2 * time.Second
	// maxConnections bounds TCP connections; one more closes the oldest. Resolvers use TCP for answers that do not fit
	// into a datagram.
	maxConnections = 128
	// maxQueries bounds the queries of one TCP connection.
	maxQueries = 128
	// maxDatagramToLoopback and maxDatagramToOthers bound an answer by UDP, in bytes; a longer one is truncated, so
	// that the client asks again by TCP. 1232 is what passes every network in one packet.
	maxDatagramToLoopback = 4096
	maxDatagramToOthers   = 1232
	// shutdownGrace is how long running queries may take when the server stops.
	shutdownGrace = time.Second
)

// Config of a Server. Addresses, Namespace, Log and Registerer are required.
type Config struct {
	// Addresses are listened on by UDP and TCP.
	Addresses []netip.AddrPort
	// Namespace of the workload, which may use the bare names of its Services.
	Namespace string
	// Resolv is the content of resolv.conf.
	Resolv     *dns.ClientConfig
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Server answers DNS queries. Without a name table it answers SERVFAIL, since it cannot tell which names are the
// mesh's.
type Server struct {
	namespace string
	search    string
	upstream  *upstream
	log       *slog.Logger
	metrics   *metrics
	listeners []*dns.Server
	table     atomic.Pointer[table]
	turn      atomic.Uint32
}

// New opens the ports. Run serves them.
func New(c Config) (_ *Server, err error) {
	s := &Server{namespace: c.Namespace, log: c.Log, metrics: newMetrics(c.Registerer)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	servers := lists.Map(c.Resolv.Servers, func(server string) string { return net.JoinHostPort(server, c.Resolv.Port) })
	s.upstream = newUpstream(servers, newCache(clock.Or(c.Clock)))
	if len(c.Resolv.Search) > 0 {
		s.search = c.Resolv.Search[0]
	}
	for _, address := range c.Addresses {
		packets, stream, err := listen(address)
		if err != nil {
			return nil, fmt.Errorf("DNS: %w", err)
		}
		s.listeners = append(s.listeners,
			&dns.Server{PacketConn: packets, UDPSize: dns.DefaultMsgSize, Handler: handler{s, networkUDP}},
			&dns.Server{
				Listener: newLimitListener(stream, maxConnections), Handler: handler{s, networkTCP}, MaxTCPQueries: maxQueries,
				ReadTimeout: begin, WriteTimeout: begin, IdleTimeout: func() time.Duration { return idle },
			})
	}
	return s, nil
}

// listen opens a port for both protocols. For port 0 it tries several times, because a port that the kernel chooses for
// UDP may be in use for TCP.
func listen(address netip.AddrPort) (packets *net.UDPConn, stream *net.TCPListener, err error) {
	tries := 1
	if address.Port() == 0 {
		tries = 10
	}
	for range tries {
		if packets, err = net.ListenUDP(networkUDP, net.UDPAddrFromAddrPort(address)); err != nil {
			return nil, nil, err
		}
		bound := packets.LocalAddr().(*net.UDPAddr).AddrPort()
		if stream, err = net.ListenTCP(networkTCP, net.TCPAddrFromAddrPort(bound)); err == nil {
			return packets, stream, nil
		}
		_ = packets.Close()
	}
	return nil, nil, err
}

func (s *Server) close() {
	for _, l := range s.listeners {
		if l.PacketConn != nil {
			_ = l.PacketConn.Close()
		}
		if l.Listener != nil {
			_ = l.Listener.Close()
		}
	}
}

// Addresses are the addresses listened on.
func (s *Server) Addresses() []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range s.listeners {
		if l.PacketConn != nil {
			out = append(out, l.PacketConn.LocalAddr().(*net.UDPAddr).AddrPort())
		}
	}
	return out
}

// maxNames bounds the names of a table, which take about 500 bytes each. It is four times the names of the largest mesh
// tested. namesField is the field number of NameTable.table.
const (
	maxNames   = 200_000
	namesField = 1
)

// Take replaces the name table. An error leaves the last one in force.
func (s *Server) Take(resource *anypb.Any) error {
	if n := protocount.Field(resource.GetValue(), namesField); n > maxNames {
		return fmt.Errorf("name table: %d names, more than %d", n, maxNames)
	}
	m := &ndsv1.NameTable{}
	if err := resource.UnmarshalTo(m); err != nil {
		return fmt.Errorf("name table: %w", err)
	}
	first := s.table.Swap(newTable(m, s.namespace, s.search)) == nil
	s.metrics.names.Set(float64(len(m.GetTable())))
	if first {
		s.log.Info("answering DNS queries", "addresses", s.Addresses(), "names", len(m.GetTable()), "upstream", s.upstream.servers)
	}
	return nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { ended <- l.ActivateAndServe() }()
	}
	var failed error
	running := len(s.listeners)
	select {
	case <-ctx.Done():
	case failed = <-ended:
		running--
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	for _, l := range s.listeners {
		_ = l.ShutdownContext(within) // an error means not started yet or still busy; close below closes the port
	}
	s.close()
	for range running {
		if err := <-ended; err != nil && ctx.Err() == nil {
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return fmt.Errorf("DNS: %w", failed)
	}
	return nil
}

// handler answers the queries of one protocol.
type handler struct {
	*Server
	network string
}

// ServeDNS implements dns.Handler. The library calls it on one goroutine per query.
func (h handler) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	answer, from := h.answer(query, h.network)
	h.metrics.requests.WithLabelValues(h.network, from).Inc()
	answer.Id = query.Id
	most := dns.MaxMsgSize
	if h.network == networkUDP {
		most = maxDatagram(query, w.RemoteAddr())
	}
	answer.Truncate(most)
	if err := w.WriteMsg(answer); err != nil {
		h.log.Debug("a DNS answer could not be sent", "error", err)
	}
}

// maxDatagram is how long the answer to a query from an address may be, in bytes: what the client asks for within
// limits, since the address may be forged.
func maxDatagram(query *dns.Msg, from net.Addr) int {
	opt := query.IsEdns0()
	if opt == nil {
		return dns.MinMsgSize
	}
	most := maxDatagramToOthers
	if a, ok := from.(*net.UDPAddr); ok && a.IP.IsLoopback() {
		most = maxDatagramToLoopback
	}
	return min(max(dns.MinMsgSize, int(opt.UDPSize())), most)
}

// answer returns the answer to a query and its source, for the metrics' label.
func (s *Server) answer(query *dns.Msg, network string) (*dns.Msg, string) {
	if query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		return new(dns.Msg).SetRcode(query, dns.RcodeNotImplemented), fromNobody
	}
	t := s.table.Load()
	if t == nil {
		return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure), fromNobody
	}
	q := query.Question[0]
	if q.Qclass == dns.ClassINET && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA) {
		if records, found := t.answer(q, s.turn.Add(1)); found {
			m := new(dns.Msg).SetReply(query)
			m.Authoritative, m.RecursionAvailable, m.Answer = true, true, records
			if opt := query.IsEdns0(); opt != nil {
				m.SetEdns0(opt.UDPSize(), false)
			}
			return m, fromTable
		}
	}
	if m := s.upstream.cache.get(keyOf(query)); m != nil {
		return adapt(m, query), fromCache
	}
	began := time.Now()
	m, err := s.upstream.ask(query, network)
	if err != nil {
		s.metrics.failures.Inc()
		s.log.Debug("a DNS query has no answer", "error", err)
		return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure), fromNobody
	}
	s.metrics.duration.Observe(time.Since(began).Seconds())
	return adapt(m.Copy(), query), fromUpstream
}

// adapt turns an answer to the same question into the answer to query: its id, and the letter case of its name.
func adapt(m, query *dns.Msg) *dns.Msg {
	asked := m.Question[0].Name
	for _, r := range m.Answer {
		if h := r.Header(); h.Name == asked {
			h.Name = query.Question[0].Name
		}
	}
	m.Id, m.Question, m.RecursionDesired = query.Id, query.Question, query.RecursionDesired
	if opt := query.IsEdns0(); opt != nil {
		m.SetEdns0(udpSize, opt.Do())
	}
	return m
}
