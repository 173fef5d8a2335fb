// Package podconn reaches Pods through an API server: Pod.Dial opens a connection to a port of a Pod, Listen forwards a
// local port to it, and Pod.Run runs a program in a container. Each asks by WebSocket first and, if the API server or a
// proxy before it does not know that, by SPDY. Commands of cli call it, for the control plane's ports and the admin
// interfaces of proxies.
package podconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"fairlead.dev/services/installer/internal/kube"
)

// DialTimeout bounds how long a connection to a Pod may take to be made.
const DialTimeout = 15 * time.Second

// maxError bounds what is read of the kubelet's reason for a connection that failed.
const maxError = 4 << 10

// Pod is a Pod that connections are opened to. Its connections share one connection to the API server. It is safe for
// concurrent use; Close ends all of them.
type Pod struct {
	Namespace, Name string

	config *rest.Config
	urls   func(subresource string) *url.URL

	mu      sync.Mutex
	conn    httpstream.Connection
	opened  int
	stopped bool
}

// New returns a Pod of the API server that config and api reach. Nothing is asked.
func New(config *rest.Config, api kube.API, namespace, name string) *Pod {
	config = rest.CopyConfig(config)
	config.Timeout = 0 // connections last
	return &Pod{Namespace: namespace, Name: name, config: config, urls: func(subresource string) *url.URL {
		return api.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(name).SubResource(subresource).URL()
	}}
}

// Close ends the Pod's connections.
func (p *Pod) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.conn == nil {
		return nil
	}
	return p.conn.Close()
}

// Dial opens a connection to a port on which the Pod listens, its own loopback addresses included. What the kubelet
// says about a port that it cannot reach is the error of the first Read.
func (p *Pod) Dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	type opened struct {
		conn net.Conn
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		conn, err := p.open(port)
		done <- opened{conn, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, p.explain(o.err)
		}
		return o.conn, nil
	case <-ctx.Done():
		go func() { // client-go's dialers know no context
			if o := <-done; o.err == nil {
				_ = o.conn.Close()
			}
		}()
		return nil, fmt.Errorf("port %d of Pod %s/%s: %w", port, p.Namespace, p.Name, context.Cause(ctx))
	}
}

// explain says what to do about an error of the API server.
func (p *Pod) explain(err error) error {
	text := err.Error()
	switch {
	case apierrors.IsForbidden(err), strings.Contains(text, "forbidden"):
		return &refusal{
			fmt.Sprintf("the API server does not let this user connect to Pod %s/%s: %s; ask for the right to create pods/portforward and pods/exec",
				p.Namespace, p.Name, forbidden(text)), err}
	case apierrors.IsNotFound(err), strings.Contains(text, "not found"):
		return fmt.Errorf("Pod %s/%s: %w; it has ended since it was listed: try again", p.Namespace, p.Name, err)
	}
	return fmt.Errorf("Pod %s/%s: %w", p.Namespace, p.Name, err)
}

// refusal is an error with a text of its own.
type refusal struct {
	text string
	err  error
}

// Error implements error.
func (r *refusal) Error() string { return r.text }

// Unwrap returns the error behind it.
func (r *refusal) Unwrap() error { return r.err }

// said is what the API server says of a right that is missing, within what its clients write around it.
var said = regexp.MustCompile(`[a-z./-]+ \\?"[^"\\]+\\?" is forbidden: [^\n]*`)

// forbidden is the API server's own sentence of an error: clients join those of two attempts, quoted, on lines.
func forbidden(text string) string {
	sentence := said.FindString(strings.ReplaceAll(text, `\n`, "\n"))
	if sentence == "" {
		sentence, _, _ = strings.Cut(text, "\n")
	}
	sentence = strings.ReplaceAll(sentence, `\"`, `"`)
	if end := strings.LastIndexByte(sentence, '"'); strings.Count(sentence, `"`)%2 == 1 {
		sentence = sentence[:end] // of the text that it was quoted in
	}
	return sentence
}

// open opens the two streams of a forwarded connection.
func (p *Pod) open(port int) (net.Conn, error) {
	conn, id, err := p.connection()
	if err != nil {
		return nil, err
	}
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(id))
	failures, err := conn.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	_ = failures.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		conn.RemoveStreams(failures)
		return nil, err
	}
	local, remote := net.Pipe()
	c := &portConn{Conn: local, told: make(chan struct{})}
	go func() {
		defer close(c.told)
		text, err := io.ReadAll(io.LimitReader(failures, maxError))
		if err == nil && len(text) > 0 {
			c.failure = fmt.Errorf("port %d of Pod %s/%s: %s", port, p.Namespace, p.Name, strings.TrimSpace(string(text)))
			_ = remote.Close()
		}
	}()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(remote, data)
		_ = remote.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(data, remote)
		_ = data.Close()
	})
	go func() {
		both.Wait()
		_ = data.Reset()
		conn.RemoveStreams(failures, data)
	}()
	return c, nil
}

// connection returns the connection to the API server, which it makes if there is none, and the number of the request.
func (p *Pod) connection() (httpstream.Connection, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil, 0, net.ErrClosed
	}
	if p.conn != nil {
		select {
		case <-p.conn.CloseChan():
			p.conn = nil
		default:
		}
	}
	p.opened++
	if p.conn != nil {
		return p.conn, p.opened, nil
	}
	target := p.urls("portforward")
	transport, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		return nil, 0, err
	}
	bySPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	byWebSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, p.config)
	if err != nil {
		return nil, 0, err
	}
	conn, _, err := portforward.NewFallbackDialerForStreaming(byWebSocket, bySPDY, fallBack).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, 0, err
	}
	p.conn = conn
	return conn, p.opened, nil
}

// fallBack tells an answer that SPDY may improve: the server, or a proxy before it, does not speak WebSocket.
func fallBack(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// portConn is a connection to a port of a Pod.
type portConn struct {
	net.Conn
	// told is closed when the kubelet has said whether it failed; failure is what it has said, or nil.
	told    chan struct{}
	failure error
	// closed is true when this side has closed it.
	closed atomic.Bool
}

// Read reads; at the end of a connection that the kubelet could not make it returns the reason.
func (c *portConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		err = c.reason(err)
	}
	return n, err
}

// Write writes; its error is the reason too if the kubelet could not make the connection.
func (c *portConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) && !c.closed.Load() {
		err = c.reason(err)
	}
	return n, err
}

// Close closes the connection.
func (c *portConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// reason is what the kubelet has said about the connection that ended with err, or err.
func (c *portConn) reason(err error) error {
	select {
	case <-c.told:
		if c.failure != nil {
			return c.failure
		}
	case <-time.After(time.Second):
	}
	return err
}

// HTTP returns a client whose requests all go to a port of the Pod, whatever host they name.
func (p *Pod) HTTP(port int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx, port) },
	}}
}
