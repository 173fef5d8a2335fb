package serve

import (
	"maps"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// table is a route configuration that the client holds and whose virtual hosts are resources of their own, named
// "<route configuration>/<host>". The client says only once that it takes virtual hosts; it is sent those of every route configuration
// that it subscribes to, after the configuration itself, for it drops those that it has no configuration for.
type routeConfig struct {
	// released is true once the client has its first virtual hosts: until then, even if there are none, its listener waits.
	hostsSent bool
	// hidden is true while the configuration that the client holds takes no virtual hosts. The client keeps those it has and shows them
	// again later, so names that change meanwhile are kept.
	suspended    bool
	changedHosts nameSet
	// whole is true while all its virtual hosts are to be sent, without their names being marked.
	sendAll bool
	// alone is true after a rejection that may be another table's fault: its virtual hosts are sent apart from others'.
	isolated bool
}

// tables are what a stream knows of its virtual hosts.
type virtualHosts struct {
	routeConfigs map[string]*routeConfig
	// retained are the route configurations that the client held when it connected: only theirs are the virtual hosts it says it holds.
	initialRouteConfigs map[string]struct{}
	// routesSeen is true once the client has said which route configurations it holds.
	initialRouteConfigsKnown bool
	// stated are versions of virtual hosts that the client says it holds, by route configuration, until that configuration lives.
	initialHosts map[string]map[string]string
	// statedListing takes the place of stated where the client says it holds just what a listing has.
	initialHostListing *plan.Listing
	// ghosts are virtual hosts of route configurations that the client has dropped. It has dropped these too, but would say that it holds
	// them when it connects again: they are removed by name.
	droppedHosts nameSet
	// expired names were asked for on demand beyond the limit: they are answered with "not found" and forgotten.
	refusedHosts    nameSet
	hostLimitLogged bool
}

// tableOf returns the name of the route configuration that a virtual host belongs to: what precedes the last slash.
func routeConfigOf(host string) string { return host[:max(strings.LastIndexByte(host, '/'), 0)] }

// none is a name that no virtual host has: its removal releases a route configuration that has none.
func placeholderHost(routeConfigName string) string { return routeConfigName + "/none" }

// touchHost marks a virtual host if it belongs to a configuration that the client holds.
func (st *stream) markHostDirty(hosts *subscription, name string) bool {
	rc := st.routeConfigs[routeConfigOf(name)]
	switch {
	case rc == nil:
		return false
	case rc.suspended:
		rc.changedHosts.add(name)
		return false
	case rc.sendAll && !hosts.names.has(name):
		return true // it goes out with the others
	default:
		st.markDirty(hosts, name)
		return true
	}
}

// touchTable marks all virtual hosts of a route configuration.
func (st *stream) markHostsDirty(hosts *subscription, current *plan.TypeSnapshot, name string) {
	if rc := st.routeConfigs[name]; rc != nil && rc.sendAll {
		return
	}
	st.eachHost(hosts, current, name, func(host string, _ *store.Blob) { st.markDirty(hosts, host) })
}

// eachHost calls f for the virtual hosts that a table is to have.
func (st *stream) eachHost(hosts *subscription, current *plan.TypeSnapshot, name string, f func(host string, blob *store.Blob)) {
	current.ScanPrefix(name+"/", func(host string, item plan.Item) bool {
		if routeConfigOf(host) == name && (item.Wildcard || hosts.names.has(host)) {
			f(host, item.Blob)
		}
		return true
	})
}

// touchTables marks all virtual hosts of all route configurations.
func (st *stream) markAllHostsDirty(hosts *subscription, current *plan.TypeSnapshot) {
	for name, rc := range st.routeConfigs {
		if !rc.suspended {
			st.markHostsDirty(hosts, current, name)
		}
	}
}

// sentRoutes is called when a response with route configurations was handed over: their virtual hosts follow it.
func (st *stream) routeConfigsSent(out *response, sent []*store.Blob) {
	for _, blob := range sent {
		if blob.VirtualHosts && st.delta {
			if st.holdRouteConfig(blob.Name()) {
				out.routeConfigs = append(out.routeConfigs, blob.Name())
			}
		} else {
			st.suspendRouteConfig(blob.Name())
		}
	}
	for _, name := range out.removed {
		st.suspendRouteConfig(name)
	}
}

// openTable notes that the client holds a route configuration that takes virtual hosts, and reports whether it is new.
func (st *stream) holdRouteConfig(name string) bool {
	rc, ok := st.routeConfigs[name]
	if !ok {
		if st.routeConfigs == nil {
			st.routeConfigs = map[string]*routeConfig{}
		}
		rc = &routeConfig{}
		st.routeConfigs[name] = rc
		if hosts := st.subscription(resource.VirtualHostType); hosts != nil {
			st.markNewRouteConfig(hosts, name, rc)
		}
		return true
	}
	if rc.suspended {
		rc.suspended = false
		if hosts := st.subscription(resource.VirtualHostType); hosts != nil {
			st.markHostsDirty(hosts, st.class.Snapshot().Type(hosts.url), name)
			for _, host := range rc.changedHosts.list {
				st.markDirty(hosts, host)
			}
		}
		rc.changedHosts.clear()
		if hosts := st.subscription(resource.VirtualHostType); hosts != nil {
			hosts.responseDue = st.awaitsFirstHosts()
		}
	}
	return false
}

// hideTable notes that a route configuration takes no virtual hosts, or is gone.
func (st *stream) suspendRouteConfig(name string) {
	rc := st.routeConfigs[name]
	if rc == nil || rc.suspended {
		return
	}
	rc.suspended, rc.sendAll = true, false
	hosts := st.subscription(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	st.eachHost(hosts, st.class.Snapshot().Type(hosts.url), name, func(host string, _ *store.Blob) { rc.changedHosts.add(host) })
	for _, host := range st.hostsIn(&hosts.dirty, name) {
		rc.changedHosts.add(host)
		hosts.dirty.remove(host)
	}
	hosts.responseDue = st.awaitsFirstHosts()
}

// closeTable forgets a route configuration, with all its virtual hosts: the client has dropped it.
func (st *stream) dropRouteConfig(name string) {
	if _, ok := st.initialRouteConfigs[name]; ok {
		delete(st.initialRouteConfigs, name)
		st.forgetInitialHosts(name)
	}
	rc, ok := st.routeConfigs[name]
	if !ok {
		return
	}
	delete(st.routeConfigs, name)
	hosts := st.subscription(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	if rc.hostsSent {
		for _, host := range st.class.Snapshot().Type(hosts.url).Listing(name + "/").Names {
			st.droppedHosts.add(host)
		}
	}
	for _, host := range st.hostsIn(&hosts.dirty, name) {
		hosts.dirty.remove(host)
	}
	for _, host := range st.hostsIn(&hosts.unconfirmedRemovals, name) {
		st.confirmRemoval(hosts, host)
	}
	maps.DeleteFunc(hosts.rejectedVersions, func(host, _ string) bool { return routeConfigOf(host) == name })
	hosts.responseDue = st.awaitsFirstHosts()
}

// hostsIn lists those of a set that belong to a route configuration.
func (st *stream) hostsIn(set *nameSet, routeConfigName string) []string {
	var found []string
	for _, host := range set.list {
		if routeConfigOf(host) == routeConfigName {
			found = append(found, host)
		}
	}
	return found
}

// unreleased reports whether some route configuration waits for its first virtual hosts.
func (st *stream) awaitsFirstHosts() bool {
	for _, rc := range st.routeConfigs {
		if !rc.hostsSent && !rc.suspended {
			return true
		}
	}
	return false
}

// rejectedRoutes takes back that the client holds route configurations that it had from a response it has rejected.
func (st *stream) routeConfigsRejected(out *response) {
	for _, name := range out.routeConfigs {
		if _, ok := st.initialRouteConfigs[name]; !ok {
			st.dropRouteConfig(name)
		}
	}
}

// covers reports whether the item is something that the client is to have.
func (st *stream) covers(sub *subscription, name string, item plan.Item) bool {
	if sub.url != resource.VirtualHostType {
		return sub.wants(name, item)
	}
	rc := st.routeConfigs[routeConfigOf(name)]
	return rc != nil && !rc.suspended && (item.Wildcard || sub.names.has(name))
}
