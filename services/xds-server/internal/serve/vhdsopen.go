package serve

import (
	"sort"
	"strings"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/quota"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// openVirtualHosts handles the first request for virtual hosts. The versions that the client states are compared once
// their route configuration is in routeConfigs.
func (st *stream) openVirtualHosts(hosts *subscription, req *wire.Request) error {
	st.plan(hosts, nil)
	if l := st.class.Snapshot().Type(hosts.url).Listing(""); req.InitialTally.Count() > 0 && l.HasVersions(req.InitialTally) {
		st.initialHostListing = l
		for name, rc := range st.routeConfigs {
			st.markNewRouteConfig(hosts, name, rc)
		}
		hosts.answered = hosts.dirty.Len() == 0 && !hosts.responseDue
		return nil
	}
	held := req.Initial()
	for host, version := range held {
		name := routeConfigOf(host)
		if _, ok := st.initialRouteConfigs[name]; st.initialRouteConfigsKnown && !ok {
			continue
		}
		if len(host) > st.server.maxNameBytes {
			continue
		}
		if reason := st.chargeName(host); reason != "" {
			return st.account.Refuse(st.node.ID, quota.BudgetNames, reason)
		}
		if st.initialHosts == nil {
			st.initialHosts = map[string]map[string]string{}
		}
		if st.initialHosts[name] == nil {
			st.initialHosts[name] = map[string]string{}
		}
		st.initialHosts[name][host] = version
	}
	for name, rc := range st.routeConfigs {
		st.markNewRouteConfig(hosts, name, rc)
	}
	if len(held) == 0 {
		st.subscribeRemembered(hosts)
	}
	hosts.answered = hosts.dirty.Len() == 0 && !hosts.responseDue && len(held) > 0
	return nil
}

// openRouteConfigs handles the first request for route configurations: those that the client states and that need not
// be sent again are in routeConfigs from now on.
func (st *stream) openRouteConfigs(routes *subscription, held map[string]string) {
	st.initialRouteConfigsKnown = true
	if len(held) > 0 {
		st.initialRouteConfigs = make(map[string]struct{}, len(held))
	}
	current := st.class.Snapshot().Type(routes.url)
	for name := range held {
		if routes.names.Has(name) {
			st.initialRouteConfigs[name] = struct{}{}
		}
	}
	for name := range st.initialRouteConfigs {
		if item, _ := current.Get(name); item.Blob != nil && item.Blob.VirtualHosts && !routes.dirty.Has(name) {
			st.holdRouteConfig(name)
		}
	}
	for name := range st.initialHosts {
		if _, ok := st.initialRouteConfigs[name]; !ok {
			st.forgetInitialHosts(name)
		}
	}
}

// markNewRouteConfig marks the virtual hosts of a route configuration that has just come into routeConfigs: those that
// the client does not hold in the current version, and those that it holds and should not.
func (st *stream) markNewRouteConfig(hosts *subscription, name string, rc *routeConfig) {
	for _, host := range st.hostsIn(&st.droppedHosts, name) {
		st.droppedHosts.Remove(host)
	}
	current := st.class.Snapshot().Type(hosts.url)
	held := st.initialHosts[name]
	_, retained := st.initialRouteConfigs[name]
	if retained && st.initialHostListing != nil {
		rc.hostsSent = true
		st.markListingDifferences(hosts, current, name)
		return
	}
	if !retained || len(held) == 0 {
		st.forgetInitialHosts(name)
		hosts.responseDue = true
		if len(hosts.rejectedVersions)+hosts.unconfirmedRemovals.Len()+hosts.names.Len()+hosts.dirty.Len() == 0 {
			rc.sendAll = true
			return
		}
		st.markHostsDirty(hosts, current, name)
		for host := range hosts.names.All() {
			if routeConfigOf(host) == name {
				st.markDirty(hosts, host)
			}
		}
		return
	}
	rc.hostsSent = true
	st.subscribeHeld(hosts, held)
	current = st.class.Snapshot().Type(hosts.url)
	st.eachHost(hosts, current, name, func(host string, blob *store.Blob) {
		if blob == nil || held[host] != blob.Version() {
			st.markDirty(hosts, host)
		}
	})
	for host := range held {
		if item, _ := current.Get(host); !item.Wildcard && !hosts.names.Has(host) {
			st.markDirty(hosts, host)
		}
	}
	st.forgetInitialHosts(name)
}

// markListingDifferences marks the virtual hosts of a route configuration that differ from initialHostListing.
func (st *stream) markListingDifferences(hosts *subscription, current *plan.TypeSnapshot, name string) {
	is, was := current.Listing(name+"/"), st.initialHostListing
	i := sort.SearchStrings(was.Names, name+"/")
	for _, blob := range is.Blobs {
		for ; i < len(was.Names) && was.Names[i] < blob.Name(); i++ {
			st.markDirty(hosts, was.Names[i]) // removed meanwhile
		}
		if i < len(was.Names) && was.Names[i] == blob.Name() {
			if i++; was.Blobs[i-1] == blob {
				continue
			}
		}
		st.markDirty(hosts, blob.Name())
	}
	for ; i < len(was.Names) && strings.HasPrefix(was.Names[i], name+"/"); i++ {
		st.markDirty(hosts, was.Names[i])
	}
}

func (st *stream) forgetInitialHosts(name string) {
	for host := range st.initialHosts[name] {
		st.refundName(host)
	}
	delete(st.initialHosts, name)
}
