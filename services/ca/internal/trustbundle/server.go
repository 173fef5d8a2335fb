package trustbundle

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/rejection"
)

const (
	// maxSubscriberBytes holds a Pod's name and namespace, by which Fairlead's own processes name themselves.
	maxSubscriberBytes = 256
	// openWithin is how long a caller may hold a stream before its first message.
	openWithin = 10 * time.Second
	// retryWithin is the shortest delay that a rejected caller is told; a random part of the same length comes on top,
	// so that callers rejected together do not retry together. Meanwhile the caller reads the roots from its file.
	retryWithin = 30 * time.Second
)

// Server is fairlead.ca.v1.TrustService.
type Server struct {
	cav1.UnimplementedTrustServiceServer
	publisher *Publisher
	watches   *Watches
	signed    *Signatures
	clock     clock.Clock
	random    func() float64
}

// NewServer makes a Server of the publisher's bundle that records watches and acknowledgements. random is uniform in
// [0,1); it spreads retries.
func NewServer(publisher *Publisher, watches *Watches, signed *Signatures, by clock.Clock, random func() float64) *Server {
	return &Server{publisher: publisher, watches: watches, signed: signed, clock: by, random: random}
}

// WatchBundle sends the current generation, and then the newest one whenever it changes; a slow caller skips those in
// between. A stream counts as a watch from the moment it opens, before its first message.
func (s *Server) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	peer, _ := auth.PeerFrom(stream.Context())
	watch, ok := s.watches.add(peer.ID.String())
	if !ok {
		return s.reject(rejection.WatchLimit,
			"as many bundle watches are open as may be, and %s has its share of them; retry later, or follow the file with the roots",
			peer.ID.String())
	}
	defer s.watches.remove(watch)
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
	case <-watch.displaced:
		return s.displaced(watch)
	case <-opening.C():
		return status.Errorf(codes.DeadlineExceeded, "no first message within %s; send one with subscriber set", openWithin)
	}
	if n := len(first.GetSubscriber()); n == 0 || n > maxSubscriberBytes {
		return status.Errorf(codes.InvalidArgument, "subscriber has %d bytes; the first message names the subscriber in 1 to %d", n,
			maxSubscriberBytes)
	}
	s.watches.setSubscriber(watch, first.GetSubscriber())
	// The first message may acknowledge a generation of an earlier stream. A generation greater than the current one is
	// of a ca with another state directory and counts as 0.
	acked := first.GetAckedGeneration()
	if bundle, _ := s.publisher.Current(); bundle == nil || acked > bundle.Generation {
		acked = 0
	}
	return s.follow(stream, watch, acked, requests)
}

func (s *Server) displaced(w *watch) error {
	return s.reject(rejection.WatchDisplaced,
		"no identity has more bundle watches open than %s: this one made room for another's; retry later, or follow the file with the roots",
		w.Identity)
}

func (s *Server) reject(reason rejection.Reason, format, identity string) error {
	return rejection.WithDetails(status.Newf(codes.ResourceExhausted, format, identity), reason,
		retryWithin+time.Duration(s.random()*float64(retryWithin)))
}

// follow sends each new generation, and the newest one again when the ca has another certificate, and records which one
// the caller acknowledges, until the stream ends.
func (s *Server) follow(stream cav1.TrustService_WatchBundleServer, w *watch, acked uint64,
	requests <-chan rpc.Received[cav1.WatchBundleRequest]) error {
	var sent uint64
	var last *cav1.SignedBundle
	for {
		bundle, changed := s.publisher.Current()
		var signedAnew <-chan struct{}
		if bundle != nil {
			signed, again, err := s.signed.Sign(bundle)
			if err != nil {
				return status.Errorf(codes.Unavailable, "the trust bundle cannot be signed: %v", err)
			}
			signedAnew = again
			if bundle.Generation != sent || signed != last {
				if err := stream.Send(&cav1.WatchBundleResponse{
					TrustDomain: bundle.TrustDomain, Generation: bundle.Generation, RootCertificates: bundle.Roots, SignedBundle: signed,
				}); err != nil {
					return err
				}
				sent, last = bundle.Generation, signed
			}
		}
		if acked > sent {
			return status.Errorf(codes.InvalidArgument,
				"acked_generation is %d, but the newest generation is %d; acknowledge only what was received", acked, sent)
		}
		s.watches.ack(w, acked)
		select {
		case <-changed:
		case <-signedAnew:
		case <-w.displaced:
			return s.displaced(w)
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			acked = r.Message.GetAckedGeneration()
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
