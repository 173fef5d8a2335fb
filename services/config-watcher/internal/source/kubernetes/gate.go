package kubernetes

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source"
)

const (
	// probeEvery is how often an API server that is away is asked whether it is back.
	probeEvery = time.Second
	// probeWithin bounds one question.
	probeWithin = 5 * time.Second
	// discoverWithin bounds one request of those that ask which kinds the API server has.
	discoverWithin = 10 * time.Second
)

// unreachableRemedy is for whoever reads that an API server cannot be reached.
const unreachableRemedy = "let config-watcher reach this address (route, firewall, NetworkPolicy), or correct --kubeconfig"

// failure is why something cannot be read, and since when.
type failure struct {
	err   error
	since time.Time
	// watch is true if a watch has failed, false for a list.
	watch bool
}

// reason is the failure in one word.
func (f *failure) reason() string {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(f.err) || apierrors.IsUnauthorized(f.err):
		return source.ReasonForbidden
	case errors.As(f.err, &answer):
		return source.ReasonFailed
	default:
		return source.ReasonUnreachable
	}
}

// gate holds requests back while the API server does not answer: one goroutine asks until it does, instead of every
// watcher with a back-off of its own.
//
// Where the network drops packets without a word, discovering notices first, because it asks every discoverEvery for
// answers within probeWithin and discoverWithin. The connection itself ends when client-go's HTTP/2 transport has had
// no answer to a ping: 45 s after the last byte, unless HTTP2_READ_IDLE_TIMEOUT_SECONDS (30) and
// HTTP2_PING_TIMEOUT_SECONDS (15) say otherwise. Watches then go on, from where they were, on a new one.
type gate struct {
	source *Source
	wake   chan struct{}

	mu sync.Mutex
	// open is closed while requests may pass.
	open chan struct{}
	// lost is the failure since which requests are held back; confirmed is true after the first question without an
	// answer.
	lost      *failure
	confirmed bool
}

func newGate(s *Source) *gate {
	g := &gate{source: s, wake: make(chan struct{}, 1), open: make(chan struct{})}
	close(g.open)
	return g
}

// wait blocks while the API server is away.
func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed closes the gate after a request without an answer.
func (g *gate) failed(err error) {
	g.mu.Lock()
	if g.lost == nil {
		g.lost, g.open = &failure{err: err, since: g.source.cfg.Clock.Now()}, make(chan struct{})
	}
	g.mu.Unlock()
	notify.Wake(g.wake)
}

// reset lets requests pass, because they go to another address or with other credentials now.
func (g *gate) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != nil {
		g.lost, g.confirmed = nil, false
		close(g.open)
	}
}

// away returns since when the API server does not answer; nil if it does.
func (g *gate) away() *failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.confirmed {
		return nil
	}
	return g.lost
}

// run asks the API server while the gate is closed.
func (g *gate) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		}
		for g.closed() {
			g.answered(ctx, g.probe(ctx))
			if !g.closed() {
				break
			}
			select {
			case <-ctx.Done():
				return nil
			case <-g.source.cfg.Clock.After(probeEvery/2 + rand.N(probeEvery)):
			}
		}
	}
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lost != nil
}

func (g *gate) probe(ctx context.Context) error {
	_, err := g.source.api.Load().ready(ctx)
	return err
}

// answered takes over the outcome of a probe, unless it is only that the process ends.
func (g *gate) answered(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	if g.lost == nil { // Reconnect has opened the gate
		g.mu.Unlock()
		return
	}
	first, back := err != nil && !g.confirmed, err == nil && g.confirmed
	lost := g.lost
	if err == nil {
		g.lost, g.confirmed = nil, false
		close(g.open)
	} else {
		g.lost = &failure{err: err, since: lost.since}
		g.confirmed = true
	}
	g.mu.Unlock()
	log := g.source.cfg.Log.With("source", g.source.name)
	if err == nil {
		notify.Wake(g.source.back)
	}
	switch {
	case first:
		log.Warn("API server cannot be reached, its last objects stay", "address", g.source.api.Load().config.Host, "error", err, "remedy",
			unreachableRemedy)
	case back:
		log.Info("API server is back", "address", g.source.api.Load().config.Host, "away",
			g.source.cfg.Clock.Now().Sub(lost.since).Round(time.Millisecond))
		notify.Wake(g.source.rediscover)
	}
}
