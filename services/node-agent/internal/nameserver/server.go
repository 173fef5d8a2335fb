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
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/node-agent/internal/wire"
)

const (
	networkUDP = "udp"
	networkTCP = "tcp"

	// idle is how long a TCP connection without a query is kept, begin how long one without a whole first query and one
	// that does not take its answer.
	idle  = 10 * time.Second
	begin = 2 * time.Second
	// maxConnections bounds TCP connections; a new one has the oldest closed. Resolvers use one for a query that did
	// not fit into a datagram.
	maxConnections = 128
	// maxQueries bounds the queries of one of them.
	maxQueries = 128
	// goodbye is how long queries that are being answered have when the server stops.
	goodbye = time.Second
)

// Config of a Server. Addresses, Namespace, Log and Registerer are required.
type Config struct {
	// Addresses are listened on, by UDP and TCP.
	Addresses []netip.AddrPort
	// Namespace of the workload, whose services it may call by their names alone.
	Namespace string
	// Resolv is what resolv.conf says.
	Resolv     *dns.ClientConfig
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Server answers DNS queries. Until it has a table it answers none: a name of the mesh would be said not to exist.
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

// New opens the ports; Run serves them.
func New(c Config) (_ *Server, err error) {
	s := &Server{namespace: c.Namespace, log: c.Log}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.metrics, err = newMetrics(c.Registerer); err != nil {
		return nil, err
	}
	var servers []string
	for _, server := range c.Resolv.Servers {
		servers = append(servers, net.JoinHostPort(server, c.Resolv.Port))
	}
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
				Listener: newest(stream, maxConnections), Handler: handler{s, networkTCP}, MaxTCPQueries: maxQueries,
				ReadTimeout: begin, WriteTimeout: begin, IdleTimeout: func() time.Duration { return idle },
			})
	}
	return s, nil
}

// listen opens a port for both protocols. Where the kernel is to choose it, its choice for one may be taken for the other.
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

// Addresses are those listened on.
func (s *Server) Addresses() []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range s.listeners {
		if l.PacketConn != nil {
			out = append(out, l.PacketConn.LocalAddr().(*net.UDPAddr).AddrPort())
		}
	}
	return out
}

// maxNames bounds the names of a table, which take about 500 bytes each: four times those of the largest mesh there is
// a test of. namesField is their number in NameTable.
const (
	maxNames   = 200_000
	namesField = 1
)

// Take takes over a name table. One that is refused leaves the last one in force.
func (s *Server) Take(resource *anypb.Any) error {
	if n := wire.Count(resource.GetValue(), namesField); n > maxNames {
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
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	for _, l := range s.listeners {
		_ = l.ShutdownContext(within) // not started yet, or over time: its port is closed below
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

// handler answers the queries that come by one protocol.
type handler struct {
	*Server
	network string
}

// ServeDNS implements dns.Handler. The library calls it on a goroutine per query.
func (h handler) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	answer, from := h.answer(query, h.network)
	h.metrics.requests.WithLabelValues(h.network, from).Inc()
	answer.Id = query.Id
	if h.network == networkUDP {
		size := dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		answer.Truncate(size)
	}
	if err := w.WriteMsg(answer); err != nil {
		h.log.Debug("a DNS answer could not be sent", "error", err)
	}
}

// answer makes the answer to a query and says where it is from.
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
		return handOn(m, query), fromCache
	}
	began := time.Now()
	m, err := s.upstream.ask(query, network)
	if err != nil {
		s.metrics.failures.Inc()
		s.log.Debug("a DNS query has no answer", "error", err)
		return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure), fromNobody
	}
	s.metrics.duration.Observe(time.Since(began).Seconds())
	return handOn(m.Copy(), query), fromUpstream
}

// handOn makes an answer that may be others' the one to this query, in the letters it was asked in.
func handOn(m, query *dns.Msg) *dns.Msg {
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
