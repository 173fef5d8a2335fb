package serve

import (
	"context"
	"slices"
	"strconv"

	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// receive handles the client's requests until there are no more. An error ends the stream with its status.
func (st *stream) receive() error {
	for {
		req := &wire.Request{Delta: st.delta}
		if st.grpc.RecvMsg(req) != nil || st.account.Throttle(st.ctx, req.Size) != nil {
			return nil //nolint:nilerr // the client has left
		}
		err := req.Refusal
		if err == nil {
			err = st.answer(req)
		}
		req.Release()
		if err != nil {
			return err
		}
	}
}

func (st *stream) answer(req *wire.Request) error {
	debug, err := st.isDebugRequest(req.TypeURL)
	switch {
	case err != nil:
		return err
	case debug:
		return st.answerDebug(req)
	default:
		return st.handleRequest(req)
	}
}

// transmit sends the responses in the outbox until the context ends.
func (st *stream) transmit(ctx context.Context) error {
	for {
		for d, message := st.nextResponse(); d != nil; d, message = st.nextResponse() {
			if message.Taken != nil {
				st.largeSendBegan()
			}
			err := st.timeSend(func() error { return st.grpc.SendMsg(message) })
			if message.Taken == nil || err != nil {
				d.release()
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
func (st *stream) nextResponse() (*delivery, *wire.Response) {
	st.lock()
	defer st.unlock()
	if st.closed || len(st.outbox.unsent) == 0 {
		return nil, nil
	}
	d := st.outbox.unsent[0]
	st.outbox.unsent = slices.Delete(st.outbox.unsent, 0, 1)
	st.outbox.nonces++
	nonce := strconv.FormatUint(st.outbox.nonces, 10)
	st.client.Sent(st.server.clock.Now(), d.Response, nonce)
	if st.server.traced {
		d.span = st.server.startPush(st, d.Response)
	}
	m := st.server.metrics.of(d.TypeURL)
	m.pushes.Inc()
	m.sentBytes.Add(float64(d.Size))
	st.server.reports.markChanged(st)
	message := &wire.Response{
		Delta: st.delta, TypeURL: d.TypeURL, Nonce: nonce, Version: d.Version, Blobs: d.Blobs, Chunks: &st.server.chunks,
	}
	if st.delta {
		message.Removed, message.Missing = d.Removed, d.Missing
	}
	if d.Size > wire.SmallResponse {
		message.Taken = func() {
			st.largeSendTaken()
			d.release()
		}
	}
	return d, message
}
