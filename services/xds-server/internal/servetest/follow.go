package servetest

import (
	"context"
	"io"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/configsource"
)

// Watch plays config-watcher to a Server that follows it by package configsource. It is used by one goroutine.
type Watch struct {
	grpc.ClientStream
	revisions chan *configv1.WatchResponse
	acks      chan uint64
	ended     context.Context
	sequence  uint64
}

// Follow lets the server follow the Watch that it returns, in place of Apply. busy is configsource.Config.Busy. The
// caller must call stop.
func (s *Server) Follow(t testing.TB, busy func() (<-chan struct{}, uint64)) (w *Watch, stop func()) {
	t.Helper()
	w = &Watch{revisions: make(chan *configv1.WatchResponse, 1<<16), acks: make(chan uint64, 1<<16)}
	client, err := configsource.New(configsource.Config{
		Watcher: w, Subscriber: &configv1.Subscriber{Instance: "test"}, Apply: s.ADS.Apply, ApplyEndpoints: s.ADS.ApplyEndpoints, Busy: busy,
		Log: s.cfg.Log, Registerer: prometheus.NewPedanticRegistry(), Clock: s.cfg.Clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, testkit.Background(t, client.Run)
}

// Commit sends the next revision.
func (w *Watch) Commit(upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	w.sequence++
	w.revisions <- &configv1.WatchResponse{
		Revision: &configv1.Revision{Epoch: "test", Sequence: w.sequence}, Upserts: upserts, Removed: removed, Commit: true,
	}
}

// WaitApplied waits until the server has applied all revisions.
func (w *Watch) WaitApplied() {
	for acked := uint64(0); acked < w.sequence; acked = <-w.acks {
	}
}

// Watch implements configsource.Watcher.
func (w *Watch) Watch(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse],
	error) {
	w.ended = ctx
	return w, nil
}

// Send takes the messages of the client.
func (w *Watch) Send(m *configv1.WatchRequest) error {
	if m.GetAck() != nil {
		w.acks <- m.GetAck().GetSequence()
	}
	return nil
}

// Recv gives the client the next revision.
func (w *Watch) Recv() (*configv1.WatchResponse, error) {
	select {
	case m := <-w.revisions:
		return m, nil
	case <-w.ended.Done():
		return nil, io.EOF
	}
}
