package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/testkit"
)

const path = "/review"

// handler answers no review.
func handler(t *testing.T) *Handler {
	return NewHandler(Config{
		Metrics: "fairlead_test", Serves: func(p string) bool { return p == path }, Path: path, Log: testkit.Logger(t), Memory: 1 << 20,
		ValueBytes: 100, MaxValues: 1000, Registerer: prometheus.NewRegistry(),
		Review: func(_ context.Context, _ *http.Request, body []byte) ([]byte, error) {
			return nil, NotReview("%s is no review", body)
		},
	})
}

// Two callers that send their requests slowly cannot keep an API server out.
func TestSlowCallersMakeRoom(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	h := handler(t)
	go func() { served <- ops.HTTP{Listener: lis, Handler: h, Log: testkit.Logger(t)}.Serve(ctx) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for i := range maxOthersAtOnce {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%2))}}
		conn, err := from.DialContext(ctx, "tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // a test
		if _, err := io.WriteString(conn,
			"POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := h.others.places.Load().Held; n != maxOthersAtOnce {
			return fmt.Errorf("%d requests are being read", n)
		}
		return nil
	})
	for range 3 {
		answer, err := http.Post("http://"+lis.Addr().String()+path, "application/json", bytes.NewReader([]byte("{}")))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest { // it was read, and is no review
			t.Errorf("another caller gets %s", answer.Status)
		}
	}
}
