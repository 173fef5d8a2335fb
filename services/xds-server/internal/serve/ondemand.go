package serve

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// onDemand reports whether the proxy holds only the clusters and virtual hosts that it requests by name.
func (st *stream) onDemand() bool { return st.class.Key().OnDemand }

// limitHosts returns those of the requested virtual hosts that the stream may subscribe to. The others are answered
// with "not found".
func (st *stream) limitHosts(hosts *subscription, names []string) []string {
	room := st.server.maxOnDemandHosts - hosts.names.Len()
	admitted := make([]string, 0, min(max(room, 0), len(names)))
	for _, name := range names {
		switch {
		case name == "*" || hosts.names.Has(name):
			admitted = append(admitted, name)
		case room > 0:
			admitted = append(admitted, name)
			room--
		case len(name) <= st.server.maxNameBytes && (st.refusedHosts.Has(name) || st.chargeName(name) == ""):
			st.server.metrics.refusedHosts.Inc()
			st.refusedHosts.Add(name)
			if !st.hostLimitLogged {
				st.hostLimitLogged = true
				st.server.log.Warn("proxy asks for more virtual hosts on demand than one stream may hold, further ones are answered with not found",
					"node", st.node.ID, "limit", st.server.maxOnDemandHosts, "host", name)
			}
		default:
			st.server.metrics.refusedHosts.Inc()
		}
	}
	return admitted
}

// subscribeHeld subscribes an on-demand client to the resources that it holds and has not named in its request: it has
// requested them on an earlier stream.
func (st *stream) subscribeHeld(sub *subscription, held map[string]string) {
	if !st.onDemand() || len(held) == 0 {
		return
	}
	current := st.class.Snapshot().Type(sub.url)
	var names []string
	for name := range held {
		if item, _ := current.Get(name); !item.Wildcard && !sub.names.Has(name) && len(name) <= st.server.maxNameBytes {
			names = append(names, name)
		}
	}
	st.subscribeWithinLimits(sub, names)
}

// subscribeRemembered subscribes an on-demand client that holds nothing to what its workload has requested on earlier
// streams.
func (st *stream) subscribeRemembered(sub *subscription) {
	if !st.onDemand() {
		return
	}
	names := st.server.onDemandNames.Names(st.proxyKey(), sub.url)
	st.subscribeWithinLimits(sub, slices.DeleteFunc(names, sub.names.Has))
	for _, name := range names {
		st.markDirtyIfHeld(sub, name)
	}
}

// subscribeWithinLimits subscribes to names that the client has not requested on this stream, as far as the limits
// allow.
func (st *stream) subscribeWithinLimits(sub *subscription, names []string) {
	slices.Sort(names)
	if sub.url == resource.VirtualHostType {
		names = names[:min(len(names), max(st.server.maxOnDemandHosts-sub.names.Len(), 0))]
	}
	for i, name := range names {
		if st.countName(name) != nil {
			st.uncountName(name)
			names = names[:i]
			break
		}
	}
	sub.names.Add(names)
	st.plan(sub, names)
	if st.chargeNewNames(sub, names) != nil {
		st.unsubscribe(sub, slices.Clone(names)) // there is no room, and the client has not requested them
		return
	}
	st.remember(sub, names)
}

// remember keeps names that an on-demand client has requested and that exist, for its next stream.
func (st *stream) remember(sub *subscription, names []string) {
	if len(names) > 0 && st.onDemand() && (sub.url == resource.VirtualHostType || sub.url == resource.ClusterType) {
		st.server.onDemandNames.Remember(st.proxyKey(), sub.url, names)
	}
}
