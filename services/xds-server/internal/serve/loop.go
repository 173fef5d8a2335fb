package serve

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// receive handles the client's requests until there are no more. An error ends the stream with its status. If the
// client has half-closed the stream, transmit ends it.
func (st *stream) receive() error {
	for {
		req := &wire.Request{Delta: st.delta}
		err := st.grpc.RecvMsg(req)
		if errors.Is(err, io.EOF) {
			st.halfClosed.Store(true)
			notify.Wake(st.outbox.filled)
			return errHalfClosed
		}
		if err != nil || st.account.Throttle(st.ctx, req.Size) != nil {
			return nil //nolint:nilerr // the client has left
		}
		err = req.Refusal
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

// errHalfClosed says that the client has no more requests and may still read answers.
var errHalfClosed = errors.New("half-closed")

// transmit sends the responses in the outbox until the context ends, or until the network has taken them if the client
// has half-closed the stream.
func (st *stream) transmit(ctx context.Context) error {
	for {
		last := st.halfClosed.Load() // what the last request makes is in the outbox then
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
		if last && st.largeUnsent.Load() == 0 {
			return nil
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
			if st.halfClosed.Load() {
				notify.Wake(st.outbox.filled)
			}
		}
	}
	return d, message
}
