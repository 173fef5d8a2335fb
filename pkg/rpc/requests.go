package rpc

import (
	"errors"
	"io"

	"google.golang.org/grpc"
)

// Received is one request of a stream, or its end.
type Received[Request any] struct {
	Message *Request
	Err     error
}

// Requests reads a stream until its end, which is given as an error, so that its handler can wait for several things. The goroutine that reads
// ends with the stream, which gRPC ends when the handler returns.
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

// EndOf is what a handler returns when Requests gave an error: nil for a client that has said all it had to say.
func EndOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
