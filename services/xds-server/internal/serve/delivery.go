package serve

import (
	"slices"
	"sync/atomic"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
)

// delivery is a response on its way to the client, until the client has answered it.
type delivery struct {
	*subscription.Response
	stream *stream
	// reserved are the unsent bytes that it has reserved.
	reserved atomic.Int64
	// counted is what answerTracker counts it for.
	counted counted
	span    trace.Span
}

// release gives the reserved bytes back. Calls after the first do nothing.
func (d *delivery) release() {
	if size := d.reserved.Swap(0); size > 0 {
		d.stream.server.unsent.GiveBack(&d.stream.account.Unsent, int(size))
	}
}

// outbox are the deliveries that were not sent yet, in the order of sending. The stream's mutex guards it. The client
// has one outstanding response for each type, so that there are no more of them than types.
type outbox struct {
	unsent []*delivery
	// filled wakes transmit.
	filled chan struct{}
	// nonces counts the responses that were sent.
	nonces uint64
}

// flush hands out every response that can go now. It is called with mu held after everything that may have made a
// response possible.
func (st *stream) flush() {
	if st.ending.Load() {
		return
	}
	if st.client.Flush(st.server.clock.Now(), st.deliver) {
		notify.Wake(st.wake)
	}
}

// deliver puts a response into the outbox, or returns false if its bytes must wait: then FlushInTurn is called later.
func (st *stream) deliver(out *subscription.Response) bool {
	if !st.server.unsent.Take(st, &st.account.Unsent, out.Size, out.First, st.inTurn) {
		return false
	}
	d := &delivery{Response: out, stream: st, counted: st.server.answers.addResponse(out.TypeURL == resource.EndpointType)}
	d.reserved.Store(int64(out.Size))
	st.outstanding = append(st.outstanding, d)
	st.outbox.unsent = append(st.outbox.unsent, d)
	notify.Wake(st.outbox.filled)
	return true
}

// FlushInTurn implements quota.Waiter: it is called when it is this stream's turn to use bytes.
func (st *stream) FlushInTurn() {
	st.lock()
	defer st.unlock()
	if st.closed {
		return
	}
	st.inTurn = true
	st.flush()
	st.inTurn = false
}

// flushAfterTimeout is called by Server.handle when the order timeout has passed: what has waited that long is sent
// although the types before it are not acknowledged.
func (st *stream) flushAfterTimeout() {
	st.lock()
	defer st.unlock()
	if st.closed || st.class == nil {
		return
	}
	if st.client.Overdue(st.server.clock.Now()) {
		st.server.metrics.unordered.Inc()
	}
	st.flush()
}

// answered is called when the client has acknowledged or rejected a response.
func (st *stream) answered(out *subscription.Response) {
	i := slices.IndexFunc(st.outstanding, func(d *delivery) bool { return d.Response == out })
	d := st.outstanding[i]
	st.outstanding = slices.Delete(st.outstanding, i, i+1)
	m := st.server.metrics.of(out.TypeURL)
	rejection := out.Rejection
	if rejection == nil {
		st.endDelivery(d, "")
		m.ackSeconds.Observe(st.server.clock.Now().Sub(out.SentAt).Seconds())
		return
	}
	st.endDelivery(d, rejection.GetMessage())
	m.nacks.Inc()
	st.server.log.Warn("proxy rejected a response", "node", st.node.ID, "type", out.TypeURL, "resources", rejection.GetResourceNames(),
		"error", rejection.GetMessage(), "revision", out.Revision.GetSequence())
}

// endDelivery records the end of a delivery: acknowledged, rejected, or lost with its stream. An empty failure means
// acknowledged.
func (st *stream) endDelivery(d *delivery, failure string) {
	st.server.answers.responseAnswered(d.counted)
	if d.span == nil {
		return
	}
	if failure != "" {
		d.span.SetStatus(codes.Error, failure)
	}
	d.span.SetAttributes(attribute.Bool("fairlead.acked", failure == ""))
	d.span.End()
}
