package trust

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/refusal"
)

const (
	// maxSubscriberBytes is enough for a Pod's name and namespace, by which a process names itself.
	maxSubscriberBytes = 256
	// openWithin is how long a caller may keep a stream open before its first message.
	openWithin = 10 * time.Second
	// retryWithin is the delay after which a refused caller may retry: a random time between this and twice this, so
	// that callers refused together do not retry together. The bundle changes a few times a year; until then the caller
	// uses the root file.
	retryWithin = 30 * time.Second
)

// Server is fairlead.ca.v1.TrustService.
type Server struct {
	cav1.UnimplementedTrustServiceServer
	publisher *Publisher
	acks      *Acks
	clock     clock.Clock
	random    func() float64
}

// NewServer makes a server of the publisher's bundle that records acknowledgements in acks. random is uniform in [0,1);
// it spreads retries.
func NewServer(publisher *Publisher, acks *Acks, by clock.Clock, random func() float64) *Server {
	return &Server{publisher: publisher, acks: acks, clock: by, random: random}
}

// WatchBundle sends the current generation at once, and then the newest whenever it changes; a slow caller skips those
// in between. A stream counts as a watch from the moment it opens, before its first message.
func (s *Server) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	ctx := stream.Context()
	peer, _ := auth.PeerFrom(ctx)
	id, displaced, ok := s.acks.add(peer.ID.String())
	if !ok {
		return s.refusal(refusal.WatchLimit, "as many bundle watches are open as may be, and %s has its share of them; retry later, or follow the file with the roots", peer)
	}
	defer s.acks.remove(id)
	requests := rpc.Requests(stream)
	opening := s.clock.NewTimer(openWithin)
	defer opening.Stop()
	var first *cav1.WatchBundleRequest
	select {
	case r := <-requests:
		if r.Err != nil {
			return rpc.EndOf(r.Err)
		}
		first = r.Message
	case <-displaced:
		return s.displaced(peer)
	case <-opening.C():
		return status.Errorf(codes.DeadlineExceeded, "no first message within %s; send one with subscriber set", openWithin)
	}
	if n := len(first.GetSubscriber()); n == 0 || n > maxSubscriberBytes {
		return status.Errorf(codes.InvalidArgument, "subscriber has %d bytes; the first message names the subscriber in 1 to %d", n, maxSubscriberBytes)
	}
	s.acks.named(id, first.GetSubscriber())
	// The first message may acknowledge a generation of an earlier stream. A generation greater than the current one
	// came from a ca with another history and counts as 0.
	acked := first.GetAckedGeneration()
	if bundle, _ := s.publisher.Current(); bundle == nil || acked > bundle.Generation {
		acked = 0
	}
	return s.follow(ctx, stream, open{id: id, peer: peer, displaced: displaced}, acked, requests)
}

// open is a watch that Acks has recorded.
type open struct {
	id        uint64
	peer      auth.Peer
	displaced <-chan struct{}
}

func (s *Server) displaced(peer auth.Peer) error {
	return s.refusal(refusal.WatchDisplaced, "no identity has more bundle watches open than %s: this one made room for another's; retry later, or follow the file with the roots", peer)
}

func (s *Server) refusal(reason refusal.Reason, format string, peer auth.Peer) error {
	return refusal.Detailed(status.Newf(codes.ResourceExhausted, format, peer.ID), reason, retryWithin+time.Duration(s.random()*float64(retryWithin)))
}

// follow sends each new generation and records what the caller acknowledges.
func (s *Server) follow(ctx context.Context, stream cav1.TrustService_WatchBundleServer, w open, acked uint64, requests <-chan rpc.Received[cav1.WatchBundleRequest]) error {
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
		s.acks.ack(w.id, acked)
		select {
		case <-changed:
		case <-w.displaced:
			return s.displaced(w.peer)
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
