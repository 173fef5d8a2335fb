package subscription

import (
	"sort"
	"strings"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// openVirtualHosts handles the first request for virtual hosts. The versions that the client states are compared once
// their route configuration is in routeConfigs.
func (c *Client) openVirtualHosts(hosts *subscription, req *wire.Request) error {
	c.plan(hosts, nil)
	if l := c.class.Snapshot().Type(hosts.url).Listing(""); req.InitialTally.Count() > 0 && l.HasVersions(req.InitialTally) {
		c.initialHostListing = l
		for name, rc := range c.routeConfigs {
			c.markNewRouteConfig(hosts, name, rc)
		}
		hosts.answered = hosts.dirty.Len() == 0 && !hosts.responseDue
		return nil
	}
	held := req.Initial()
	for host, version := range held {
		name := routeConfigOf(host)
		if _, ok := c.initialRouteConfigs[name]; c.initialRouteConfigsKnown && !ok {
			continue
		}
		if len(host) > c.limits.MaxNameBytes {
			continue
		}
		if reason := c.chargeName(host); reason != "" {
			return &RefusedError{reason}
		}
		if c.initialHosts == nil {
			c.initialHosts = map[string]map[string]string{}
		}
		if c.initialHosts[name] == nil {
			c.initialHosts[name] = map[string]string{}
		}
		if len(version) > maxVersionBytes {
			version = "" // not ours
		}
		c.initialHosts[name][host] = version
	}
	for name, rc := range c.routeConfigs {
		c.markNewRouteConfig(hosts, name, rc)
	}
	if len(held) == 0 {
		c.subscribeRemembered(hosts)
	}
	hosts.answered = hosts.dirty.Len() == 0 && !hosts.responseDue && len(held) > 0
	return nil
}

// maxVersionBytes is twice the length of the versions of resources.
const maxVersionBytes = 32

// openRouteConfigs handles the first request for route configurations: those that the client states and that need not
// be sent again are in routeConfigs from now on.
func (c *Client) openRouteConfigs(routes *subscription, held map[string]string) {
	c.initialRouteConfigsKnown = true
	if len(held) > 0 {
		c.initialRouteConfigs = make(map[string]struct{}, len(held))
	}
	current := c.class.Snapshot().Type(routes.url)
	for name := range held {
		if routes.names.Has(name) {
			c.initialRouteConfigs[name] = struct{}{}
		}
	}
	for name := range c.initialRouteConfigs {
		if item, _ := current.Get(name); item.Blob != nil && item.Blob.VirtualHosts && !routes.dirty.Has(name) {
			c.holdRouteConfig(name)
		}
	}
	for name := range c.initialHosts {
		if _, ok := c.initialRouteConfigs[name]; !ok {
			c.forgetInitialHosts(name)
		}
	}
}

// markNewRouteConfig marks the virtual hosts of a route configuration that has just come into routeConfigs: those that
// the client does not hold in the current version, and those that it holds and should not.
func (c *Client) markNewRouteConfig(hosts *subscription, name string, rc *routeConfig) {
	for _, host := range c.hostsIn(&c.droppedHosts, name) {
		c.droppedHosts.Remove(host)
	}
	current := c.class.Snapshot().Type(hosts.url)
	held := c.initialHosts[name]
	_, retained := c.initialRouteConfigs[name]
	if retained && c.initialHostListing != nil {
		rc.hostsSent = true
		c.markListingDifferences(hosts, current, name)
		return
	}
	if !retained || len(held) == 0 {
		c.forgetInitialHosts(name)
		hosts.responseDue = true
		if len(hosts.rejectedVersions)+hosts.unconfirmedRemovals.Len()+hosts.names.Len()+hosts.dirty.Len() == 0 {
			rc.sendAll = true
			return
		}
		c.markHostsDirty(hosts, current, name)
		for host := range hosts.names.All() {
			if routeConfigOf(host) == name {
				c.markDirty(hosts, host)
			}
		}
		return
	}
	rc.hostsSent = true
	c.subscribeHeld(hosts, held)
	current = c.class.Snapshot().Type(hosts.url)
	c.eachHost(hosts, current, name, func(host string, blob *store.Blob) {
		if blob == nil || held[host] != blob.Version() {
			c.markDirty(hosts, host)
		}
	})
	var gone []string
	for host := range held {
		if item, _ := current.Get(host); !item.Wildcard && !hosts.names.Has(host) {
			gone = append(gone, host)
			c.markDirty(hosts, host)
		}
	}
	c.forgetInitialHosts(name)
	_ = c.owe(hosts, gone) // less than forgetInitialHosts has refunded
}

// markListingDifferences marks the virtual hosts of a route configuration that differ from initialHostListing.
func (c *Client) markListingDifferences(hosts *subscription, current *plan.TypeSnapshot, name string) {
	is, was := current.Listing(name+"/"), c.initialHostListing
	i := sort.SearchStrings(was.Names, name+"/")
	for _, blob := range is.Blobs {
		for ; i < len(was.Names) && was.Names[i] < blob.Name(); i++ {
			c.markDirty(hosts, was.Names[i]) // removed meanwhile
		}
		if i < len(was.Names) && was.Names[i] == blob.Name() {
			if i++; was.Blobs[i-1] == blob {
				continue
			}
		}
		c.markDirty(hosts, blob.Name())
	}
	for ; i < len(was.Names) && strings.HasPrefix(was.Names[i], name+"/"); i++ {
		c.markDirty(hosts, was.Names[i])
	}
}

func (c *Client) forgetInitialHosts(name string) {
	for host := range c.initialHosts[name] {
		c.refundName(host)
	}
	delete(c.initialHosts, name)
}
