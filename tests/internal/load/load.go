// Package load is a steady stream of HTTP requests beside a test. It counts at the client what fails, as a user would:
// nothing is sent a second time.
package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// kept is how many connections are kept open; half of the requests go over them, and each of the others has a
	// connection of its own.
	kept = 20
	// answered is how long an answer may take.
	answered = 15 * time.Second
	// inFlight bounds the requests without an answer; those beyond it fail.
	inFlight = 2000
	// remembered is how many failures keep their text.
	remembered = 20
	// bodyLimit bounds what is read of an answer.
	bodyLimit = 1 << 20
)

// Config says what to send.
type Config struct {
	// Rate is how many requests begin every second, whatever becomes of those before.
	Rate int
	// URL is what to get.
	URL string
	// Host is the request's host; empty means that of the URL.
	Host string
	// New has every request over a connection of its own; otherwise it is every other one.
	New bool
	// Dial connects; nil: as any process of this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Load is the stream.
type Load struct {
	Config

	cancel context.CancelFunc
	done   sync.WaitGroup
	began  time.Time
	flying atomic.Int64

	mu    sync.Mutex
	taken Taken
}

// Start sends requests until the test ends. Those over the connections that it keeps take turns with those over new
// ones. An answer other than 200 is a failure.
func Start(t *testing.T, c Config) *Load {
	t.Helper()
	if _, err := c.request(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{Config: c, cancel: cancel, began: time.Now()}
	t.Cleanup(l.Stop)
	l.done.Go(func() { l.run(ctx) })
	return l
}

func (c Config) request(ctx context.Context) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, http.NoBody)
	if err == nil && c.Host != "" {
		r.Host = c.Host
	}
	return r, err
}

// Once sends one request over a connection of its own, and returns an error unless the answer is 200.
func Once(c Config) error {
	return c.send(&http.Transport{DialContext: c.Dial, DisableKeepAlives: true})
}

// Stop ends the stream, and waits for the last answer.
func (l *Load) Stop() {
	l.cancel()
	l.done.Wait()
}

func (l *Load) run(ctx context.Context) {
	connections := make([]*http.Transport, kept)
	for i := range connections {
		connections[i] = &http.Transport{DialContext: l.Dial, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}
		defer connections[i].CloseIdleConnections()
	}
	tick := time.NewTicker(time.Second / time.Duration(l.Rate))
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			l.wait()
			return
		case <-tick.C:
		}
		// As many as are due: on a busy machine ticks are lost.
		for due := int(time.Since(l.began).Seconds() * float64(l.Rate)); n < due; n++ {
			through := connections[n/2%kept]
			if l.New || n%2 == 1 {
				through = &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}
			}
			if l.flying.Add(1) > inFlight {
				l.flying.Add(-1)
				l.record(0, fmt.Errorf("%d requests wait for an answer", inFlight))
				continue
			}
			go func() {
				defer l.flying.Add(-1)
				begin := time.Now()
				err := l.send(through)
				l.record(time.Since(begin), err)
			}()
		}
	}
}

// wait until every request has its answer, or was given up.
func (l *Load) wait() {
	for l.flying.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// send sends a request, and returns an error unless it is answered by 200 in time, at the first attempt.
func (c Config) send(through *http.Transport) error {
	ctx, cancel := context.WithTimeout(context.Background(), answered)
	defer cancel()
	connections := 0
	r, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connections++ }}))
	if err != nil {
		return err
	}
	resp, err := through.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	switch {
	case err != nil:
		return fmt.Errorf("the answer ends early: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %v: %s", resp.Status, resp.Header, body[:min(len(body), 500)])
	case connections > 1: // net/http has repeated it
		return fmt.Errorf("the connection was closed without a warning")
	}
	return nil
}

func (l *Load) record(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken.Sent++
	l.taken.Slowest = max(l.taken.Slowest, took)
	if err == nil {
		return
	}
	l.taken.Failed++
	if len(l.taken.First) < remembered {
		l.taken.First = append(l.taken.First, fmt.Sprintf("%s, after %s: %v", time.Now().Format(time.StampMilli),
			took.Round(time.Millisecond), err))
	}
}

// Taken is what has happened between two calls of Take.
type Taken struct {
	// Sent are the requests with an answer, and those that Failed.
	Sent, Failed int
	// First says of the first ones how they failed.
	First []string
	// Slowest is the longest time to an answer.
	Slowest time.Duration
}

// Take returns what has happened since the last call.
func (l *Load) Take() Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.taken
	l.taken = Taken{}
	return taken
}

// Holds runs a subtest, which fails if a request fails meanwhile or in the time after, in which what it has done still
// has an effect.
func (l *Load) Holds(t *testing.T, name string, after time.Duration, do func(t *testing.T)) bool {
	t.Helper()
	return l.Loses(t, name, 0, after, do)
}

// Loses is Holds for what so many requests may fail of at most.
func (l *Load) Loses(t *testing.T, name string, atMost int, after time.Duration, do func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) {
		l.Take()
		began := time.Now()
		do(t)
		took := time.Since(began)
		time.Sleep(after)
		taken := l.Take()
		t.Logf("%.1f s; %d requests, %.0f a second, %d failed, the slowest took %s", took.Seconds(), taken.Sent,
			float64(taken.Sent)/time.Since(began).Seconds(), taken.Failed, taken.Slowest.Round(time.Millisecond))
		if taken.Sent == 0 {
			t.Error("no request was answered")
		}
		if taken.Failed > atMost {
			t.Errorf("%d requests failed, want at most %d:\n%s", taken.Failed, atMost, strings.Join(taken.First, "\n"))
		}
	})
}
