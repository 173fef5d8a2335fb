package gate

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/policygen"
)

// Answer is what came of a request.
type Answer struct {
	// Status is that of the response; of a TCP connection Connected or Refused.
	Status int
	// Seen is what the application would see of the headers that filters change, if the request came so far.
	Seen string
}

// What comes of a TCP connection.
const (
	Refused   = -1
	Connected = -2
)

func (a Answer) String() string {
	switch a.Status {
	case Refused:
		return "refused"
	case Connected:
		return "connected"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, a.Seen))
}

const answersWithin = 10 * time.Second

// something is longer than the head of a TLS record, for which Envoy waits before it takes a connection for plaintext.
const something = "something to send back\n"

// Callers sends requests to one Gate, to one set. It keeps connections open, and is for one goroutine.
type Callers struct {
	gate         *Gate
	set          policygen.Set
	keys         *policygen.Keys
	certificates *Certificates
	open         map[connection]*conn
	http2        map[connection]*http2Conn
}

type connection struct {
	side int
	policygen.Connection
}

type conn struct {
	net.Conn
	in *bufio.Reader
}

// Callers makes the callers of a set.
func (g *Gate) Callers(set policygen.Set, keys *policygen.Keys, certificates *Certificates) *Callers {
	return &Callers{g, set, keys, certificates, map[connection]*conn{}, map[connection]*http2Conn{}}
}

// Close closes all connections.
func (c *Callers) Close() {
	for key, open := range c.open {
		open.Close()
		delete(c.open, key)
	}
	for key, open := range c.http2 {
		open.Close()
		delete(c.http2, key)
	}
}

// Ask sends a request to the doors of both sides.
func (c *Callers) Ask(ctx context.Context, r policygen.Request) (answers [Sides]Answer, err error) {
	path, headers, err := r.Lines(c.keys)
	if err != nil {
		return answers, err
	}
	for side := range answers {
		if answers[side], err = c.send(ctx, side, r, path, headers); err != nil {
			return answers, err
		}
	}
	return answers, nil
}

// AskSide sends a request to the door of one side.
func (c *Callers) AskSide(ctx context.Context, side int, r policygen.Request) (Answer, error) {
	path, headers, err := r.Lines(c.keys)
	if err != nil {
		return Answer{}, err
	}
	return c.send(ctx, side, r, path, headers)
}

func (c *Callers) send(ctx context.Context, side int, r policygen.Request, path string, headers []policygen.Header) (a Answer, err error) {
	if r.TCP {
		a, err = c.connect(ctx, side, r.Connection)
	} else {
		a, err = c.request(ctx, side, r, path, headers)
	}
	if err != nil {
		err = errors.Join(err, c.gate.Died())
	}
	return a, err
}

// connect asks whether a TCP connection carries anything.
func (c *Callers) connect(ctx context.Context, side int, as policygen.Connection) (Answer, error) {
	open, err := c.dial(ctx, c.gate.tcp[side], as)
	if err != nil {
		return Answer{}, err
	}
	defer open.Close()
	if _, err := io.WriteString(open, something); err != nil {
		return Answer{Status: Refused}, nil //nolint:nilerr // the answer
	}
	got := make([]byte, len(something))
	_, err = io.ReadFull(open.in, got)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return Answer{}, fmt.Errorf("neither connected nor refused: %w", err)
	}
	if err != nil {
		return Answer{Status: Refused}, nil //nolint:nilerr // the answer
	}
	return Answer{Status: Connected}, nil
}

func (c *Callers) request(ctx context.Context, side int, r policygen.Request, path string, headers []policygen.Header) (Answer, error) {
	key := connection{side, r.Connection}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, path, r.Host)
	for _, h := range headers {
		fmt.Fprintf(&text, "%s: %s\r\n", h.Name, h.Value)
	}
	text.WriteString("\r\n")
	for again := false; ; again = true {
		open := c.open[key]
		kept := open != nil
		if !kept {
			var err error
			if open, err = c.dial(ctx, c.gate.http[side], r.Connection); err != nil {
				return Answer{}, err
			}
			c.open[key] = open
		}
		answer, keep, err := open.ask(r.Method, text.String())
		if !keep || err != nil {
			open.Close()
			delete(c.open, key)
		}
		if err != nil && kept && !again {
			continue // it was closed since the last request
		}
		return answer, err
	}
}

func (c *conn) ask(method, text string) (answer Answer, keep bool, err error) {
	if err := c.SetDeadline(time.Now().Add(answersWithin)); err != nil {
		return answer, false, err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return answer, false, err
	}
	response, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		return answer, false, fmt.Errorf("no response to %q: %w", text, err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	answer.Status = response.StatusCode
	if response.StatusCode == http.StatusOK {
		var lines []string
		for _, name := range seen {
			name = strings.TrimPrefix(name, ":")
			if v := strings.Join(response.Header.Values(seenPrefix+name), "|"); v != "" {
				lines = append(lines, name+"="+v)
			}
		}
		answer.Seen = strings.Join(lines, " ")
	}
	return answer, !response.Close, errors.Join(err, response.Body.Close())
}

// dial opens a connection from the caller's address, tells who is behind it and to which workload it goes, as a load
// balancer does, and shows the caller's certificate.
func (c *Callers) dial(ctx context.Context, at string, as policygen.Connection) (*conn, error) {
	dialer := net.Dialer{Timeout: answersWithin, LocalAddr: &net.TCPAddr{IP: net.ParseIP(as.Source)}, Control: portWhenConnecting}
	raw, err := dialer.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	if err := raw.SetDeadline(time.Now().Add(answersWithin)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(raw, "PROXY TCP4 %s %s 40000 %d\r\n", as.Remote, c.set.Address, as.Port); err != nil {
		return nil, err
	}
	if as.Caller == "" {
		return &conn{raw, bufio.NewReader(raw)}, nil
	}
	certificate, err := c.certificates.of(as.Caller)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(raw, &tls.Config{ServerName: as.SNI, InsecureSkipVerify: true, //nolint:gosec // who answers is known
		Certificates: []tls.Certificate{certificate}})
	if err := secure.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("handshake of %s with SNI %q: %w", as.Caller, as.SNI, err)
	}
	return &conn{secure, bufio.NewReader(secure)}, nil
}

// portWhenConnecting lets the kernel choose the port of a bound socket only when it connects, so that connections of
// one address to other servers, which have just ended, take none of the ports.
func portWhenConnecting(_, _ string, raw syscall.RawConn) error {
	var failure error
	err := raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
	return errors.Join(err, failure)
}

// Certificates are those of callers, made when they are needed. It may be used by several goroutines.
type Certificates struct {
	ca    *testkit.CA
	key   *ecdsa.PrivateKey
	mu    sync.Mutex
	known map[string]tls.Certificate
}

// NewCertificates makes certificates of a CA, all with one key.
func NewCertificates(t testing.TB, ca *testkit.CA) *Certificates {
	t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return &Certificates{ca: ca, key: key, known: map[string]tls.Certificate{}}
}

// of is the certificate of a caller, whose SPIFFE id need not be a good one.
func (c *Certificates) of(caller string) (tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.known[caller]; ok {
		return known, nil
	}
	id := &url.URL{Scheme: "spiffe", Opaque: "//" + caller}
	chain := c.ca.Sign(c.ca.ID("callers", "callers"), c.key.Public(), func(t *x509.Certificate) { t.URIs = []*url.URL{id} })
	block, _ := pem.Decode(chain)
	if block == nil {
		return tls.Certificate{}, fmt.Errorf("no certificate for %q", caller)
	}
	made := tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: c.key}
	c.known[caller] = made
	return made, nil
}
