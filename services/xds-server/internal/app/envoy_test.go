package app_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// reportedBytes sums what one xds-server has reported to have sent to productpage; known is false before it has
// reported the proxy.
func (f *watcherFake) reportedBytes(server string, sequence uint64) (bytes uint64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.reports {
		for _, p := range m.GetProxies() {
			if p.GetXdsServer() == server && p.GetWorkload() == "productpage" && len(p.GetTypes()) >= 4 && p.GetAcked().GetSequence() >= sequence {
				bytes, known = 0, true
				for _, ty := range p.GetTypes() {
					bytes += ty.GetBytesSent()
				}
			}
		}
	}
	return bytes, known
}

// productpage is the node of a sidecar whose connections are not redirected.
func productpage(t *testing.T) *core.Node {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	return &core.Node{Id: "sidecar~127.0.0.1~productpage.default~default.svc.cluster.local", Metadata: metadata}
}

// TestEnvoyLive runs the real Envoy through first configuration, updates with warming, removal, and a move to another
// replica.
func TestEnvoyLive(t *testing.T) {
	for _, apiType := range []core.ApiConfigSource_ApiType{core.ApiConfigSource_DELTA_GRPC, core.ApiConfigSource_GRPC} {
		t.Run(apiType.String(), func(t *testing.T) {
			envoytest.Binary(t)
			pki := testkit.PKI(t)
			ratings := "ratings.default.svc.cluster.local"
			rule := func(name, host string, d time.Duration) *configv1.Resource {
				return meshtest.Config(mesh.KindDestinationRule, "default", name, meshtest.DestinationRule(host, d))
			}
			listen := sidecar(t)
			watcher := startWatcher(t, pki,
				append(bookMesh(), meshtest.Service("default", ratings, 9080), meshtest.Endpoints("default", ratings, 9080, "10.1.0.3"),
					rule("reviews", reviews, time.Second), listen)...)
			plaintext := func(name string) func(*app.Options) {
				return func(o *app.Options) { o.PlaintextAddress, o.Instance = "127.0.0.1:0", name }
			}
			first := startServer(t, pki, watcher.address, noop.NewTracerProvider(), plaintext("first"))
			second := startServer(t, pki, watcher.address, noop.NewTracerProvider(), plaintext("second"))
			first.WaitReady()
			second.WaitReady()
			e := envoytest.Start(t, envoytest.Bootstrap(t, productpage(t), apiType, envoytest.Secrets(t, pki, "default", "default"),
				first.plaintext, second.plaintext), nil)
			watcher.acked(t, "productpage", 1)
			e.Ready()
			e.Accepted()

			// An updated cluster warms: without its endpoints after it, its ACK would take 15 s.
			start := time.Now()
			watcher.acked(t, "productpage", watcher.edit(rule("reviews", reviews, 2*time.Second), redirect("/two")))
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("an updated cluster took %s to warm", d)
			}
			watcher.acked(t, "productpage", watcher.edit(meshtest.Endpoints("default", reviews, 9080, "10.1.0.7")))
			watcher.acked(t, "productpage", watcher.edit(meshtest.Service("default", "late.default.svc.cluster.local", 9080)))
			watcher.acked(t, "productpage", watcher.remove(meshtest.Service("default", ratings, 9080)))
			e.Accepted()
			if n := e.Stats("cluster_manager.active_clusters$")["cluster_manager.active_clusters"]; n == 0 {
				t.Error("no active clusters")
			}
			_, page, err := e.Get("/clusters")
			if err != nil {
				t.Fatal(err)
			}
			clusters := string(page)
			if strings.Contains(clusters, ratings) || !strings.Contains(clusters, "10.1.0.7") {
				t.Errorf("clusters:\n%s", clusters)
			}

			// The replica goes: the other one takes over, and what the proxy holds is not sent again.
			first.Stop()
			var sent uint64
			testkit.Eventually(t, patience, func() error {
				var known bool
				if sent, known = watcher.reportedBytes("second", watcher.current()); !known {
					return fmt.Errorf("not at the second replica: %v", e.Stats("control_plane"))
				}
				return nil
			})
			if apiType == core.ApiConfigSource_DELTA_GRPC && sent != 0 {
				t.Errorf("%d bytes sent on reconnecting to another replica", sent)
			}
			watcher.acked(t, "productpage", watcher.edit(redirect("/three")))
			e.Accepted()
		})
	}
}
