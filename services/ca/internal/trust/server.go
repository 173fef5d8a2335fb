package trust

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

const (
	maxSubscriberBytes = 256
	// openWithin is how long a caller may hold a stream without saying who it is.
	openWithin = 10 * time.Second
)

// Clock is the part of a clock that the server needs.
type Clock interface {
	After(d time.Duration) <-chan time.Time
}

// Server is fairlead.ca.v1.TrustService.
type Server struct {
	cav1.UnimplementedTrustServiceServer
	publisher *Publisher
	acks      *Acks
	clock     Clock
}

// NewServer serves the publisher's bundle and records acknowledgements.
func NewServer(publisher *Publisher, acks *Acks, clock Clock) *Server {
	return &Server{publisher: publisher, acks: acks, clock: clock}
}

// WatchBundle sends the current generation at once and then the newest whenever it changes; a slow caller skips those in between.
func (s *Server) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	ctx := stream.Context()
	requests := rpc.Requests(stream)
	var first *cav1.WatchBundleRequest
	select {
	case r := <-requests:
		if r.Err != nil {
			return rpc.EndOf(r.Err)
		}
		first = r.Message
	case <-s.clock.After(openWithin):
		return status.Errorf(codes.DeadlineExceeded, "no first message within %s; send one with subscriber set", openWithin)
	}
	if n := len(first.GetSubscriber()); n == 0 || n > maxSubscriberBytes {
		return status.Errorf(codes.InvalidArgument, "subscriber has %d bytes; the first message names the subscriber in 1 to %d", n, maxSubscriberBytes)
	}
	peer, _ := auth.PeerFrom(ctx)
	id, ok := s.acks.add(Subscription{Subscriber: first.GetSubscriber(), Identity: peer.ID.String()})
	if !ok {
		return status.Error(codes.ResourceExhausted, "too many bundle watches are open; retry later")
	}
	defer s.acks.remove(id)
	// The first message may acknowledge what an earlier stream gave. A greater generation came from a ca with another history: it counts for nothing here.
	acked := first.GetAckedGeneration()
	if bundle, _ := s.publisher.Current(); bundle == nil || acked > bundle.Generation {
		acked = 0
	}
	return s.follow(ctx, stream, id, acked, requests)
}

// follow sends what changes and records what the caller acknowledges.
func (s *Server) follow(ctx context.Context, stream cav1.TrustService_WatchBundleServer, id, acked uint64, requests <-chan rpc.Received[cav1.WatchBundleRequest]) error {
	var sent uint64
	for {
		bundle, changed := s.publisher.Current()
		if bundle != nil && bundle.Generation != sent {
			if err := stream.Send(&cav1.WatchBundleResponse{
				TrustDomain: bundle.TrustDomain, Generation: bundle.Generation, RootCertificates: bundle.Roots,
			}); err != nil {
				return err
			}
			sent = bundle.Generation
		}
		if acked > sent {
			return status.Errorf(codes.InvalidArgument, "acked_generation is %d, but the newest generation is %d; acknowledge only what was received", acked, sent)
		}
		s.acks.ack(id, acked)
		select {
		case <-changed:
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			acked = r.Message.GetAckedGeneration()
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
