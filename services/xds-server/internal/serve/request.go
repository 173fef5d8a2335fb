package serve

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/serve/quota"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// handleRequest is called for every request, in the order of arrival. It hands out the responses that may go now.
func (st *stream) handleRequest(req *wire.Request) error {
	st.lock()
	defer st.unlock()
	if err := st.acceptRequest(req); err != nil {
		return err
	}
	if !st.server.engine.Knows(req.TypeURL) { // it is never answered
		st.noteUnserved(req.TypeURL, req.Failure)
		return nil
	}
	did, err := st.client.Request(st.server.clock.Now(), req)
	if did.Answered != nil {
		st.answered(did.Answered)
	}
	if err == nil && req.TypeURL == contract.SignedBundleType {
		st.noteTrust(req, did.Answered)
	}
	if refused := (*subscription.RefusedError)(nil); errors.As(err, &refused) {
		return st.account.Refuse(st.node.ID, quota.BudgetNames, refused.Reason)
	}
	if err != nil {
		return err
	}
	st.flush()
	if did.Changed {
		st.server.reports.markChanged(st)
	}
	return nil
}

// acceptRequest checks the node and the type of a request. The caller holds mu.
func (st *stream) acceptRequest(req *wire.Request) error {
	if st.closed {
		return status.Error(codes.Unavailable, "stream is closing")
	}
	if req.TypeURL == "" {
		return status.Error(codes.InvalidArgument, "type URL is required for ADS")
	}
	if err := st.identify(req); err != nil {
		return err
	}
	if !st.server.engine.Knows(req.TypeURL) {
		return st.countUnservedType(req.TypeURL)
	}
	return nil
}

// ambientTypes are prefixes of the types that configure Istio's ztunnels and waypoints. A proxy that requests one waits
// for the answer, so its stream ends with an error that says so. Other unknown types get no answer: agents send some
// only to tell something, such as the health of their workload (noteUnserved).
var ambientTypes = []string{"type.googleapis.com/istio.workload.", "type.googleapis.com/istio.security."}

// countUnservedType bounds the types that no translator makes.
func (st *stream) countUnservedType(typeURL string) error {
	if len(typeURL) > maxTypeURLBytes {
		return status.Errorf(codes.InvalidArgument, "type URL of %d bytes, at most %d are read", len(typeURL), maxTypeURLBytes)
	}
	for _, prefix := range ambientTypes {
		if strings.HasPrefix(typeURL, prefix) {
			return status.Errorf(codes.Unimplemented,
				"%s is a type of ambient mode, which is not served; unset PEER_METADATA_DISCOVERY, and run sidecars in place of ztunnels", typeURL)
		}
	}
	if slices.Contains(st.unservedTypes, typeURL) {
		return nil
	}
	if len(st.unservedTypes) >= maxUnservedTypes {
		return status.Errorf(codes.ResourceExhausted, "more than %d types that are not served on one stream", maxUnservedTypes)
	}
	st.unservedTypes = append(st.unservedTypes, typeURL)
	return nil
}

// maxUnservedTypes bounds the types of one stream that are not served, and maxTypeURLBytes their type URLs. The longest
// type URL has 90 bytes.
const (
	maxUnservedTypes = 16
	maxTypeURLBytes  = 256
)
