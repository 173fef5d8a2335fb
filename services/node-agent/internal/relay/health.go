package relay

import (
	"context"
	"io"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"fairlead.dev/pkg/notify"
)

// HealthInformation is the type of the requests by which Istio's agents tell the control plane how their workload is: a
// request with an error detail says that it is not well, one without that it is. There is no response.
const HealthInformation = "type.googleapis.com/istio.v1.HealthInformation"

// health is the workload's health as it was told last.
type health struct {
	notify.Notifier
	mu     sync.Mutex
	known  bool
	detail *status.Status
}

// SetHealth tells the xds-servers of all streams, now and of every stream that begins later, how the workload is; a nil
// problem means that it is well. Of several calls that come faster than a stream takes them the last one counts.
func (r *Relay) SetHealth(problem error) {
	h := &r.health
	h.mu.Lock()
	h.known, h.detail = true, nil
	if problem != nil {
		h.detail = &status.Status{Code: int32(codes.Internal), Message: problem.Error()}
	}
	h.mu.Unlock()
	h.Notify()
}

func (h *health) get() (*status.Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.detail, h.known
}

// withHealth returns the stream with the workload's health in it, until ctx ends.
func (r *Relay) withHealth(ctx context.Context, s messageStream, delta bool) *healthStream {
	return &healthStream{messageStream: s, ctx: ctx, health: &r.health, delta: delta}
}

// healthStream is a stream to an xds-server on which the agent also tells the workload's health.
type healthStream struct {
	messageStream
	ctx    context.Context //nolint:containedctx // that of the stream
	health *health
	delta  bool

	mu            sync.Mutex // one sender at a time
	begun, closed bool
}

// closeSend ends the requests of the stream.
func (s *healthStream) closeSend(up *xdsStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return up.CloseSend()
}

// SendMsg sends a message of the client. After the first one, which has the node, the stream tells the health.
func (s *healthStream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.messageStream.SendMsg(m)
	if err == nil && !s.begun {
		s.begun = true
		go s.tell()
	}
	return err
}

// tell sends the health, and again when it changes. An error needs no handling: the receiving side of the stream ends
// with it too.
func (s *healthStream) tell() {
	for {
		changed := s.health.Changed()
		if detail, known := s.health.get(); known && s.send(detail) != nil {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-changed:
		}
	}
}

func (s *healthStream) send(detail *status.Status) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return io.EOF
	}
	if s.delta {
		return s.messageStream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: HealthInformation, ErrorDetail: detail})
	}
	return s.messageStream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: HealthInformation, ErrorDetail: detail})
}
