package subscription

import (
	"slices"

	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// updateSotw applies the names of a request, which always lists all names of the subscription.
func (c *Client) updateSotw(sub *subscription, req *wire.Request, isNew bool) error {
	wasWildcard := sub.wildcard
	sub.updateWildcard(req, isNew)
	added, gone := sub.diffNames(req.Names())
	c.account.AddWork(req.NameTally.Count()/comparedNames + len(added) + len(gone))
	if err := c.subscribe(sub, added); err != nil {
		return err
	}
	c.unsubscribe(sub, gone)
	if sub.wildcard {
		if err := c.owe(sub, slices.DeleteFunc(gone, func(name string) bool { return !sub.dirty.Has(name) })); err != nil {
			return err
		}
	}
	current := c.class.Snapshot().Type(sub.url)
	if isNew {
		// For a wildcard type, the version in the first request tells what the client holds. For named resources it
		// does not: the client may have dropped a name and requested it again, and still states the version of the
		// response before.
		if sub.wildcard && sub.names.Len() == 0 && req.Version == current.Version() {
			sub.answered = true
			sub.noteAcked(c.allResources(sub, current))
			return nil
		}
		c.markAllDirty(sub, current)
		c.requestWarmingEndpoints(sub)
		sub.responseDue = sub.wildcard
		return nil
	}
	for _, name := range added {
		c.markRequested(sub, name)
	}
	if sub.wildcard && !wasWildcard {
		c.markAllDirty(sub, current)
		sub.responseDue = true
	}
	return nil
}

// dropLeftOut handles a sotw request with a stale nonce, which changes the subscription no further: the client has
// already dropped the resources whose names the request leaves out. If it requests one again, the resource must be sent
// again.
func (c *Client) dropLeftOut(sub *subscription, req *wire.Request) {
	if !sub.wildcard {
		_, gone := sub.diffNames(req.Names())
		c.unsubscribe(sub, gone)
	}
}

// diffNames lists the names of a sotw request that the subscription lacks, and those of the subscription that the
// request lacks.
func (sub *subscription) diffNames(wanted []string) (added, gone []string) {
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return name == "*" })
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for _, name := range wanted {
		if !sub.names.Has(name) {
			added = append(added, name)
		}
	}
	for name := range sub.names.All() {
		if _, ok := slices.BinarySearch(wanted, name); !ok {
			gone = append(gone, name)
		}
	}
	return added, gone
}
