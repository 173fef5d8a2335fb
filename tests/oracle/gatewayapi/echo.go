package gatewayapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"fairlead.dev/tests/internal/netns"
)

// Headers by which a request tells a backend what to do.
const (
	// probeHeader names the request, failHeader is a status to answer with.
	probeHeader = "X-Probe"
	// echoHeader is that of answers which come from a backend.
	echoHeader = "X-Echo"
	failHeader = "X-Fail"
)

// slow is how long a backend takes for a host that begins with "timeout".
const slow = 100 * time.Millisecond

// echo is the backend of every Service: it answers HTTP/1.1, HTTP/2, TLS with these, and lines, and says who it is and
// what it was asked.
type echo struct {
	// services are namespace/name by address.
	services map[netip.Addr]string
	cert     tls.Certificate

	mu sync.Mutex
	// tries counts the requests that name a probe, by the backend: mirrors get some of them.
	tries map[string]int
}

// listen serves the ports of all Services on the hub of a network.
func (e *echo) listen(ctx context.Context, hub *netns.Host, ports []int) error {
	var all []string
	for a := range e.services {
		all = append(all, a.String())
	}
	if err := hub.Run("", "ip", "route", "add", "local", backendRange.String(), "dev", "lo"); err != nil {
		return err
	}
	if err := hub.Run(fmt.Sprintf("add element inet refusal others { %s }\n", strings.Join(all, ", ")), "nft", "-f", "-"); err != nil {
		return err
	}
	for _, p := range ports {
		lis, err := hub.Listen(ctx, "tcp", ":"+strconv.Itoa(p+portOffset))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = lis.Close() })
		go func() {
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				go e.serve(conn)
			}
		}()
	}
	return nil
}

// peeked is a connection of which something was read.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

func (e *echo) serve(conn net.Conn) {
	defer conn.Close()
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return
	}
	who := fmt.Sprintf("%s:%d", e.services[at.Addr().Unmap()], at.Port()-portOffset)
	p := &peeked{conn, bufio.NewReader(conn)}
	first, err := p.r.Peek(1)
	if err != nil {
		return
	}
	if first[0] == 0x16 {
		inner := tls.Server(p, &tls.Config{Certificates: []tls.Certificate{e.cert}, NextProtos: []string{"h2", "http/1.1"},
			ClientAuth: tls.RequestClientCert})
		if inner.Handshake() != nil {
			return
		}
		state := inner.ConnectionState()
		who += " by TLS for " + or(state.ServerName, "no name")
		if len(state.PeerCertificates) > 0 {
			who += " from " + state.PeerCertificates[0].Subject.CommonName
		}
		p = &peeked{inner, bufio.NewReader(inner)}
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.answer(who, w, r) })
	start, _ := p.r.Peek(3) // what is shorter is a line
	switch string(start) {
	case "PRI":
		new(http2.Server).ServeConn(p, &http2.ServeConnOpts{Handler: handler})
	case "tcp":
		_, _ = io.WriteString(p, who+"\n")
	default:
		lis := &one{conn: p, done: make(chan struct{})}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				lis.Close()
			}
		}}
		_ = server.Serve(lis) // ends with the connection
	}
}

// one is a listener with one connection.
type one struct {
	conn  net.Conn
	given bool
	done  chan struct{}
	once  sync.Once
}

func (o *one) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.done
	return nil, io.EOF
}

func (o *one) Close() error {
	o.once.Do(func() { close(o.done) })
	return nil
}

func (o *one) Addr() net.Addr { return o.conn.LocalAddr() }

// unseen are headers of requests that say nothing about routes, or another thing each time.
var unseen = []string{"X-Request-Id", "X-Forwarded-For", "X-Envoy-", "User-Agent", "Accept-Encoding", "Content-Length", "X-Probe",
	"X-Forwarded-Client-Cert", "Traceparent", "X-B3-"}

func (e *echo) answer(who string, w http.ResponseWriter, r *http.Request) {
	if probe := r.Header.Get(probeHeader); probe != "" {
		e.mu.Lock()
		e.tries[probe+" "+who]++
		e.mu.Unlock()
	}
	if strings.HasPrefix(r.Host, "timeout") {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(slow):
		}
	}
	w.Header().Set(echoHeader, "1")
	// What a filter removes or adds to.
	w.Header().Set("My-Removed-Header", "of the backend")
	if code, err := strconv.Atoi(r.Header.Get(failHeader)); err == nil {
		w.WriteHeader(code)
	}
	fmt.Fprintf(w, "%s: %s %s%s", who, r.Method, r.Host, r.RequestURI)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if !hasPrefix(name, unseen) {
			fmt.Fprintf(w, " %s=%s", name, strings.Join(r.Header[name], ","))
		}
	}
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// taken returns how many tries of a probe the backend has got that answered, and forgets them.
func (e *echo) taken(probe, answer string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	who, _, _ := strings.Cut(answer, ": ")
	n := e.tries[probe+" "+who]
	delete(e.tries, probe+" "+who)
	return n
}
