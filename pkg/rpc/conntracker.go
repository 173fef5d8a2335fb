package rpc

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"fairlead.dev/pkg/origin"
)

// connTracker decides which connections a server accepts and counts them. A connection is unauthenticated until its
// client has proved an identity, with a certificate or with a call's token. Each unauthenticated connection holds a
// slot; slots are few, limited per address, and may be taken away. Once a client has proved its identity, its
// connection gives up the slot and counts for that identity.
type connTracker struct {
	limits limits
	// bytes is the budget that the unfinished messages of all identities share.
	bytes *semaphore.Weighted

	mu              sync.Mutex
	open            int
	unauthenticated int
	// waiting is how many connections wait for a slot.
	waiting    int
	addresses  map[string]*address
	identities map[string]*identity
}

// address holds the unauthenticated connections of one origin, see origin.Of.
type address struct {
	name string
	// holding lists the *slot of its unauthenticated connections, waiting those of connections that wait for one; both
	// oldest first.
	holding, waiting list.List
}

// slot is the right of one connection to be unauthenticated.
type slot struct {
	address *address
	raw     net.Conn
	since   time.Time
	// guaranteed is how long after since the connection cannot be evicted.
	guaranteed time.Duration
	// element is the place in address.holding; nil before the slot is acquired and after it is removed.
	element *list.Element
	// granted is closed when a waiting connection gets the slot that another released; nil if it did not wait.
	granted chan struct{}
	// evicted is set when the server closes the connection to free its slot for another.
	evicted bool
}

// identity counts what all connections of one identity use together.
type identity struct {
	name         string
	bytes        *semaphore.Weighted
	conns, calls int
}

var (
	errTooManyConnections     = errors.New("too many connections")
	errTooManyUnauthenticated = errors.New("too many connections that have not authenticated")
	errTooManyOfIdentity      = errors.New("too many connections of this identity")
	errTooManyCalls           = errors.New("too many calls of this identity at once")
	errTooManyAnonymous       = errors.New("too many calls without credentials on one connection")
)

func newConnTracker(l limits) *connTracker {
	return &connTracker{
		limits: l, bytes: semaphore.NewWeighted(int64(l.serverBytes)),
		addresses: map[string]*address{}, identities: map[string]*identity{},
	}
}

// admit acquires a slot for a new connection. If there is none for its address, admit waits up to slotWait for one. If
// err is not nil, reason is the metric's label. connLimit calls it before the handshake.
func (t *connTracker) admit(raw net.Conn) (s *slot, reason string, err error) {
	t.mu.Lock()
	a := t.address(raw)
	s = &slot{address: a, raw: raw, since: time.Now(), guaranteed: handshakeGuarantee}
	if t.freeSlot(a) {
		t.acquire(s)
		t.mu.Unlock()
		return s, "", nil
	}
	if a.waiting.Len() >= maxWaitingPerAddress || t.waiting >= maxWaiting {
		t.forget(a)
		t.mu.Unlock()
		return nil, "address", errTooManyUnauthenticated
	}
	s.granted = make(chan struct{})
	element := a.waiting.PushBack(s)
	t.waiting++
	t.mu.Unlock()
	if t.waitSlot(s, element) {
		return s, "", nil
	}
	return nil, "address", errTooManyUnauthenticated
}

// waitSlot waits until another connection releases its slot to s, or can be evicted. It reports whether s was acquired.
func (t *connTracker) waitSlot(s *slot, element *list.Element) bool {
	ctx, cancel := context.WithTimeout(context.Background(), slotWait)
	defer cancel()
	ticker := time.NewTicker(slotWait / 10)
	defer ticker.Stop()
	for {
		late := false
		select {
		case <-s.granted:
			return true
		case <-ticker.C:
		case <-ctx.Done():
			late = true
		}
		t.mu.Lock()
		select {
		case <-s.granted: // before mu was locked
			t.mu.Unlock()
			return true
		default:
		}
		acquired := t.freeSlot(s.address)
		if acquired || late {
			s.address.waiting.Remove(element)
			t.waiting--
		}
		switch {
		case acquired:
			s.since = time.Now()
			t.acquire(s)
		case late:
			t.forget(s.address)
		}
		t.mu.Unlock()
		if acquired || late {
			return acquired
		}
	}
}

// acquire is called with mu held.
func (t *connTracker) acquire(s *slot) {
	s.element = s.address.holding.PushBack(s)
	t.unauthenticated++
}

// freeSlot reports whether there is a free slot for a now, after it has evicted a connection if it must and may. If a
// has all its slots in use, that is a's oldest. If the server has, it is the oldest of the address with the most slots;
// its guaranteed time protects it only from an address that would have as many then. It is called with mu held.
func (t *connTracker) freeSlot(a *address) bool {
	from := a
	if a.holding.Len() < t.limits.unauthenticatedPerAddress {
		if t.unauthenticated < t.limits.unauthenticated {
			return true
		}
		from = t.largest()
	}
	victim := from.oldest()
	if victim == nil || from.holding.Len() <= a.holding.Len()+1 && time.Since(victim.since) < victim.guaranteed {
		return false
	}
	victim.evicted = true
	t.remove(victim)
	_ = victim.raw.Close() // its handshake or Close logs the reason
	return true
}

// largest returns the address with the most slots; of several, the one that has held a slot the longest. It is called
// with mu held, and while at least one slot is in use.
func (t *connTracker) largest() *address {
	var found *address
	for _, a := range t.addresses {
		if a.holding.Len() == 0 {
			continue
		}
		if found == nil || a.holding.Len() > found.holding.Len() ||
			a.holding.Len() == found.holding.Len() && a.oldest().since.Before(found.oldest().since) {
			found = a
		}
	}
	return found
}

// nextWaiting returns the connection that has waited the longest at the address with the fewest slots, with its place
// in address.waiting; nil if no waiting connection may have a slot. It is called with mu held.
func (t *connTracker) nextWaiting() (found *slot, place *list.Element) {
	if t.waiting == 0 || t.unauthenticated >= t.limits.unauthenticated {
		return nil, nil
	}
	for _, a := range t.addresses {
		first := a.waiting.Front()
		if first == nil || a.holding.Len() >= t.limits.unauthenticatedPerAddress {
			continue
		}
		s, ok := first.Value.(*slot)
		if ok && (found == nil || a.holding.Len() < found.address.holding.Len() ||
			a.holding.Len() == found.address.holding.Len() && s.since.Before(found.since)) {
			found, place = s, first
		}
	}
	return found, place
}

// oldest returns the address's oldest slot in use, nil if there is none. It is called with the tracker's mu held.
func (a *address) oldest() *slot {
	if first := a.holding.Front(); first != nil {
		s, _ := first.Value.(*slot)
		return s
	}
	return nil
}

// remove takes a connection out of the slots in use; it does nothing the second time. It is called with mu held.
func (t *connTracker) remove(s *slot) {
	if s.element == nil {
		return
	}
	s.address.holding.Remove(s.element)
	s.element = nil
	t.unauthenticated--
}

// handshakeDone extends the guaranteed time of a slot. connLimit calls it after a successful handshake.
func (t *connTracker) handshakeDone(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.guaranteed = time.Since(s.since) + slotGuarantee
}

// release gives the slot to the connection that waits at the address with the fewest slots. connLimit and conn.Close
// call it for a connection that is closed before it has authenticated. It reports whether the connection was evicted
// before.
func (t *connTracker) release(s *slot) (evicted bool) {
	if s == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseLocked(s)
	return s.evicted
}

// releaseLocked is called with mu held.
func (t *connTracker) releaseLocked(s *slot) {
	if s.element == nil {
		t.forget(s.address)
		return
	}
	t.remove(s)
	if next, place := t.nextWaiting(); next != nil {
		next.address.waiting.Remove(place)
		t.waiting--
		next.since = time.Now()
		t.acquire(next)
		close(next.granted)
	}
	t.forget(s.address)
}

// address returns the entry of the connection's origin, a new one if there is none. It is called with mu held.
func (t *connTracker) address(raw net.Conn) *address {
	name := origin.Of(raw.RemoteAddr())
	a := t.addresses[name]
	if a == nil {
		a = &address{name: name}
		t.addresses[name] = a
	}
	return a
}

// forget deletes an address without connections. It is called with mu held.
func (t *connTracker) forget(a *address) {
	if a.holding.Len() == 0 && a.waiting.Len() == 0 && t.addresses[a.name] == a {
		delete(t.addresses, a.name)
	}
}

// countConn counts an open connection, or refuses it beyond the server's limit.
func (t *connTracker) countConn() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open >= t.limits.connections {
		return errTooManyConnections
	}
	t.open++
	return nil
}

func (t *connTracker) uncountConn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
}

// identify counts a connection for an identity and releases its slot, if it has one. It fails if the identity has as
// many connections as it may.
func (t *connTracker) identify(name string, s *slot) (*identity, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.identities[name]
	if o == nil {
		o = &identity{name: name, bytes: semaphore.NewWeighted(int64(t.limits.identityBytes))}
		t.identities[name] = o
	}
	if o.conns >= t.limits.connectionsPerIdentity {
		return nil, errTooManyOfIdentity
	}
	o.conns++
	if s != nil {
		t.releaseLocked(s)
	}
	return o, nil
}

// releaseIdentity is called when a connection that identify has counted is closed.
func (t *connTracker) releaseIdentity(o *identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.conns--; o.conns == 0 && t.identities[o.name] == o {
		delete(t.identities, o.name)
	}
}

// beginCall counts a call of an identity, or refuses it beyond the identity's limit.
func (t *connTracker) beginCall(o *identity) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.calls >= t.limits.callsPerIdentity {
		return errTooManyCalls
	}
	o.calls++
	return nil
}

// endCall is called when the stream of a counted call ends.
func (t *connTracker) endCall(o *identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.calls--
}
