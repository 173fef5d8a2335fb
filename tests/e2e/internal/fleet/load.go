package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Load is a stream of requests that runs beside a test.
type Load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	sent   int
	failed []string
	last   Answer
}

// StartLoad sends the request over and over from several workers until Stop. Every answer other than 200 is a failure.
func StartLoad(t *testing.T, c *Client, r Request, workers int) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel}
	for range workers {
		l.done.Go(func() {
			for ctx.Err() == nil {
				// Not under ctx: a request that was begun is finished and counted.
				l.record(c.Do(context.Background(), r))
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *Load) record(a Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	l.last = a
	switch {
	case err != nil:
		l.failed = append(l.failed, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMicro), err))
	case a.Status != 200:
		l.failed = append(l.failed, fmt.Sprintf("%s: status %d after %s: %s", time.Now().Format(time.StampMicro), a.Status, a.Took, a.Body))
	}
}

// Sent is how many requests were answered or failed up to now.
func (l *Load) Sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// More is a condition: n more requests than at the time of the call have been sent.
func (l *Load) More(n int) func() error {
	want := l.Sent() + n
	return func() error {
		if got := l.Sent(); got < want {
			return fmt.Errorf("%d requests sent, want %d", got, want)
		}
		return nil
	}
}

func (l *Load) stop() {
	l.cancel()
	l.done.Wait()
}

// Stop ends the stream and fails the test if any request failed, or none was sent.
func (l *Load) Stop(t *testing.T) {
	t.Helper()
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent == 0 {
		t.Error("no request was sent")
	}
	if n := len(l.failed); n > 0 {
		t.Errorf("%d of %d requests failed; first: %s", n, l.sent, l.failed[0])
	}
}
