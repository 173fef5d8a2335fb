package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

const reviews = "reviews.default.svc.cluster.local"

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

func bookMesh() []*configv1.Resource {
	return []*configv1.Resource{
		meshtest.Service("default", reviews, 9080, func(s *configv1.Service) { s.Addresses = []string{"10.96.0.1"} }),
		meshtest.Endpoints("default", reviews, 9080, "10.1.0.1", "10.1.0.2"),
		meshtest.Workload("default", "productpage", "10.1.0.9"),
	}
}

func redirect(to string) *configv1.Resource {
	return meshtest.Config(mesh.KindVirtualService, "default", "reviews", &networking.VirtualService{
		Hosts: []string{reviews},
		Http: []*networking.HTTPRoute{{
			Redirect: &networking.HTTPRedirect{Uri: to},
		}},
	})
}

// proxyStream is one delta stream, driven by hand.
type proxyStream struct {
	*adstest.Delta
	t *testing.T
	// held is the version of each resource that the stream was given, by type and name; removed for one that it was
	// told is not there.
	held map[string]string
}

// removed stands for the version of a resource that is not there.
const removed = "removed"

func dial(t *testing.T, address string, cfg rpc.ClientConfig) *grpc.ClientConn {
	t.Helper()
	cfg.Target = address
	conn, err := rpc.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

func openStream(t *testing.T, conn *grpc.ClientConn) *proxyStream {
	t.Helper()
	stream := testkit.Must(adstest.OpenDelta(t.Context(), conn, someProxy()))(t)
	return &proxyStream{Delta: stream, t: t, held: map[string]string{}}
}

// someProxy is the proxy of bookMesh.
func someProxy() *core.Node {
	return adstest.Node(adstest.Sidecar("10.1.0.9", "productpage", "default"), nil)
}

// next receives the next response that says something new, which must be of the type, and acknowledges it. A change
// that the server publishes while it answers a request is sent with the answer, and once more when the stream is told
// of it.
func (p *proxyStream) next(url string) *discovery.DeltaDiscoveryResponse {
	p.t.Helper()
	for {
		m := testkit.Must(p.Recv())(p.t)
		testkit.NoError(p.t, p.Answer(m, nil))
		if repeated := p.hold(m); repeated {
			continue
		}
		if m.GetTypeUrl() != url {
			p.t.Fatalf("got %s, want %s", m.GetTypeUrl(), url)
		}
		return m
	}
}

// hold notes what a response gives and takes, and reports whether it says nothing that was not said before.
func (p *proxyStream) hold(m *discovery.DeltaDiscoveryResponse) (repeated bool) {
	repeated = len(m.GetResources())+len(m.GetRemovedResources()) > 0
	note := func(name, version string) {
		key := m.GetTypeUrl() + "/" + name
		before, known := p.held[key]
		repeated = repeated && known && before == version
		p.held[key] = version
	}
	for _, r := range m.GetResources() {
		note(r.GetName(), r.GetVersion())
	}
	for _, name := range m.GetRemovedResources() {
		note(name, removed)
	}
	return repeated
}

// ask subscribes, and returns the response.
func (p *proxyStream) ask(url string, names ...string) *discovery.DeltaDiscoveryResponse {
	p.t.Helper()
	testkit.NoError(p.t, p.Subscribe(url, names...))
	return p.next(url)
}

func names(m *discovery.DeltaDiscoveryResponse) []string {
	var found []string
	for _, r := range m.GetResources() {
		found = append(found, r.GetName())
	}
	return found
}

// virtualHosts subscribes to a route configuration, which has its virtual hosts apart, and returns these.
func (p *proxyStream) virtualHosts(table string) *discovery.DeltaDiscoveryResponse {
	p.t.Helper()
	p.ask(resource.RouteType, table)
	return p.ask(resource.VirtualHostType)
}

// redirects returns where the first redirect of some virtual hosts leads.
func redirects(t *testing.T, m *discovery.DeltaDiscoveryResponse) string {
	t.Helper()
	for _, res := range m.GetResources() {
		vh := &route.VirtualHost{}
		if err := proto.Unmarshal(res.GetResource().GetValue(), vh); err != nil {
			t.Fatal(err)
		}
		for _, r := range vh.GetRoutes() {
			if r.GetRedirect() != nil {
				return r.GetRedirect().GetPathRedirect()
			}
		}
	}
	return ""
}

// TestWholeServer follows one change from config-watcher to an authenticated proxy and its acknowledgement back, with
// the real translators.
func TestWholeServer(t *testing.T) {
	pki := testkit.PKI(t)
	watcher := startWatcher(t, pki, append(bookMesh(), redirect("/one"))...)
	spans, tracer := testkit.Spans(t)
	server := startServer(t, pki, watcher.address, tracer)
	server.WaitReady()
	conn := dial(t, server.secure,
		rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("default", "default"), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))})
	p := openStream(t, conn)
	cluster := "outbound|9080||" + reviews
	if got := names(p.ask(resource.ClusterType, "*")); !slices.Contains(got, cluster) {
		t.Errorf("clusters %v", got)
	}
	if got := names(p.ask(resource.EndpointType, cluster)); !slices.Equal(got, []string{cluster}) {
		t.Errorf("endpoints %v", got)
	}
	if got := names(p.ask(resource.ListenerType, "*")); !slices.Contains(got, "virtualOutbound") {
		t.Errorf("listeners %v", got)
	}
	if got := redirects(t, p.virtualHosts("9080")); got != "/one" {
		t.Errorf("redirect to %q", got)
	}
	watcher.acked(t, "productpage", 1)

	watcher.mu.Lock()
	watcher.trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	watcher.mu.Unlock()
	revision := watcher.edit(redirect("/two"))
	if got := redirects(t, p.next(resource.VirtualHostType)); got != "/two" {
		t.Errorf("redirect to %q", got)
	}
	watcher.acked(t, "productpage", revision)
	testkit.Eventually(t, patience, func() error {
		seen := map[string]bool{}
		for _, s := range spans.Ended() {
			if s.SpanContext().TraceID().String() == "0af7651916cd43dd8448eb211c80319c" {
				seen[s.Name()] = true
			}
		}
		if !seen["xds-server apply"] || !seen["xds-server push"] {
			return fmt.Errorf("spans in the change's trace: %v", seen)
		}
		return nil
	})

	// config-watcher goes away: everything stays, new proxies included.
	watcher.stop()
	if code, body := server.get(t, "/readyz", ""); code != http.StatusOK {
		t.Errorf("not ready without config-watcher: %s", body)
	}
	late := openStream(t, conn)
	late.Node.Id = strings.Replace(late.Node.GetId(), "productpage", "latecomer", 1)
	if got := redirects(t, late.virtualHosts("9080")); got != "/two" {
		t.Errorf("a new proxy is redirected to %q", got)
	}

	// It comes back: only the difference is sent.
	watcher.serve(t, pki, testkit.Listen(t, netip.MustParseAddrPort(watcher.address)))
	revision = watcher.edit(redirect("/three"))
	if got := redirects(t, p.next(resource.VirtualHostType)); got != "/three" {
		t.Errorf("redirect to %q", got)
	}
	watcher.acked(t, "productpage", revision)
	if n := watcher.held[len(watcher.held)-1]; n != 4 {
		t.Errorf("held %d resources on coming back, want 4", n)
	}
}

func TestNotReadyBeforeTheFirstRevision(t *testing.T) {
	pki := testkit.PKI(t)
	server := startServer(t, pki, "127.0.0.1:1", noop.NewTracerProvider())
	testkit.Eventually(t, patience, func() error {
		code, body := server.get(t, "/readyz", "")
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "no configuration received") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	conn := dial(t, server.secure, rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("default", "default"))})
	p := openStream(t, conn)
	testkit.NoError(t, p.Subscribe(resource.ClusterType, "*"))
	if _, err := p.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
}

func TestWhoMayConnect(t *testing.T) {
	pki, issuer := testkit.PKI(t), testkit.NewIssuer(t)
	watcher := startWatcher(t, pki, bookMesh()...)
	east := testkit.NewIssuer(t)
	east.Rotate("east")
	clusters := testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{{Name: "east", Issuer: east.Name, Namespaces: []string{"default"},
		Keys: testkit.Must(os.ReadFile(east.JWKSFile))(t)}}))(t)
	withTokens := startServer(t, pki, watcher.address, noop.NewTracerProvider(), func(o *app.Options) {
		o.JWKSFile, o.Issuer, o.RemoteClustersFile = issuer.JWKSFile, issuer.Name, filepath.Join(t.TempDir(), "clusters.json")
		testkit.WriteFile(t, o.RemoteClustersFile, clusters)
	})
	withoutTokens := startServer(t, pki, watcher.address, noop.NewTracerProvider())
	withTokens.WaitReady()
	withoutTokens.WaitReady()
	server := pki.ID(contract.SystemNamespace, contract.XDSServerAccount)
	anonymous := tlsconf.Client(pki.RootsOnly(), server)
	stranger := testkit.NewCA(t, "cluster.local", meshtest.Epoch)
	for name, tc := range map[string]struct {
		to   *instance
		cfg  rpc.ClientConfig
		want codes.Code
	}{
		"certificate":             {withoutTokens, rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("default", "default"), server)}, codes.OK},
		"certificate, tokens too": {withTokens, rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("default", "default"), server)}, codes.OK},
		"token": {withTokens,
			rpc.ClientConfig{TLS: anonymous, TokenFile: issuer.TokenFile("default", "default", contract.TokenAudience)}, codes.OK},
		"token of a remote cluster": {withTokens,
			rpc.ClientConfig{TLS: anonymous, TokenFile: east.TokenFile("default", "default", contract.TokenAudience)}, codes.OK},
		"token of a remote cluster, for another namespace": {withTokens,
			rpc.ClientConfig{TLS: anonymous, TokenFile: east.TokenFile("other", "default", contract.TokenAudience)}, codes.Unauthenticated},
		"token of a remote cluster, for an own service": {withTokens, rpc.ClientConfig{TLS: anonymous,
			TokenFile: east.TokenFile(contract.SystemNamespace, contract.XDSServerAccount, contract.TokenAudience)}, codes.Unauthenticated},
		"token where none is taken": {withoutTokens,
			rpc.ClientConfig{TLS: anonymous, TokenFile: issuer.TokenFile("default", "default", contract.TokenAudience)}, codes.Unavailable},
		"token for somebody else": {withTokens, rpc.ClientConfig{TLS: anonymous, TokenFile: issuer.TokenFile("default", "default", "vault")},
			codes.Unauthenticated},
		"token of a foreign pod": {withTokens,
			rpc.ClientConfig{TLS: anonymous, TokenFile: issuer.TokenFile("other", "default", contract.TokenAudience)}, codes.PermissionDenied},
		"nothing": {withTokens, rpc.ClientConfig{TLS: anonymous}, codes.Unauthenticated},
		"certificate of a stranger": {withTokens, rpc.ClientConfig{TLS: tlsconf.Client(stranger.NewSVID("default", "default"))},
			codes.Unavailable},
		"plaintext": {withTokens, rpc.ClientConfig{Insecure: true}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, tc.to.secure, tc.cfg)
			stream, err := adstest.OpenDelta(t.Context(), conn, someProxy(), grpc.WaitForReady(false))
			if err == nil {
				_ = stream.Subscribe(resource.ClusterType, "*") // Recv tells why the stream has ended
				_, err = stream.Recv()
			}
			if got := status.Code(err); got != tc.want {
				t.Errorf("got %v (%v), want %v", got, err, tc.want)
			}
		})
	}
}

func TestDebugPages(t *testing.T) {
	pki, issuer := testkit.PKI(t), testkit.NewIssuer(t)
	watcher := startWatcher(t, pki, bookMesh()...)
	server := startServer(t, pki, watcher.address, noop.NewTracerProvider(), func(o *app.Options) {
		o.AdminJWKSFile, o.AdminIssuer = issuer.JWKSFile, issuer.Name
	})
	server.WaitReady()
	conn := dial(t, server.secure, rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("default", "default"))})
	p := openStream(t, conn)
	p.ask(resource.ClusterType, "*")
	watcher.acked(t, "productpage", 1)
	admin := issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	for path, want := range map[string]string{
		"/debug/proxies":                                           "sidecar~10.1.0.9~productpage.default~default.svc.cluster.local",
		"/debug/class":                                             `"Namespace":"default"`,
		"/debug/class?proxy=productpage.default":                   "outbound|9080||" + reviews,
		"/debug/resources?proxy=productpage.default":               "outbound|9080||" + reviews,
		"/debug/resources?proxy=productpage.default&type=clusters": "connectTimeout",
	} {
		t.Run(path, func(t *testing.T) {
			for who, token := range map[string]string{"anonymous": "", "a workload": issuer.Token("default", "default", contract.AdminAudience),
				"an agent's token": issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.TokenAudience)} {
				if code, _ := server.get(t, path, token); code != http.StatusUnauthorized && code != http.StatusForbidden {
					t.Errorf("%s gets %d", who, code)
				}
			}
			code, body := server.get(t, path, admin)
			if code != http.StatusOK || !json.Valid([]byte(body)) || !strings.Contains(strings.ReplaceAll(body, `": `, `":`), want) {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	if code, body := server.get(t, "/debug/resources?proxy=nobody", admin); code == http.StatusOK {
		t.Errorf("an unknown proxy: %d %s", code, body)
	}
	_, metrics := server.get(t, "/metrics", "")
	for _, want := range []string{
		`fairlead_xds_server_streams{protocol="delta"} 1`, `fairlead_xds_server_pushes_total{type="Cluster"} 1`,
		"fairlead_xds_server_queued_revisions 0",
		"fairlead_xds_server_config_watcher_connected 1",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// sidecar gives productpage listeners on loopback addresses instead of captured traffic: an egress proxy port and
// nothing inbound.
func sidecar(t *testing.T) *configv1.Resource {
	t.Helper()
	address := testkit.FreeAddress(t)
	return meshtest.Config(mesh.KindSidecar, "default", "productpage", &networking.Sidecar{
		Egress: []*networking.IstioEgressListener{{
			Port:        &networking.SidecarPort{Number: uint32(address.Port()), Protocol: "HTTP_PROXY", Name: "http-proxy"},
			Bind:        address.Addr().String(),
			CaptureMode: networking.CaptureMode_NONE,
			Hosts:       []string{"*/*"},
		}},
	})
}
