package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// reconnectTrailer is the trailer of a stream that ends with status OK because its client is to open another one; it
// says why.
const reconnectTrailer = "fairlead-reconnect"

// AskToReconnect gives what the handler of a stream returns whose client is to open another stream: status OK, with the
// reason in a trailer. Nothing has gone wrong then, and Istio's agent logs nearly every other status as a failure.
func AskToReconnect(ctx context.Context, why string) error {
	if err := grpc.SetTrailer(ctx, metadata.Pairs(reconnectTrailer, why)); err != nil {
		return status.Error(codes.Unavailable, why) // the stream is gone already
	}
	return nil
}

// ReconnectAsked returns why a server asked a client to open another stream; "" if a stream with these trailers ended
// for another reason.
func ReconnectAsked(trailer metadata.MD) string {
	if values := trailer.Get(reconnectTrailer); len(values) > 0 {
		return values[0]
	}
	return ""
}
