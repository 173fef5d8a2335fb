package serve

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
)

// collectHosts does the work of collect for virtual hosts. All changes of one route configuration go into one response.
func (st *stream) collectHosts(sub *subscription, current *plan.TypeSnapshot, c *candidate) {
	c.missing = append(c.missing, st.refusedHosts.Sorted()...)
	c.removed = append(c.removed, st.droppedHosts.Sorted()...)
	c.answered = map[string]bool{}
	size, routeConfigName, postponed, isolated := st.collectWholeRouteConfigs(current, c), "", false, false
	for _, name := range sub.dirty.Sorted() {
		rc := st.routeConfigs[routeConfigOf(name)]
		if rc == nil {
			c.incomplete = true
			if !sub.names.Has(name) { // the client has dropped its route configuration
				c.settled = append(c.settled, name)
			}
			continue
		}
		if at := routeConfigOf(name); at != routeConfigName {
			// The first name of another route configuration: is there room for it in this response?
			collected := len(c.blobs) + len(c.removed)
			postponed = size > st.server.maxResponseBytes || collected > 0 && (rc.isolated || isolated)
			routeConfigName, isolated, c.incomplete = at, isolated || rc.isolated && !postponed, c.incomplete || postponed
		}
		if postponed {
			continue
		}
		item, _ := current.Get(name)
		if item.Blob != nil && st.leadsToNewCluster(item.Blob) {
			c.incomplete = true
			continue
		}
		c.answered[routeConfigName] = true
		c.settled = append(c.settled, name)
		switch {
		case st.covers(sub, name, item) && item.Blob != nil:
			if sub.rejectedVersions[name] == item.Blob.Version() {
				break
			}
			size += item.Blob.Size()
			c.blobs = append(c.blobs, item.Blob)
			if !item.Wildcard {
				c.onDemandNames = append(c.onDemandNames, name)
			}
		case sub.requested.Has(name):
			c.absent = append(c.absent, name)
			c.missing = append(c.missing, name)
		default:
			if sub.names.Has(name) {
				c.absent = append(c.absent, name)
			}
			c.removed = append(c.removed, name)
		}
	}
	st.collectPlaceholders(c)
}

// collectWholeRouteConfigs adds all virtual hosts of the route configurations that are marked sendAll, and returns
// their bytes.
func (st *stream) collectWholeRouteConfigs(current *plan.TypeSnapshot, c *candidate) (size int) {
	for _, name := range slices.Sorted(maps.Keys(st.routeConfigs)) {
		rc := st.routeConfigs[name]
		if !rc.sendAll || rc.suspended {
			continue
		}
		l := current.Listing(name + "/")
		if size += l.Size; size > st.server.maxResponseBytes && len(c.blobs) > 0 {
			c.incomplete = true
			return size
		}
		c.answered[name] = true
		c.blobs = append(c.blobs, l.Blobs...)
	}
	return size
}

// collectPlaceholders adds a removal to the response for each route configuration that has no virtual hosts: the
// listener in Envoy waits for the first response about them.
func (st *stream) collectPlaceholders(c *candidate) {
	if len(st.routeConfigs) == 0 {
		return
	}
	mentioned := map[string]bool{}
	for _, blob := range c.blobs {
		mentioned[routeConfigOf(blob.Name())] = true
	}
	for _, names := range [][]string{c.removed, c.missing} {
		for _, name := range names {
			mentioned[routeConfigOf(name)] = true
		}
	}
	hosts := st.subscription(resource.VirtualHostType)
	for _, name := range slices.Sorted(maps.Keys(st.routeConfigs)) {
		if rc := st.routeConfigs[name]; rc.hostsSent || rc.suspended || mentioned[name] {
			continue
		}
		if _, ok := c.answered[name]; !ok && (st.routeConfigs[name].sendAll && c.incomplete || len(st.hostsIn(&hosts.dirty, name)) > 0) {
			continue // its virtual hosts come in a later response
		}
		c.removed = append(c.removed, placeholderHost(name))
		c.answered[name] = true
	}
}

// hasUnsentHostAnswers reports whether virtual hosts must be answered with "not found", or removed because the client
// has dropped their route configuration.
func (st *stream) hasUnsentHostAnswers(sub *subscription) bool {
	return sub.url == resource.VirtualHostType && st.refusedHosts.Len()+st.droppedHosts.Len() > 0
}
