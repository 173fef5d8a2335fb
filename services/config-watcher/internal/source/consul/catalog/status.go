package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// State says in a word how the reading does.
type State string

// States, of which the first that applies counts.
const (
	// Forbidden: Consul refuses the token, or may hide something from it. Nothing is removed that may be hidden.
	Forbidden State = "FORBIDDEN"
	// Away: Consul cannot be read now, because nobody answers, it has no leader, or the answers are of no use.
	Away State = "AWAY"
	// Syncing: not everything has been read once.
	Syncing State = "SYNCING"
	// Partial: some services cannot be read.
	Partial State = "PARTIAL"
	// Limited: there are more services than may be watched at once, and the others are read in turn.
	Limited State = "LIMITED"
	Synced  State = "SYNCED"
)

// States are all states.
var States = []State{Forbidden, Away, Syncing, Partial, Limited, Synced}

// Status tells how a Catalog does.
type Status struct {
	// Synced is true after the names and every service were read once; a service that fails again and again is not
	// waited for.
	Synced bool
	State  State
	// Since is when State began.
	Since time.Time
	// Degraded is what is the matter, and what to do; nil if State is Syncing or Synced. What was known last stays.
	Degraded error
	Counts
}

// Counts are numbers of a Status.
type Counts struct {
	// Services that are selected; Watches of them, and Polled, which are read in turn for want of a watch.
	Services, Watches, Polled int
	// Requests made, of which Confirmations were made because a reading lacked something. IndexResets are readings with
	// a lower index than one before, as after a snapshot was restored.
	Requests, Confirmations, IndexResets uint64
}

// Synced returns a channel that is closed when Status.Synced becomes true.
func (c *Catalog) Synced() <-chan struct{} { return c.synced }

// Status may be called at any time.
func (c *Catalog) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := Status{Synced: c.inSync, State: c.state, Since: c.since, Counts: c.counts}
	st.Services, st.Watches, st.Polled = len(c.services), c.watching, len(c.polled)
	if what, remedy := c.matter(); what != "" {
		st.Degraded = fmt.Errorf("Consul at %s: %s, what was known last stays; %s", c.cfg.Address, what, remedy)
	}
	return st
}

// settle computes the state after a change. It is called with mu held.
func (c *Catalog) settle() {
	if !c.inSync && c.names.read && len(c.unread) == 0 && (len(c.services) > 0 || !c.names.filtered && !c.anonymous) {
		c.inSync = true
		close(c.synced)
	}
	if s := c.stateNow(); s != c.state {
		c.state, c.since = s, c.clock.Now()
	}
}

func (c *Catalog) stateNow() State {
	switch {
	case c.failure != nil && forbidden(c.failure):
		return Forbidden
	case c.failure != nil:
		return Away
	case c.names.read && (c.names.filtered || c.anonymous), len(c.hidden) > 0, len(c.names.kept) > 0:
		return Forbidden
	case !c.inSync:
		return Syncing
	case len(c.failing) > 0:
		return Partial
	case len(c.polled) > 0:
		return Limited
	}
	return Synced
}

const (
	readRights   = `give the token service:read on the services and node:read on their nodes (service_prefix "" and node_prefix "")`
	answerRemedy = "look after its agent and servers, and at the address, the CA and the client certificate of the registry"
)

// matter says what is the matter, and what to do.
func (c *Catalog) matter() (what, remedy string) {
	switch {
	case c.failure != nil && forbidden(c.failure):
		return fmt.Sprintf("the token is refused: %v", c.failure), "give the registry a token that is valid, with service:read and node:read"
	case c.failure != nil:
		return fmt.Sprintf("it cannot be read: %v", c.failure), answerRemedy
	case c.anonymous:
		return "ACLs are on and the registry has no token, so that what is gone cannot be told from what is hidden",
			"give it a token; " + readRights
	case len(c.names.kept) > 0:
		name := slices.Min(slices.Collect(maps.Keys(c.names.kept)))
		return fmt.Sprintf("service %s is not shown for want of %s", named(c.names.kept), c.names.kept[name]), readRights
	case len(c.hidden) > 0:
		name := slices.Min(slices.Collect(maps.Keys(c.hidden)))
		return fmt.Sprintf("instances of service %s are not shown for want of %s", named(c.hidden), c.hidden[name]), readRights
	case c.names.filtered:
		return "some services are not shown for want of service:read or node:read", readRights
	case len(c.failing) > 0:
		name := slices.Min(slices.Collect(maps.Keys(c.failing)))
		return fmt.Sprintf("service %s cannot be read: %v", named(c.failing), c.failing[name]),
			"look at the answer of GET " + servicePath + "NAME"
	case len(c.polled) > 0:
		return fmt.Sprintf("%d of %d services are read in turn, every %s or less often", len(c.polled), len(c.services), pollInterval),
			"use an https address, whose HTTP/2 has room for a watch of each service"
	}
	return "", ""
}

// maxNamed bounds the services that an error names.
const maxNamed = 3

func named[V any](of map[string]V) string {
	names := slices.Sorted(maps.Keys(of))
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	for i := range names {
		names[i] = fmt.Sprintf("%q", names[i])
	}
	return strings.Join(names, ", ") + more
}
