// Package caller makes the calls of a scenario, from inside a machine's network, byte for byte as they are written.
package caller

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// Host is a machine that connections are made from.
type Host interface {
	// Dial connects to IP:port over tcp or udp, from another address of the machine than its first if from is not
	// empty.
	Dial(ctx context.Context, network, address, from string) (net.Conn, error)
}

// Machine is where a call starts.
type Machine struct {
	Host Host
	// Resolver is the IP:port of its name server, Search the domains that it looks in.
	Resolver string
	Search   []string
	// Bootstrap is the file by which gRPC on the machine knows the control plane; empty where gRPC knows nothing of it.
	Bootstrap string
}

// Via is the workload whose address is dialled instead of what the URL says.
type Via struct {
	IPs []netip.Addr
	// Ports maps ports of its Service to those it listens on; a port that is not there is dialled as the URL has it.
	Ports map[int]int
}

// Caller makes the calls of one step.
type Caller struct {
	From Machine
	// Via is nil if names lead the way.
	Via *Via
	// Roots are trusted where a call names no authority.
	Roots *x509.CertPool
	// Certificates are the scenario's, by name.
	Certificates map[string]*format.Material
}

// together bounds the requests under way where a rate is given and nothing else.
const together = 32

// backgroundRate is how often a second a call in the background is made that says no rate.
const backgroundRate = 20

// hopeless is how many calls may time out before the rest of them, whose expectation has failed already, is not made.
const hopeless = 3

// Run makes all requests of a call, in order unless they are parallel, each on a connection of its own unless the call
// says otherwise.
func (c *Caller) Run(ctx context.Context, call *format.Call) []*Result {
	r := c.run(call)
	defer r.close()
	next := make(chan int)
	go func() {
		defer close(next)
		r.feed(ctx, next, call.Count)
	}()
	return r.serve(ctx, next)
}

// Background is a call that is made until it ends.
type Background struct {
	stop    context.CancelFunc
	results chan []*Result
}

// Begin starts a call in the background.
func (c *Caller) Begin(ctx context.Context, call *format.Call) *Background {
	endless := *call
	if endless.Rate == 0 {
		endless.Rate = backgroundRate
	}
	r := c.run(&endless)
	feeding, stop := context.WithCancel(ctx)
	b := &Background{stop: stop, results: make(chan []*Result, 1)}
	next := make(chan int)
	go func() {
		defer close(next)
		r.feed(feeding, next, 0)
	}()
	go func() {
		defer r.close()
		b.results <- r.serve(ctx, next)
	}()
	return b
}

// End starts no more requests, waits for those under way, and has the results of all.
func (b *Background) End() []*Result {
	b.stop()
	results := <-b.results
	b.results <- results
	return results
}

// running is one call's requests.
type running struct {
	*Caller
	call     *format.Call
	id       string
	names    resolver.Client
	cookies  http.CookieJar
	timeouts atomic.Int32

	mu    sync.Mutex
	known map[string]known
	turn  int
	h2    map[string]*link
	// channels are those of gRPC that speaks xDS itself, by authority.
	channels map[string]*grpc.ClientConn
}

type known struct {
	ips []netip.Addr
	at  time.Time
}

func (c *Caller) run(call *format.Call) *running {
	var id [5]byte
	_, _ = rand.Read(id[:]) // never fails
	r := &running{Caller: c, call: call, id: hex.EncodeToString(id[:]), known: map[string]known{}, h2: map[string]*link{},
		channels: map[string]*grpc.ClientConn{}}
	r.names = resolver.Client{Server: c.From.Resolver, Search: c.From.Search,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.From.Host.Dial(ctx, network, address, "")
		}}
	if call.Cookies {
		r.cookies, _ = cookiejar.New(nil) // fails never
	}
	return r
}

func (r *running) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.h2 {
		l.Close()
	}
	for _, channel := range r.channels {
		channel.Close()
	}
}

// feed hands out the numbers of requests, count of them or without end, at the rate.
func (r *running) feed(ctx context.Context, next chan<- int, count int) {
	var tick <-chan time.Time
	if r.call.Rate > 0 {
		ticker := time.NewTicker(max(time.Duration(float64(time.Second)/r.call.Rate), time.Microsecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	for n := 0; count == 0 || n < count; n++ {
		if tick != nil && n > 0 {
			select {
			case <-tick:
			case <-ctx.Done():
				return
			}
		}
		if count > 0 && r.timeouts.Load() >= hopeless && r.call.Expect.Error == "" {
			return
		}
		select {
		case next <- n:
		case <-ctx.Done():
			return
		}
	}
}

// serve makes the requests that are handed out.
func (r *running) serve(ctx context.Context, next <-chan int) []*Result {
	workers := max(r.call.Parallel, 1)
	if r.call.Parallel == 0 && r.call.Rate > 0 && !r.call.SameConnection {
		workers = together
	}
	var mu sync.Mutex
	var results []*Result
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			w := &worker{running: r, links: map[string]*link{}}
			defer w.close()
			for n := range next {
				result := w.request(ctx, fmt.Sprintf("%s-%d", r.id, n))
				if result.Failed(Timeout) {
					r.timeouts.Add(1)
				}
				mu.Lock()
				results = append(results, result)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return results
}

// Lookup asks the machine's name server, as a Pod does.
func (r *running) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	k, ok := r.known[name]
	r.mu.Unlock()
	if ok && time.Since(k.at) < remembered {
		return k.ips, nil
	}
	ips, err := r.names.Lookup(ctx, name)
	if err == nil {
		r.mu.Lock()
		r.known[name] = known{ips, time.Now()}
		r.mu.Unlock()
	}
	return ips, err
}

// remembered is how long the answer of a name server is used again, as the system's own cache would.
const remembered = 300 * time.Millisecond
