package subscription

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/services/xds-server/internal/store"
)

// handleNonce is called for every request. If the request carries the nonce of the outstanding response, it is an ACK,
// or a NACK if it has error details. Then handleNonce returns the response, with its Rejection. The flush that follows
// sends what waited for the answer.
func (c *Client) handleNonce(sub *subscription, nonce string, failure *rpcstatus.Status) *Response {
	out := sub.outstanding
	if out == nil || nonce == "" || nonce != out.nonce {
		return nil
	}
	sub.outstanding = nil
	c.refundOwed(out.owed)
	if failure != nil {
		c.handleNACK(sub, out, failure.GetMessage())
		return out
	}
	sub.acked = out.Revision
	sub.newClustersAnswered(out)
	for _, name := range out.Removed {
		c.confirmRemoval(sub, name)
	}
	if sub.url == resource.VirtualHostType {
		for _, name := range out.routeConfigs {
			if rc := c.routeConfigs[name]; rc != nil {
				rc.isolated = false
			}
		}
	}
	if !c.cfg.Delta {
		sub.noteAcked(out.Blobs)
	}
	c.forgetRejections(sub, out)
	if len(sub.rejectedVersions) == 0 {
		sub.rejection, sub.rejectedTogether = nil, false
	}
	if sub.rejection == nil && out.held.Revision != nil {
		sub.held = out.held
	}
	return out
}

// noteAcked keeps what a sotw client holds: the resources of an acknowledged response, or those that the version in its
// first request stands for. If the response is not complete, unsubscribe drops them again.
func (sub *subscription) noteAcked(blobs []*store.Blob) {
	if sub.ackedBlobs == nil || sub.complete() {
		sub.ackedBlobs = make(map[string]*store.Blob, len(blobs))
	}
	for _, blob := range blobs {
		if sub.complete() || sub.names.Has(blob.Name()) {
			sub.ackedBlobs[blob.Name()] = blob
		}
	}
}
