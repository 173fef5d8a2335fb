package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/options"
	"fairlead.dev/services/xds-server/internal/replica"
)

// envoyProcess is a real Envoy with its admin interface on a unix socket.
type envoyProcess struct {
	t     *testing.T
	admin *http.Client
	log   *bytes.Buffer
}

func envoyBinary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("ENVOY")
	if path == "" {
		path = filepath.Join("..", "..", "..", "..", ".tools", "envoy")
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Skipf("no Envoy at %s: run `make tools`, or set ENVOY", path)
	}
	return path
}

// startEnvoy runs Envoy as the sidecar of productpage against xds-servers (plaintext, in order of preference) and a secret server.
func startEnvoy(t *testing.T, apiType, sds string, servers ...string) *envoyProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "envoy") // short: a unix socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "admin.sock")
	raw, err := json.Marshal(bootstrap(t, apiType, socket, sds, servers))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	testkit.WriteFile(t, path, raw)
	e := &envoyProcess{t: t, log: &bytes.Buffer{}, admin: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	cmd := exec.CommandContext(t.Context(), envoyBinary(t), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "-c", path)
	cmd.Stdout, cmd.Stderr = e.log, e.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()         // killed
		if t.Failed() {
			t.Logf("Envoy says:\n%s", e.log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return e
}

func grpcCluster(t *testing.T, name string, addresses ...string) map[string]any {
	t.Helper()
	var priorities []any
	for i, a := range addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		priorities = append(priorities, map[string]any{"priority": i, "lb_endpoints": []any{map[string]any{
			"endpoint": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": host, "port_value": n}}},
		}}})
	}
	return map[string]any{
		"name": name, "type": "STATIC", "connect_timeout": "1s",
		"health_checks": []any{map[string]any{
			"timeout": "1s", "interval": "0.1s", "no_traffic_interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1, "tcp_health_check": map[string]any{},
		}},
		"typed_extension_protocol_options": map[string]any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}},
		}},
		"load_assignment": map[string]any{"cluster_name": name, "endpoints": priorities},
	}
}

func bootstrap(t *testing.T, apiType, socket, sds string, servers []string) map[string]any {
	t.Helper()
	ads := map[string]any{"ads": map[string]any{}, "resource_api_version": "V3"}
	return map[string]any{
		"node": map[string]any{
			"id": "sidecar~127.0.0.1~productpage.default~default.svc.cluster.local", "cluster": "productpage",
			"metadata": map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"},
		},
		"admin": map[string]any{"address": map[string]any{"pipe": map[string]any{"path": socket, "mode": 0o600}}},
		"dynamic_resources": map[string]any{
			"ads_config": map[string]any{
				"api_type": apiType, "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "xds-grpc"}}},
			},
			"cds_config": ads, "lds_config": ads,
		},
		"static_resources": map[string]any{"clusters": []any{grpcCluster(t, "xds-grpc", servers...), grpcCluster(t, "sds-grpc", sds)}},
	}
}

func (e *envoyProcess) get(path string) (int, string, error) {
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := e.admin.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }() // read to its end
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, string(raw), err
}

// stats returns the counters and gauges whose names match.
func (e *envoyProcess) stats(filter string) map[string]int {
	e.t.Helper()
	_, body, err := e.get("/stats?filter=" + filter)
	if err != nil {
		e.t.Fatal(err)
	}
	found := map[string]int{}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			found[name] = n
		}
	}
	return found
}

func (e *envoyProcess) accepted() {
	e.t.Helper()
	for name, n := range e.stats("update_rejected|warming_clusters|total_listeners_warming") {
		if n != 0 {
			e.t.Errorf("%s is %d", name, n)
		}
	}
}

// startSecrets serves a certificate by SDS, as node-agent does.
func startSecrets(t *testing.T, pki *testkit.CA) string {
	t.Helper()
	m, err := pki.NewSVID("default", "default").Current()
	if err != nil {
		t.Fatal(err)
	}
	inline := func(b []byte) *core.DataSource {
		return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: b}}
	}
	secrets := cache.NewLinearCache(resource.SecretType, cache.WithInitialResources(map[string]types.Resource{
		"default": &tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(m.CertPEM), PrivateKey: inline(m.KeyPEM),
		}}},
		"ROOTCA": &tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(m.RootsPEM),
		}}},
	}))
	g := grpc.NewServer()
	secretservice.RegisterSecretDiscoveryServiceServer(g, xds.NewServer(t.Context(), secrets, nil))
	lis := testkit.LoopbackListener(t)
	go func() { _ = g.Serve(lis) }() // ends with Stop
	t.Cleanup(g.Stop)
	return lis.Addr().String()
}

// reportedBytes sums what one xds-server has reported to have sent to productpage; known is false before it has reported the proxy.
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

// TestEnvoyLive runs the real Envoy through first configuration, updates with warming, removal, and a move to another replica.
func TestEnvoyLive(t *testing.T) {
	for _, apiType := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(apiType, func(t *testing.T) {
			envoyBinary(t)
			pki := testkit.PKI(t)
			ratings := "ratings.default.svc.cluster.local"
			rule := func(name, host string, d time.Duration) *configv1.Resource {
				return meshtest.Config(replica.KindDestinationRule, "default", name, meshtest.DestinationRule(host, d))
			}
			listen := sidecar(t)
			watcher := startWatcher(t, pki, append(mesh(), meshtest.Service("default", ratings, 9080), meshtest.Endpoints("default", ratings, 9080, "10.1.0.3"),
				rule("reviews", reviews, time.Second), listen)...)
			plaintext := func(name string) func(*options.Options) {
				return func(o *options.Options) { o.PlaintextAddress, o.Instance = "127.0.0.1:0", name }
			}
			first := startServer(t, pki, watcher.address, noop.NewTracerProvider(), plaintext("first"))
			second := startServer(t, pki, watcher.address, noop.NewTracerProvider(), plaintext("second"))
			first.ready(t)
			second.ready(t)
			e := startEnvoy(t, apiType, startSecrets(t, pki), first.plaintext, second.plaintext)
			watcher.acked(t, "productpage", 1)
			testkit.Eventually(t, patience, func() error {
				if code, body, err := e.get("/ready"); err != nil || code != http.StatusOK {
					return fmt.Errorf("%d %s %w", code, body, err)
				}
				return nil
			})
			e.accepted()

			// An updated cluster warms: without its endpoints after it, its ACK would take 15 s.
			start := time.Now()
			watcher.acked(t, "productpage", watcher.edit(rule("reviews", reviews, 2*time.Second), redirect("/two")))
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("an updated cluster took %s to warm", d)
			}
			watcher.acked(t, "productpage", watcher.edit(meshtest.Endpoints("default", reviews, 9080, "10.1.0.7")))
			watcher.acked(t, "productpage", watcher.edit(meshtest.Service("default", "late.default.svc.cluster.local", 9080)))
			watcher.acked(t, "productpage", watcher.remove(meshtest.Service("default", ratings, 9080)))
			e.accepted()
			if n := e.stats("cluster_manager.active_clusters$")["cluster_manager.active_clusters"]; n == 0 {
				t.Error("no active clusters")
			}
			_, clusters, err := e.get("/clusters")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(clusters, ratings) || !strings.Contains(clusters, "10.1.0.7") {
				t.Errorf("clusters:\n%s", clusters)
			}

			// The replica goes: the other one takes over, and what the proxy holds is not sent again.
			first.stop()
			var sent uint64
			testkit.Eventually(t, patience, func() error {
				var known bool
				if sent, known = watcher.reportedBytes("second", watcher.current()); !known {
					return fmt.Errorf("not at the second replica: %v", e.stats("control_plane"))
				}
				return nil
			})
			if apiType == "DELTA_GRPC" && sent != 0 {
				t.Errorf("%d bytes sent on reconnecting to another replica", sent)
			}
			watcher.acked(t, "productpage", watcher.edit(redirect("/three")))
			e.accepted()
		})
	}
}
