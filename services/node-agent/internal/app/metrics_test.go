package app_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/testkit"
)

// statsLogger is the access logger that counts Istio's standard metrics.
func statsLogger(t *testing.T) *accesslogv3.AccessLog {
	t.Helper()
	stat := func(name string) *statsv3.Config_Stat {
		return &statsv3.Config_Stat{Name: name, Tags: []*statsv3.Config_Tag{
			{Name: "reporter", ValueFormat: "destination"}, {Name: "response_code", ValueFormat: "%RESPONSE_CODE%"},
			{Name: "destination_service", ValueFormat: "web.shop.svc.cluster.local"},
		}}
	}
	c := &statsv3.Config{
		Counters: []*statsv3.Config_Counter{{Stat: stat("istio_requests_total"), ValueFixed: wrapperspb.UInt64(1)}},
		Histograms: []*statsv3.Config_Histogram{{Stat: stat("istio_request_duration_milliseconds"), Unit: statsv3.Config_Histogram_Milliseconds,
			ValueFormat: "%DURATION%"}},
	}
	// stats_scope (6) with sharing_name (6), which this version of the API does not have yet.
	scope := protowire.AppendString(protowire.AppendTag(nil, 6, protowire.BytesType), "istio")
	c.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), scope))
	return &accesslogv3.AccessLog{Name: "envoy.access_loggers.stats", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(t, c)}}
}

// Requests through a real Envoy are in the merged metrics under the names of Istio's standard metrics, beside the
// application's, and kubelet's probes reach the application.
func TestMergedMetricsAndProbes(t *testing.T) {
	app := application(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = fmt.Fprint(w, "# TYPE orders_total counter\norders_total 7\n# TYPE go_goroutines gauge\ngo_goroutines 4242\n")
		case "/live":
			_, _ = fmt.Fprintf(w, "from %s", netip.MustParseAddrPort(r.RemoteAddr).Addr())
		default:
			hello(w, r)
		}
	}))
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	p := m.start(ca, xds,
		fmt.Sprintf(`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"%d"}`, app.Port()),
		fmt.Sprintf(`ISTIO_KUBE_APP_PROBERS={"/app-health/web/livez":{"httpGet":{"path":"/live","port":%d}},"/app-health/web/readyz":{"tcpSocket":{"port":1}}}`, app.Port()),
		"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION=true", // the application of this test is not at the workload's address
	)
	listener := httpListener(t, "inbound", netip.AddrPortFrom(p.ip, appPort), "app", false).(*listenerv3.Listener)
	manager := &hcmv3.HttpConnectionManager{}
	filter := listener.GetFilterChains()[0].GetFilters()[0].GetTypedConfig()
	if err := filter.UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	manager.AccessLog = []*accesslogv3.AccessLog{statsLogger(t)}
	if err := filter.MarshalFrom(manager); err != nil {
		t.Fatal(err)
	}
	m.set("1", []types.Resource{clusterTo("app", app)}, []types.Resource{listener})
	p.wantReady()
	for range 3 {
		if status, _, err := get(p.url(appPort, "/")); err != nil || status != http.StatusOK {
			t.Fatalf("request: %d %v", status, err)
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		status, body, err := get(p.url(15020, "/stats/prometheus"))
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %w", status, err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			return err
		}
		requests := families["istio_requests_total"].GetMetric()
		if len(requests) != 1 || requests[0].GetCounter().GetValue() != 3 || len(requests[0].GetLabel()) != 3 {
			return fmt.Errorf("istio_requests_total is %v", requests)
		}
		if h := families["istio_request_duration_milliseconds"].GetMetric(); len(h) != 1 ||
			h[0].GetHistogram().GetSampleCount() != 3 { // after Envoy's flush
			return fmt.Errorf("istio_request_duration_milliseconds is %v", h)
		}
		for name, want := range map[string]float64{"orders_total": 7, "go_goroutines": 4242} {
			if m := families[name].GetMetric(); len(m) != 1 || m[0].GetCounter().GetValue()+m[0].GetGauge().GetValue() != want {
				return fmt.Errorf("%s is %v, want %v", name, m, want)
			}
		}
		if families["istio_agent_go_goroutines"] == nil || families["envoy_server_live"] == nil || strings.Contains(body, "envoy_istio_") {
			return fmt.Errorf("the agent's or Envoy's metrics are missing:\n%s", body)
		}
		return nil
	})
	if status, body, err := get(p.url(15020, "/app-health/web/livez")); err != nil || status != http.StatusOK || body != "from 127.0.0.6" {
		t.Errorf("liveness: %d %q %v", status, body, err)
	}
	if status, _, err := get(p.url(15020, "/app-health/web/readyz")); err != nil || status != http.StatusInternalServerError {
		t.Errorf("readiness of a port where nobody listens: %d %v", status, err)
	}
	if _, _, nacks := seen.get(); len(nacks) > 0 {
		t.Errorf("Envoy rejected configuration: %v", nacks)
	}
}
