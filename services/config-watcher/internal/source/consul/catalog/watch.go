package catalog

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
)

const (
	// watchWait is how long the reading of a service may wait for changes, by HTTP/2, and plainWait without: only pings
	// of HTTP/2 find out early that the other side is gone. Consul admits 10 minutes. A server that is behind can
	// answer with an index from before a snapshot was restored, of which nobody else knows; this is how long that goes
	// unnoticed.
	watchWait = 5 * time.Minute
	plainWait = time.Minute
	// hiddenWait is for a service of which something may be hidden: nothing tells when rights are given.
	hiddenWait = 30 * time.Second
	// verdictWait is how long a service without instances waits for what the names say.
	verdictWait = 10 * time.Second
	// maxBytes bounds the newest answers about all services together.
	maxBytes = 1 << 30
)

// service is the state of the reading of a service. It belongs to the goroutine that reads it, a watch or a poller;
// what is below mu, Catalog.mu guards.
type service struct {
	name     string
	bucket   bucket
	known    []Instance
	read     bool
	index    uint64
	failures int
	size     int64
	// followed: the last reading by this connection was answered. Else the catalog may have been restored meanwhile,
	// and would answer a reading that waits for a newer index than it has only much later.
	followed bool

	// mu
	stop context.CancelFunc
	// interrupt ends a reading that waits for changes; nil if there is none.
	interrupt context.CancelFunc
	// stale: the index may be higher than that of the catalog. foreign: it is of another catalog.
	stale, foreign bool
	// absent is since when certain readings have no instances, and nothing was filtered; zero if they have any.
	absent time.Time
	nodes  []string
	// busy and due are for pollers.
	queued, busy bool
	due          time.Time
}

func newService(name string, known []Instance) *service {
	return &service{name: name, bucket: newBucket(), known: known, nodes: nodesOf(known)}
}

// assign begins to read the services that nobody reads: it gives them watches while there are any, and the others to
// the pollers.
func (r *reader) assign(ctx context.Context, list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.client.transport.watches()
	for _, s := range r.polled {
		if !s.busy && r.watching < limit {
			s.queued = false
			r.startWatch(ctx, s)
		}
	}
	r.polled = slices.DeleteFunc(r.polled, func(s *service) bool { return !s.queued })
	for _, name := range list {
		switch s := r.services[name]; {
		case s.stop != nil || s.queued:
		case r.watching < limit:
			r.startWatch(ctx, s)
		default:
			s.queued = true
			r.polled = append(r.polled, s)
			r.work.Notify()
		}
	}
	r.settle()
}

// startWatch is called with mu held.
func (r *reader) startWatch(ctx context.Context, s *service) {
	ctx, s.stop = context.WithCancel(ctx)
	r.watching++
	r.tasks.Go(func() { r.watch(ctx, s) })
}

// drop ends the reading of a service that is gone. It is called with mu held.
func (c *Catalog) drop(s *service) {
	delete(c.services, s.name)
	delete(c.unread, s.name)
	delete(c.failing, s.name)
	delete(c.hidden, s.name)
	delete(c.doubted, s.name)
	c.bytes -= s.size
	if s.stop != nil {
		s.stop()
		c.watching--
	}
	if s.queued {
		s.queued = false
		c.polled = slices.DeleteFunc(c.polled, func(p *service) bool { return p == s })
	}
}

// watch reads a service until it is gone.
func (r *reader) watch(ctx context.Context, s *service) {
	for r.ready(ctx, s) {
		r.outcome(ctx, s, r.step(ctx, s, true))
	}
}

// ready waits until a service may be read; false if ctx ends before.
func (r *reader) ready(ctx context.Context, s *service) bool {
	return r.open(ctx) && wait(ctx, r.clock, s.bucket.limiter) && wait(ctx, r.clock, r.all)
}

// open waits until the names could be read.
func (r *reader) open(ctx context.Context) bool {
	for {
		changed := r.opened.Changed()
		r.mu.Lock()
		closed := r.failure != nil
		r.mu.Unlock()
		if !closed {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// errInterrupted is the outcome of a reading that rewind has ended.
var errInterrupted = errors.New("the catalog has gone back")

// errAbsent is the outcome of a reading without instances.
var errAbsent = errors.New("the service has no instances")

// outcome takes over how a reading went, and waits after a failure, until Consul can be read again if it cannot.
func (r *reader) outcome(ctx context.Context, s *service, err error) {
	opened := r.opened.Changed()
	if r.note(s, err); err == nil || errors.Is(err, errInterrupted) || ctx.Err() != nil {
		return
	}
	timer := r.clock.NewTimer(backoff(s.failures))
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-opened:
	case <-ctx.Done():
	}
}

// givenUpAfter is after how many failures nobody should wait for a service that was never read.
const givenUpAfter = 3

// note takes over how a reading went. Who fails has the names read, which finds out whether all others fail too.
func (r *reader) note(s *service, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.services[s.name] != s {
		return
	}
	delete(r.failing, s.name)
	s.followed = err == nil
	if err == nil || errors.Is(err, errInterrupted) {
		s.failures = 0
		r.settle()
		return
	}
	if s.failures++; s.failures >= givenUpAfter {
		delete(r.unread, s.name)
		delete(r.doubted, s.name)
	}
	if !errors.Is(err, errAbsent) && !errors.Is(err, context.Canceled) {
		r.failing[s.name], s.absent = err, time.Time{}
		if r.failure == nil {
			r.names.kick()
		}
	}
	r.settle()
}

// step reads a service once. A reading that is not certain only adds: what it lacks is looked for in a certain one.
func (r *reader) step(ctx context.Context, s *service, mayWait bool) error {
	r.mu.Lock()
	if s.foreign {
		s.index = 0
	}
	if s.stale || s.foreign {
		s.stale, s.foreign, s.followed = false, false, false
	}
	r.mu.Unlock()
	q := query{}
	reading := ctx
	if mayWait && s.followed {
		q = query{index: s.index, wait: r.waitOf(s)}
		var cancel context.CancelFunc
		reading, cancel = context.WithCancel(ctx)
		defer cancel()
		r.interruptBy(s, cancel)
		defer r.interruptBy(s, nil)
	}
	began := r.clock.Now()
	instances, m, err := r.client.instances(reading, s.name, q)
	if reading.Err() != nil && ctx.Err() == nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	s.bucket.sized(m.size, r.clock.Now())
	if q.early(m, r.clock.Now().Sub(began)) {
		r.staleAfter(s)
	}
	gone := Missing(s.known, instances)
	if m.index > 0 && m.index >= s.index && len(instances) > 0 && len(gone) == 0 {
		return r.adopt(s, instances, nil, m, "")
	}
	return r.confirm(ctx, s, gone)
}

func (r *reader) interruptBy(s *service, cancel context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.interrupt = cancel; cancel != nil && s.stale {
		cancel()
	}
}

// staleAfter has a service read without waiting next.
func (r *reader) staleAfter(s *service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.stale = true
}

// rewind has all services read at once, after the names have found that the catalog has gone back: readings that wait
// for a newer index than it has would learn of that last. It is called with mu held.
func (c *Catalog) rewind() {
	for _, s := range c.services {
		c.reread(s)
	}
}

// reread has a service read at once. It is called with mu held.
func (c *Catalog) reread(s *service) {
	s.stale, c.doubted[s.name] = true, struct{}{}
	if s.interrupt != nil {
		s.interrupt()
	}
}

// wentBack takes over that a certain reading of a service has a lower index than one before: the names find out whether
// the whole catalog has gone back.
func (r *reader) wentBack(s *service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.doubted[s.name]; known || r.names.doubted {
		return
	}
	r.names.doubted = true
	r.names.kick()
}

// waitOf is called by the goroutine that reads s.
func (r *reader) waitOf(s *service) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.hidden[s.name] != "":
		return hiddenWait
	case r.client.transport.watches() == plainWatches:
		return plainWait
	}
	return watchWait - rand.N(watchWait/4) // so that services that were read together are not for ever
}

// confirm reads a service from the leader, after a reading that lacks instances or is older than one before. Instances
// are gone if a reading lacks them, then Consul says that the token may read them, and then a certain reading, of which
// nothing was filtered, lacks them as well. If there are none at all, the names decide.
func (r *reader) confirm(ctx context.Context, s *service, gone []Instance) error {
	r.count(func(n *Counts) { n.Confirmations++ })
	for again := false; ; again = true {
		asked, lacks := gone, ""
		if len(asked) > 0 {
			var err error
			if lacks, err = r.client.mayRead(ctx, []string{s.name}, nodesOf(asked)); err != nil {
				return err
			}
		}
		instances, m, err := r.client.instances(ctx, s.name, query{certain: true})
		if err != nil {
			return err
		}
		s.bucket.sized(m.size, r.clock.Now())
		gone = Missing(s.known, instances)
		if m.index < s.index {
			r.wentBack(s)
		}
		switch settled := m.index >= s.index || again; {
		case m.filtered:
			return r.adopt(s, instances, gone, m, "node:read or service:read")
		case len(instances) == 0:
			return r.verdict(ctx, s)
		case len(gone) == 0:
			return r.adopt(s, instances, nil, m, "")
		case settled && len(Missing(gone, asked)) == 0 && lacks != "":
			return r.adopt(s, instances, gone, m, lacks)
		case settled && len(Missing(gone, asked)) == 0:
			return r.adopt(s, instances, nil, m, "")
		case !settled && !clock.Sleep(ctx, r.clock, agreeAfter), !r.ready(ctx, s):
			return ctx.Err()
		}
	}
}

// verdict waits until the names have been read after a service was found without instances. If it is gone, ctx ends.
func (r *reader) verdict(ctx context.Context, s *service) error {
	r.mu.Lock()
	if r.services[s.name] == s {
		if s.absent.IsZero() {
			s.absent = r.clock.Now()
		}
		delete(r.unread, s.name)
		delete(r.doubted, s.name)
		if r.failure == nil {
			r.names.kick()
		}
		r.settle()
	}
	changed := r.verdicts.Changed()
	r.mu.Unlock()
	timer := r.clock.NewTimer(verdictWait)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C():
	case <-ctx.Done():
	}
	return errAbsent
}

// adopt takes over a reading, with the instances that it lacks and that stay, and calls the handler if it differs from
// what was handed over last.
func (r *reader) adopt(s *service, instances, kept []Instance, m meta, lacks string) error {
	if len(kept) > 0 {
		instances = Merged(instances, kept)
	}
	hidden := lacks
	if lacks == "" && m.filtered {
		hidden = "node:read or service:read"
	}
	hand := len(instances) > 0 && (!s.read || !sameInstances(s.known, instances))
	if !hand {
		instances = s.known // the same, and shared with the handler
	}
	r.delivering.Lock()
	defer r.delivering.Unlock()
	r.mu.Lock()
	if r.services[s.name] != s {
		r.mu.Unlock()
		return nil
	}
	if total := r.bytes - s.size + m.size; total > maxBytes && m.size > s.size {
		r.mu.Unlock()
		return tooMany(maxBytes)
	}
	r.bytes += m.size - s.size
	s.size = m.size
	if m.index < s.index {
		r.counts.IndexResets++
	}
	s.index, s.absent, s.known, s.read = m.index, time.Time{}, instances, true
	if hand {
		s.nodes = nodesOf(instances)
	}
	delete(r.unread, s.name)
	if delete(r.hidden, s.name); hidden != "" {
		r.hidden[s.name] = hidden
	}
	r.settle()
	r.mu.Unlock()
	if hand {
		r.handler.Service(s.name, instances)
	}
	r.mu.Lock()
	_, doubted := r.doubted[s.name]
	if !s.stale {
		delete(r.doubted, s.name)
	}
	r.mu.Unlock()
	if hand || doubted {
		r.whole()
	}
	return nil
}

func (c *Catalog) count(f func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.counts)
}
