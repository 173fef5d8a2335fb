package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

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

func TestReviewsAtOnceAreBounded(t *testing.T) {
	const total, each = 6, 3
	now := time.Unix(1000, 0)
	type request struct {
		*slot
		aborted bool
	}
	s := newSlots(total, each)
	take := func(caller string) *request {
		r := &request{}
		now = now.Add(time.Millisecond)
		r.slot = s.take(caller, now, func() { r.aborted = true })
		return r
	}
	var all []*request
	for _, caller := range []string{"a", "a", "a", "b", "b"} {
		r := take(caller)
		if r.slot == nil {
			t.Fatalf("%s gets no slot of its share", caller)
		}
		all = append(all, r)
	}
	if take("a").slot != nil {
		t.Error("a caller has more than its share")
	}
	now = now.Add(slowAfter)
	again := take("a")
	if again.slot == nil || !all[0].aborted || all[0].read() {
		t.Errorf("the caller's own slow request does not make room: %v, aborted %v", again.slot, all[0].aborted)
	}
	last := take("c")
	if last.slot == nil {
		t.Fatal("the last free slot is not given")
	}
	if r := take("d"); r.slot == nil || !all[1].aborted {
		t.Errorf("the oldest request of the caller with most of them does not make room: %v", r.slot)
	} else if r.release(); len(s.open) != total-1 {
		t.Errorf("%d slots are taken", len(s.open))
	}
	take("c")
	for o := range s.open {
		if !o.read() || !o.run() {
			t.Error("a slot is lost")
		}
	}
	if take("d").slot != nil {
		t.Error("a request that is being answered makes room")
	}
	last.release()
	if take("d").slot == nil {
		t.Error("slots are not given back")
	}
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
		h.others.slots.mu.Lock()
		defer h.others.slots.mu.Unlock()
		if n := len(h.others.slots.open); n != maxOthersAtOnce {
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
