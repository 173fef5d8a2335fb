package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/internal/wait"
)

// Serve answers every request on a port of loopback, until ctx ends.
func Serve(ctx context.Context, address string) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = lis.Close() })
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})}
	go func() { _ = server.Serve(lis) }() // ends with the listener
	return nil
}

// Client sends requests to a Gateway over connections that it keeps.
type Client struct {
	address string
	http    *http.Client
}

// NewClient returns a client of the Gateway at an address.
func NewClient(address string) *Client {
	return &Client{address, &http.Client{Timeout: answerWithin, Transport: &http.Transport{MaxIdleConnsPerHost: inFlight},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

const (
	// answerWithin is how long an answer may take.
	answerWithin = 5 * time.Second
	// poll is the pause between two requests for a route that is not served yet, or still served.
	poll = time.Millisecond
	// servedWithin is how long a route may take to be served, or to go.
	servedWithin = time.Minute
	// inFlight bounds the requests of a load that have no answer yet.
	inFlight = 100
)

// Status is what a request for HTTPRoute i is answered with.
func (c *Client) Status(ctx context.Context, i int) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address+kube.HTTPRoutePath(i)+"/a", http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Host = kube.HTTPRouteHost(i)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// Until asks for HTTPRoute i until it is answered with a status.
func (c *Client) Until(ctx context.Context, i, status int) error {
	return wait.Until(ctx, poll, servedWithin, func() error {
		got, err := c.Status(ctx, i)
		if err == nil && got != status {
			err = fmt.Errorf("HTTPRoute %d is answered with %d, not %d", i, got, status)
		}
		return err
	})
}

// Load sends requests at a rate.
type Load struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	sent, failed atomic.Int64
	example      atomic.Pointer[string]
}

// Load starts requests at a rate, each for the HTTPRoute that next says. An answer other than 200 is a failure; so is a
// request that finds too many without an answer.
func (c *Client) Load(ctx context.Context, perSecond int, next func(n int) int) *Load {
	l := &Load{}
	ctx, l.stop = context.WithCancel(ctx)
	free := make(chan struct{}, inFlight)
	l.running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		n := 0
		for began := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for due := int(time.Since(began).Seconds() * float64(perSecond)); n < due; n++ {
				i := next(n)
				l.sent.Add(1)
				select {
				case free <- struct{}{}:
				default:
					l.fail(fmt.Sprintf("%d requests have no answer", inFlight))
					continue
				}
				l.running.Go(func() {
					defer func() { <-free }()
					// A request that has begun gets its answer after the end of the load, too.
					if status, err := c.Status(context.WithoutCancel(ctx), i); err != nil || status != http.StatusOK {
						l.fail(fmt.Sprintf("HTTPRoute %d: %d, %v", i, status, err))
					}
				})
			}
		}
	})
	return l
}

func (l *Load) fail(what string) {
	l.failed.Add(1)
	l.example.CompareAndSwap(nil, &what)
}

// Stop ends the load. It returns how many requests were sent and how many of them failed, and one failure in words.
func (l *Load) Stop() (sent, failed int64, example string) {
	l.stop()
	l.running.Wait()
	if text := l.example.Load(); text != nil {
		example = *text
	}
	return l.sent.Load(), l.failed.Load(), example
}
