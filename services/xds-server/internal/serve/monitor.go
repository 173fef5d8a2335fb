package serve

import (
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// stallDetector tells for how long a client has taken no data. Server.handle closes the stream after
// Config.StallTimeout.
type stallDetector struct {
	clock func() time.Time
	// sending is the response that the loop is about to send. Only the loop's goroutine uses it.
	sending *response
	// sotwPayload belongs to the sotw request that the loop is handling. Only the loop's goroutine uses it.
	sotwPayload requestPayload
	// sendingSince is when the current send began, in nanoseconds; 0 if there is none.
	sendingSince atomic.Int64
	// largeUnsent counts the large responses that the network has not taken yet; lastProgress is when it last took one,
	// in nanoseconds.
	largeUnsent  atomic.Int32
	lastProgress atomic.Int64
}

// timeSend runs a send. A small response counts as taken when gRPC has accepted it, so that its budget is released
// here.
func (d *stallDetector) timeSend(out *response, send func() error) error {
	d.sendingSince.Store(d.clock().UnixNano())
	err := send()
	d.sendingSince.Store(0)
	if out != nil && (!out.marked || err != nil) {
		out.release()
	}
	return err
}

// largeSendBegan and largeSendTaken count the large responses that the network has not taken yet.
func (d *stallDetector) largeSendBegan() {
	if d.largeUnsent.Add(1) == 1 {
		d.lastProgress.Store(d.clock().UnixNano())
	}
}

func (d *stallDetector) largeSendTaken() {
	d.lastProgress.Store(d.clock().UnixNano())
	d.largeUnsent.Add(-1)
}

// stalledFor returns for how long the client has taken no data. contended is true if other streams wait for the bytes
// of this client's account; if none does, a large response may take as long as it needs.
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

// takeSending returns the response that a message belongs to, nil if there is none.
func (d *stallDetector) takeSending(message any) *response {
	out := d.sending
	d.sending = nil
	if out == nil || out.message != message {
		return nil
	}
	return out
}

// deltaMonitor is the stream that go-control-plane's loop uses in place of gRPC's.
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

// Recv implements stream.DeltaStream. It answers requests for debug types itself and detaches the payload of others.
func (m *deltaMonitor) Recv() (*discovery.DeltaDiscoveryRequest, error) {
	for {
		r := &deltaRequest{DeltaDiscoveryRequest: &discovery.DeltaDiscoveryRequest{}}
		if err := m.RecvMsg(r); err != nil {
			return nil, err
		}
		if err := m.stream.account.Throttle(m.Context(), r.size); err != nil {
			return nil, err
		}
		debug, err := m.stream.isDebugRequest(r.GetTypeUrl())
		if debug && err == nil && r.GetResponseNonce() != DebugType { // a request with that nonce is an ACK
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

// sotwMonitor does the same for sotw streams.
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

// Recv implements stream.Stream. It answers requests for debug types itself and detaches the payload of others.
func (m *sotwMonitor) Recv() (*discovery.DiscoveryRequest, error) {
	for {
		req, err := m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
		if err != nil {
			return nil, err
		}
		if err := m.stream.account.Throttle(m.Context(), proto.Size(req)); err != nil {
			return nil, err
		}
		debug, err := m.stream.isDebugRequest(req.GetTypeUrl())
		if debug && err == nil && req.GetResponseNonce() != DebugType { // a request with that nonce is an ACK
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
