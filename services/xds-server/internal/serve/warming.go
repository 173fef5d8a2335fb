package serve

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/store"
)

// followClusters makes sure that the endpoints of updated clusters go out again, changed or not, or are said to be gone: Envoy warms an
// updated cluster and does not ask.
func (st *stream) resendEndpoints(updated []*store.Blob) {
	eds := st.subscription(resource.EndpointType)
	if eds == nil {
		// A client that reconnects may name the endpoints it holds only after it was sent the clusters.
		st.keepWarmingClusters(updated)
		return
	}
	for _, blob := range updated {
		if blob.EndpointsName != "" && eds.names.has(blob.EndpointsName) {
			st.markRequested(eds, blob.EndpointsName)
			delete(eds.rejectedVersions, blob.EndpointsName)
		}
	}
}

// toWarm keeps clusters until the client asks for endpoints.
func (st *stream) keepWarmingClusters(updated []*store.Blob) {
	if !slices.ContainsFunc(updated, func(blob *store.Blob) bool { return blob.EndpointsName != "" }) {
		return
	}
	const few = 8
	if st.warmingClusters = append(st.warmingClusters, updated); len(st.warmingClusters) < few {
		return
	}
	once := map[string]*store.Blob{}
	for _, blobs := range st.warmingClusters {
		for _, blob := range blobs {
			once[blob.EndpointsName] = blob
		}
	}
	st.warmingClusters = [][]*store.Blob{slices.Collect(maps.Values(once))}
}

// followMirrors gives an on-demand client the clusters that the virtual hosts it was sent mirror to.
func (st *stream) subscribeMirrors(updated []*store.Blob) {
	cds := st.subscription(resource.ClusterType)
	if !st.onDemand() || cds == nil {
		return
	}
	for _, blob := range updated {
		for _, name := range blob.Mirrors {
			if cds.names.has(name) {
				continue
			}
			st.subscribeWithinLimits(cds, []string{name})
			st.markDirty(cds, name)
			st.flushAgain = true
		}
	}
}

// warm asks for the endpoints that a client waits for when it first subscribes to any, because their clusters were sent on this stream.
func (st *stream) requestWarmingEndpoints(sub *subscription) {
	if sub.url != resource.EndpointType {
		return
	}
	warming := st.warmingClusters
	st.warmingClusters = nil
	if len(warming) > 0 && sub.names.len() > 0 && len(sub.names.more) == 0 && sub.dirty.shares(sub.names.list) && sub.requested.len()+sub.absent.len() == 0 {
		sub.requested.setShared(sub.names.list) // all that it asks for is sent anyway
		return
	}
	for _, updated := range warming {
		for _, blob := range updated {
			if blob.EndpointsName != "" && sub.names.has(blob.EndpointsName) {
				st.markRequested(sub, blob.EndpointsName)
			}
		}
	}
}
