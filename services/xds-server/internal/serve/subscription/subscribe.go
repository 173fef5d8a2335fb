package subscription

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// manyNames is the number of names from which a client is expected to request all that its class lists.
const manyNames = 16

// subscribe adds names to a subscription, plans them in the class and charges the account.
func (c *Client) subscribe(sub *subscription, names []string) error {
	if len(names) > manyNames {
		var t plan.Tally
		for _, name := range names {
			t.AddString(name)
		}
		if done, err := c.subscribeListing(sub, t); done {
			return err
		}
	}
	for part := range slices.Chunk(names, planAtOnce) {
		if err := c.subscribePart(sub, part); err != nil {
			return err
		}
	}
	c.plan(sub, nil)
	return nil
}

// planAtOnce is how many names are planned before other streams and revisions get their turn: less than 1 ms.
const planAtOnce = 64

func (c *Client) subscribePart(sub *subscription, names []string) error {
	var added []string
	for _, name := range names {
		if name == "*" {
			continue
		}
		if len(name) > c.limits.MaxNameBytes {
			return status.Errorf(codes.InvalidArgument, "resource name of %d bytes, at most %d are taken", len(name), c.limits.MaxNameBytes)
		}
		if sub.names.Has(name) {
			continue
		}
		if err := c.countName(name); err != nil {
			return err
		}
		added = append(added, name)
	}
	slices.Sort(added)
	for i := len(added) - 1; i > 0; i-- {
		if added[i] == added[i-1] {
			c.uncountName(added[i])
		}
	}
	added = slices.Compact(added)
	sub.names.Add(added)
	if len(added) == 0 {
		return nil
	}
	c.plan(sub, added)
	return c.chargeNewNames(sub, added)
}

// subscribeListing does the work of subscribe for a client that requests by name exactly what its class lists. The
// stream then shares the names of the listing, and they need not be planned one by one.
func (c *Client) subscribeListing(sub *subscription, names plan.Tally) (done bool, err error) {
	if names.Count() <= manyNames || sub.names.Len() > 0 || sub.wildcard || sub.url == resource.VirtualHostType {
		return false, nil
	}
	c.class.Plan(sub.url, false, nil)
	l := c.class.Snapshot().Type(sub.url).Listing("")
	if !l.HasNames(names) {
		return false, nil
	}
	if c.nameBytes += l.NameBytes + len(l.Names)*nameOverhead; c.nameBytes > c.limits.MaxSubscribedBytes {
		return true, errTooManyNames
	}
	sub.names.SetShared(l.Names)
	return true, nil
}

// plan makes the class build what the subscription has added. The stream keeps the class's copy of each name, so that
// the text is shared.
func (c *Client) plan(sub *subscription, added []string) {
	listed := sub.wildcard || sub.url == resource.VirtualHostType
	if len(added) == 0 && (!listed || sub.planned) {
		return
	}
	c.class.Plan(sub.url, listed, added)
	sub.planned = listed || sub.planned
	current := c.class.Snapshot().Type(sub.url)
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob != nil {
			sub.names.Intern(item.Blob.Name())
		}
	}
}

func (c *Client) unsubscribe(sub *subscription, names []string) {
	var dropped []string
	for _, name := range names {
		if !sub.names.Remove(name) {
			continue
		}
		c.uncountName(name)
		if sub.chargedNames.Remove(name) {
			c.refundAccount(len(name) + quota.NameCost)
		}
		sub.absent.Remove(name)
		sub.requested.Remove(name)
		sub.deferred.Remove(name)
		if !sub.wildcard {
			sub.dirty.Remove(name)
			c.forgetOwed(sub, name)
			delete(sub.rejectedVersions, name)
		}
		if !sub.complete() {
			delete(sub.ackedBlobs, name)
		}
		if sub.url == resource.RouteType {
			c.dropRouteConfig(name)
		}
		dropped = append(dropped, name)
	}
	for part := range slices.Chunk(dropped, planAtOnce) {
		c.class.Release(sub.url, part)
	}
}

// comparedNames names that are only compared count as one name that is looked up.
const comparedNames = 64
