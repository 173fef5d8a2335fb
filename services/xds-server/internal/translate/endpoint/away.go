package endpoint

import (
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"fairlead.dev/pkg/lists"
)

// Endpoints of a cluster that has been away for long (EndpointSet.away) have priorities of their own, after those of
// all others: they are used when no other takes traffic. Among themselves they are ordered as ever. A proxy of the
// cluster itself keeps their order: that the cluster's API server cannot be read says nothing of its network.

// trueLast orders endpoints by whether they are away.
func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// awayLast splits endpoints, in their order. An address that leads to both, such as a gateway, is one of the first.
func awayLast(endpoints []meshEndpoint) (fresh, away []meshEndpoint) {
	fresh = lists.Filter(endpoints, func(m meshEndpoint) bool { return !m.away })
	if len(fresh) == len(endpoints) {
		return fresh, nil
	}
	type address struct {
		text string
		port uint32
	}
	known := map[address]bool{}
	for _, m := range fresh {
		known[address{m.GetAddress(), m.GetPort()}] = true
	}
	return fresh, lists.Filter(endpoints, func(m meshEndpoint) bool { return m.away && !known[address{m.GetAddress(), m.GetPort()}] })
}

// appendLast adds a part of an assignment behind all that is there.
func appendLast(out, part *endpointv3.ClusterLoadAssignment) {
	first := uint32(0)
	for _, l := range out.GetEndpoints() {
		first = max(first, l.GetPriority()+1)
	}
	for _, l := range part.GetEndpoints() {
		l.Priority += first
	}
	out.Endpoints = append(out.Endpoints, part.GetEndpoints()...)
}
