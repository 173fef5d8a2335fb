package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/node-agent/internal/lastgood"
)

// answerTimeout is how long a connected xds-server may take to answer Envoy's first request before another is tried.
const answerTimeout = 30 * time.Second

// LastGood is the configuration that Envoy has accepted last, which answers Envoy while no xds-server does.
type LastGood struct {
	*lastgood.Keeper
	// Authority is the :authority of Envoy's streams, see AgentResource.
	Authority string
	// After is how long an Envoy that has no clusters and listeners waits for an xds-server before it is answered.
	After time.Duration
}

// envoyStream is Envoy's stream where its configuration is kept: all that Envoy sends and receives on it is recorded.
type envoyStream struct {
	grpc.ServerStream
	recorder *lastgood.Recorder
	fresh    bool
	answered atomic.Bool
	// first is Envoy's first message, which says whether it holds configuration. The first RecvMsg returns it.
	first []byte
	given bool
}

// follows reports whether a stream is Envoy's and its configuration is kept.
func (r *Relay) follows(down grpc.ServerStream) bool {
	return r.lastGood != nil && authority(down.Context()) == r.lastGood.Authority
}

// follow receives the first message of Envoy's stream.
func (r *Relay) follow(method string, down grpc.ServerStream) (*envoyStream, error) {
	f := &frame{}
	if err := down.RecvMsg(f); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return nil, err
	}
	defer f.free()
	e := &envoyStream{ServerStream: down, recorder: r.lastGood.Stream(method == Delta), first: f.data.Materialize()}
	e.fresh = !lastgood.Holds(e.first, method == Delta) || !r.lastGood.Complete()
	return e, nil
}

// holdsNothing reports whether this Envoy has not received its clusters and listeners yet.
func (e *envoyStream) holdsNothing() bool { return e.fresh }

func bytesFrame(b []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// RecvMsg receives the next message of Envoy, and records it.
func (e *envoyStream) RecvMsg(m any) error {
	f, ok := m.(*frame)
	if !ok {
		return status.Errorf(codes.Internal, "relay: a message of type %T", m)
	}
	if !e.given {
		e.given = true
		e.recorder.Request(e.first)
		f.data = bytesFrame(e.first).data
		return nil
	}
	if err := e.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	e.recorder.Request(f.data.Materialize())
	return nil
}

// SendMsg records a message for Envoy, before Envoy can answer it, and sends it.
func (e *envoyStream) SendMsg(m any) error {
	if f, ok := m.(*frame); ok {
		e.recorder.Response(f.data.Materialize())
	}
	e.answered.Store(true)
	return e.ServerStream.SendMsg(m)
}

// forwardOrStandIn serves an Envoy that has no configuration: from an xds-server, or, if none answers soon, from the
// configuration that was accepted last, if there is any. cancel ends ctx.
func (r *Relay) forwardOrStandIn(ctx context.Context, cancel func(), method string, e *envoyStream) error {
	var up *xdsStream
	err := errors.New("no answer")
	if !r.silent.Load() {
		up, err = r.connect(ctx, method, r.firstHold())
	}
	if status.Code(err) == codes.Unavailable || r.silent.Load() {
		if last := r.lastGood.Last(); last != nil {
			return r.standIn(ctx, method, e, last)
		}
		r.silent.Store(false)
		up, err = r.connect(ctx, method, max(r.hold-r.lastGood.After, time.Second))
	}
	if err != nil {
		return err
	}
	// An xds-server that takes streams and answers none must not keep Envoy waiting.
	watch, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-watch.Done():
		case <-r.clock.After(r.lastGood.After):
			if !e.answered.Load() && r.lastGood.Last() != nil {
				r.silent.Store(true)
				up.cancel()
			}
		}
	}()
	return r.copy(ctx, cancel, method, e, up)
}

// firstHold is how long the first attempts to reach an xds-server go on before the last configuration is looked for.
func (r *Relay) firstHold() time.Duration {
	if r.lastGood == nil {
		return r.hold
	}
	return min(r.lastGood.After, r.hold)
}

// standIn answers Envoy from last until an xds-server answers. Then it ends Envoy's stream: Envoy opens another one and
// states the versions that it holds, which are those that the xds-server gave.
func (r *Relay) standIn(ctx context.Context, method string, e *envoyStream, last *lastgood.View) error {
	r.log.Warn("no xds-server answers: Envoy gets the configuration that it has accepted last", "sealed", last.Sealed)
	r.metrics.standIns.Inc()
	defer r.metrics.standIns.Dec()
	defer r.silent.Store(false)
	r.lastGood.Adopt(last)
	for _, a := range r.agentResources() {
		if a.Adopt == nil {
			r.takeLast(a.TypeURL, a.Take)
		}
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		r.awaitAnswer(ctx, method, e.first)
	}()
	requests, ended := make(chan []byte), make(chan error, 1)
	go func() {
		for {
			f := &frame{}
			if err := e.ServerStream.RecvMsg(f); err != nil {
				ended <- err
				return
			}
			message := f.data.Materialize()
			f.free()
			select {
			case requests <- message:
			case <-ctx.Done():
				return
			}
		}
	}()
	session, message := last.Session(method == Delta), e.first
	for {
		responses, rejected := session.Answer(message)
		if rejected != "" {
			r.log.Warn("Envoy rejects configuration that it has accepted before", "error", rejected)
		}
		for _, response := range responses {
			if err := e.ServerStream.SendMsg(bytesFrame(response)); err != nil {
				return err
			}
		}
		select {
		case message = <-requests:
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-back:
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			r.log.Info("an xds-server answers again")
			return status.Error(codes.Unavailable, "an xds-server answers again: state what you hold")
		}
	}
}

// awaitAnswer returns when an xds-server has answered the first request of Envoy, or ctx has ended.
func (r *Relay) awaitAnswer(ctx context.Context, method string, first []byte) {
	for ctx.Err() == nil {
		up, err := r.connect(ctx, method, r.hold)
		if err != nil {
			continue // the time to hold is over
		}
		late := time.AfterFunc(answerTimeout, up.cancel)
		f := &frame{}
		if err = up.SendMsg(bytesFrame(first)); err == nil {
			err = up.RecvMsg(f)
		}
		f.free()
		late.Stop()
		address := up.address()
		up.close()
		if err == nil {
			r.noteClientEnd()
			return
		}
		if address != "" {
			r.addresses.markFailed(address, r.clock.Now())
		}
		r.noteFailedAttempt()
	}
}

// agentResources are AgentResource, if there is one, and MoreResources.
func (r *Relay) agentResources() []*AgentResource {
	if r.agentResource == nil {
		return r.moreResources
	}
	return append([]*AgentResource{r.agentResource}, r.moreResources...)
}

// keepLast keeps the version of AgentResource, or of what Fetch asks for, that was taken last.
func (r *Relay) keepLast(typeURL, name, version string, a *anypb.Any) {
	if r.lastGood == nil {
		return
	}
	if body, err := proto.Marshal(a); err == nil { // what was decoded can be encoded
		r.lastGood.Keep(typeURL, name, version, body)
	}
}

// keeping makes take keep what it has taken from a state-of-the-world response.
func (r *Relay) keeping(typeURL string, take func(*anypb.Any) error) func(*anypb.Any) error {
	return func(a *anypb.Any) error {
		err := take(a)
		if err == nil {
			r.keepLast(typeURL, "the agent's", "", a)
		}
		return err
	}
}

// takeLast gives take the resource of a type that was taken last, and reports whether it took it.
func (r *Relay) takeLast(typeURL string, take func(*anypb.Any) error) bool {
	if r.lastGood == nil {
		return false
	}
	last := r.lastGood.Last()
	if last == nil {
		return false
	}
	name, version, body := last.One(typeURL)
	a := &anypb.Any{}
	if name == "" || proto.Unmarshal(body, a) != nil {
		return false
	}
	if err := take(a); err != nil {
		r.log.Warn("a resource that was accepted before is rejected", "type", typeURL, "error", err)
		return false
	}
	r.lastGood.Keep(typeURL, name, version, body)
	if version != "" && slices.ContainsFunc(r.agentResources(), func(a *AgentResource) bool { return a.TypeURL == typeURL }) {
		r.keep(typeURL, map[string]string{name: version}, nil)
	}
	return true
}
