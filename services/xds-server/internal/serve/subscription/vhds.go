package subscription

import (
	"maps"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
	"fairlead.dev/services/xds-server/internal/store"
)

// routeConfig is a route configuration that the client holds and whose virtual hosts are resources of their own (VHDS),
// named "<route configuration>/<host>". A client subscribes to virtual hosts without naming them. It is sent the
// virtual hosts of every route configuration that it subscribes to, after the route configuration: it would drop them
// before.
type routeConfig struct {
	// hostsSent is true once a response about its virtual hosts was sent. Until then the listener in Envoy waits, even
	// if there are no virtual hosts.
	hostsSent bool
	// suspended is true while the client holds a version of the route configuration without VHDS, or the route
	// configuration is removed. The client keeps the virtual hosts and uses them again with a later version, so
	// changedHosts collects the names that change meanwhile.
	suspended    bool
	changedHosts nameset.Set
	// sendAll is true while all its virtual hosts are to be sent, without their names being in the dirty set.
	sendAll bool
	// isolated is true after a NACK that does not say which route configuration is to blame: its virtual hosts are sent
	// in a response of their own.
	isolated bool
}

// virtualHosts is what a stream knows of its route configurations with VHDS.
type virtualHosts struct {
	routeConfigs map[string]*routeConfig
	// initialRouteConfigs are the route configurations that the client held when it connected. Only for these does it
	// really hold the virtual hosts that it states.
	initialRouteConfigs map[string]struct{}
	// initialRouteConfigsKnown is true once the client has sent its first request for route configurations.
	initialRouteConfigsKnown bool
	// initialHosts are the virtual hosts and versions that the client has stated in its first request, by route
	// configuration, until that route configuration is in routeConfigs.
	initialHosts map[string]map[string]string
	// initialHostListing takes the place of initialHosts if the client has stated exactly what the class lists.
	initialHostListing *plan.Listing
	// droppedHosts belong to route configurations that the client has dropped. It has dropped these virtual hosts with
	// them, but would state that it holds them when it reconnects. So they are removed by name.
	droppedHosts nameset.Set
	// refusedHosts were requested on demand beyond MaxOnDemandHosts: they are answered with "not found" and forgotten.
	refusedHosts  nameset.Set
	hostLimitTold bool
}

// routeConfigOf returns the name of the route configuration that a virtual host belongs to: the part before the last
// slash.
func routeConfigOf(host string) string { return host[:max(strings.LastIndexByte(host, '/'), 0)] }

// placeholderHost is a name that no virtual host has. Its removal is sent for a route configuration without virtual
// hosts.
func placeholderHost(routeConfigName string) string { return routeConfigName + "/none" }

// markHostDirty marks a virtual host if it belongs to a route configuration that the client holds, and reports whether
// it does.
func (c *Client) markHostDirty(hosts *subscription, name string) bool {
	rc := c.routeConfigs[routeConfigOf(name)]
	switch {
	case rc == nil:
		return false
	case rc.suspended:
		rc.changedHosts.Add(name)
		return false
	case rc.sendAll && !hosts.names.Has(name):
		return true // it is sent with the others
	default:
		c.markDirty(hosts, name)
		return true
	}
}

// markHostsDirty marks all virtual hosts of a route configuration.
func (c *Client) markHostsDirty(hosts *subscription, current *plan.TypeSnapshot, name string) {
	if rc := c.routeConfigs[name]; rc != nil && rc.sendAll {
		return
	}
	c.eachHost(hosts, current, name, func(host string, _ *store.Blob) { c.markDirty(hosts, host) })
}

// eachHost calls f for the virtual hosts that the client should have of a route configuration.
func (c *Client) eachHost(hosts *subscription, current *plan.TypeSnapshot, name string, f func(host string, blob *store.Blob)) {
	current.ScanPrefix(name+"/", func(host string, item plan.Item) bool {
		if routeConfigOf(host) == name && (item.Wildcard || hosts.names.Has(host)) {
			f(host, item.Blob)
		}
		return true
	})
}

// markAllHostsDirty marks the virtual hosts of all route configurations.
func (c *Client) markAllHostsDirty(hosts *subscription, current *plan.TypeSnapshot) {
	for name, rc := range c.routeConfigs {
		if !rc.suspended {
			c.markHostsDirty(hosts, current, name)
		}
	}
}

// routeConfigsSent is called when a response with route configurations was handed out: their virtual hosts follow.
func (c *Client) routeConfigsSent(out *Response, sent []*store.Blob) {
	for _, blob := range sent {
		if blob.VirtualHosts && c.cfg.Delta {
			if c.holdRouteConfig(blob.Name()) {
				out.routeConfigs = append(out.routeConfigs, blob.Name())
			}
		} else {
			c.suspendRouteConfig(blob.Name())
		}
	}
	for _, name := range out.Removed {
		c.suspendRouteConfig(name)
	}
}

// holdRouteConfig notes that the client holds a route configuration with VHDS, and reports whether it is new.
func (c *Client) holdRouteConfig(name string) bool {
	rc, ok := c.routeConfigs[name]
	if !ok {
		if c.routeConfigs == nil {
			c.routeConfigs = map[string]*routeConfig{}
		}
		rc = &routeConfig{}
		c.routeConfigs[name] = rc
		if hosts := c.subscription(resource.VirtualHostType); hosts != nil {
			c.markNewRouteConfig(hosts, name, rc)
		}
		return true
	}
	if rc.suspended {
		rc.suspended = false
		if hosts := c.subscription(resource.VirtualHostType); hosts != nil {
			c.markHostsDirty(hosts, c.class.Snapshot().Type(hosts.url), name)
			for _, host := range rc.changedHosts.Names() {
				c.markDirty(hosts, host)
			}
		}
		rc.changedHosts.Clear()
		if hosts := c.subscription(resource.VirtualHostType); hosts != nil {
			hosts.responseDue = c.awaitsFirstHosts()
		}
	}
	return false
}

// suspendRouteConfig notes that the client holds a version of the route configuration without VHDS, or that it was
// removed.
func (c *Client) suspendRouteConfig(name string) {
	rc := c.routeConfigs[name]
	if rc == nil || rc.suspended {
		return
	}
	rc.suspended, rc.sendAll = true, false
	hosts := c.subscription(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	c.eachHost(hosts, c.class.Snapshot().Type(hosts.url), name, func(host string, _ *store.Blob) { rc.changedHosts.Add(host) })
	for _, host := range c.hostsIn(&hosts.dirty, name) {
		rc.changedHosts.Add(host)
		hosts.dirty.Remove(host)
	}
	hosts.responseDue = c.awaitsFirstHosts()
}

// dropRouteConfig forgets a route configuration with all its virtual hosts. It is called when the client unsubscribes.
func (c *Client) dropRouteConfig(name string) {
	if _, ok := c.initialRouteConfigs[name]; ok {
		delete(c.initialRouteConfigs, name)
		c.forgetInitialHosts(name)
	}
	rc, ok := c.routeConfigs[name]
	if !ok {
		return
	}
	delete(c.routeConfigs, name)
	hosts := c.subscription(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	if rc.hostsSent {
		for _, host := range c.class.Snapshot().Type(hosts.url).Listing(name + "/").Names {
			c.droppedHosts.Add(host)
		}
	}
	for _, host := range c.hostsIn(&hosts.dirty, name) {
		hosts.dirty.Remove(host)
	}
	for _, host := range c.hostsIn(&hosts.unconfirmedRemovals, name) {
		c.confirmRemoval(hosts, host)
	}
	for _, host := range c.hostsIn(&hosts.owed, name) {
		c.forgetOwed(hosts, host)
	}
	maps.DeleteFunc(hosts.rejectedVersions, func(host, _ string) bool { return routeConfigOf(host) == name })
	hosts.responseDue = c.awaitsFirstHosts()
}

// hostsIn lists the names of a set that belong to a route configuration.
func (c *Client) hostsIn(set *nameset.Set, routeConfigName string) []string {
	var found []string
	for _, host := range set.Names() {
		if routeConfigOf(host) == routeConfigName {
			found = append(found, host)
		}
	}
	return found
}

// awaitsFirstHosts reports whether the client waits for the first response about the virtual hosts of some route
// configuration.
func (c *Client) awaitsFirstHosts() bool {
	for _, rc := range c.routeConfigs {
		if !rc.hostsSent && !rc.suspended {
			return true
		}
	}
	return false
}

// routeConfigsRejected forgets the route configurations that the client has only seen in a response that it has
// rejected.
func (c *Client) routeConfigsRejected(out *Response) {
	for _, name := range out.routeConfigs {
		if _, ok := c.initialRouteConfigs[name]; !ok {
			c.dropRouteConfig(name)
		}
	}
}

// covers reports whether the client should hold the resource. It is wants, also for virtual hosts.
func (c *Client) covers(sub *subscription, name string, item plan.Item) bool {
	if sub.url != resource.VirtualHostType {
		return sub.wants(name, item)
	}
	rc := c.routeConfigs[routeConfigOf(name)]
	return rc != nil && !rc.suspended && (item.Wildcard || sub.names.Has(name))
}
