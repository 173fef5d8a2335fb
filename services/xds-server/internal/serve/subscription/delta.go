package subscription

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// updateDelta applies the names that the request subscribes to and unsubscribes from. isNew is true for the first
// request of the type on this stream, which also states the client's initial resource versions.
func (c *Client) updateDelta(sub *subscription, req *wire.Request, isNew bool) error {
	wasWildcard := sub.wildcard
	var names []string
	if sub.url != resource.VirtualHostType {
		sub.updateWildcard(req, isNew)
	}
	listed, err := c.subscribeListing(sub, req.NameTally)
	if !listed || !isNew {
		names = req.Names()
	}
	if !listed {
		if sub.url == resource.VirtualHostType {
			names = c.limitHosts(sub, names)
		}
		err = c.subscribe(sub, names)
	}
	c.account.AddWork(len(names) + len(req.Unsubscribe))
	if err != nil {
		return err
	}
	var owed []string
	for _, name := range req.Unsubscribe {
		if sub.wildcard && sub.names.Has(name) {
			// The protocol demands an answer for a name that is unsubscribed while the wildcard still covers it: the
			// resource again, or its removal.
			owed = append(owed, name)
			defer c.markRequested(sub, name)
		}
	}
	c.unsubscribe(sub, req.Unsubscribe)
	if err := c.owe(sub, owed); err != nil {
		return err
	}
	if isNew {
		if err := c.checkHeld(req); err != nil {
			return err
		}
	}
	switch {
	case isNew && sub.url == resource.VirtualHostType:
		if err := c.openVirtualHosts(sub, req); err != nil {
			return err
		}
		if len(names) > 0 { // else the initial versions may stay undecoded
			c.markAllRequested(sub, names, req.Initial())
		}
		if req.InitialTally.Count() > 0 {
			c.remember(sub, sub.names.Names()) // requested in an earlier stream, perhaps of another replica
		}
		return nil
	case isNew:
		return c.openDelta(sub, req)
	}
	c.markAllRequested(sub, names, nil)
	if sub.wildcard && !wasWildcard {
		c.markAllDirty(sub, c.class.Snapshot().Type(sub.url))
		sub.responseDue = true
	}
	return nil
}

// markAllRequested marks names that the client waits for, except those that it holds in the current version.
func (c *Client) markAllRequested(sub *subscription, names []string, held map[string]string) {
	current := c.class.Snapshot().Type(sub.url)
	for _, name := range names {
		if name == "*" || !sub.names.Has(name) {
			continue
		}
		if version, ok := held[name]; ok {
			if item, _ := current.Get(name); item.Blob != nil && item.Blob.Version() == version {
				continue
			}
		}
		c.markRequested(sub, name)
	}
}

// checkHeld bounds the initial resource versions of a request before they are decoded. What is kept of them is charged.
func (c *Client) checkHeld(req *wire.Request) error {
	if size := req.InitialBytes + req.InitialTally.Count()*nameOverhead; size > c.limits.MaxSubscribedBytes {
		return status.Error(codes.ResourceExhausted, "too many resources said to be held on one stream")
	}
	return nil
}

// openDelta handles the first request of a type other than virtual hosts: only what differs from the client's initial
// resource versions is marked dirty.
func (c *Client) openDelta(sub *subscription, req *wire.Request) error {
	current := c.class.Snapshot().Type(sub.url)
	if req.InitialTally.Count() > 0 && c.holdsListing(sub, current, req.InitialTally) {
		c.requestWarmingEndpoints(sub)
		sub.answered = sub.dirty.Len() == 0
		return nil
	}
	held := req.Initial()
	if sub.url == resource.ClusterType && sub.wildcard {
		if c.subscribeHeld(sub, held); len(held) == 0 {
			c.subscribeRemembered(sub)
		}
		current = c.class.Snapshot().Type(sub.url)
	}
	c.markAllDirty(sub, current)
	var gone []string
	for name, version := range held {
		item, _ := current.Get(name)
		switch wanted := sub.wants(name, item); {
		case wanted && item.Blob != nil && item.Blob.Version() == version:
			sub.dirty.Remove(name)
		case wanted:
			c.markDirty(sub, name)
		case sub.wildcard && len(name) <= c.limits.MaxNameBytes:
			gone = append(gone, name)
			c.markDirty(sub, name)
		}
	}
	if err := c.oweHeld(sub, gone); err != nil {
		return err
	}
	c.requestWarmingEndpoints(sub)
	if sub.url == resource.ClusterType && len(held) > 0 {
		c.remember(sub, sub.names.Names()) // requested in an earlier stream, perhaps of another replica
	}
	// A client that holds nothing waits for a response, even an empty one.
	sub.responseDue = sub.wildcard && len(held) == 0
	sub.answered = sub.dirty.Len() == 0 && !sub.responseDue
	if !sub.names.Shared() {
		for _, name := range sub.dirty.Names() {
			if sub.names.Has(name) {
				sub.requested.Add(name)
			}
		}
	}
	if sub.url == resource.RouteType {
		c.openRouteConfigs(sub, held)
	}
	return nil
}

// holdsListing reports whether the subscription covers exactly the resources that the class lists, and the client holds
// all of them in the current versions. It compares tallies; the initial versions stay undecoded.
func (c *Client) holdsListing(sub *subscription, current *plan.TypeSnapshot, held plan.Tally) bool {
	if sub.url == resource.RouteType || sub.wildcard == (sub.names.Len() > 0) {
		return false
	}
	l := current.Listing("")
	return l.HasVersions(held) && (sub.wildcard || sub.names.Shares(l.Names))
}
