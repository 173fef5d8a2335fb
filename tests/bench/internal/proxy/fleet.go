package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/wire"
)

// window is the flow control window of connections and streams; Envoy's is so large that it does not hold a server back
// either.
const window = 16 << 20

// Fleet is all proxies of a benchmark.
type Fleet struct {
	reader  *wire.Reader
	proxies []*Proxy

	mu   sync.Mutex
	err  error
	last time.Time // of any response
	tally
	// scripts are the contents received, by node id, while they are recorded.
	scripts map[string][]*wire.Content
	// pending are changes on their way, by host.
	pending map[string]*pending
	// waits are the times from a change to its acknowledgements, by type; seen counts the pairs of a change and a proxy
	// among them.
	waits map[string][]time.Duration
	seen  int
	// woken is notified of configured proxies and of errors.
	woken chan struct{}
	// observe is called for each acknowledgement, if Observe was.
	observe func(number int, c *wire.Content, at time.Time)
}

// pending is a change on its way, with the proxies, by number, that have acknowledged it.
type pending struct {
	at   time.Time
	done []bool
}

// tally counts since the last Reset.
type tally struct {
	responses, configured int
	bytes                 int64
	byType                map[string]int64
	newest                map[*Proxy]time.Time
	lastConfigured        time.Time
}

// NewFleet makes a fleet that is not connected.
func NewFleet(proxies []mesh.Proxy) *Fleet {
	f := &Fleet{reader: wire.NewReader(), woken: make(chan struct{}, 1)}
	for i, p := range proxies {
		f.proxies = append(f.proxies, &Proxy{Proxy: p, fleet: f, number: i, held: map[string][]*wire.Content{}, session: newSession(false)})
	}
	f.Reset()
	return f
}

// Len is how many proxies there are.
func (f *Fleet) Len() int { return len(f.proxies) }

// Observe makes a fleet, which is not connected yet, look at each resource by note (wire.Reader.Note) and call observe
// for each response that a proxy, by number, has acknowledged; each proxy has a goroutine of its own. The fleet forgets
// what it has received, and so cannot connect as Retained.
func (f *Fleet) Observe(note func(typeURL, name string, body []byte) any, observe func(number int, c *wire.Content, at time.Time)) {
	f.reader.Note, f.observe = note, observe
}

// Target is where a fleet connects to.
type Target struct {
	Address string
	// TLS gives the configuration for a proxy of a namespace; nil means plaintext.
	TLS func(namespace string) *tls.Config
}

// Mode of a connection.
type Mode int

// Modes: Cold asks for everything, Retained states what is held from before, Echo only acknowledges.
const (
	Cold Mode = iota
	Retained
	Echo
)

// Connect opens the streams of all proxies at once. prepare runs before the first of them, when everything that can be
// made ahead is made.
func (f *Fleet) Connect(ctx context.Context, to Target, mode Mode, prepare func()) error {
	first := make([][][]byte, len(f.proxies))
	for i, p := range f.proxies {
		switch mode {
		case Retained:
			first[i] = p.retained()
			p.resume()
		default:
			clear(p.held)
			p.session = newSession(mode == Echo)
			r := wire.Request{Node: p.Node, Type: wire.Cluster}
			p.asked[wire.Cluster] = true
			first[i] = [][]byte{r.Encode()}
		}
		creds := insecure.NewCredentials()
		if to.TLS != nil {
			creds = credentials.NewTLS(to.TLS(p.Namespace))
		}
		var err error
		p.conn, err = grpc.NewClient("passthrough:///"+to.Address, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
		if err != nil {
			return err
		}
		p.closing = false
	}
	prepare()
	var wg sync.WaitGroup
	for i, p := range f.proxies {
		wg.Go(func() {
			if err := p.open(ctx, first[i]); err != nil {
				f.lost(p, err)
			}
		})
	}
	wg.Wait()
	return f.Err()
}

// open opens the stream, sends what comes first, and begins to read.
func (p *Proxy) open(ctx context.Context, first [][]byte) error {
	if err := p.begin(ctx, first); err != nil {
		return err
	}
	p.ended = make(chan struct{})
	again := func() error {
		p.session = newSession(false)
		p.asked[wire.Cluster] = true
		return p.begin(ctx, first)
	}
	go p.run(again)
	return nil
}

func (p *Proxy) begin(ctx context.Context, first [][]byte) error {
	ctx, cancel := context.WithCancel(ctx)
	p.fleet.mu.Lock()
	p.cancel = cancel
	closing := p.closing
	p.fleet.mu.Unlock()
	var err error
	if closing {
		err = context.Canceled
	} else {
		p.stream, err = p.conn.NewStream(ctx, &wire.Desc, wire.Method, grpc.WaitForReady(true))
	}
	if err != nil {
		cancel()
		return err
	}
	for _, b := range first {
		if err := p.sendRaw(b); err != nil && !errors.Is(err, io.EOF) { // the reader finds why the stream has ended
			return err
		}
	}
	return nil
}

// Envoy waits so long, at random, before it tries again.
const retryWithin = time.Second

// refused tells whether a server has refused the stream for its load, before it sent anything. Then the proxy waits as
// Envoy does.
func (p *Proxy) refused(err error) bool {
	if status.Code(err) != codes.ResourceExhausted || len(p.held) > 0 {
		return false
	}
	time.Sleep(rand.N(retryWithin)) //nolint:gosec // no secret
	return true
}

// Close ends all streams and connections.
func (f *Fleet) Close() {
	f.mu.Lock()
	for _, p := range f.proxies {
		p.closing = true
		if p.cancel != nil {
			p.cancel()
		}
	}
	f.mu.Unlock()
	for _, p := range f.proxies {
		if p.conn != nil {
			_ = p.conn.Close() // its stream has ended
		}
	}
	wait(f.proxies)
}

// Err is the first error of any proxy.
func (f *Fleet) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *Fleet) lost(p *Proxy, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.closing || errors.Is(err, context.Canceled) {
		return
	}
	if f.err == nil {
		f.err = fmt.Errorf("stream of %s: %w", p.ID, err)
	}
	f.wake()
}

func (f *Fleet) wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

func (f *Fleet) received(p *Proxy, r wire.Response, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.responses++
	f.bytes += int64(r.Size)
	f.byType[r.Type] += int64(r.Size)
	f.newest[p] = at
	f.last = at
	if f.scripts != nil {
		f.scripts[p.ID] = append(f.scripts[p.ID], r.Content)
	}
}

func (f *Fleet) acknowledged(p *Proxy, c *wire.Content, at time.Time) {
	if f.observe != nil {
		f.observe(p.number, c, at)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil {
		return
	}
	for _, host := range c.Hosts {
		if change := f.pending[host]; change != nil {
			f.waits[c.Type] = append(f.waits[c.Type], at.Sub(change.at))
			if !change.done[p.number] {
				change.done[p.number] = true
				f.seen++
			}
		}
	}
}

func (f *Fleet) configuredNow(*Proxy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configured++
	f.lastConfigured = time.Now()
	f.wake()
}

// Configured waits until all proxies have everything that they asked for, and says when that was.
func (f *Fleet) Configured(ctx context.Context) (time.Time, error) {
	for {
		f.mu.Lock()
		n, at, err := f.configured, f.lastConfigured, f.err
		f.mu.Unlock()
		if err != nil {
			return time.Time{}, err
		}
		if n >= len(f.proxies) {
			return at, nil
		}
		select {
		case <-f.woken:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d proxies are configured: %w", n, len(f.proxies), ctx.Err())
		}
	}
}

// Reset begins a new count.
func (f *Fleet) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally = tally{byType: map[string]int64{}, newest: map[*Proxy]time.Time{}}
}

// Count is what came since Reset.
type Count struct {
	Responses int
	Bytes     int64
	ByType    map[string]int64
	// Newest is when each proxy that received something did so last.
	Newest []time.Time
	// Last is when something came last, ever.
	Last time.Time
}

// Count gives what came since Reset.
func (f *Fleet) Count() Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Count{Responses: f.responses, Bytes: f.bytes, ByType: map[string]int64{}, Last: f.last}
	for url, n := range f.byType {
		c.ByType[url] = n
	}
	for _, at := range f.newest {
		c.Newest = append(c.Newest, at)
	}
	return c
}

// Record begins to keep what comes, or ends it and gives it by node id.
func (f *Fleet) Record(on bool) map[string][]*wire.Content {
	f.reader.Record(on)
	f.mu.Lock()
	defer f.mu.Unlock()
	got := f.scripts
	f.scripts = nil
	if on {
		f.scripts = map[string][]*wire.Content{}
	}
	return got
}

// Follow begins to measure the changes that Pending announces.
func (f *Fleet) Follow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending, f.waits, f.seen = map[string]*pending{}, map[string][]time.Duration{}, 0
}

// Pending says that a change to a host was made.
func (f *Fleet) Pending(host string, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending[host] = &pending{at, make([]bool, len(f.proxies))}
}

// Waits gives the times from changes to acknowledgements since Follow, by type, and how many pairs of a change and a
// proxy were acknowledged.
func (f *Fleet) Waits() (waits map[string][]time.Duration, seen int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits, f.seen
}

// AreConfigured is how many proxies have everything that they asked for.
func (f *Fleet) AreConfigured() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.configured
}
