package serve

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/store"
)

// resendEndpoints marks the endpoints of clusters that were just sent. Envoy warms an updated cluster: it waits for the
// endpoints to be sent again, changed or not, and does not request them.
func (st *stream) resendEndpoints(updated []*store.Blob) {
	eds := st.subscription(resource.EndpointType)
	if eds == nil {
		// A client that reconnects may subscribe to the endpoints that it holds only after it was sent the clusters.
		st.keepWarmingClusters(updated)
		return
	}
	for _, blob := range updated {
		if blob.EndpointsName != "" && eds.names.Has(blob.EndpointsName) {
			st.markRequested(eds, blob.EndpointsName)
			delete(eds.rejectedVersions, blob.EndpointsName)
		}
	}
}

// keepWarmingClusters keeps clusters until the client subscribes to endpoints.
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

// subscribeMirrors subscribes an on-demand client to the clusters that its new virtual hosts mirror requests to.
func (st *stream) subscribeMirrors(updated []*store.Blob) {
	cds := st.subscription(resource.ClusterType)
	if !st.onDemand() || cds == nil {
		return
	}
	for _, blob := range updated {
		for _, name := range blob.Mirrors {
			if cds.names.Has(name) {
				continue
			}
			st.subscribeWithinLimits(cds, []string{name})
			st.markDirty(cds, name)
			st.flushAgain = true
		}
	}
}

// requestWarmingEndpoints is called when the client first subscribes to endpoints: it marks those of the clusters that
// were sent before on this stream.
func (st *stream) requestWarmingEndpoints(sub *subscription) {
	if sub.url != resource.EndpointType {
		return
	}
	warming := st.warmingClusters
	st.warmingClusters = nil
	if len(warming) > 0 && sub.names.Len() > 0 && sub.dirty.Shares(sub.names.Names()) &&
		sub.requested.Len()+sub.absent.Len() == 0 {
		sub.requested.SetShared(sub.names.Names()) // everything that it subscribes to is sent anyway
		return
	}
	for _, updated := range warming {
		for _, blob := range updated {
			if blob.EndpointsName != "" && sub.names.Has(blob.EndpointsName) {
				st.markRequested(sub, blob.EndpointsName)
			}
		}
	}
}
