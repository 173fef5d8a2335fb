package serve

import (
	"slices"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// handleRequest is called for every request, in the order of arrival: a subscription, an ACK, a NACK, or two of them in
// one. It hands out the responses that may go now.
func (st *stream) handleRequest(req *wire.Request) error {
	st.lock()
	defer st.unlock()
	sub, isNew, err := st.acceptRequest(req.Node, req.TypeURL)
	if sub == nil {
		if err == nil {
			st.noteUnserved(req.TypeURL, req.Failure)
		}
		return err
	}
	if out := sub.outstanding; !st.delta && out != nil && out.nonce != "" && out.nonce != req.Nonce {
		st.dropLeftOut(sub, req)
		return nil
	}
	changed := st.handleNonce(sub, req.Nonce, req.Failure)
	switch {
	case !st.delta:
		changed, err = true, st.updateSotw(sub, req, isNew)
	case isNew || req.NameTally.Count()+len(req.Unsubscribe) > 0:
		changed, err = true, st.updateDelta(sub, req, isNew)
	}
	if err != nil {
		return err
	}
	st.flush()
	if changed {
		st.server.reports.markChanged(st)
	}
	return nil
}

// acceptRequest checks the node of a request and returns the subscription of its type. For a type that no translator
// makes, subscription and error are nil: the request is never answered. The caller holds mu.
func (st *stream) acceptRequest(node *core.Node, typeURL string) (sub *subscription, isNew bool, err error) {
	if st.closed {
		return nil, false, status.Error(codes.Unavailable, "stream is closing")
	}
	if typeURL == "" {
		return nil, false, status.Error(codes.InvalidArgument, "type URL is required for ADS")
	}
	if err := st.identify(node); err != nil {
		return nil, false, err
	}
	if !st.server.engine.Knows(typeURL) {
		return nil, false, st.countUnservedType(typeURL)
	}
	return st.subscriptionFor(typeURL)
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
	if len(st.unservedTypes) >= maxTypes {
		return status.Errorf(codes.ResourceExhausted, "more than %d types that are not served on one stream", maxTypes)
	}
	st.unservedTypes = append(st.unservedTypes, typeURL)
	return nil
}

// maxTypes bounds the types of one stream, served and unserved ones each, and maxTypeURLBytes the type URLs of unserved
// ones. Envoy requests fewer than ten types, and the longest type URL has 90 bytes.
const (
	maxTypes        = 16
	maxTypeURLBytes = 256
)

// subscription returns the subscription of a type, nil if there is none.
func (st *stream) subscription(url string) *subscription {
	for _, sub := range st.types {
		if sub.url == url {
			return sub
		}
	}
	return nil
}

// subscriptionFor returns the subscription of a type and whether it is new. New ones are inserted in send order.
func (st *stream) subscriptionFor(url string) (sub *subscription, isNew bool, err error) {
	if sub := st.subscription(url); sub != nil {
		return sub, false, nil
	}
	if len(st.types) >= maxTypes {
		return nil, false, status.Error(codes.ResourceExhausted, "too many types on one stream")
	}
	sub = &subscription{url: url, metrics: st.server.metrics.of(url)}
	at := slices.IndexFunc(st.types, func(other *subscription) bool {
		a, b := rank(other.url), rank(url)
		return a > b || a == b && other.url > url
	})
	if at < 0 {
		at = len(st.types)
	}
	st.types = slices.Insert(st.types, at, sub)
	return sub, true, nil
}
