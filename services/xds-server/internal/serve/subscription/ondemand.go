package subscription

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// limitHosts returns those of the requested virtual hosts that the stream may subscribe to. The others are answered
// with "not found".
func (c *Client) limitHosts(hosts *subscription, names []string) []string {
	room := c.limits.MaxOnDemandHosts - hosts.names.Len()
	admitted := make([]string, 0, min(max(room, 0), len(names)))
	for _, name := range names {
		switch {
		case name == "*" || hosts.names.Has(name):
			admitted = append(admitted, name)
		case room > 0:
			admitted = append(admitted, name)
			room--
		case len(name) <= c.limits.MaxNameBytes && (c.refusedHosts.Has(name) || c.chargeName(name) == ""):
			c.refusedHosts.Add(name)
			c.cfg.HostRefused(name, !c.hostLimitTold)
			c.hostLimitTold = true
		default:
			c.cfg.HostRefused(name, false)
		}
	}
	return admitted
}

// subscribeHeld subscribes an on-demand client to the resources that it holds and has not named in its request: it has
// requested them on an earlier stream.
func (c *Client) subscribeHeld(sub *subscription, held map[string]string) {
	if !c.class.OnDemand() || len(held) == 0 {
		return
	}
	current := c.class.Snapshot().Type(sub.url)
	var names []string
	for name := range held {
		if item, _ := current.Get(name); !item.Wildcard && !sub.names.Has(name) && len(name) <= c.limits.MaxNameBytes {
			names = append(names, name)
		}
	}
	c.subscribeWithinLimits(sub, names)
}

// subscribeRemembered subscribes an on-demand client that holds nothing to what its workload has requested on earlier
// streams.
func (c *Client) subscribeRemembered(sub *subscription) {
	if !c.class.OnDemand() {
		return
	}
	names := c.memory.Names(sub.url)
	c.subscribeWithinLimits(sub, slices.DeleteFunc(names, sub.names.Has))
	for _, name := range names {
		c.markDirtyIfHeld(sub, name)
	}
}

// subscribeWithinLimits subscribes to names that the client has not requested on this stream, as far as the limits
// allow.
func (c *Client) subscribeWithinLimits(sub *subscription, names []string) {
	slices.Sort(names)
	if sub.url == resource.VirtualHostType {
		names = names[:min(len(names), max(c.limits.MaxOnDemandHosts-sub.names.Len(), 0))]
	}
	for i, name := range names {
		if c.countName(name) != nil {
			c.uncountName(name)
			names = names[:i]
			break
		}
	}
	sub.names.Add(names)
	c.plan(sub, names)
	if err := c.chargeNewNames(sub, names); err != nil {
		c.unsubscribe(sub, slices.Clone(names)) // there is no room, and the client has not requested them
		c.cfg.NamesRefused(err.Error())
		return
	}
	c.remember(sub, names)
}

// remember keeps names that an on-demand client has requested and that exist, for its next stream.
func (c *Client) remember(sub *subscription, names []string) {
	if len(names) > 0 && c.class.OnDemand() && (sub.url == resource.VirtualHostType || sub.url == resource.ClusterType) {
		c.memory.Remember(sub.url, names)
	}
}
