package rpc

import (
	"errors"
	"time"
)

// Defaults of ServerConfig's limits. docs/security.md says what happens beyond each.
const (
	DefaultMaxRecvBytes         = 4 << 20
	DefaultMaxHeaderBytes       = 32 << 10
	DefaultMaxConnections       = 10_000
	DefaultMaxConcurrentStreams = 256

	// DefaultMaxUnauthenticated is how many connections may be unauthenticated: an idle one costs 37 KiB with TLS, so
	// all of them cost 37 MiB. The default is a tenth of MaxConnections if that is less.
	DefaultMaxUnauthenticated = 1000
	// DefaultMaxUnauthenticatedPerAddress leaves room for other addresses: it is a quarter of
	// DefaultMaxUnauthenticated, and the default is a quarter of MaxUnauthenticated if that is less. 1,000 sidecars
	// that start behind one address pass through it within a second or two, since each gives up its slot after its
	// handshake.
	DefaultMaxUnauthenticatedPerAddress = DefaultMaxUnauthenticated / 4
	// DefaultUnauthenticatedTimeout is ten times what a client needs on a busy machine to connect and make its first
	// call.
	DefaultUnauthenticatedTimeout = 15 * time.Second
	// DefaultMessageTimeout is how long a short message may take to arrive; a long one has as much more as it takes at
	// 256 KiB/s.
	DefaultMessageTimeout = 30 * time.Second
	// DefaultMaxConnectionAge bounds how long a connection stays open after its certificate or token was verified.
	DefaultMaxConnectionAge = time.Hour
	// DefaultMaxConnectionAgeGrace is longer than any call takes except watches, which clients open again.
	DefaultMaxConnectionAgeGrace = 5 * time.Minute
	// DefaultKeepaliveTime and DefaultKeepaliveTimeout are of servers and of clients: a ping after so long without a
	// frame, and the end of the connection without an answer.
	DefaultKeepaliveTime    = 30 * time.Second
	DefaultKeepaliveTimeout = 10 * time.Second
	// DefaultKeepaliveMinTime is how often a server lets clients ping.
	DefaultKeepaliveMinTime = 5 * time.Second
)

const (
	// connectionAllowance is how many bytes one connection may make the server hold without a reservation from its
	// identity's budget. An unauthenticated connection may hold no more than that. It is a hundred times a health
	// check, and more than most requests of a proxy; 10,000 connections hold at most 160 MiB of it.
	connectionAllowance = 16 << 10
	// budgetStep is the granularity of a connection's reservation from its identity's budget.
	budgetStep = 64 << 10
	// budgetWait is how long the server stops reading from a connection while the budget has no room for its message.
	// It is shorter than clients' keepalive.
	budgetWait = 10 * time.Second
	// identitiesAtOnce is how many identities may use their whole budget at once before others wait.
	identitiesAtOnce = 4
	// maxRefusedCalls is how many refused calls one connection may make before it is closed.
	maxRefusedCalls = 100
	// maxUnauthenticatedCalls is how many calls an unauthenticated connection may have at once.
	maxUnauthenticatedCalls = 8
	// slotWait is how long a new connection waits for a slot; the rest of gRPC's 10 s is for its handshake.
	slotWait = 5 * time.Second
	// handshakeGuarantee is how long after it acquired its slot, and slotGuarantee how long after its handshake, an
	// unauthenticated connection cannot be evicted for one of an address that has about as many slots. By then
	// Fairlead's clients have authenticated or given up.
	slotGuarantee      = 3 * time.Second
	handshakeGuarantee = 5 * time.Second
	// maxWaitingPerAddress and maxWaiting bound the connections that wait for a slot; each costs a goroutine and some
	// KiB of the kernel.
	maxWaitingPerAddress = 1024
	maxWaiting           = 4096
	// expiryLeeway tolerates clocks that differ a little: calls are refused at the moment of expiry, and the connection
	// is closed this much later.
	expiryLeeway = time.Second
)

// limits are the fields of ServerConfig that concern connections, with defaults filled in.
type limits struct {
	connections, connectionsPerIdentity, callsPerIdentity int
	unauthenticated, unauthenticatedPerAddress            int
	unauthenticatedTimeout, messageTimeout                time.Duration
	message, identityBytes, serverBytes                   int
}

// completeLimits fills in the defaults, and refuses limits that contradict each other.
func (c *ServerConfig) completeLimits() error {
	for _, n := range []int{
		c.MaxRecvBytes, c.MaxConnections, c.MaxConnectionsPerIdentity, c.MaxCallsPerIdentity, c.MaxUnauthenticated,
		c.MaxUnauthenticatedPerAddress,
		c.MaxIdentityBytes, int(c.UnauthenticatedTimeout), int(c.MessageTimeout), int(c.MaxConnectionAgeGrace),
	} {
		if n < 0 {
			return errors.New("a limit is negative")
		}
	}
	orDefault(&c.MaxRecvBytes, DefaultMaxRecvBytes)
	orDefault(&c.MaxHeaderBytes, DefaultMaxHeaderBytes)
	orDefault(&c.MaxConnections, DefaultMaxConnections)
	orDefault(&c.MaxConcurrentStreams, DefaultMaxConcurrentStreams)
	orDefault(&c.MaxUnauthenticated, min(DefaultMaxUnauthenticated, max(c.MaxConnections/10, 16)))
	orDefault(&c.MaxUnauthenticatedPerAddress, min(DefaultMaxUnauthenticatedPerAddress, max(c.MaxUnauthenticated/4, 1)))
	orDefault(&c.UnauthenticatedTimeout, DefaultUnauthenticatedTimeout)
	orDefault(&c.MessageTimeout, DefaultMessageTimeout)
	// Two of the longest messages at once, with the overhead of their frames.
	orDefault(&c.MaxIdentityBytes, 2*c.MaxRecvBytes+c.MaxRecvBytes/16+16*budgetStep)
	if c.MaxIdentityBytes < c.MaxRecvBytes+c.MaxRecvBytes/32+2*budgetStep {
		return errors.New("MaxIdentityBytes leaves no room for one message of MaxRecvBytes")
	}
	if len(c.PeerUIDs) > 0 { // all connections count for one identity
		orDefault(&c.MaxConnectionsPerIdentity, c.MaxConnections)
	}
	if c.Authenticator == nil {
		orDefault(&c.MaxCallsPerIdentity, c.MaxConnections*int(c.MaxConcurrentStreams))
	}
	orDefault(&c.MaxConnectionsPerIdentity, max(c.MaxConnections/4, min(c.MaxConnections, 64)))
	orDefault(&c.MaxCallsPerIdentity, max(c.MaxConnections, int(c.MaxConcurrentStreams)))
	if len(c.PeerUIDs) == 0 { // the user id of a unix socket's peer does not expire
		orDefault(&c.MaxConnectionAge, DefaultMaxConnectionAge)
	}
	c.MaxConnectionAge = max(c.MaxConnectionAge, 0)
	orDefault(&c.MaxConnectionAgeGrace, DefaultMaxConnectionAgeGrace)
	return nil
}

func (c *ServerConfig) limits() limits {
	return limits{
		connections: c.MaxConnections, connectionsPerIdentity: c.MaxConnectionsPerIdentity, callsPerIdentity: c.MaxCallsPerIdentity,
		unauthenticated: c.MaxUnauthenticated, unauthenticatedPerAddress: c.MaxUnauthenticatedPerAddress,
		unauthenticatedTimeout: c.UnauthenticatedTimeout, messageTimeout: c.MessageTimeout,
		message: c.MaxRecvBytes, identityBytes: c.MaxIdentityBytes, serverBytes: identitiesAtOnce * c.MaxIdentityBytes,
	}
}
