package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/pkg/tlsconf"
)

// conn is a connection of a server. Read is called by gRPC's goroutine that reads frames and runs the tap; the other
// methods may be called by any goroutine.
type conn struct {
	net.Conn
	raw   net.Conn
	limit *connLimit
	// bounded is what TLS reads from: it ends a handshake message that is too long, during the handshake or later.
	bounded *tlsconf.BoundedConn
	// ahead has been read from the connection and not returned by Read yet; readErr is the error that came after it.
	// Only Read uses them.
	ahead   []byte
	readErr error

	mu     sync.Mutex
	meter  meter
	closed bool
	// ended is set once reading has failed, mostly because the client has closed.
	ended bool
	// slot is held while the connection is unauthenticated; owner is the identity of any other connection.
	slot  *fairshare.Place
	owner *identity
	since time.Time
	// expires is when the client's certificate expires; zero without one.
	expires time.Time
	// reserved is how many bytes of the owner's budget the connection holds. stop cancels the wait for more; nil if
	// there is none.
	reserved int
	stop     context.CancelFunc
	// timer calls expire at due.
	timer *time.Timer
	due   time.Time
	// logged is set once the reason for closing has been logged.
	logged bool
	// refused counts refused calls. anonymous counts the calls that run while the connection is unauthenticated.
	refused, anonymous int
}

func newConn(inner, raw net.Conn, bounded *tlsconf.BoundedConn, l *connLimit, slot *fairshare.Place) *conn {
	return &conn{Conn: inner, raw: raw, bounded: bounded, limit: l, meter: newMeter(l.tracker.limits.message), slot: slot, since: slot.Since()}
}

// Read returns what has arrived, up to the end of the first header block in it. It does not read from the client while
// the budget has no room for what the connection's calls make the server hold.
func (c *conn) Read(p []byte) (int, error) {
	if err := c.reserve(); err != nil {
		return 0, err
	}
	if len(c.ahead) > 0 {
		n := c.count(p[:copy(p, c.ahead)])
		if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
			c.ahead = nil
		}
		return n, nil
	}
	if c.readErr != nil {
		return 0, c.readErr
	}
	c.bounded.Renew()
	n, err := c.Conn.Read(p)
	if err != nil {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
	}
	handed := c.count(p[:n])
	if handed < n {
		c.ahead, c.readErr, err = append([]byte(nil), p[handed:n]...), err, nil
	}
	return handed, err
}

// count feeds p to the meter and returns how much of it Read may return.
func (c *conn) count(p []byte) int {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.meter.feed(p, now)
	if c.meter.unfinished > 0 {
		c.arm(now.Add(c.limit.tracker.limits.messageTimeout))
	}
	return n
}

// reserve waits until the connection holds enough of its owner's budget for what its calls make the server hold, which
// includes the rest of messages that have begun. Read calls it. An error closes the connection.
func (c *conn) reserve() error {
	c.mu.Lock()
	held, blocks := c.meter.held, c.meter.blocks
	needed := c.needed()
	missing, owner := needed-c.reserved, c.owner
	c.mu.Unlock()
	switch {
	case blocks > maxRefusedCalls:
		return c.closeWith("refusals", errors.New("too many header blocks that make no call"))
	case owner == nil && held > connectionAllowance:
		return c.closeWith("bytes", fmt.Errorf("calls without credentials hold more than %d bytes", connectionAllowance))
	case owner == nil || missing <= 0:
		return nil
	case needed > c.limit.tracker.limits.identityBytes:
		return c.closeWith("bytes", fmt.Errorf("unfinished messages of one connection need more than %d bytes",
			c.limit.tracker.limits.identityBytes))
	}
	if !c.tryReserve(owner, missing) {
		if err := c.waitReserve(owner, missing); err != nil {
			return c.closeWith("bytes", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved += missing
	c.releaseExcess()
	return nil
}

// needed is how much of its owner's budget the connection must hold, in steps of budgetStep. It is called with mu held.
func (c *conn) needed() int {
	if c.closed || c.owner == nil || c.meter.held <= connectionAllowance {
		return 0
	}
	return (c.meter.held - connectionAllowance + budgetStep - 1) / budgetStep * budgetStep
}

// tryReserve takes n bytes from the budgets of the owner and of the server if both have room.
func (c *conn) tryReserve(owner *identity, n int) bool {
	if !owner.bytes.TryAcquire(int64(n)) {
		return false
	}
	if !c.limit.tracker.bytes.TryAcquire(int64(n)) {
		owner.bytes.Release(int64(n))
		return false
	}
	return true
}

// waitReserve waits up to budgetWait for n bytes of both budgets.
func (c *conn) waitReserve(owner *identity, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), budgetWait)
	defer cancel()
	began := time.Now()
	c.mu.Lock()
	c.stop = cancel
	if c.closed {
		cancel()
	}
	c.mu.Unlock()
	err := acquireAll(ctx, n, owner.bytes, c.limit.tracker.bytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop = nil
	c.meter.forgive(time.Since(began))
	if err != nil {
		return fmt.Errorf("no room for its messages within %s", budgetWait)
	}
	return nil
}

// acquireAll takes n of every semaphore, or of none if it fails.
func acquireAll(ctx context.Context, n int, from ...*semaphore.Weighted) error {
	for i, s := range from {
		if err := s.Acquire(ctx, int64(n)); err != nil {
			for _, s := range from[:i] {
				s.Release(int64(n))
			}
			return err
		}
	}
	return nil
}

// releaseExcess returns what the connection has reserved and needs no longer. It is called with mu held.
func (c *conn) releaseExcess() {
	excess := c.reserved - c.needed()
	if excess <= 0 || c.owner == nil {
		return
	}
	c.reserved -= excess
	c.owner.bytes.Release(int64(excess))
	c.limit.tracker.bytes.Release(int64(excess))
}

// identify counts the connection for an identity, unless it has one or is closed.
func (c *conn) identify(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owner != nil || c.closed {
		return nil
	}
	owner, err := c.limit.tracker.identify(name, c.slot)
	if err == nil {
		c.owner, c.slot = owner, nil
	}
	return err
}

// schedule arms the timer for the first known deadline. connLimit calls it after the handshake.
func (c *conn) schedule() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, _ := c.deadline(); !at.IsZero() {
		c.arm(at)
	}
}

// arm makes the timer call expire at the given time or earlier. It is called with mu held.
func (c *conn) arm(at time.Time) {
	if c.closed || !c.due.IsZero() && !at.Before(c.due) {
		return
	}
	c.due = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), c.expire)
	} else {
		c.timer.Reset(time.Until(at))
	}
}

// deadline returns when the connection must be closed in its present state, and the metric's label for that; zero if
// there is no deadline. It is called with mu held.
func (c *conn) deadline() (at time.Time, reason string) {
	limits := &c.limit.tracker.limits
	earlier := func(t time.Time, why string) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at, reason = t, why
		}
	}
	earlier(c.expires, "expired")
	if c.owner == nil {
		earlier(c.since.Add(limits.unauthenticatedTimeout), "unauthenticated")
	}
	if c.stop == nil { // otherwise the server does not read, and the client cannot finish a message
		earlier(c.meter.due(limits.messageTimeout), "message")
	} else {
		earlier(time.Now().Add(limits.messageTimeout), "message")
	}
	return at, reason
}

// deadlineError is the error that is logged when a deadline has passed.
func deadlineError(reason string) error {
	switch reason {
	case "expired":
		return errors.New("its certificate has expired")
	case "unauthenticated":
		return errors.New("no call was authenticated in time")
	default:
		return errors.New("a message that had begun was not finished in time")
	}
}

// expire closes the connection if a deadline has passed, and otherwise arms the timer for the next. The timer calls it.
func (c *conn) expire() {
	c.mu.Lock()
	c.due = time.Time{}
	at, reason := c.deadline()
	overdue := !at.IsZero() && !at.After(time.Now())
	if !overdue && !at.IsZero() {
		c.arm(at)
	}
	overdue = overdue && !c.closed
	c.mu.Unlock()
	if overdue {
		_ = c.closeWith(reason, deadlineError(reason))
	}
}

// closeWith closes the connection from the server's side. It counts and logs the reason the first time, and returns
// err.
func (c *conn) closeWith(reason string, err error) error {
	c.mu.Lock()
	logged, owner := c.logged || c.closed, c.owner
	c.logged = true
	if c.stop != nil {
		c.stop()
	}
	c.mu.Unlock()
	if !logged {
		name := ""
		if owner != nil {
			name = owner.name
		}
		c.limit.logRejected(c.raw, reason, name, err)
	}
	_ = c.raw.Close() // not c.Conn: TLS would wait for a write in progress
	return err
}

// Close releases all that the connection holds and counts for. gRPC calls it.
func (c *conn) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.stop != nil {
		c.stop()
	}
	c.releaseExcess()
	slot, owner, logged, ended := c.slot, c.owner, c.logged, c.ended
	c.mu.Unlock()
	if first {
		t := c.limit.tracker
		t.uncountConn()
		if owner != nil {
			t.releaseIdentity(owner)
		} else {
			slot.Release()
		}
		if owner == nil && slot.Lost() && !logged {
			c.limit.logRejected(c.raw, "address", "", errTooManyUnauthenticated)
		}
	}
	if ended { // TLS would send an alert to nobody
		return c.raw.Close()
	}
	return c.Conn.Close()
}

// refusedCall closes the connection after maxRefusedCalls refused calls. The tap calls it.
func (c *conn) refusedCall() {
	c.mu.Lock()
	c.refused++
	enough := c.refused == maxRefusedCalls
	c.meter.blocks = 0
	c.mu.Unlock()
	if enough {
		_ = c.closeWith("refusals", errors.New("too many refused calls"))
	}
}

// RemoteAddr returns an address that carries the connection: the tap sees only the peer's address and finds the
// connection by it.
func (c *conn) RemoteAddr() net.Addr { return connAddr{Addr: c.Conn.RemoteAddr(), conn: c} }

type connAddr struct {
	net.Addr
	conn *conn
}
