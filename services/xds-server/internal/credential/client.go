package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/rpc"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

// maxBatch bounds the subscriptions in one request.
const maxBatch = 1000

// Watcher opens a Watch; secretv1.SecretServiceClient does.
type Watcher interface {
	Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[secretv1.WatchRequest, secretv1.WatchResponse], error)
}

// Config of a Client. Watcher, Log and Registerer are required.
type Config struct {
	Watcher Watcher
	// Instance is the instance under which the proxies are reported. config-watcher answers only for identities that
	// this instance reports as connected.
	Instance   string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Client watches the credentials that are followed, on config-watcher. It keeps the newest of each, also while
// config-watcher is away, and forgets those that are no longer followed. It is safe for concurrent use.
type Client struct {
	cfg     Config
	retries prometheus.Counter

	mu      sync.Mutex
	users   map[Ref]int
	known   map[Ref]*Credential
	changed map[Ref]struct{}
	// unfollowed are the references to unsubscribe from with the next request; answers for them are ignored.
	unfollowed map[Ref]struct{}

	// send has a token while there is a request to send, ready while there is a set to apply.
	send, ready chan struct{}
}

// NewClient checks the configuration; Run does the work.
func NewClient(cfg Config) (*Client, error) {
	if cfg.Watcher == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("credential: Watcher, Log and Registerer are required")
	}
	cfg.Clock = clock.Or(cfg.Clock)
	c := &Client{
		cfg: cfg, users: map[Ref]int{}, known: map[Ref]*Credential{}, changed: map[Ref]struct{}{}, unfollowed: map[Ref]struct{}{},
		send: make(chan struct{}, 1), ready: make(chan struct{}, 1),
	}
	f := promauto.With(cfg.Registerer)
	name := func(n string) string { return prometheus.BuildFQName("fairlead", "xds_server", n) }
	count := func(of func() int) func() float64 {
		return func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return float64(of())
		}
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: name("credentials_followed"), Help: "Credentials that gateways' proxies ask for."},
		count(func() int { return len(c.users) }))
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: name("credentials_pending"), Help: "Credentials that config-watcher has yet to answer."},
		count(func() int { return len(c.users) - len(c.known) }))
	c.retries = f.NewCounter(prometheus.CounterOpts{
		Name: name("credential_retries_total"), Help: "Times the watch of credentials on config-watcher had to be opened again.",
	})
	return c, nil
}

// Follow subscribes to a credential. Each call needs a call of Unfollow. It does not block.
func (c *Client) Follow(ref Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[ref]++; c.users[ref] == 1 {
		notify.Wake(c.send)
	}
}

// Unfollow is the opposite of Follow. After the last one the credential is forgotten.
func (c *Client) Unfollow(ref Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[ref]--; c.users[ref] > 0 {
		return
	}
	delete(c.users, ref)
	delete(c.known, ref)
	c.changed[ref] = struct{}{}
	c.unfollowed[ref] = struct{}{}
	notify.Wake(c.send)
	notify.Wake(c.ready)
}

// Run watches, and opens the watch again after an error, until ctx ends. One goroutine calls apply with each newer set,
// which differs from the last one in the changed references and no longer holds credentials that are not followed.
func (c *Client) Run(ctx context.Context, apply func(set *Set, changed []Ref)) error {
	var group sync.WaitGroup
	group.Go(func() { c.applyAll(ctx, apply) })
	defer group.Wait()
	rpc.Reopener{Clock: c.cfg.Clock, Rand: c.cfg.Rand}.Run(ctx, c.watch, func(err error, pause time.Duration) {
		c.retries.Inc()
		c.cfg.Log.Warn("watch of credentials on config-watcher ended, those known stay in use", "error", err, "retry_in", pause)
	})
	return nil
}

// applyAll calls apply with the newest set after each change.
func (c *Client) applyAll(ctx context.Context, apply func(set *Set, changed []Ref)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.ready:
		}
		c.mu.Lock()
		set := NewSet(c.known)
		changed := make([]Ref, 0, len(c.changed))
		for ref := range c.changed {
			changed = append(changed, ref)
		}
		clear(c.changed)
		c.mu.Unlock()
		apply(set, changed)
	}
}

// watch runs one stream; answered is true if a response has arrived.
func (c *Client) watch(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// There is nothing to watch before a credential is followed.
	if !c.waitFollowed(ctx) {
		return false, ctx.Err()
	}
	stream, err := c.cfg.Watcher.Watch(ctx)
	if err != nil {
		return false, fmt.Errorf("open watch: %w", err)
	}
	ended := make(chan error, 1)
	var received atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			received.Store(true)
			c.receive(m)
		}
	})
	defer group.Wait()
	defer cancel()
	subscribed := map[Ref]struct{}{}
	for introduced := false; ; {
		for _, m := range c.requests(subscribed) {
			if !introduced {
				m.Instance, introduced = c.cfg.Instance, true
			}
			if err := stream.Send(m); err != nil {
				return received.Load(), fmt.Errorf("watch: %w", <-ended) // the reader has the reason
			}
		}
		select {
		case <-ctx.Done():
			return received.Load(), ctx.Err()
		case err := <-ended:
			return received.Load(), fmt.Errorf("watch: %w", err)
		case <-c.send:
		}
	}
}

// waitFollowed waits until a credential is followed; false if ctx ends first.
func (c *Client) waitFollowed(ctx context.Context) bool {
	for {
		c.mu.Lock()
		n := len(c.users)
		c.mu.Unlock()
		if n > 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.send:
		}
	}
}

// requests returns the requests that bring the stream's subscriptions to what is followed.
func (c *Client) requests(subscribed map[Ref]struct{}) []*secretv1.WatchRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*secretv1.WatchRequest
	var m *secretv1.WatchRequest
	room := func() *secretv1.WatchRequest {
		if m == nil || len(m.Subscribe)+len(m.Unsubscribe) >= maxBatch {
			m = &secretv1.WatchRequest{}
			out = append(out, m)
		}
		return m
	}
	for ref := range c.unfollowed {
		if _, ok := subscribed[ref]; ok {
			delete(subscribed, ref)
			m := room()
			m.Unsubscribe = append(m.Unsubscribe, subscription(ref))
		}
	}
	clear(c.unfollowed)
	for ref := range c.users {
		if _, ok := subscribed[ref]; !ok {
			subscribed[ref] = struct{}{}
			m := room()
			m.Subscribe = append(m.Subscribe, subscription(ref))
		}
	}
	return out
}

// subscription is a reference in the form of the protocol.
func subscription(ref Ref) *secretv1.Subscription {
	return &secretv1.Subscription{Namespace: cmp.Or(ref.Namespace, NamespaceOf(ref.Identity)), Name: ref.Name, Identity: ref.Identity}
}

// RefOf is the reference to a Secret of a namespace.
func RefOf(identity, namespace, name string) Ref {
	if namespace == NamespaceOf(identity) {
		namespace = ""
	}
	return Ref{Identity: identity, Namespace: namespace, Name: name}
}

// NamespaceOf returns the namespace of a workload's identity; "" if it is not a workload's.
func NamespaceOf(identity string) string {
	id, err := spiffeid.FromString(identity)
	if err != nil {
		return ""
	}
	namespace, _, _ := auth.WorkloadOf(id)
	return namespace
}

// receive takes a response.
func (c *Client) receive(m *secretv1.WatchResponse) {
	s := m.GetSubscription()
	ref := RefOf(s.GetIdentity(), s.GetNamespace(), s.GetName())
	next := New(m.GetCredential())
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, followed := c.users[ref]; !followed {
		return
	}
	old, known := c.known[ref]
	if known && old.Version() == next.Version() {
		return
	}
	c.known[ref] = next
	c.changed[ref] = struct{}{}
	notify.Wake(c.ready)
}
