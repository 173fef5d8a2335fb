package subscription

import (
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// Config of a Client. All fields are required.
type Config struct {
	// Delta is true for the delta variant of the protocol.
	Delta   bool
	Class   Class
	Account Account
	Memory  Memory
	Limits  *Limits
	// EmptyEndpoints holds the empty ClusterLoadAssignments that emptyEndpoints makes.
	EmptyEndpoints *store.Store
	// HostRefused is called for each virtual host beyond MaxOnDemandHosts; first is true for the first one of the
	// client.
	HostRefused func(host string, first bool)
	// NamesRefused is called when the account refuses names that the client would be subscribed to without having
	// requested them. They are left out, and the stream goes on.
	NamesRefused func(reason string)
}

// Limits of one client. Package serve has the defaults.
type Limits struct {
	// MaxSubscribedBytes bounds the names, MaxNameBytes the length of one name.
	MaxSubscribedBytes, MaxNameBytes int
	// MaxOnDemandHosts bounds the virtual hosts that are subscribed to by name.
	MaxOnDemandHosts int
	// MaxResponseBytes is about where a response is split.
	MaxResponseBytes int
	// OrderTimeout bounds how long a response waits for the types that must go before it.
	OrderTimeout time.Duration
}

// Class is the class of the client's proxy.
type Class interface {
	// Plan makes the class build what is listed of a type, if listed, and the names. Release gives names back.
	Plan(url string, listed bool, names []string)
	Release(url string, names []string)
	Snapshot() *plan.Snapshot
	// Failures lists what could not be built of a type.
	Failures(url string) []plan.Failure
	// OnDemand reports whether the proxy holds only the clusters and virtual hosts that it requests by name.
	OnDemand() bool
}

// Account is charged for what the client subscribes to; see quota.Account.
type Account interface {
	ChargeNames(bytes int64) (refused string)
	RefundNames(bytes int64)
	AddWork(names int)
}

// Memory keeps what an on-demand proxy has requested; see ondemand.Memory.
type Memory interface {
	Names(url string) []string
	Remember(url string, names []string)
}

// RefusedError is why the account refuses a name. It ends the client's stream.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Reason }

// Client is all that one client subscribes to, one subscription for each type. It has no lock and does no I/O.
type Client struct {
	cfg     Config
	limits  *Limits
	class   Class
	account Account
	memory  Memory

	// now is when the current event has happened.
	now time.Time
	// served is the newest state of whose changes the client was told (Changed).
	served plan.Point
	// types are the subscriptions, in send order.
	types []*subscription
	// warmingClusters are the clusters sent before the client has subscribed to any endpoints.
	warmingClusters [][]*store.Blob
	// nameBytes counts the names that are kept (MaxSubscribedBytes); chargedNameBytes is what the account is charged
	// for those that the class does not list.
	nameBytes        int
	chargedNameBytes int64
	// freeOwed counts the bytes that oweHeld was called for.
	freeOwed int
	// waitingSince is when a response first had to wait for another type; zero if none waits.
	waitingSince time.Time
	// flushAgain is true if the flush in progress has marked a type dirty that it has passed already.
	flushAgain bool
	acked      plan.Point
	virtualHosts
}

// New makes a client that has subscribed to nothing.
func New(cfg Config) *Client {
	return &Client{cfg: cfg, limits: cfg.Limits, class: cfg.Class, account: cfg.Account, memory: cfg.Memory}
}

// SetServed says up to which state the changes of the class were told, by Changed and Reclassified.
func (c *Client) SetServed(served plan.Point) {
	c.served = served
	for _, sub := range c.types {
		sub.forgetAhead(served)
	}
}

// Outcome is what a request was.
type Outcome struct {
	// Answered is the response that the request acknowledges, or rejects if its Rejection is set; nil if it does
	// neither.
	Answered *Response
	// Changed is true if the client's status may have changed.
	Changed bool
}

// Request handles a request: a subscription, an ACK, a NACK, or two of them in one. Its errors end the stream: they
// have gRPC statuses, or are a RefusedError. Flush has the responses.
func (c *Client) Request(now time.Time, req *wire.Request) (did Outcome, err error) {
	c.now = now
	sub, isNew, err := c.subscriptionFor(req.TypeURL)
	if err != nil {
		return did, err
	}
	if out := sub.outstanding; !c.cfg.Delta && out != nil && out.nonce != "" && out.nonce != req.Nonce {
		c.dropLeftOut(sub, req)
		return did, nil
	}
	did.Answered = c.handleNonce(sub, req.Nonce, req.Failure)
	did.Changed = did.Answered != nil
	switch {
	case !c.cfg.Delta:
		did.Changed, err = true, c.updateSotw(sub, req, isNew)
	case isNew || req.NameTally.Count()+len(req.Unsubscribe) > 0:
		did.Changed, err = true, c.updateDelta(sub, req, isNew)
	}
	return did, err
}

// maxTypes bounds the types of one client. Envoy requests fewer than ten.
const maxTypes = 16

// subscription returns the subscription of a type, nil if there is none.
func (c *Client) subscription(url string) *subscription {
	for _, sub := range c.types {
		if sub.url == url {
			return sub
		}
	}
	return nil
}

// subscriptionFor returns the subscription of a type and whether it is new. New ones are inserted in send order.
func (c *Client) subscriptionFor(url string) (sub *subscription, isNew bool, err error) {
	if sub := c.subscription(url); sub != nil {
		return sub, false, nil
	}
	if len(c.types) >= maxTypes {
		return nil, false, status.Error(codes.ResourceExhausted, "too many types on one stream")
	}
	sub = &subscription{url: url}
	at, _ := slices.BinarySearchFunc(c.types, url, func(other *subscription, url string) int { return compareTypes(other.url, url) })
	c.types = slices.Insert(c.types, at, sub)
	return sub, true, nil
}

// Changed marks changed resources that the client covers, and reports whether there are any. The class calls it after
// it has published them; added are those that are new.
func (c *Client) Changed(changes, added plan.Changes) (dirty bool) {
	for url, names := range changes {
		sub := c.subscription(url)
		if sub == nil {
			continue
		}
		for _, name := range names {
			dirty = c.markChanged(sub, name) || dirty
		}
		if url == resource.ClusterType {
			for _, name := range added[url] {
				c.noteNewCluster(sub, name)
			}
		}
	}
	return dirty
}

// Replan makes another class plan what the client subscribes to. Reclassified must follow.
func (c *Client) Replan() {
	for _, sub := range c.types {
		sub.planned = false
		c.plan(sub, sub.names.Names())
	}
}

// Reclassified marks what differs between the class before, and the changes that it has not told, and the one now.
// release is called for the names that the class before must release.
func (c *Client) Reclassified(before *plan.Snapshot, undelivered plan.Changes, release func(url string, names []string)) {
	after := c.class.Snapshot()
	for _, sub := range c.types {
		c.markDifferencesDirty(sub, before.Type(sub.url), after.Type(sub.url))
		for _, name := range undelivered[sub.url] {
			c.markChanged(sub, name)
		}
		release(sub.url, sub.names.Names())
	}
}

// Sent notes that a response is being sent, with a nonce.
func (c *Client) Sent(now time.Time, out *Response, nonce string) {
	out.nonce, out.SentAt = nonce, now
	if sub := c.subscription(out.TypeURL); sub != nil {
		sub.sent = out.Revision
		sub.bytes += uint64(out.Size) //nolint:gosec // sizes are not negative
	}
}

// Waiting reports whether a response is outstanding or waits to be sent.
func (c *Client) Waiting() bool {
	return slices.ContainsFunc(c.types, func(sub *subscription) bool { return sub.pending() || sub.deferred.Len() > 0 })
}

// Settled reports whether the client has subscribed to something, and waits neither for a response nor with an answer.
func (c *Client) Settled() bool {
	return len(c.types) > 0 && !slices.ContainsFunc(c.types, func(sub *subscription) bool { return !sub.answered || sub.pending() })
}

// Close gives everything back to the class, unless the client never joined one, and to the account.
func (c *Client) Close(joined bool) {
	for _, sub := range c.types {
		if joined && !sub.names.Shared() {
			c.class.Release(sub.url, sub.names.Names())
		}
	}
	c.account.RefundNames(c.chargedNameBytes)
	c.types, c.warmingClusters, c.virtualHosts, c.chargedNameBytes = nil, nil, virtualHosts{}, 0
}

// Kept returns how many names are subscribed to, how many names are kept in all, and the bytes that count against
// MaxSubscribedBytes.
func (c *Client) Kept() (subscribed, kept, bytes int) {
	for _, sub := range c.types {
		subscribed += sub.names.Len()
		for _, set := range []*nameset.Set{&sub.unconfirmedRemovals, &sub.absent, &sub.dirty, &sub.requested, &sub.deferred} {
			kept += set.Len()
		}
		if sub.outstanding != nil {
			kept += len(sub.outstanding.Removed)
		}
		kept += len(sub.rejectedVersions)
	}
	for _, held := range c.initialHosts {
		kept += len(held)
	}
	return subscribed, subscribed + kept + c.refusedHosts.Len(), c.nameBytes
}
