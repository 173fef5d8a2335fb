package catalog

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
)

// Config of a Catalog.
type Config struct {
	// Address is that of an agent or a server: http://host:port or https://host:port.
	Address string
	// Datacenter is empty for the agent's own.
	Datacenter string
	// Token returns the token of now, and is called for each request; nil or "" for none.
	Token func() string
	// DialContext opens connections; it decides which addresses may be used. nil is Go's dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is for https; nil is Go's default.
	TLS *tls.Config
	// Filter says which services are read; nil means all. It is called often, and calls no method of the Catalog.
	Filter func(service string) bool
	// Known is what an earlier run has handed to the Handler, by service. It counts as handed over already, so that
	// nothing of it is removed before it is certain that Consul has it no more. The Catalog keeps it.
	Known map[string][]Instance
	// Log and Clock may be nil.
	Log   *slog.Logger
	Clock clock.Clock
}

// Handler receives readings, one call at a time, and must return quickly. What it is handed is shared: it must not be
// changed.
type Handler interface {
	// Names is a complete reading of the names that Config.Filter selects, sorted, and comes before the Service calls
	// of new names. What is not among them is gone: such a service is read no more, and gets no Service call. Names is
	// called for each change, and at least once a minute and a half while Consul can be read, so that a handler that
	// keeps what a reading lacks sees the next one.
	Names(names []string)
	// Service is a complete reading of the instances of a service, sorted by node and id. It is called when they differ
	// from those that were handed over last. They are never none: a service without instances is gone, which Names
	// says.
	Service(name string, instances []Instance)
	// Whole follows calls of Names and Service as soon as what they have handed over is one state of the catalog.
	// Mostly that is at once. At the start, after Reconnect to another address, after Refresh and when the catalog has
	// gone back, it is when the names and all services concerned have been read since: a handler that judges what is
	// missing in all waits for it. certain is true if nothing is hidden from the token, and no service fails.
	Whole(certain bool)
}

// Catalog follows the services of a datacenter. Its methods may be called from any goroutine.
type Catalog struct {
	log   *slog.Logger
	clock clock.Clock
	all   *rate.Limiter
	// dial makes the transport of a configuration; tests have others.
	dial func(*Config, *url.URL) transport

	// delivering is held while the handler is called.
	delivering sync.Mutex
	synced     chan struct{}
	// verdicts tells of readings of the names, opened that Consul can be read again.
	verdicts, opened notify.Notifier
	// work tells that there is more to poll.
	work notify.Notifier

	mu       sync.Mutex
	cfg      *Config
	exchange context.CancelFunc
	services map[string]*service
	names    names
	polled   []*service
	watching int
	inSync   bool
	state    State
	since    time.Time
	// failure is why nothing can be read now; anonymous that ACLs are on and there is no token.
	failure   error
	anonymous bool
	// Services by what is the matter with them.
	unread  map[string]struct{}
	failing map[string]error
	hidden  map[string]string
	// doubted have not been read since something has happened to the whole catalog (Handler.Whole).
	doubted map[string]struct{}
	bytes   int64
	counts  Counts
}

// New makes a Catalog. It does not connect.
func New(cfg Config) *Catalog {
	c := &Catalog{
		log: cfg.Log, clock: clock.Or(cfg.Clock), all: rate.NewLimiter(allPerSecond, allPerSecond),
		dial:     func(cfg *Config, u *url.URL) transport { return newPool(cfg, u) },
		services: map[string]*service{}, unread: map[string]struct{}{}, failing: map[string]error{}, hidden: map[string]string{},
		doubted: map[string]struct{}{},
		cfg:     &cfg, state: Syncing, synced: make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.since = c.clock.Now()
	c.names.bucket = newBucket()
	for name, instances := range cfg.Known {
		if cfg.Filter != nil && !cfg.Filter(name) {
			continue
		}
		instances = slices.SortedFunc(slices.Values(instances), Compare)
		c.services[name] = newService(name, instances)
		c.unread[name], c.doubted[name] = struct{}{}, struct{}{}
	}
	return c
}

// Run reads until ctx ends, and calls the handler. It returns an error only if Config.Address is none. It is called
// once.
func (c *Catalog) Run(ctx context.Context, h Handler) error {
	for ctx.Err() == nil {
		if err := c.follow(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// Reconnect exchanges the configuration: what was read stays and is followed by it, without a gap. Of Config, Known,
// Log and Clock have no effect.
func (c *Catalog) Reconnect(cfg Config) error {
	if _, err := parseAddress(cfg.Address); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cfg.Address != c.cfg.Address || cfg.Datacenter != c.cfg.Datacenter {
		c.names.index, c.names.doubted = 0, true // of another datacenter, perhaps
		for name, s := range c.services {
			s.foreign, c.doubted[name] = true, struct{}{}
		}
	}
	c.cfg = &cfg
	if c.exchange != nil {
		c.exchange()
	}
	return nil
}

// Refresh reads the names and some services at once, and calls Handler.Names, changed or not. Handler.Whole is called
// when that is done, and not before.
func (c *Catalog) Refresh(services ...string) {
	c.delivering.Lock()
	defer c.delivering.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range services {
		if s := c.services[name]; s != nil {
			c.reread(s)
		}
	}
	c.names.handedAt, c.names.doubted = time.Time{}, true
	c.names.kick()
}

func parseAddress(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.New("address of Consul: want http://host:port or https://host:port")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "":
		return nil, fmt.Errorf("address of Consul %q: want http://host:port or https://host:port", u.Redacted())
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), map[string]string{"http": "8500", "https": "8501"}[u.Scheme])
	}
	return u, nil
}

// follow reads with one configuration, until it is exchanged or ctx ends.
func (c *Catalog) follow(ctx context.Context, h Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	cfg := c.cfg
	c.exchange = cancel
	c.names.kicked = true
	c.mu.Unlock()
	u, err := parseAddress(cfg.Address)
	if err != nil {
		return err
	}
	r := &reader{Catalog: c, handler: h, filter: cfg.Filter}
	r.client = &client{cfg: cfg, base: u, transport: c.dial(cfg, u), counted: c.counted}
	defer r.client.transport.close()
	r.tasks.Go(func() { r.followNames(ctx) })
	for range pollers {
		r.tasks.Go(func() { r.poll(ctx) })
	}
	r.tasks.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polled, c.watching = nil, 0
	for _, s := range c.services {
		s.stop, s.queued, s.busy, s.followed = nil, false, false, false
	}
	return nil
}

// reader reads with one configuration.
type reader struct {
	*Catalog
	client  *client
	handler Handler
	filter  func(string) bool
	tasks   sync.WaitGroup
}

func (c *Catalog) counted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Requests++
}
