package serve

import (
	"slices"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// admit checks a request's node and finds the subscription to its type. Both are nil for a type that nobody makes: such a request is never
// answered. The caller holds s.mu.
func (st *stream) acceptRequest(node *core.Node, typeURL string) (sub *subscription, isNew bool, err error) {
	if st.closed {
		return nil, false, status.Error(codes.Unavailable, "stream is closing")
	}
	if err := st.identify(node); err != nil {
		return nil, false, err
	}
	if !st.server.engine.Knows(typeURL) {
		return nil, false, st.countUnservedType(typeURL)
	}
	return st.subscriptionFor(typeURL)
}

// ambientTypes begin the types that Istio's ztunnels and waypoints are configured with. A proxy that asks for one
// waits for it, so its stream ends with the reason; what an agent only tells, such as its workload's health, is left
// aside.
var ambientTypes = []string{"type.googleapis.com/istio.workload.", "type.googleapis.com/istio.security."}

// leaveAside counts the types that nobody makes: go-control-plane's loop remembers each for as long as the stream lives.
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

// maxTypes bounds the types of one stream, those that are served and those that are not, and maxTypeURLBytes the names of the latter: Envoy
// asks for fewer than ten, the longest of which has 90 bytes.
const (
	maxTypes        = 16
	maxTypeURLBytes = 256
)

// of returns the subscription to a type, nil if there is none.
func (st *stream) subscription(url string) *subscription {
	for _, sub := range st.types {
		if sub.url == url {
			return sub
		}
	}
	return nil
}

// typeOf returns the subscription of a type and whether it is new. The types of a stream are kept in the order they are sent in.
func (st *stream) subscriptionFor(url string) (sub *subscription, isNew bool, err error) {
	if sub := st.subscription(url); sub != nil {
		return sub, false, nil
	}
	if len(st.types) >= maxTypes {
		return nil, false, status.Error(codes.ResourceExhausted, "too many types on one stream")
	}
	sub = &subscription{url: url, metrics: st.server.metrics.of(url)}
	sub.cancel = func() {
		st.lock()
		defer st.unlock()
		sub.open = watch{}
	}
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
