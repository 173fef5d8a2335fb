package translate_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
)

// proxy is a running Envoy that was given what the translators built, over ADS and SDS.
type proxy struct{ admin *http.Client }

// startProxy runs Envoy with the resources and the workload's certificate, and waits until it serves.
func startProxy(t *testing.T, envoy, name string, b built, certificate *testkit.Static) *proxy {
	t.Helper()
	dir := t.TempDir()
	xds, admin := filepath.Join(dir, "xds.sock"), filepath.Join(dir, "admin.sock")
	serveXDS(t, xds, name, b, certificate)

	config := &bootstrapv3.Bootstrap{
		Node:  &corev3.Node{Id: name, Cluster: "test"},
		Admin: &bootstrapv3.Admin{Address: pipe(admin)},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds-grpc"},
				}}},
			},
			CdsConfig: ads(), LdsConfig: ads(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{agentCluster("xds-grpc", xds), agentCluster("sds-grpc", xds)},
		},
	}
	raw, err := protojson.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("log of %s:\n%s", name, content)
		}
	})
	p := &proxy{admin: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", admin)
		},
	}}}
	testkit.Eventually(t, 20*time.Second, func() error {
		body, err := p.get("/ready")
		if err == nil && !strings.HasPrefix(body, "LIVE") {
			err = fmt.Errorf("ready says %q", body)
		}
		return err
	})
	t.Cleanup(func() {
		for _, stat := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
			if n := p.stat(t, stat); n != "0" {
				t.Errorf("%s: %s is %s", name, stat, n)
			}
		}
	})
	return p
}

func (p *proxy) get(path string) (string, error) {
	response, err := p.admin.Get("http://admin" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// stat returns a counter, "0" if it does not exist.
func (p *proxy) stat(t testing.TB, name string) string {
	body, err := p.get("/stats?filter=^" + name + "$")
	if err != nil {
		t.Fatal(err)
	}
	if _, value, ok := strings.Cut(strings.TrimSpace(body), ": "); ok {
		return value
	}
	return "0"
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// serveXDS serves the resources to the node called name.
func serveXDS(t *testing.T, socket, name string, b built, certificate *testkit.Static) {
	t.Helper()
	material, err := certificate.Current()
	if err != nil {
		t.Fatal(err)
	}
	inline := func(content []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: content}}
	}
	resources := map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType: list(b.clusters), resourcev3.EndpointType: list(b.endpoints),
		resourcev3.ListenerType: list(b.listeners), resourcev3.RouteType: list(b.routes),
		resourcev3.SecretType: {
			&tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inline(material.CertPEM), PrivateKey: inline(material.KeyPEM),
			}}},
			&tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(material.RootsPEM),
			}}},
		},
	}
	snapshot, err := cachev3.NewSnapshot("1", resources)
	if err != nil {
		t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	if err := cache.SetSnapshot(t.Context(), name, snapshot); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	handler := serverv3.NewServer(context.Background(), cache, nil)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, handler)
	secretv3.RegisterSecretDiscoveryServiceServer(server, handler)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func list(messages []proto.Message) []types.Resource {
	out := make([]types.Resource, 0, len(messages))
	for _, m := range messages {
		out = append(out, m)
	}
	return out
}
