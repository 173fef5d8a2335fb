package rpc

import (
	"errors"
	"io"

	"google.golang.org/grpc"
)

// Received is a request of a stream, or the error that ended the stream.
type Received[Request any] struct {
	Message *Request
	Err     error
}

// Requests reads a stream into a channel, so that its handler can wait for several things. Its goroutine ends with the
// stream, which gRPC ends when the handler returns.
func Requests[Request, Response any](stream grpc.BidiStreamingServer[Request, Response]) <-chan Received[Request] {
	out := make(chan Received[Request])
	go func() {
		for {
			m, err := stream.Recv()
			select {
			case out <- Received[Request]{m, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// EndOf returns what a handler must return after an error of Requests: nil if the client has closed its side.
func EndOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
