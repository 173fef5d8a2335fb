package subscription

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
)

// collectHosts does the work of collect for virtual hosts. All changes of one route configuration go into one response.
func (c *Client) collectHosts(sub *subscription, current *plan.TypeSnapshot, d *draft) {
	d.Missing = append(d.Missing, c.refusedHosts.Sorted()...)
	d.Removed = append(d.Removed, c.droppedHosts.Sorted()...)
	d.answered = map[string]bool{}
	size, routeConfigName, postponed, isolated := c.collectWholeRouteConfigs(current, d), "", false, false
	for _, name := range sub.dirty.Sorted() {
		rc := c.routeConfigs[routeConfigOf(name)]
		if rc == nil {
			d.incomplete = true
			if !sub.names.Has(name) { // the client has dropped its route configuration
				d.settled = append(d.settled, name)
			}
			continue
		}
		if at := routeConfigOf(name); at != routeConfigName {
			// The first name of another route configuration: is there room for it in this response?
			collected := len(d.Blobs) + len(d.Removed)
			postponed = size > c.limits.MaxResponseBytes || collected > 0 && (rc.isolated || isolated)
			routeConfigName, isolated, d.incomplete = at, isolated || rc.isolated && !postponed, d.incomplete || postponed
		}
		if postponed {
			continue
		}
		item, _ := current.Get(name)
		if item.Blob != nil && c.leadsToNewCluster(item.Blob) {
			d.incomplete = true
			continue
		}
		d.answered[routeConfigName] = true
		d.settled = append(d.settled, name)
		switch {
		case c.covers(sub, name, item) && item.Blob != nil:
			if sub.rejectedVersions[name] == item.Blob.Version() {
				break
			}
			size += item.Blob.Size()
			d.Blobs = append(d.Blobs, item.Blob)
			if !item.Wildcard {
				d.onDemandNames = append(d.onDemandNames, name)
			}
		case sub.requested.Has(name):
			d.absent = append(d.absent, name)
			d.Missing = append(d.Missing, name)
		default:
			if sub.names.Has(name) {
				d.absent = append(d.absent, name)
			}
			d.Removed = append(d.Removed, name)
		}
	}
	c.collectPlaceholders(d)
}

// collectWholeRouteConfigs adds all virtual hosts of the route configurations that are marked sendAll, and returns
// their bytes.
func (c *Client) collectWholeRouteConfigs(current *plan.TypeSnapshot, d *draft) (size int) {
	for _, name := range slices.Sorted(maps.Keys(c.routeConfigs)) {
		rc := c.routeConfigs[name]
		if !rc.sendAll || rc.suspended {
			continue
		}
		l := current.Listing(name + "/")
		if size += l.Size; size > c.limits.MaxResponseBytes && len(d.Blobs) > 0 {
			d.incomplete = true
			return size
		}
		d.answered[name] = true
		d.Blobs = append(d.Blobs, l.Blobs...)
	}
	return size
}

// collectPlaceholders adds a removal to the response for each route configuration that has no virtual hosts: the
// listener in Envoy waits for the first response about them.
func (c *Client) collectPlaceholders(d *draft) {
	if len(c.routeConfigs) == 0 {
		return
	}
	mentioned := map[string]bool{}
	for _, blob := range d.Blobs {
		mentioned[routeConfigOf(blob.Name())] = true
	}
	for _, names := range [][]string{d.Removed, d.Missing} {
		for _, name := range names {
			mentioned[routeConfigOf(name)] = true
		}
	}
	hosts := c.subscription(resource.VirtualHostType)
	for _, name := range slices.Sorted(maps.Keys(c.routeConfigs)) {
		if rc := c.routeConfigs[name]; rc.hostsSent || rc.suspended || mentioned[name] {
			continue
		}
		if _, ok := d.answered[name]; !ok && (c.routeConfigs[name].sendAll && d.incomplete || len(c.hostsIn(&hosts.dirty, name)) > 0) {
			continue // its virtual hosts come in a later response
		}
		d.Removed = append(d.Removed, placeholderHost(name))
		d.answered[name] = true
	}
}

// hasUnsentHostAnswers reports whether virtual hosts must be answered with "not found", or removed because the client
// has dropped their route configuration.
func (c *Client) hasUnsentHostAnswers(sub *subscription) bool {
	return sub.url == resource.VirtualHostType && c.refusedHosts.Len()+c.droppedHosts.Len() > 0
}
