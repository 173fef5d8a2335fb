package caller

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/net/http2"

	"fairlead.dev/tests/scenarios/internal/format"
)

// link is an open connection.
type link struct {
	net.Conn
	reader *bufio.Reader
	h2     *http2.ClientConn
	shown  []*x509.Certificate
	remote string
	used   bool
	// asked tells that the server wanted a certificate. It may refuse the one it got after the handshake, and its alert
	// may be lost.
	asked bool
}

// glance is how long it is looked whether a connection that was used before has been closed since.
const glance = 200 * time.Microsecond

// alive tells whether a connection can take another request.
func (l *link) alive() bool {
	if l.h2 != nil {
		return l.h2.CanTakeNewRequest()
	}
	if l.SetReadDeadline(time.Now().Add(glance)) != nil {
		return false
	}
	_, err := l.reader.Peek(1)
	return err == nil || isTimeout(err)
}

// worker makes requests one after the other, with connections of its own.
type worker struct {
	*running
	links map[string]*link
}

func (w *worker) close() {
	for _, l := range w.links {
		l.Close()
	}
}

// take has a connection to a target: an open one if the call wants the same one, else a new one.
func (w *worker) take(ctx context.Context, t *target, result *Result) (*link, bool) {
	key := t.scheme + "://" + t.authority
	if w.call.SameConnection {
		if l := w.open(key); l != nil {
			result.Remote, result.Certificates = l.remote, l.shown
			return l, true
		}
	}
	l, at, err := w.connect(ctx, t)
	if l != nil {
		result.Remote, result.Certificates = l.remote, l.shown
	}
	if err != nil {
		result.fail(at, err)
		return nil, false
	}
	if w.call.SameConnection {
		w.keep(key, l)
	}
	return l, true
}

// open is the kept connection to where the key says. Workers share one of HTTP/2, which takes several requests at once.
func (w *worker) open(key string) *link {
	w.mu.Lock()
	shared := w.h2[key]
	w.mu.Unlock()
	if shared != nil && shared.alive() {
		return shared
	}
	l := w.links[key]
	if l == nil {
		return nil
	}
	if !l.alive() {
		w.drop(l)
		return nil
	}
	return l
}

func (w *worker) keep(key string, l *link) {
	if l.h2 == nil {
		w.links[key] = l
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.h2[key]; old != nil && old.h2.CanTakeNewRequest() {
		w.links[key+" of a worker"] = l // somebody was faster; this one serves its request and is closed with the worker
		return
	}
	w.h2[key] = l
}

// done gives a connection back.
func (w *worker) done(l *link, reusable bool) {
	l.used = true
	if !w.call.SameConnection || !reusable {
		w.drop(l)
	}
}

func (w *worker) drop(l *link) {
	l.Close()
	for key, other := range w.links {
		if other == l {
			delete(w.links, key)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, other := range w.h2 {
		if other == l {
			delete(w.h2, key)
		}
	}
}

// connect resolves, dials and shakes hands. With an error, the link may still tell what had been reached.
func (w *worker) connect(ctx context.Context, t *target) (*link, phase, error) {
	ips, port, err := w.addresses(ctx, t)
	if err != nil {
		return nil, lookingUp, err
	}
	var conn net.Conn
	l := &link{}
	network := "tcp"
	if t.isDatagram() {
		network = "udp"
	}
	for _, ip := range ips {
		l.remote = net.JoinHostPort(ip.String(), strconv.Itoa(port))
		if conn, err = w.From.Host.Dial(ctx, network, l.remote, w.call.SourceIP); err == nil {
			break
		}
	}
	if err != nil {
		return l, dialling, err
	}
	l.Conn = conn
	protocol := ""
	if t.hasTLS() {
		session := tls.Client(conn, w.tls(t, l))
		if err := session.HandshakeContext(ctx); err != nil {
			conn.Close()
			return l, shaking, err
		}
		l.Conn, protocol = session, session.ConnectionState().NegotiatedProtocol
	}
	l.reader = bufio.NewReader(l.Conn)
	if protocol == "h2" && !t.isLine() || t.isHTTP2() && protocol == "" {
		transport := &http2.Transport{AllowHTTP: true, DisableCompression: true}
		if l.h2, err = transport.NewClientConn(l.Conn); err != nil {
			conn.Close()
			return l, talking, err
		}
	}
	return l, talking, nil
}

// addresses are where to dial, another one first each time.
func (w *worker) addresses(ctx context.Context, t *target) ([]netip.Addr, int, error) {
	literal, _ := netip.ParseAddr(t.host)
	if w.Via != nil {
		ips := w.Via.IPs
		for i, ip := range ips {
			if ip.Is6() == literal.Is6() {
				ips = append([]netip.Addr{ip}, append(append([]netip.Addr{}, ips[:i]...), ips[i+1:]...)...)
				break
			}
		}
		if len(ips) == 0 {
			return nil, 0, fmt.Errorf("%w: the workload dialled instead has no address", errURL)
		}
		return ips[:1], cmp.Or(w.Via.Ports[t.port], t.port), nil
	}
	ips, err := w.lookup(ctx, t.host)
	if err != nil || len(ips) < 2 {
		return ips, t.port, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn++
	first := 0
	for first < len(ips) && ips[first].Is4() { // IPv6 only where there is nothing else, or nothing of IPv4 answers
		first++
	}
	if first == 0 {
		first = len(ips)
	}
	turned := append([]netip.Addr{}, ips[w.turn%first:first]...)
	turned = append(turned, ips[:w.turn%first]...)
	return append(turned, ips[first:]...), t.port, nil
}

var tlsVersions = map[string]uint16{"": 0, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// tls is the caller's side; the link learns what the server showed even if it is not trusted.
func (w *worker) tls(t *target, l *link) *tls.Config {
	said := w.call.TLS
	c := &tls.Config{ServerName: t.host, NextProtos: t.alpn(), MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true} //nolint:gosec // verified below
	roots, insecure := w.roots(), false
	var own *format.Material
	if said != nil {
		c.ServerName = cmp.Or(said.SNI, c.ServerName)
		if said.ALPN != nil {
			c.NextProtos = said.ALPN
		}
		c.MinVersion, c.MaxVersion = cmp.Or(tlsVersions[said.Min], c.MinVersion), tlsVersions[said.Max]
		insecure = said.Insecure
		if m := w.Certificates[said.CA]; m != nil {
			roots = m.Pool()
		}
		own = w.Certificates[said.Cert]
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if l.asked = true; own == nil {
			return &tls.Certificate{}, nil
		}
		shown, err := own.TLS()
		return &shown, err
	}
	c.VerifyConnection = func(state tls.ConnectionState) error {
		l.shown = state.PeerCertificates
		if insecure {
			return nil
		}
		others := x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			others.AddCert(cert)
		}
		options := x509.VerifyOptions{DNSName: c.ServerName, Roots: roots, Intermediates: others}
		_, err := state.PeerCertificates[0].Verify(options)
		if err != nil && c.ServerName != t.host { // the name that was asked for by SNI is as good as the one called
			options.DNSName = t.host
			if _, other := state.PeerCertificates[0].Verify(options); other == nil {
				return nil
			}
		}
		return err
	}
	return c
}

// roots are trusted where the call names no authority: the fleet's, and the scenario's own.
func (w *worker) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	if w.Roots != nil {
		pool = w.Roots.Clone()
	}
	for _, m := range w.Certificates {
		if m.Certificate.IsCA {
			pool.AddCert(m.Certificate)
		}
	}
	return pool
}
