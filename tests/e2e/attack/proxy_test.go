package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit/adstest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// node is what a Pod's own proxy says of itself.
func node(p *fleet.Pod) *corev3.Node {
	return nodeNamed("sidecar", p.IP, p.Name, p.Namespace, p.Namespace+".svc.cluster.local")
}

func nodeNamed(kind, ip, name, namespace, domain string) *corev3.Node {
	return adstest.Node(fmt.Sprintf("%s~%s~%s.%s~%s", kind, ip, name, namespace, domain), nil)
}

// withLabels adds labels to what a node says of itself.
func withLabels(n *corev3.Node, labels map[string]any) *corev3.Node {
	return adstest.Node(n.GetId(), map[string]any{"LABELS": labels})
}

// openDelta opens a delta stream on a connection of its own; close ends both.
func openDelta(ctx context.Context, id *identity, address string, n *corev3.Node) (stream *adstest.Delta, closeAll func(), err error) {
	conn, err := id.dial(address)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	closeAll = func() { cancel(); _ = conn.Close() }
	if stream, err = adstest.OpenDelta(ctx, conn, n); err != nil {
		closeAll()
		return nil, nil, err
	}
	return stream, closeAll, nil
}

// firstConfiguration connects as a proxy that starts, and returns how long it took until clusters and listeners had
// come.
func firstConfiguration(ctx context.Context, id *identity, address string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	stream, closeAll, err := openDelta(ctx, id, address, node(id.pod))
	if err != nil {
		return time.Since(start), err
	}
	defer closeAll()
	for _, url := range []string{resource.ClusterType, resource.ListenerType} {
		if err := stream.Subscribe(url, "*"); err != nil {
			return time.Since(start), errors.Join(err, stream.Drain())
		}
		if err := answered(stream, url); err != nil {
			return time.Since(start), err
		}
	}
	return time.Since(start), nil
}

// answered receives and acknowledges until something of the type has come.
func answered(stream *adstest.Delta, url string) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Answer(m, nil); err != nil {
			return err
		}
		if m.GetTypeUrl() == url {
			return nil
		}
	}
}

// observer is a rightful proxy that stays connected. It notes when it has acknowledged a version of the cluster whose
// connect timeout the tests change.
type observer struct {
	id      *identity
	address string

	mu       sync.Mutex
	acked    time.Duration
	changed  chan struct{}
	sessions int
}

const (
	watchedCluster = "outbound|80||server.apps.svc.cluster.local"
	// changes is how many make a percentile: of so few the 99th is the slowest.
	changes = 25
)

// observe keeps the observer connected, as a proxy does, until ctx ends.
func (o *observer) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = o.session(ctx) // a proxy that is sent away comes again
	}
}

func (o *observer) session(ctx context.Context) error {
	stream, closeAll, err := openDelta(ctx, o.id, o.address, node(o.id.pod))
	if err != nil {
		return err
	}
	defer closeAll()
	o.mu.Lock()
	o.sessions++
	o.mu.Unlock()
	if err := stream.Subscribe(resource.ClusterType, "*"); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Answer(m, nil); err != nil {
			return err
		}
		for _, r := range m.GetResources() {
			if r.GetName() != watchedCluster {
				continue
			}
			var c clusterv3.Cluster
			if err := r.GetResource().UnmarshalTo(&c); err != nil {
				return err
			}
			o.mu.Lock()
			o.acked = c.GetConnectTimeout().AsDuration()
			close(o.changed)
			o.changed = make(chan struct{})
			o.mu.Unlock()
		}
	}
}

// wait waits until the version with this connect timeout has been acknowledged.
func (o *observer) wait(ctx context.Context, want time.Duration) error {
	for {
		o.mu.Lock()
		acked, changed := o.acked, o.changed
		o.mu.Unlock()
		if acked == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proxy holds connect timeout %s, want %s: %w", acked, want, ctx.Err())
		case <-changed:
		}
	}
}

// observe starts the observer and measures it at rest.
func (f *fixture) observe(t *testing.T) {
	t.Helper()
	f.observer = &observer{id: f.identity(t, observed, time.Hour), address: f.service(t, "xds-server-0").GRPCAddress,
		changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.observer.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if _, err := f.changed(t.Context(), patience); err != nil { // the first ones pay for what is set up once
		t.Fatal(err)
	}
	took, err := f.changed(t.Context(), patience)
	if err != nil {
		t.Fatal(err)
	}
	f.atRest = slices.Max(took)
	t.Logf("at rest a change is acknowledged within %s at the most", f.atRest.Round(time.Millisecond))
}

// changed makes changes one after another and returns how long each took from the write to the observer's
// acknowledgement. It stops after one that took longer than allowed.
func (f *fixture) changed(ctx context.Context, allowed time.Duration) ([]time.Duration, error) {
	var took []time.Duration
	base := time.Duration(time.Now().UnixMilli()%100_000) * time.Millisecond
	for i := range changes {
		want := 100*time.Second + base + time.Duration(i)*time.Millisecond
		d, err := f.change(ctx, want)
		if err != nil {
			return took, err
		}
		if took = append(took, d); d > allowed {
			break
		}
	}
	return took, nil
}

func (f *fixture) change(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": map[string]any{"name": "server", "namespace": "apps"},
		"spec": map[string]any{"host": "server", "trafficPolicy": map[string]any{"connectionPool": map[string]any{
			"tcp": map[string]any{"connectTimeout": fmt.Sprintf("%.3fs", timeout.Seconds())},
		}}},
	})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := f.store.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "change", Content: manifest}}},
		grpc.WaitForReady(true)); err != nil {
		return time.Since(start), err
	}
	err = f.observer.wait(ctx, timeout)
	return time.Since(start), err
}
