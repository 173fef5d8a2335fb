package serve

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/services/xds-server/internal/store"
)

// handleNonce is called for every request. If the request carries the nonce of the outstanding response, it is an ACK,
// or a NACK if it has error details. handleNonce reports whether it is one of the two. The flush that follows sends
// what waited for the answer.
func (st *stream) handleNonce(sub *subscription, nonce string, failure *rpcstatus.Status) bool {
	out := sub.outstanding
	if out == nil || nonce == "" || nonce != out.nonce {
		return false
	}
	if failure != nil {
		st.handleNACK(sub, out, failure.GetMessage())
		return true
	}
	st.endOutstanding(sub, out, "")
	sub.acked = out.revision
	sub.newClustersAnswered(out)
	for _, name := range out.removed {
		st.confirmRemoval(sub, name)
	}
	if sub.url == resource.VirtualHostType {
		for _, name := range out.routeConfigs {
			if rc := st.routeConfigs[name]; rc != nil {
				rc.isolated = false
			}
		}
	}
	if !st.delta {
		sub.noteAcked(out.blobs)
	}
	st.forgetRejections(sub, out)
	if len(sub.rejectedVersions) == 0 {
		sub.rejection, sub.rejectedTogether = nil, false
	}
	if sub.rejection == nil && out.held.Revision != nil {
		sub.held = out.held
	}
	return true
}

// endOutstanding records the end of an outstanding response: acknowledged, rejected, or lost with its
// stream. An empty failure means acknowledged.
func (st *stream) endOutstanding(sub *subscription, out *response, failure string) {
	sub.outstanding = nil
	st.server.answers.responseAnswered(out.counted)
	if failure == "" {
		sub.metrics.ackSeconds.Observe(st.server.clock.Now().Sub(out.sentAt).Seconds())
	}
	if out.span == nil {
		return
	}
	if failure != "" {
		out.span.SetStatus(codes.Error, failure)
	}
	out.span.SetAttributes(attribute.Bool("fairlead.acked", failure == ""))
	out.span.End()
}

// noteAcked keeps what a sotw client holds: the resources of an acknowledged response, or those that the version in its
// first request stands for.
func (sub *subscription) noteAcked(blobs []*store.Blob) {
	if sub.ackedBlobs == nil || sub.complete() {
		sub.ackedBlobs = make(map[string]*store.Blob, len(blobs))
	}
	for _, blob := range blobs {
		sub.ackedBlobs[blob.Name()] = blob
	}
}
