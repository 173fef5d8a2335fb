package serve

import (
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// transit knows since when a stream's bytes are stuck.
type transit struct {
	clock func() time.Time
	// sending is the response that the loop is about to send; only the loop's goroutine uses it.
	sending *response
	// heard is the large part of the state-of-the-world request that the loop is at; likewise.
	heard parcel
	// since is when the send in progress has begun, in nanoseconds; 0 if there is none.
	since atomic.Int64
	// large is how many large responses the network has not taken, moved when it last took one.
	large atomic.Int32
	moved atomic.Int64
}

// watch runs a send. What gRPC has accepted of a small response counts as taken.
func (t *transit) watch(out *response, send func() error) error {
	t.since.Store(t.clock().UnixNano())
	err := send()
	t.since.Store(0)
	if out != nil && (!out.marked || err != nil) {
		out.release()
	}
	return err
}

// began and took count the large responses on their way.
func (t *transit) began() {
	if t.large.Add(1) == 1 {
		t.moved.Store(t.clock().UnixNano())
	}
}

func (t *transit) took() {
	t.moved.Store(t.clock().UnixNano())
	t.large.Add(-1)
}

// stalledFor returns for how long the client has taken no data. A large response may take its time as long as nobody waits for its bytes.
func (t *transit) stalledFor(contended bool) time.Duration {
	since := t.since.Load()
	if since == 0 && contended && t.large.Load() > 0 {
		since = t.moved.Load()
	}
	if since == 0 {
		return 0
	}
	return t.clock().Sub(time.Unix(0, since))
}

// next returns the response that a message belongs to, nil if it is not known.
func (t *transit) next(message any) *response {
	out := t.sending
	t.sending = nil
	if out == nil || out.message != message {
		return nil
	}
	return out
}

// deltaMonitor stands between go-control-plane's loop and gRPC.
type deltaMonitor struct {
	discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	stream *stream
}

// Send implements stream.DeltaStream.
func (m *deltaMonitor) Send(r *discovery.DeltaDiscoveryResponse) error {
	out := m.stream.next(r)
	return m.stream.watch(out, func() error {
		if out == nil {
			return m.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(r)
		}
		return m.SendMsg(&deltaFrame{r, out})
	})
}

// Recv implements stream.DeltaStream. Requests for debug types are answered here.
func (m *deltaMonitor) Recv() (*discovery.DeltaDiscoveryRequest, error) {
	for {
		r := &deltaRequest{DeltaDiscoveryRequest: &discovery.DeltaDiscoveryRequest{}}
		if err := m.RecvMsg(r); err != nil {
			return nil, err
		}
		if err := m.stream.account.pace(m.Context(), r.size); err != nil {
			return nil, err
		}
		debug, err := m.stream.divert(r.GetTypeUrl())
		if debug && err == nil && r.GetResponseNonce() != DebugType { // an acknowledgement otherwise
			err = m.answer(r.DeltaDiscoveryRequest)
		}
		if err != nil {
			return nil, m.stream.fail(err)
		}
		if !debug {
			m.stream.keepDelta(r)
			return r.DeltaDiscoveryRequest, nil
		}
		r.data.Free()
	}
}

// worldMonitor is deltaMonitor for the state of the world.
type worldMonitor struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	stream *stream
}

// Send implements stream.Stream.
func (m *worldMonitor) Send(r *discovery.DiscoveryResponse) error {
	out := m.stream.next(r)
	return m.stream.watch(out, func() error {
		if out == nil {
			return m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(r)
		}
		return m.SendMsg(&worldFrame{r, out})
	})
}

// Recv implements stream.Stream. Requests for debug types are answered here.
func (m *worldMonitor) Recv() (*discovery.DiscoveryRequest, error) {
	for {
		req, err := m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
		if err != nil {
			return nil, err
		}
		if err := m.stream.account.pace(m.Context(), proto.Size(req)); err != nil {
			return nil, err
		}
		debug, err := m.stream.divert(req.GetTypeUrl())
		if debug && err == nil && req.GetResponseNonce() != DebugType { // an acknowledgement otherwise
			err = m.answer(req)
		}
		if err != nil {
			return nil, m.stream.fail(err)
		}
		if !debug {
			m.stream.keepWorld(req)
			return req, nil
		}
	}
}
