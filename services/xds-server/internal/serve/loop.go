package serve

import (
	"context"
	"strconv"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// receive handles the client's requests until there are no more. An error ends the stream with its status.
func (st *stream) receive() error {
	for {
		req := &wire.Request{Delta: st.delta}
		if st.grpc.RecvMsg(req) != nil || st.account.Throttle(st.ctx, req.Size) != nil {
			return nil // the client has left
		}
		debug, err := st.isDebugRequest(req.TypeURL)
		switch {
		case err != nil:
		case debug:
			err = st.answerDebug(req)
		default:
			err = st.handleRequest(req)
		}
		req.Release()
		if err != nil {
			return err
		}
	}
}

// outbox are the subscriptions whose outstanding response has not been sent, in the order of sending. The stream's mutex
// guards it; a subscription has one outstanding response, so that there are no more of them than types.
type outbox struct {
	unsent []*subscription
	// filled wakes transmit.
	filled chan struct{}
	// nonces counts the responses that were sent.
	nonces uint64
}

func (o *outbox) push(sub *subscription) {
	o.unsent = append(o.unsent, sub)
	notify.Wake(o.filled)
}

// transmit sends the responses in the outbox until the context ends.
func (st *stream) transmit(ctx context.Context) error {
	for {
		for out, message := st.nextResponse(); out != nil; out, message = st.nextResponse() {
			if message.Taken != nil {
				st.largeSendBegan()
			}
			err := st.timeSend(func() error { return st.grpc.SendMsg(message) })
			if message.Taken == nil || err != nil {
				out.release()
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-st.outbox.filled:
		}
	}
}

// nextResponse takes the next response out of the outbox and gives it its nonce; nil if there is none.
func (st *stream) nextResponse() (*response, *wire.Response) {
	st.lock()
	defer st.unlock()
	if st.closed || len(st.outbox.unsent) == 0 {
		return nil, nil
	}
	sub := st.outbox.unsent[0]
	st.outbox.unsent = st.outbox.unsent[1:]
	out := sub.outstanding
	st.outbox.nonces++
	out.nonce, out.sentAt = strconv.FormatUint(st.outbox.nonces, 10), st.server.clock.Now()
	if st.server.traced {
		out.span = st.server.startPush(st, sub, out)
	}
	sub.sent = out.revision
	sub.bytes += uint64(out.size) //nolint:gosec // sizes are not negative
	sub.metrics.pushes.Inc()
	sub.metrics.sentBytes.Add(float64(out.size))
	st.server.reports.markChanged(st)
	message := &wire.Response{
		Delta: st.delta, TypeURL: sub.url, Nonce: out.nonce, Version: out.version, Blobs: out.blobs, Chunks: &st.server.chunks,
	}
	if st.delta {
		message.Removed, message.Missing = out.removed, out.missing
	}
	if out.size > wire.SmallResponse {
		message.Taken = func() {
			st.largeSendTaken()
			out.release()
		}
	}
	return out, message
}
