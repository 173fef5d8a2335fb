package rpc

import (
	"context"
	"errors"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"

	"fairlead.dev/pkg/fairshare"
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
	slots *fairshare.Pool

	mu         sync.Mutex
	open       int
	identities map[string]*identity
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
		limits: l, bytes: semaphore.NewWeighted(int64(l.serverBytes)), identities: map[string]*identity{},
		slots: fairshare.New(fairshare.Config{
			Places: l.unauthenticated, PerOwner: l.unauthenticatedPerAddress, Policy: fairshare.Oldest, Spare: handshakeGuarantee,
			Waiting: maxWaiting, WaitingPerOwner: maxWaitingPerAddress, Patience: slotWait,
		}),
	}
}

// admit acquires a slot for a new connection. If there is none for its address, admit waits up to slotWait for one.
// connLimit calls it before the handshake. When the slot is lost, the connection is closed; its handshake or Close logs
// the reason.
func (t *connTracker) admit(raw net.Conn) (*fairshare.Place, error) {
	slot, err := t.slots.Take(origin.Of(raw.RemoteAddr()), 0, func() { _ = raw.Close() })
	if err == nil {
		err = slot.Wait(context.Background())
	}
	if err != nil {
		return nil, errTooManyUnauthenticated
	}
	return slot, nil
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
func (t *connTracker) identify(name string, slot *fairshare.Place) (*identity, error) {
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
	if slot != nil {
		slot.Release()
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
