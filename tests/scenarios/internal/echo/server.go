package echo

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/tests/scenarios/internal/beside"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// handshakeTime is how long a client may take for TLS, and for its first byte.
const handshakeTime = 30 * time.Second

// Server is an application.
type Server struct {
	config   Config
	journal  journal
	turns    turns
	decks    decks
	accepted atomic.Int64
	names    *resolver.Client
	// collected is what the ports that proxies tell things have been told.
	collected beside.Collected

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
	// peers numbers connections by who opened them.
	peers sync.Map
}

// New makes one; Run opens its ports.
func New(c Config) *Server {
	s := &Server{config: c, turns: turns{dir: c.Shared}, conns: map[net.Conn]bool{}}
	s.names = &resolver.Client{Server: c.Resolver, Search: c.Search, Dial: new(net.Dialer).DialContext}
	return s
}

// Run serves until ctx ends. It fails if a port cannot be opened, and calls ready, if any, when all are.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if s.config.Calls != "" {
		calls, err := os.OpenFile(s.config.Calls, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer calls.Close()
		s.journal.calls = calls
	}
	ctx, cancel := context.WithCancel(ctx)
	var open []io.Closer
	defer func() {
		cancel()
		for _, lis := range open {
			lis.Close()
		}
		s.mu.Lock()
		for conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	}()
	failed := make(chan error, 1+len(s.config.Ports)*max(len(s.config.IPs), 1))
	for i := range s.config.Ports {
		p, err := s.port(&s.config.Ports[i])
		if err != nil {
			return err
		}
		byXDS, network := s.config.Proxyless && p.App == format.AppGRPC, "tcp"
		if byXDS {
			network = "tcp4" // gRPC finds no filter chain for IPv4 on a socket of both
		}
		for _, address := range s.addresses(p.Port) {
			if p.App == format.AppUDP {
				datagrams, err := new(net.ListenConfig).ListenPacket(ctx, "udp", address)
				if err != nil {
					return fmt.Errorf("port %s: %w", p.Name, err)
				}
				open = append(open, datagrams)
				s.wg.Go(func() { p.serveDatagrams(datagrams) })
				continue
			}
			lis, err := new(net.ListenConfig).Listen(ctx, network, address)
			if err != nil {
				return fmt.Errorf("port %s: %w", p.Name, err)
			}
			open = append(open, lis)
			if byXDS {
				s.wg.Go(func() {
					if err := p.serveXDS(ctx, lis); err != nil {
						failed <- err
					}
				})
				continue
			}
			s.wg.Go(func() { s.accept(ctx, p, lis, failed) })
		}
		s.wg.Go(func() { p.serveHTTP(ctx) })
	}
	if s.config.Journal != "" {
		_ = os.Remove(s.config.Journal)
		lis, err := new(net.ListenConfig).Listen(ctx, "unix", s.config.Journal)
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		open = append(open, lis)
		srv := &http.Server{Handler: s.told(), ReadHeaderTimeout: handshakeTime}
		s.wg.Go(func() { _ = srv.Serve(lis) })
		defer srv.Close()
	}
	if ready != nil {
		ready()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// addresses are where a port listens.
func (s *Server) addresses(p *Port) []string {
	port := strconv.Itoa(p.Port)
	switch p.Bind {
	case "pod":
		var all []string
		for _, ip := range s.config.IPs {
			all = append(all, net.JoinHostPort(ip, port))
		}
		return all
	case "loopback":
		return []string{net.JoinHostPort("127.0.0.1", port)}
	}
	return []string{":" + port}
}

// port is a running Port.
type port struct {
	*Port
	server *Server
	tls    *tls.Config
	http   *http.Server
	feed   *feed
	// beside answers instead of the echo application; nil for an echo application.
	beside http.Handler
}

func (s *Server) port(c *Port) (*port, error) {
	p := &port{Port: c, server: s, feed: newFeed(), beside: beside.New(c.App, &s.collected)}
	if c.hasTLS() {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", c.Name, err)
		}
		p.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		// An ALPN that nobody here knows is no reason to refuse: TLS may carry anything.
		p.tls.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return p.tlsFor(hello), nil }
		if c.ClientCAFile != "" {
			raw, err := os.ReadFile(c.ClientCAFile)
			if err != nil {
				return nil, fmt.Errorf("port %s: %w", c.Name, err)
			}
			p.tls.ClientCAs = x509.NewCertPool()
			if !p.tls.ClientCAs.AppendCertsFromPEM(raw) {
				return nil, fmt.Errorf("port %s: %w in %s", c.Name, errNoCertificate, c.ClientCAFile)
			}
			p.tls.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	p.http = &http.Server{
		Handler: http.HandlerFunc(p.serve), Protocols: &protocols, ReadHeaderTimeout: 5 * time.Minute, MaxHeaderBytes: 1 << 20,
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		DisableGeneralOptionsHandler: true,
	}
	return p, nil
}

var errNoCertificate = errors.New("no certificate")

func (p *port) tlsFor(hello *tls.ClientHelloInfo) *tls.Config {
	for _, protocol := range hello.SupportedProtos {
		if protocol == "h2" || protocol == "http/1.1" {
			return nil
		}
	}
	plain := p.tls.Clone()
	plain.NextProtos, plain.GetConfigForClient = hello.SupportedProtos, nil
	return plain
}

// accept takes connections and finds out, for each on its own, what it speaks.
func (s *Server) accept(ctx context.Context, p *port, lis net.Listener, failed chan<- error) {
	for {
		raw, err := lis.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				select {
				case failed <- fmt.Errorf("port %s: %w", p.Name, err):
				default:
				}
			}
			return
		}
		c := &conn{Conn: raw, raw: raw, port: p, number: int(s.accepted.Add(1)), at: time.Now()}
		s.track(raw, true)
		s.wg.Go(func() {
			if !c.open(ctx) {
				raw.Close()
				s.track(raw, false)
			}
		})
	}
}

func (s *Server) track(c net.Conn, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.conns[c] = true
	} else {
		delete(s.conns, c)
	}
}

// conn is a connection, after TLS, whose first bytes have been looked at.
type conn struct {
	net.Conn
	raw    net.Conn
	port   *port
	number int
	at     time.Time
	tls    *TLS
	reader *bufio.Reader

	closing sync.Once
}

type connKey struct{}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// Close implements net.Conn.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		c.port.server.track(c.raw, false)
		err = c.Conn.Close()
	})
	return err
}

// cut ends the connection with a reset.
func (c *conn) cut() {
	if t, ok := c.raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.port.server.track(c.raw, false)
	_ = c.raw.Close()
}

// open does TLS, greets, and hands the connection to what the first byte says; false if nothing came of it.
func (c *conn) open(ctx context.Context) bool {
	if c.port.tls != nil {
		session := tls.Server(c.raw, c.port.tls)
		limited, cancel := context.WithTimeout(ctx, handshakeTime)
		defer cancel()
		if session.HandshakeContext(limited) != nil {
			return false
		}
		c.Conn, c.tls = session, tlsOf(session.ConnectionState())
	}
	c.reader = bufio.NewReader(c.Conn)
	if c.port.App == format.AppServerFirst {
		greeting := c.seen()
		greeting.Greeting = true
		if _, err := c.Write(append(greeting.encode(0), '\n')); err != nil {
			return false
		}
	}
	first, err := c.reader.Peek(1)
	switch {
	case err != nil:
		return false
	case first[0] >= 'A' && first[0] <= 'Z':
		return c.port.feed.give(c)
	}
	c.lines(ctx)
	return false
}

// seen is what is known of any request on the connection.
func (c *conn) seen() *Seen {
	s := &Seen{
		Workload: c.port.server.config.Workload, Port: c.port.Name, App: c.port.App, TLS: c.tls, Connection: c.number, Accepted: c.at,
		Time: time.Now(),
	}
	s.LocalIP, s.LocalPort = split(c.raw.LocalAddr())
	s.SourceIP, s.SourcePort = split(c.raw.RemoteAddr())
	return s
}

func split(a net.Addr) (ip string, port int) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return a.String(), 0
	}
	at, _ := netip.AddrFromSlice(t.IP)
	return at.Unmap().String(), t.Port
}

func tlsOf(state tls.ConnectionState) *TLS {
	seen := &TLS{SNI: state.ServerName, ALPN: state.NegotiatedProtocol, Version: "1.2"}
	if state.Version == tls.VersionTLS13 {
		seen.Version = "1.3"
	}
	if len(state.VerifiedChains) > 0 {
		peer := state.VerifiedChains[0][0]
		seen.PeerSubject = peer.Subject.String()
		if len(peer.URIs) > 0 {
			seen.PeerURI = peer.URIs[0].String()
		}
	}
	return seen
}

// feed is a listener whose connections are given to it.
type feed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newFeed() *feed { return &feed{conns: make(chan net.Conn), done: make(chan struct{})} }

func (f *feed) give(c net.Conn) bool {
	select {
	case f.conns <- c:
		return true
	case <-f.done:
		return false
	}
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *feed) Close() error { f.once.Do(func() { close(f.done) }); return nil }

// Addr implements net.Listener.
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }

func (p *port) serveHTTP(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { p.http.Close() })
	defer stop()
	defer p.feed.Close()
	_ = p.http.Serve(p.feed)
}
