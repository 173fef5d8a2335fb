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

// ServerConfig of a Server. All fields but Forwarder and Acknowledgements are required.
type ServerConfig struct {
	// Publisher has the bundle, Signed signs it, Watches records who watches it.
	Publisher *Publisher
	Signed    *Signatures
	Watches   *Watches
	// Forwarder is the SPIFFE ID whose processes may report what agents have acknowledged; "" means nobody's.
	Forwarder string
	// Acknowledgements is told what callers and agents have acknowledged; nil if nobody wants to know.
	Acknowledgements Acknowledgements
	Clock            clock.Clock
	// Random is uniform in [0,1); it spreads retries.
	Random func() float64
}

// Server is fairlead.ca.v1.TrustService.
type Server struct {
	cav1.UnimplementedTrustServiceServer
	cfg ServerConfig
}

// NewServer makes a Server.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Acknowledgements == nil {
		cfg.Acknowledgements = nobody{}
	}
	return &Server{cfg: cfg}
}

// nobody wants to know what was acknowledged.
type nobody struct{}

func (nobody) Acked(uint64, uint64, [][fingerprintBytes]byte, []string) {}

// WatchBundle sends the current generation, and then the newest one whenever it changes; a slow caller skips those in
// between. A stream counts as a watch from the moment it opens, before its first message.
func (s *Server) WatchBundle(stream cav1.TrustService_WatchBundleServer) error {
	peer, _ := auth.PeerFrom(stream.Context())
	watch, ok := s.cfg.Watches.add(peer.ID.String())
	if !ok {
		return s.reject(rejection.WatchLimit,
			"as many bundle watches are open as may be, and %s has its share of them; retry later, or follow the file with the roots",
			peer.ID.String())
	}
	defer s.cfg.Watches.remove(watch)
	requests := rpc.Requests(stream)
	opening := s.cfg.Clock.NewTimer(openWithin)
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
	opening.Stop()
	if n := len(first.GetSubscriber()); n == 0 || n > maxSubscriberBytes {
		return status.Errorf(codes.InvalidArgument, "subscriber has %d bytes; the first message names the subscriber in 1 to %d", n,
			maxSubscriberBytes)
	}
	if len(first.GetAgents()) > 0 {
		return status.Error(codes.InvalidArgument, "the first message has agents; report them once a bundle has come")
	}
	s.cfg.Watches.setSubscriber(watch, first.GetSubscriber())
	f := &following{
		Server: s, stream: stream, watch: watch, requests: requests, caller: callerOf(stream.Context()),
		forwards: s.cfg.Forwarder != "" && peer.ID.String() == s.cfg.Forwarder,
	}
	// The first message may acknowledge a generation of an earlier stream. A generation greater than the current one is
	// of a ca with another state directory and counts as 0.
	if bundle, _ := s.cfg.Publisher.Current(); bundle != nil {
		if acked := ackedIn(first, bundle.Epoch); acked.compare(bundle.point()) <= 0 {
			f.acked = acked
		}
	}
	return f.run()
}

func (s *Server) displaced(w *watch) error {
	return s.reject(rejection.WatchDisplaced,
		"no identity has more bundle watches open than %s: this one made room for another's; retry later, or follow the file with the roots",
		w.Identity)
}

func (s *Server) reject(reason rejection.Reason, format, identity string) error {
	return rejection.WithDetails(status.Newf(codes.ResourceExhausted, format, identity), reason,
		retryWithin+time.Duration(s.cfg.Random()*float64(retryWithin)))
}

// ackedIn is what a message acknowledges; a caller of an earlier version names no epoch and means the ca's own.
func ackedIn(m *cav1.WatchBundleRequest, epoch uint64) point {
	p := point{m.GetAckedEpoch(), m.GetAckedGeneration()}
	if p.epoch == 0 {
		p.epoch = epoch
	}
	if p.generation == 0 {
		return point{}
	}
	return p
}

// following is a stream after its first message.
type following struct {
	*Server
	stream   cav1.TrustService_WatchBundleServer
	watch    *watch
	requests <-chan rpc.Received[cav1.WatchBundleRequest]
	caller   caller
	// forwards is true if the caller may report agents.
	forwards bool
	// sent is the newest generation sent, in the form of last.
	sent point
	last *cav1.SignedBundle
	// acked is what the caller has acknowledged, and told is what of this the ca was told.
	acked, told point
}

// run sends each new generation, and the newest one again when the ca has another certificate, and records which one
// the caller and its agents acknowledge, until the stream ends.
func (f *following) run() error {
	// Reports are read at a bounded rate: while pause is set, no request is read.
	var pause <-chan time.Time
	for {
		bundle, changed := f.cfg.Publisher.Current()
		signedAnew, err := f.send(bundle)
		if err != nil {
			return err
		}
		if f.acked.compare(f.sent) > 0 {
			return status.Errorf(codes.InvalidArgument,
				"acked_generation is %d, but the newest generation is %d; acknowledge only what was received", f.acked.generation,
				f.sent.generation)
		}
		f.acknowledge()
		requests := f.requests
		if pause != nil {
			requests = nil
		}
		select {
		case <-changed:
		case <-signedAnew:
		case <-pause:
			pause = nil
		case <-f.watch.displaced:
			return f.displaced(f.watch)
		case r := <-requests:
			if r.Err != nil {
				return rpc.EndOf(r.Err)
			}
			f.acked = ackedIn(r.Message, f.sent.epoch)
			agents, err := f.report(r.Message)
			if err != nil {
				return err
			}
			if agents > 0 {
				pause = f.cfg.Clock.After(time.Duration(agents) * perAgent)
			}
		case <-f.stream.Context().Done():
			return status.FromContextError(f.stream.Context().Err()).Err()
		}
	}
}

// send sends a bundle unless it was sent, and returns a channel that is closed when it may have another signature.
func (f *following) send(bundle *Bundle) (signedAnew <-chan struct{}, err error) {
	if bundle == nil {
		return nil, nil
	}
	signed, signedAnew, err := f.cfg.Signed.Sign(bundle)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "the trust bundle cannot be signed: %v", err)
	}
	if bundle.point() == f.sent && signed == f.last {
		return signedAnew, nil
	}
	if err := f.stream.Send(&cav1.WatchBundleResponse{
		TrustDomain: bundle.TrustDomain, Epoch: bundle.Epoch, Generation: bundle.Generation, RootCertificates: bundle.Roots, SignedBundle: signed,
	}); err != nil {
		return nil, err
	}
	f.sent, f.last = bundle.point(), signed
	return signedAnew, nil
}

// acknowledge records what the caller has acknowledged, if it is newer than before.
func (f *following) acknowledge() {
	f.cfg.Watches.ack(f.watch, f.acked)
	if f.acked.compare(f.told) <= 0 {
		return
	}
	f.told = f.acked
	if len(f.caller.fingerprints)+len(f.caller.podUIDs) > 0 {
		f.cfg.Acknowledgements.Acked(f.acked.epoch, f.acked.generation, f.caller.fingerprints, f.caller.podUIDs)
	}
}

// report records what a message says of agents, and returns how many it names.
func (f *following) report(m *cav1.WatchBundleRequest) (agents int, err error) {
	if len(m.GetAgents()) == 0 {
		return 0, nil
	}
	if !f.forwards {
		return 0, status.Errorf(codes.PermissionDenied,
			"%s may not report what agents have acknowledged; only the ca's --forwarder may: leave agents out", f.watch.Identity)
	}
	reports, agents, err := readReports(m, f.sent)
	if err != nil {
		return 0, err
	}
	for _, r := range reports {
		f.cfg.Acknowledgements.Acked(r.epoch, r.generation, r.fingerprints, r.podUIDs)
	}
	return max(agents, len(reports)), nil
}
