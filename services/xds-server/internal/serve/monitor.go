package serve

import (
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// transit knows since when a stream's bytes are stuck.
type stallDetector struct {
	clock func() time.Time
	// sending is the response that the loop is about to send; only the loop's goroutine uses it.
	sending *response
	// heard is the large part of the state-of-the-world request that the loop is at; likewise.
	sotwPayload requestPayload
	// since is when the send in progress has begun, in nanoseconds; 0 if there is none.
	sendingSince atomic.Int64
	// large is how many large responses the network has not taken, moved when it last took one.
	largeUnsent  atomic.Int32
	lastProgress atomic.Int64
}

// watch runs a send. What gRPC has accepted of a small response counts as taken.
func (d *stallDetector) timeSend(out *response, send func() error) error {
	d.sendingSince.Store(d.clock().UnixNano())
	err := send()
	d.sendingSince.Store(0)
	if out != nil && (!out.marked || err != nil) {
		out.release()
	}
	return err
}

// began and took count the large responses on their way.
func (d *stallDetector) largeSendBegan() {
	if d.largeUnsent.Add(1) == 1 {
		d.lastProgress.Store(d.clock().UnixNano())
	}
}

func (d *stallDetector) largeSendTaken() {
	d.lastProgress.Store(d.clock().UnixNano())
	d.largeUnsent.Add(-1)
}

// stalledFor returns for how long the client has taken no data. A large response may take its time as long as nobody waits for its bytes.
func (d *stallDetector) stalledFor(contended bool) time.Duration {
	since := d.sendingSince.Load()
	if since == 0 && contended && d.largeUnsent.Load() > 0 {
		since = d.lastProgress.Load()
	}
	if since == 0 {
		return 0
	}
	return d.clock().Sub(time.Unix(0, since))
}

// next returns the response that a message belongs to, nil if it is not known.
func (d *stallDetector) takeSending(message any) *response {
	out := d.sending
	d.sending = nil
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
	out := m.stream.takeSending(r)
	return m.stream.timeSend(out, func() error {
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
		if err := m.stream.account.throttle(m.Context(), r.size); err != nil {
			return nil, err
		}
		debug, err := m.stream.isDebugRequest(r.GetTypeUrl())
		if debug && err == nil && r.GetResponseNonce() != debugType { // an acknowledgement otherwise
			err = m.answerDebug(r.DeltaDiscoveryRequest)
		}
		if err != nil {
			return nil, m.stream.endWithStatus(err)
		}
		if !debug {
			m.stream.detachDelta(r)
			return r.DeltaDiscoveryRequest, nil
		}
		r.buffers.Free()
	}
}

// worldMonitor is deltaMonitor for the state of the world.
type sotwMonitor struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	stream *stream
}

// Send implements stream.Stream.
func (m *sotwMonitor) Send(r *discovery.DiscoveryResponse) error {
	out := m.stream.takeSending(r)
	return m.stream.timeSend(out, func() error {
		if out == nil {
			return m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(r)
		}
		return m.SendMsg(&sotwFrame{r, out})
	})
}

// Recv implements stream.Stream. Requests for debug types are answered here.
func (m *sotwMonitor) Recv() (*discovery.DiscoveryRequest, error) {
	for {
		req, err := m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
		if err != nil {
			return nil, err
		}
		if err := m.stream.account.throttle(m.Context(), proto.Size(req)); err != nil {
			return nil, err
		}
		debug, err := m.stream.isDebugRequest(req.GetTypeUrl())
		if debug && err == nil && req.GetResponseNonce() != debugType { // an acknowledgement otherwise
			err = m.answerDebug(req)
		}
		if err != nil {
			return nil, m.stream.endWithStatus(err)
		}
		if !debug {
			m.stream.detachSotw(req)
			return req, nil
		}
	}
}
