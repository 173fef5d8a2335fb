package rotations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

// beat is how long a stream rests between two messages.
const beat = time.Second

// requestsEach and callsEach are the rates, a second, of each member: of requests, and of calls of gRPC.
func requestsEach() int { return max(1, *rate*9/10/len(members)) }

func callsEach() int { return max(1, *rate/10/(len(members)+1)) }

// counter counts what one kind of traffic does.
type counter struct {
	mu    sync.Mutex
	taken load.Taken
}

func (c *counter) record(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken.Sent++
	c.taken.Slowest = max(c.taken.Slowest, took)
	if err == nil {
		return
	}
	c.taken.Failed++
	if len(c.taken.First) < 10 {
		c.taken.First = append(c.taken.First, fmt.Sprintf("%s, after %s: %v", time.Now().Format(time.StampMilli),
			took.Round(time.Millisecond), err))
	}
}

// Take returns what has happened since the last call.
func (c *counter) Take() load.Taken {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.taken
	c.taken = load.Taken{}
	return taken
}

// traffic is all that flows.
type traffic struct {
	// of are the counts by name.
	of map[string]interface{ Take() load.Taken }
	// open are the streams that nothing has broken.
	mu   sync.Mutex
	open map[string]bool
}

// startTraffic starts it once everybody reaches everybody, until the test ends.
func startTraffic(t *testing.T, r *rig) *traffic {
	t.Helper()
	f := &traffic{of: map[string]interface{ Take() load.Taken }{}, open: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	ways := map[string][]way{}
	for _, from := range append(slices.Clone(members), proxied) {
		for _, to := range append(slices.Clone(members), proxied) {
			if from != to {
				w := r.way(from, to)
				ways[from] = append(ways[from], w)
				testkit.Eventually(t, time.Minute, func() error {
					if err := w.call(ctx); err != nil {
						return fmt.Errorf("%s: %w", w, err)
					}
					return nil
				})
			}
		}
	}
	for _, from := range members {
		m := r.members[from]
		config := load.Config{Rate: requestsEach(), URL: "http://" + everybody + "/", Host: "all.apps.example", New: true, Dial: m.host.DialBy}
		testkit.Eventually(t, time.Minute, func() error { return load.Once(config) })
		f.of["requests of "+from] = load.Start(t, config)
		for n := range len(members) {
			f.keep(ctx, &all, fmt.Sprintf("TCP stream %d of %s", n, from), func(context.Context) (speaker, error) {
				conn, err := m.host.Dial(ctx, everybody+":9000")
				return &tcp{conn}, err
			})
		}
	}
	for from, to := range ways {
		count := &counter{}
		f.of["calls of "+from] = count
		all.Go(func() { call(ctx, count, to) })
		for _, w := range to {
			f.keep(ctx, &all, "gRPC stream of "+w.String(), func(ctx context.Context) (speaker, error) { return w.open(ctx) })
		}
	}
	testkit.Eventually(t, time.Minute, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name := range f.of {
			if _, ok := f.open[name]; !ok && strings.Contains(name, "stream") {
				return fmt.Errorf("%s: no message has come back", name)
			}
		}
		return nil
	})
	f.take() // a machine that starts all of it at once is slow
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, open := range f.open {
		if !open {
			t.Fatalf("%s broke at the start", name)
		}
	}
	return f
}

// call makes calls at a steady rate, in turn, however long each takes.
func call(ctx context.Context, count *counter, ways []way) {
	tick := time.NewTicker(time.Second / time.Duration(callsEach()))
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w := ways[n%len(ways)]
		all.Go(func() {
			began := time.Now()
			err := w.call(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", w, err)
			}
			count.record(time.Since(began), err)
		})
	}
}

// speaker is the near end of a stream.
type speaker interface {
	say(text string) error
	close()
}

type tcp struct{ net.Conn }

func (c *tcp) say(text string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("got %q, want %q", got, text)
	}
	return nil
}

func (c *tcp) close() { _ = c.Close() }

// keep opens a stream and talks over it until ctx ends. One that breaks stays broken.
func (f *traffic) keep(ctx context.Context, all *sync.WaitGroup, name string, open func(context.Context) (speaker, error)) {
	count := &counter{}
	f.of[name] = count
	all.Go(func() {
		began := time.Now()
		s, err := open(ctx)
		if err != nil {
			count.record(time.Since(began), err)
			f.note(name, false)
			return
		}
		defer s.close()
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for n := 0; ; n++ {
			began := time.Now()
			err := s.say(fmt.Sprintf("%08d", n))
			if ctx.Err() != nil {
				return
			}
			count.record(time.Since(began), err)
			f.note(name, err == nil)
			if err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

func (f *traffic) note(name string, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[name] = open
}

// result is what has happened in a time.
type result struct {
	// connections are those that were new on the whole way, messages those over open streams.
	connections, messages int
	failures              []string
	failed                int
	slowest               time.Duration
}

// take returns what has happened since the last call.
func (f *traffic) take() (r result) {
	for _, name := range slices.Sorted(maps.Keys(f.of)) {
		taken := f.of[name].Take()
		r.failed += taken.Failed
		r.slowest = max(r.slowest, taken.Slowest)
		if strings.Contains(name, "stream") {
			r.messages += taken.Sent
		} else {
			r.connections += taken.Sent
		}
		if taken.Failed > 0 {
			r.failures = append(r.failures, fmt.Sprintf("%s: %d of %d failed:\n    %s", name, taken.Failed, taken.Sent,
				strings.Join(taken.First[:min(3, len(taken.First))], "\n    ")))
		}
	}
	return r
}

var errNothing = errors.New("nothing was sent")
