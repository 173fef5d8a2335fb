package podconn_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	httpstreamspdy "k8s.io/streaming/pkg/httpstream/spdy"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/kube/podconn"
)

// apiServer forwards ports of a Pod by SPDY alone, as API servers before 1.31 do, and counts how it was asked.
type apiServer struct {
	webSocket, spdy atomic.Int32
	// answer is the status for Pods that it does not let the user reach; 0 forwards.
	answer int
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.answer != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(s.answer)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"pods \"web-1\" is forbidden: no","reason":"Forbidden","code":%d}`, s.answer)
		return
	case r.URL.Path != "/api/v1/namespaces/shop/pods/web-1/portforward":
		http.NotFound(w, r)
		return
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		s.webSocket.Add(1)
		http.Error(w, "unable to upgrade: unknown protocol", http.StatusBadRequest)
		return
	}
	s.spdy.Add(1)
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	var mu sync.Mutex
	failures := map[string]httpstream.Stream{}
	conn := httpstreamspdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		id := stream.Headers().Get("requestID")
		mu.Lock()
		defer mu.Unlock()
		if stream.Headers().Get("streamType") == "error" {
			failures[id] = stream
			return nil
		}
		go s.forward(stream, failures[id])
		return nil
	})
	if conn == nil {
		return
	}
	<-conn.CloseChan()
}

// forward answers each line on port 8080, ends each connection at once on 7070, and refuses others as a kubelet does.
func (s *apiServer) forward(data, failure httpstream.Stream) {
	defer data.Close()
	defer failure.Close()
	switch port := data.Headers().Get("port"); port {
	case "8080":
		for in := bufio.NewScanner(data); in.Scan(); {
			fmt.Fprintf(data, "echo %s\n", in.Text())
		}
	case "7070":
	default:
		fmt.Fprintf(failure, "an error occurred forwarding %s: connection refused", port)
	}
}

func pod(t *testing.T, s *apiServer) *podconn.Pod {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	api, err := kube.NewAPI(config)
	if err != nil {
		t.Fatal(err)
	}
	p := podconn.New(config, api, "shop", "web-1")
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	fmt.Fprintln(conn, text)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "echo "+text+"\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

func TestDialFallsBackToSPDY(t *testing.T) {
	s := &apiServer{}
	p := pod(t, s)
	for _, text := range []string{"one", "two"} {
		conn, err := p.Dial(t.Context(), 8080)
		if err != nil {
			t.Fatal(err)
		}
		say(t, conn, text)
		defer conn.Close()
	}
	if s.webSocket.Load() != 1 || s.spdy.Load() != 1 {
		t.Errorf("asked %d times by WebSocket and %d times by SPDY, want once each: connections of a Pod share one", s.webSocket.Load(),
			s.spdy.Load())
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Dial(t.Context(), 8080); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAPortThatNobodyServesIsTheErrorOfTheConnection(t *testing.T) {
	p := pod(t, &apiServer{})
	conn, err := p.Dial(t.Context(), 9999)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.ReadAll(conn); err == nil ||
		!strings.Contains(err.Error(), "port 9999 of Pod shop/web-1: an error occurred forwarding 9999: connection refused") {
		t.Errorf("%v", err)
	}
	// A client that speaks first, as TLS does, is told the same, and one that has closed the connection is told that.
	if _, err := conn.Write([]byte("hello")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	_ = conn.Close()
	if _, err := conn.Write([]byte("hello")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
	conn, err = p.Dial(t.Context(), 7070)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("a connection that the Pod ends: %v", err)
	}
}

func TestWhoMayNotForwardIsToldTheRight(t *testing.T) {
	p := pod(t, &apiServer{answer: http.StatusForbidden})
	if _, err := p.Dial(t.Context(), 8080); err == nil || !strings.Contains(err.Error(), "pods/portforward") {
		t.Errorf("%v", err)
	}
}

func TestForward(t *testing.T) {
	p := pod(t, &apiServer{})
	told := make(chan error, 10)
	for port, works := range map[int]bool{8080: true, 9999: false} {
		ctx, cancel := context.WithCancel(t.Context())
		f, err := podconn.Listen("127.0.0.1:0", func(ctx context.Context) (net.Conn, error) { return p.Dial(ctx, port) },
			func(err error) { told <- err })
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- f.Serve(ctx) }()
		conn, err := net.Dial("tcp", f.Address())
		if err != nil {
			t.Fatal(err)
		}
		if works {
			say(t, conn, "hello")
		} else if err := <-told; !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("told %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("the end of a forwarded connection: %v", err)
		}
		if _, err := podconn.Listen(f.Address(), nil, nil); err != nil {
			t.Errorf("the port is not free again: %v", err)
		}
		_ = conn.Close()
	}
}
