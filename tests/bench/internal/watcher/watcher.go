// Package watcher plays config-watcher: it implements ConfigService, so that a change is one revision with exactly the
// resources that the benchmark says.
package watcher

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // its codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/bench/internal/mesh"
)

// chunkBytes bounds a chunk, as config-watcher's do.
const chunkBytes = 1 << 20

// Watcher serves a mesh to any number of xds-servers.
type Watcher struct {
	configv1.UnimplementedConfigServiceServer
	Address string

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu          sync.Mutex
	resources   map[string]*configv1.Resource
	seen        map[string]struct{} // keys in order
	order       []string            // keys as they came, removed ones included
	sequence    uint64
	subscribers map[*subscriber]struct{}
	advanced    chan struct{}
}

// subscriber is one open Watch.
type subscriber struct {
	revisions chan *configv1.WatchResponse
	acked     uint64
}

// Start serves a mesh on loopback to a client with an identity.
func Start(ctx context.Context, own tlsconf.Source, client spiffeid.ID, resources []*configv1.Resource) (*Watcher, error) {
	w := &Watcher{
		resources: map[string]*configv1.Resource{}, seen: map[string]struct{}{}, sequence: 1, subscribers: map[*subscriber]struct{}{},
		advanced: make(chan struct{}),
	}
	w.keep(resources, nil)
	g, err := rpc.NewServer(rpc.ServerConfig{
		Service: "config", Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Authenticator: auth.MTLS(),
		TLS: tlsconf.Server(own, tls.RequireAndVerifyClientCert), MaxRecvBytes: 64 << 20,
		Policy: auth.Policy{"/fairlead.config.v1.ConfigService/*": auth.IDs(client.String())},
	}, grpc.ForceServerCodecV2(deaf{encoding.GetCodecV2("proto")}))
	if err != nil {
		return nil, err
	}
	configv1.RegisterConfigServiceServer(g, w)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w.Address = lis.Addr().String()
	ctx, w.stop = context.WithCancel(ctx)
	w.wg.Go(func() {
		_ = rpc.Serve(ctx, g, lis, 0) // ends with the context
	})
	return w, nil
}

// Stop ends it.
func (w *Watcher) Stop() {
	w.stop()
	w.wg.Wait()
}

func (w *Watcher) keep(upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	for _, r := range upserts {
		k := key(r.GetKey())
		if _, ok := w.seen[k]; !ok {
			w.seen[k] = struct{}{}
			w.order = append(w.order, k)
		}
		w.resources[k] = r
	}
	for _, k := range removed {
		delete(w.resources, key(k))
	}
}

func key(k *configv1.ResourceKey) string {
	return k.GetKind() + "/" + k.GetNamespace() + "/" + k.GetName()
}

// Commit makes a change one revision and hands it to every subscriber. It returns the revision's number and when it was
// handed over.
func (w *Watcher) Commit(c mesh.Change) (sequence uint64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep(c.Upserts, c.Removed)
	w.sequence++
	m := &configv1.WatchResponse{Revision: w.revision(), Upserts: c.Upserts, Removed: c.Removed, Commit: true}
	at = time.Now()
	for s := range w.subscribers {
		s.revisions <- m
	}
	return w.sequence, at
}

func (w *Watcher) revision() *configv1.Revision {
	return &configv1.Revision{Epoch: "bench", Sequence: w.sequence}
}

// Taken waits until so many subscribers hold the revision.
func (w *Watcher) Taken(ctx context.Context, sequence uint64, subscribers int) error {
	for {
		w.mu.Lock()
		n, changed := 0, w.advanced
		for s := range w.subscribers {
			if s.acked >= sequence {
				n++
			}
		}
		w.mu.Unlock()
		if n >= subscribers {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d xds-servers have taken revision %d over: %w", n, subscribers, sequence, ctx.Err())
		}
	}
}

// Watch implements ConfigService.
func (w *Watcher) Watch(stream grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetHello() != nil {
			break
		}
	}
	s := &subscriber{revisions: make(chan *configv1.WatchResponse, 1<<16)}
	w.mu.Lock()
	chunks := w.whole()
	w.subscribers[s] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.subscribers, s)
		w.mu.Unlock()
	}()
	for _, m := range chunks {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	go w.acks(stream, s)
	for {
		select {
		case m := <-s.revisions:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// whole is the newest revision in chunks.
func (w *Watcher) whole() []*configv1.WatchResponse {
	out := []*configv1.WatchResponse{{Revision: w.revision()}}
	size := 0
	for _, k := range w.order {
		r := w.resources[k]
		if r == nil {
			continue
		}
		n := proto.Size(r) + 8
		if size+n > chunkBytes {
			out, size = append(out, &configv1.WatchResponse{Revision: w.revision()}), 0
		}
		last := out[len(out)-1]
		last.Upserts, size = append(last.Upserts, r), size+n
	}
	out[len(out)-1].Commit = true
	return out
}

// acks reads until the stream ends.
func (w *Watcher) acks(stream grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse], s *subscriber) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		w.mu.Lock()
		s.acked = m.GetAck().GetSequence()
		close(w.advanced)
		w.advanced = make(chan struct{})
		w.mu.Unlock()
	}
}

// deaf decodes everything but reports: they go to a process of their own in production, and would slow the proxies
// here.
type deaf struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (d deaf) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*configv1.ReportRequest); ok {
		return nil
	}
	return d.CodecV2.Unmarshal(data, v)
}

// Report implements ConfigService: statuses are taken and forgotten.
func (w *Watcher) Report(stream grpc.BidiStreamingServer[configv1.ReportRequest, configv1.ReportResponse]) error {
	for received := uint64(1); ; received++ {
		if _, err := stream.Recv(); err != nil {
			return status.Error(codes.Unavailable, "report ended")
		}
		if received > 1 {
			continue // config-watcher answers few of them, too
		}
		if err := stream.Send(&configv1.ReportResponse{Received: received, KnowsSettled: true}); err != nil {
			return err
		}
	}
}
