package subscription

import (
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/store"
)

// resendEndpoints marks the endpoints of clusters that were just sent. Envoy warms an updated cluster: it waits for the
// endpoints to be sent again, changed or not, and does not request them.
func (c *Client) resendEndpoints(updated []*store.Blob) {
	eds := c.subscription(resource.EndpointType)
	if eds == nil {
		// A client that reconnects may subscribe to the endpoints that it holds only after it was sent the clusters.
		c.keepWarmingClusters(updated)
		return
	}
	for _, blob := range updated {
		if blob.EndpointsName != "" && eds.names.Has(blob.EndpointsName) {
			c.markRequested(eds, blob.EndpointsName)
			delete(eds.rejectedVersions, blob.EndpointsName)
		}
	}
}

// keepWarmingClusters keeps clusters until the client subscribes to endpoints.
func (c *Client) keepWarmingClusters(updated []*store.Blob) {
	if !slices.ContainsFunc(updated, func(blob *store.Blob) bool { return blob.EndpointsName != "" }) {
		return
	}
	const few = 8
	if c.warmingClusters = append(c.warmingClusters, updated); len(c.warmingClusters) < few {
		return
	}
	once := map[string]*store.Blob{}
	for _, blobs := range c.warmingClusters {
		for _, blob := range blobs {
			once[blob.EndpointsName] = blob
		}
	}
	c.warmingClusters = [][]*store.Blob{slices.Collect(maps.Values(once))}
}

// subscribeMirrors subscribes an on-demand client to the clusters that its new virtual hosts mirror requests to.
func (c *Client) subscribeMirrors(updated []*store.Blob) {
	cds := c.subscription(resource.ClusterType)
	if !c.class.OnDemand() || cds == nil {
		return
	}
	for _, blob := range updated {
		for _, name := range blob.Mirrors {
			if cds.names.Has(name) {
				continue
			}
			c.subscribeWithinLimits(cds, []string{name})
			c.markDirty(cds, name)
			c.flushAgain = true
		}
	}
}

// requestWarmingEndpoints is called when the client first subscribes to endpoints: it marks those of the clusters that
// were sent before on this stream.
func (c *Client) requestWarmingEndpoints(sub *subscription) {
	if sub.url != resource.EndpointType {
		return
	}
	warming := c.warmingClusters
	c.warmingClusters = nil
	if len(warming) > 0 && sub.names.Len() > 0 && sub.dirty.Shares(sub.names.Names()) &&
		sub.requested.Len()+sub.absent.Len() == 0 {
		sub.requested.SetShared(sub.names.Names()) // everything that it subscribes to is sent anyway
		return
	}
	for _, updated := range warming {
		for _, blob := range updated {
			if blob.EndpointsName != "" && sub.names.Has(blob.EndpointsName) {
				c.markRequested(sub, blob.EndpointsName)
			}
		}
	}
}
