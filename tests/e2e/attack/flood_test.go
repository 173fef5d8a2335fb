package attack

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	healthMethod = "/grpc.health.v1.Health/Check"
	adsMethod    = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// unfinished is a body that announces a gRPC message, sends all of it but the last byte, and then nothing until ctx
// ends.
type unfinished struct {
	ctx    context.Context
	header []byte
	left   int
	stuck  func()
}

func newUnfinished(ctx context.Context, size int, stuck func()) *unfinished {
	u := &unfinished{ctx: ctx, header: make([]byte, 5), left: size - 1, stuck: stuck}
	binary.BigEndian.PutUint32(u.header[1:], uint32(size))
	return u
}

func (u *unfinished) Read(p []byte) (int, error) {
	if len(u.header) > 0 {
		n := copy(p, u.header)
		u.header = u.header[n:]
		return n, nil
	}
	if u.left > 0 {
		n := min(len(p), u.left)
		clear(p[:n])
		u.left -= n
		return n, nil
	}
	u.stuck()
	<-u.ctx.Done()
	return 0, io.ErrUnexpectedEOF
}

// send posts one unfinished message over the connection of the transport. It calls stuck when all but the last byte is
// sent.
func send(ctx context.Context, tr *http2.Transport, address, method string, size int, stuck func()) error {
	body := newUnfinished(ctx, size, stuck)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+method, io.NopCloser(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	res, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body) // for the trailers
	code, text := res.Header.Get("Grpc-Status"), res.Header.Get("Grpc-Message")
	if code == "" {
		code, text = res.Trailer.Get("Grpc-Status"), res.Trailer.Get("Grpc-Message")
	}
	n, err := strconv.Atoi(code)
	if err != nil {
		return fmt.Errorf("answered with HTTP status %d and gRPC status %q", res.StatusCode, code)
	}
	return status.Error(codes.Code(n), text)
}

// messages keeps count messages of size unfinished, each of conns connections carrying as many of them as any other.
func messages(address, from, method string, own *tls.Certificate, count, conns, size int) func(context.Context, *score) {
	return func(ctx context.Context, s *score) {
		var wg, sent sync.WaitGroup
		sent.Add(count)
		for i := range conns {
			dial := dialerFrom(from)
			tr := &http2.Transport{TLSClientConfig: anyServer(own),
				DialTLSContext: func(ctx context.Context, _, addr string, cfg *tls.Config) (net.Conn, error) {
					raw, err := dial(ctx, addr)
					if err != nil {
						return nil, err
					}
					conn := tls.Client(raw, cfg)
					return conn, conn.HandshakeContext(ctx)
				}}
			defer tr.CloseIdleConnections()
			for range count/conns + min(1, max(0, count%conns-i)) {
				wg.Go(func() {
					tried := sync.OnceFunc(sent.Done)
					defer tried()
					// One that is refused is sent again: a limit must hold for those who insist.
					for ok := true; ok; ok = rested(ctx) {
						stuck := sync.OnceFunc(func() { s.did("messages sent but for their last byte", 1); tried() })
						s.failed(ctx, send(ctx, tr, address, method, size, stuck))
						tried()
					}
				})
			}
		}
		go func() { sent.Wait(); s.loaded() }()
		wg.Wait()
	}
}

// testUnfinishedMessages: messages that are begun and not ended, without credentials, to the method that anybody may
// call.
func testUnfinishedMessages(t *testing.T, f *fixture) {
	from := f.Pod(t, batch).IP
	for _, a := range []struct {
		service            string
		count, conns, size int
	}{
		{"config-watcher", 200, 4, 15 << 20},
		{"config-watcher", 60, 60, 15 << 20},
		{"config-watcher", 2000, 50, 60 << 10},
		{"ca", 60, 60, 15 << 20},
		{"ca", 4000, 50, 60 << 10},
		{"xds-server-0", 200, 4, 15 << 20},
		{"xds-server-0", 60, 60, 15 << 20},
		{"xds-server-0", 2000, 50, 60 << 10},
	} {
		t.Run(fmt.Sprintf("%d of %d KiB on %d connections to %s", a.count, a.size>>10, a.conns, a.service), func(t *testing.T) {
			f.under(t, attack{
				run:        messages(f.service(t, a.service).GRPCAddress, from, healthMethod, nil, a.count, a.conns, a.size),
				unmeasured: a.service == "ca",
			})
		})
		if !*all {
			return
		}
	}
}

// testUnfinishedMessagesOfAWorkload: the same by a workload with a certificate, to the method that it may call.
func testUnfinishedMessagesOfAWorkload(t *testing.T, f *fixture) {
	id := f.identity(t, batch, time.Hour)
	for _, n := range []struct{ count, conns int }{{60, 60}, {200, 4}} {
		t.Run(fmt.Sprintf("%d of 15 MiB on %d connections", n.count, n.conns), func(t *testing.T) {
			f.under(t, attack{run: messages(f.service(t, "xds-server-0").GRPCAddress, id.pod.IP, adsMethod, id.certificate, n.count, n.conns,
				15<<20)})
		})
	}
}

// connections keeps count connections open; use makes of each what the attack needs. workers open them at once.
func connections(count int, open func(ctx context.Context, i int) (net.Conn, error)) func(context.Context, *score) {
	const workers = 32
	return func(ctx context.Context, s *score) {
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			held []net.Conn
		)
		numbers := make(chan int)
		for range workers {
			wg.Go(func() {
				for i := range numbers {
					conn, err := open(ctx, i)
					if err != nil {
						s.failed(ctx, err)
						continue
					}
					s.did("connections opened", 1)
					mu.Lock()
					held = append(held, conn)
					mu.Unlock()
				}
			})
		}
		for i := 0; i < count && ctx.Err() == nil; i++ {
			numbers <- i
		}
		close(numbers)
		wg.Wait()
		s.loaded()
		<-ctx.Done()
		closed := 0
		for _, conn := range held {
			if hungUp(conn) {
				closed++
			}
			_ = conn.Close() // the attack is over
		}
		s.did("of them closed by the service meanwhile", closed)
	}
}

// hungUp is true if the other side has closed the connection.
func hungUp(conn net.Conn) bool {
	if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return true
	}
	_, err := io.Copy(io.Discard, conn)
	var timeout net.Error
	return err == nil || !errors.As(err, &timeout) || !timeout.Timeout()
}

// handshakeWithin is how long an attacker waits to be let in.
const handshakeWithin = 2 * time.Second

// testIdleConnections: connections that finish their handshake and say no more.
func testIdleConnections(t *testing.T, f *fixture) {
	from := f.Pod(t, batch).IP
	for service, count := range map[string]int{"config-watcher": 4000, "ca": 7000, "xds-server-0": 4000} {
		t.Run(fmt.Sprintf("%d to %s", count, service), func(t *testing.T) {
			address, dial := f.service(t, service).GRPCAddress, dialerFrom(from)
			f.under(t, attack{unmeasured: service != "xds-server-0", run: connections(count, func(ctx context.Context, _ int) (net.Conn, error) {
				raw, err := dial(ctx, address)
				if err != nil {
					return nil, err
				}
				conn := tls.Client(raw, anyServer(nil))
				ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
				defer cancel()
				if err := conn.HandshakeContext(ctx); err != nil {
					_ = raw.Close() // refused
					return nil, err
				}
				return conn, nil
			})})
		})
	}
}

// testProbesAnswer: connections that say nothing, and connections that ask once and are kept, on the ports that
// kubelets probe.
func testProbesAnswer(t *testing.T, f *fixture) {
	const (
		count    = 2000
		within   = time.Second
		probes   = 10
		tempered = 200 * time.Millisecond
	)
	from := f.Pod(t, batch).IP
	targets := map[string]struct {
		address string
		paths   []string
	}{"node-agent of server-0": {f.Pod(t, "server-0").Agent.StatusAddress, []string{"/livez", "/readyz", "/healthz/ready"}}}
	for _, s := range f.State(t).Services {
		if s.Name != "xds-server-1" {
			targets[s.Name] = struct {
				address string
				paths   []string
			}{s.OpsAddress, []string{"/livez", "/readyz"}}
		}
	}
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m := f.sample(t, func(*gauge) { cancel() })
			s := newScore()
			dial := dialerFrom(from)
			run := connections(count, func(ctx context.Context, i int) (net.Conn, error) {
				conn, err := dial(ctx, target.address)
				if err != nil || i%2 == 0 {
					return conn, err
				}
				if _, err := fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: probe\r\n\r\n"); err != nil {
					_ = conn.Close() // refused
					return nil, err
				}
				return conn, nil
			})
			ended := make(chan struct{})
			go func() { defer close(ended); run(ctx, s) }()
			select {
			case <-s.full:
			case <-time.After(loadedWithin):
			}
			// A kubelet calls from the node's address, each time on a new connection.
			kubelet := &http.Client{Timeout: 2 * within, Transport: &http.Transport{
				DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
					return dialerFrom("127.0.0.9")(ctx, addr)
				},
			}}
			tick := time.NewTicker(tempered)
			defer tick.Stop()
			var worst time.Duration
			for range probes {
				for _, path := range target.paths {
					start := time.Now()
					res, err := kubelet.Get("http://" + target.address + path)
					worst = max(worst, time.Since(start))
					if err != nil {
						t.Errorf("%s under attack: %v", path, err)
						continue
					}
					_ = res.Body.Close() // only the status counts
					if res.StatusCode != http.StatusOK && path != "/readyz" {
						t.Errorf("%s under attack: status %d", path, res.StatusCode)
					}
				}
				if t.Failed() {
					break
				}
				<-tick.C
			}
			if worst > within {
				t.Errorf("a probe waited %s under attack, at most %s is allowed", worst.Round(time.Millisecond), within)
			}
			cancel()
			<-ended
			t.Logf("the attack: %s; the slowest probe was answered in %s", s, worst.Round(time.Millisecond))
			m.finish(t, f)
		})
	}
}
