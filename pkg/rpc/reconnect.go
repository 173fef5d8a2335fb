package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// reconnectTrailer is the trailer of a stream that a server ends so that its client opens another; its value says why.
const reconnectTrailer = "fairlead-reconnect"

// AskToReconnect returns what a handler must return to make its client open another stream: status OK, with the reason
// in a trailer. The status is OK because Istio's agent logs nearly every other one as a failure.
func AskToReconnect(ctx context.Context, why string) error {
	if err := grpc.SetTrailer(ctx, metadata.Pairs(reconnectTrailer, why)); err != nil {
		return status.Error(codes.Unavailable, why) // the stream has ended already
	}
	return nil
}

// ReconnectAsked returns the reason of AskToReconnect in the trailers of a stream; empty if the stream ended otherwise.
func ReconnectAsked(trailer metadata.MD) string {
	if values := trailer.Get(reconnectTrailer); len(values) > 0 {
		return values[0]
	}
	return ""
}
