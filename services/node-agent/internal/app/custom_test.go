package app_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
)

// traced makes a listener of httpListener ask for a span of every request, of the tracer in the bootstrap.
func traced(t *testing.T, r types.Resource) types.Resource {
	t.Helper()
	l := r.(*listenerv3.Listener)
	filter := l.GetFilterChains()[0].GetFilters()[0]
	manager := &hcmv3.HttpConnectionManager{}
	if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	manager.Tracing = &hcmv3.HttpConnectionManager_Tracing{RandomSampling: &typev3.Percent{Value: 100}}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, manager)}
	return l
}

func TestTracerOfProxyConfig(t *testing.T) {
	spans := make(chan string, 64)
	zipkin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case spans <- r.URL.Path + " " + string(body):
		default:
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(zipkin.Close)
	_, port, _ := net.SplitHostPort(zipkin.Listener.Addr().String())
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds, `PROXY_CONFIG={"tracing":{"zipkin":{"address":"$(HOST_IP):`+port+`"}},"tracingServiceName":"CANONICAL_NAME_ONLY"}`,
		"HOST_IP=127.0.0.1",
		`ISTIO_METAJSON_LABELS={"service.istio.io/canonical-name":"shop-front"}`)
	at := netip.AddrPortFrom(p.ip, appPort)
	m.set("1", []types.Resource{clusterTo("app", application(t, http.HandlerFunc(hello)))},
		[]types.Resource{traced(t, httpListener(t, "in", at, "app", false))})
	p.wantReady()
	p.wantServed()
	select {
	case got := <-spans:
		if !strings.HasPrefix(got, "/api/v2/spans ") || !strings.Contains(got, `"serviceName":"shop-front"`) {
			t.Errorf("spans: %s", got)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("no span")
	}
}

func TestStatsOfProxyConfigAndAnnotations(t *testing.T) {
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statsd.Close() })
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds, "PROXY_CONFIG=statsdUdpAddress: "+statsd.LocalAddr().String(),
		`ISTIO_METAJSON_ANNOTATIONS={"sidecar.istio.io/statsFlushInterval":"50ms","sidecar.istio.io/statsInclusionPrefixes":"http.in.","sidecar.istio.io/statsHistogramBuckets":"{\"http.in\":[7,77]}"}`)
	m.set("1", []types.Resource{clusterTo("app", application(t, http.HandlerFunc(hello)))},
		[]types.Resource{httpListener(t, "in", netip.AddrPortFrom(p.ip, appPort), "app", false)})
	p.wantReady()
	p.wantServed()

	deadline := time.Now().Add(testkit.Patience)
	if err := statsd.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 1<<16); ; {
		n, _, err := statsd.ReadFrom(buf)
		if err != nil {
			t.Fatalf("statsd got no count of requests: %v", err)
		}
		if strings.Contains(string(buf[:n]), "http.in.downstream_rq_total") {
			break
		}
	}
	// Envoy's own port, with the buckets that were asked for, compressed for those who accept it.
	testkit.Eventually(t, testkit.Patience, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url(15090, "/stats/prometheus"), http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Encoding"); got != "gzip" {
			return fmt.Errorf("encoding %q", got)
		}
		plain, err := gzip.NewReader(resp.Body)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(plain)
		if err == nil && (!strings.Contains(string(text), `le="77"`) ||
			strings.Contains(string(text), `envoy_http_downstream_rq_time_bucket{envoy_http_conn_manager_prefix="in",le="5"}`)) {
			err = fmt.Errorf("not the buckets 7 and 77: %d bytes", len(text))
		}
		return err
	})
}

// directListener is a static listener in YAML that answers each request with a text.
func directListener(at netip.AddrPort, text string) string {
	return fmt.Sprintf(`
  - name: extra
    address: {socket_address: {address: %q, port_value: %d}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: extra
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: %q}}}]}]
`, at.Addr(), at.Port(), text)
}

func (p *proxy) wantAnswer(at netip.AddrPort, want string) {
	p.t.Helper()
	testkit.Eventually(p.t, testkit.Patience, func() error {
		_, body, err := get("http://" + at.String())
		if err == nil && body != want {
			err = fmt.Errorf("answer %q, want %q", body, want)
		}
		return err
	})
}

// What a Pod's own file adds to the bootstrap is merged over it, and all else stays as it was.
func TestBootstrapOverride(t *testing.T) {
	at := netip.AddrPortFrom(loopbackIP(), 9090)
	file := filepath.Join(t.TempDir(), "custom_bootstrap.json")
	// Envoy's validation mode crashes over a shared scope, after it has accepted it.
	const shared = `admin:
  access_log:
  - name: envoy.access_loggers.stats
    filter: {runtime_filter: {runtime_key: none, percent_sampled: {numerator: 0}}}
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.access_loggers.stats.v3.Config
      stats_scope: {sharing_name: istio, enable_eviction: true, max_counters: 2000, max_histograms: 6000}
      counters: [{value_fixed: 1, stat: {name: istio_requests_total}}]
`
	write(t, file, shared+"static_resources:\n  listeners:"+strings.ReplaceAll(directListener(at, "from $(HOST_IP)"), "\n", "\n  "))
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds, "ISTIO_BOOTSTRAP_OVERRIDE="+file, "HOST_IP=192.0.2.9")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	p.wantReady()
	p.wantServed()
	p.wantAnswer(at, "from 192.0.2.9")
}

// A template takes the bootstrap's place, but for what ties Envoy to its agent.
func TestBootstrapTemplate(t *testing.T) {
	at := netip.AddrPortFrom(loopbackIP(), 9090)
	file := filepath.Join(t.TempDir(), "bootstrap.yaml.tmpl")
	write(t, file, `
node: {id: "somebody else"}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: {{ .config.ProxyAdminPort }}}}}
dynamic_resources:
  lds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  cds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  ads_config: {api_type: {{ .xds_type }}, transport_api_version: V3, set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
stats_config: {stats_matcher: {inclusion_list: {patterns: [{{ range $i, $s := .inclusionPrefix }}{{ if $i }}, {{ end }}{prefix: {{ $s }}}{{ end }}]}}}
static_resources:
  clusters:
  - {name: xds-grpc, type: STATIC, load_assignment: {cluster_name: xds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "{{ .config.ConfigPath }}/XDS"}}}}]}]}}
  listeners:`+directListener(at, "{{ .nodeID }}"))
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	p := m.start(ca, xds, "ISTIO_BOOTSTRAP="+file)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	p.wantServed()
	testkit.Eventually(t, testkit.Patience, func() error {
		status, body, err := get(p.url(15020, "/healthz/ready"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
	id := "sidecar~" + p.ip.String() + "~web-0.shop~shop.svc.cluster.local"
	p.wantAnswer(at, id)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, got := range seen.nodes {
		if got != id {
			t.Errorf("node %q", got)
		}
	}
}

// freePort is a port that is free on all addresses, and that the kernel does not give to the next caller.
func freePort(t *testing.T) int {
	t.Helper()
	lis, err := net.Listen("tcp", ":0") //nolint:gosec,noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port
}

// The template of Istio's agent, with which its users begin, makes a proxy that works. make stock has it.
func TestStockBootstrapTemplate(t *testing.T) {
	file := os.Getenv("ISTIO_BOOTSTRAP_TEMPLATE")
	if file == "" {
		t.Skip("ISTIO_BOOTSTRAP_TEMPLATE does not name the template of Istio's agent: make stock runs this")
	}
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	// Its listeners are on all addresses.
	ready, metrics := freePort(t), freePort(t)
	p := m.start(ca, xds, "ISTIO_BOOTSTRAP="+file, fmt.Sprintf("ENVOY_STATUS_PORT=%d", ready),
		fmt.Sprintf("ENVOY_PROMETHEUS_PORT=%d", metrics),
		`PROXY_CONFIG={"tracing":{"zipkin":{"address":"127.0.0.1:9"}},"proxyStatsMatcher":{"inclusionRegexps":["http\\.in\\..*"]}}`)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	p.wantServed()
	testkit.Eventually(t, testkit.Patience, func() error {
		status, body, err := get(p.url(ready, "/healthz/ready"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

func TestBadBootstrapsAreRefusedWithTheirReason(t *testing.T) {
	for _, tc := range []struct {
		name, variable, text string
		code                 int
		says                 []string
	}{
		{"override is no YAML", "ISTIO_BOOTSTRAP_OVERRIDE", "{", process.ExitRefused, []string{"ISTIO_BOOTSTRAP_OVERRIDE", "FILE"}},
		{"override moves the admin interface", "ISTIO_BOOTSTRAP_OVERRIDE", "admin: {address: {pipe: {path: x}}}", process.ExitRefused,
			[]string{"admin.address", "remove it"}},
		{"override of the node", "ISTIO_BOOTSTRAP_OVERRIDE", "node: {id: other}", process.ExitRefused, []string{"node:", "ISTIO_META_<KEY>"}},
		{"Envoy refuses the override", "ISTIO_BOOTSTRAP_OVERRIDE", "stats_flush_interval: never", process.ExitRefused,
			[]string{"Envoy refuses the bootstrap", "stats_flush_interval"}},
		{"template does not parse", "ISTIO_BOOTSTRAP", "{{ if }}", process.ExitRefused,
			[]string{"bootstrap template FILE", "missing value for if"}},
		{"template renders no YAML", "ISTIO_BOOTSTRAP", "{{ .nodeID", process.ExitRefused, []string{"bootstrap template FILE"}},
		{"template without an end", "ISTIO_BOOTSTRAP", `{{ define "a" }}xxxxxxxxxxxxxxxx{{ template "a" . }}{{ end }}{{ template "a" . }}`,
			process.ExitRefused, []string{"bootstrap template FILE"}},
		{"Envoy refuses what the template renders", "ISTIO_BOOTSTRAP", "static_resources: {listeners: [{name: x}]}", process.ExitRefused,
			[]string{"Envoy refuses the bootstrap"}},
		{"histogram buckets", "ISTIO_METAJSON_ANNOTATIONS", "", process.ExitRefused, []string{"sidecar.istio.io/statsHistogramBuckets"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file")
			write(t, file, tc.text)
			value := file
			if tc.variable == "ISTIO_METAJSON_ANNOTATIONS" {
				value = `{"sidecar.istio.io/statsHistogramBuckets":"[]"}`
			}
			m := newMesh(t)
			c := m.spawn("", "127.0.0.1:1", "127.0.0.1:1", tc.variable+"="+value)
			_ = c.cmd.Wait()
			if got := c.cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit code %d, want %d: %s", got, tc.code, c.output)
			}
			for _, w := range tc.says {
				if w = strings.ReplaceAll(w, "FILE", file); !strings.Contains(c.output.String(), w) {
					t.Errorf("does not say %q: %s", w, c.output)
				}
			}
		})
	}
}

// metricsSink is a metrics service that reports who sent it metrics, and of which node.
type metricsSink struct {
	metricsv3.UnimplementedMetricsServiceServer
	got chan string
}

func (s *metricsSink) StreamMetrics(stream metricsv3.MetricsService_StreamMetricsServer) error {
	message, err := stream.Recv()
	if err != nil {
		return err
	}
	peer, _ := auth.PeerFrom(stream.Context())
	select {
	case s.got <- fmt.Sprintf("%s %s %t", peer.ID, message.GetIdentifier().GetNode().GetId(), len(message.GetEnvoyMetrics()) > 0):
	default:
	}
	<-stream.Context().Done()
	return nil
}

// Envoy sends its metrics by the workload's own certificate, to nobody else than who the ProxyConfig names.
func TestMetricsServiceOfProxyConfig(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	sink := &metricsSink{got: make(chan string, 1)}
	at, _ := m.serve("metrics", "", "envoy.service.metrics.v3.MetricsService",
		func(s *grpc.Server) { metricsv3.RegisterMetricsServiceServer(s, sink) })
	config := func(id string) string {
		return `PROXY_CONFIG={"envoyMetricsService":{"address":"` + at + `","tlsSettings":{"mode":"ISTIO_MUTUAL","subjectAltNames":["` + id +
			`"]}}}`
	}
	const often = `ISTIO_METAJSON_ANNOTATIONS={"sidecar.istio.io/statsFlushInterval":"50ms","sidecar.istio.io/statsInclusionPrefixes":"cluster.envoy_metrics_service"}`
	other := m.start(ca, xds, often, config(m.PKI.ID("elsewhere", "metrics").String()), "POD_NAME=other-0")
	m.set("1", nil, nil)
	other.wantReady()
	testkit.Eventually(t, testkit.Patience, func() error {
		if other.stat("cluster.envoy_metrics_service.ssl.fail_verify_san") == 0 {
			all, _ := other.admin.Stats(t.Context(), "envoy_metrics_service|sds")
			return fmt.Errorf("no handshake has failed: %v", all)
		}
		return nil
	})
	p := m.start(ca, xds, often, config(m.PKI.ID("istio-system", "metrics").String()))
	p.wantReady()
	select {
	case got := <-sink.got:
		want := m.PKI.ID("shop", "web").String() + " sidecar~" + p.ip.String() + "~web-0.shop~shop.svc.cluster.local true"
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("no metrics")
	}
}
