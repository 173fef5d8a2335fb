package bootstrap

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// telemetry is TelemetryFrom for a Pod of 10.0.0.7 on the machine 192.0.2.1.
func telemetry(pc *meshv1alpha1.ProxyConfig, annotations map[string]string) Telemetry {
	t, _, err := TelemetryFrom(pc, annotations, []string{"10.0.0.7"}, "192.0.2.1")
	if err != nil {
		panic(err)
	}
	return t
}

func inputs() map[string]Input {
	plain := Input{
		Node: &corev3.Node{
			Id: "sidecar~10.0.0.7~web-0.shop~shop.svc.cluster.local", Cluster: "web.shop",
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAME": structpb.NewStringValue("web-0")}},
		},
		XDSPath: "XDS", SDSPath: "SDS", AdminPath: "envoy-admin.sock",
		Delta:                    true,
		Status:                   netip.MustParseAddrPort("0.0.0.0:15020"),
		Ready:                    netip.MustParseAddrPort("0.0.0.0:15021"),
		Stats:                    netip.MustParseAddrPort("0.0.0.0:15090"),
		MaxDownstreamConnections: 1000,
		Telemetry:                telemetry(nil, nil),
	}
	full := plain
	full.Delta = false
	full.Status = netip.MustParseAddrPort("[::1]:15020")
	full.Ready = netip.MustParseAddrPort("[::1]:15021")
	full.Stats = netip.MustParseAddrPort("[::1]:15090")
	full.RuntimeValues = map[string]string{"envoy.reloadable_features.x": "true"}
	full.Telemetry = telemetry(&meshv1alpha1.ProxyConfig{
		ExtraStatTags: []string{"destination_zone"},
		ProxyStatsMatcher: &meshv1alpha1.ProxyConfig_ProxyStatsMatcher{
			InclusionPrefixes: []string{"cluster.outbound", "http.{pod_ip}_"}, InclusionRegexps: []string{`http\..*\.rds\..*`},
			InclusionSuffixes: []string{"replaced"},
		},
	}, map[string]string{
		suffixesAnnotation: "upstream_rq_total, upstream_cx_total", tagsAnnotation: "source_zone",
		bucketsAnnotation: `{"istio":[5,1],"cluster":[0.5]}`,
		flushAnnotation:   "10s", evictionAnnotation: "1m",
	})
	full.OutlierLog, full.ReadyProxyProtocol = "/dev/stdout", true
	services := plain
	services.Statsd = netip.MustParseAddrPort("127.0.0.1:8125")
	services.Telemetry = telemetry(&meshv1alpha1.ProxyConfig{
		StatsCompression: wrapperspb.Bool(false),
		EnvoyMetricsService: &meshv1alpha1.RemoteService{
			Address: "metrics.monitoring:15000", TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL,
				SubjectAltNames: []string{"spiffe://cluster.local/ns/monitoring/sa/metrics"}},
			TcpKeepalive: &networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive{Probes: 3, Time: durationpb.New(time.Minute),
				Interval: durationpb.New(time.Second)},
		},
		EnvoyAccessLogService: &meshv1alpha1.RemoteService{
			Address: "[fd00::9]:9000", TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL,
				ClientCertificate: "/c.pem", PrivateKey: "/k.pem", CaCertificates: "/r.pem", Sni: "als"},
		},
		Tracing: &meshv1alpha1.Tracing{
			Tracer:      &meshv1alpha1.Tracing_Datadog_{Datadog: &meshv1alpha1.Tracing_Datadog{Address: "$(HOST_IP):8126"}},
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, SubjectAltNames: []string{"datadog.example"}},
		},
	}, nil)
	traced := plain
	traced.Telemetry = telemetry(&meshv1alpha1.ProxyConfig{
		Tracing: &meshv1alpha1.Tracing{
			Tracer: &meshv1alpha1.Tracing_Zipkin_{Zipkin: &meshv1alpha1.Tracing_Zipkin{Address: "zipkin.istio-system:9411"}}},
	}, nil)
	return map[string]Input{"plain": plain, "full": full, "services": services, "traced": traced}
}

func TestGolden(t *testing.T) {
	var used []string
	for name, in := range inputs() {
		t.Run(name, func(t *testing.T) {
			b, err := Build(in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := JSON(b)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "out", name+".json")
			used = append(used, path)
			testkit.Golden(t, path, got)
		})
	}
	testkit.GoldenStale(t, filepath.Join("testdata", "out", "*"), used)
}

func TestEnvoyAccepts(t *testing.T) {
	binary := os.Getenv("ENVOY")
	if binary == "" {
		binary, _ = filepath.Abs("../../../../.tools/envoy")
		if _, err := exec.LookPath(binary); err != nil {
			t.Skipf("no Envoy: %v: run make tools or set ENVOY", err)
		}
	}
	for name, in := range inputs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "state")
			dir, err := statedir.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			b, err := Build(in)
			if err == nil {
				err = Write(dir, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(path, statedir.Bootstrap)
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("bootstrap file: %v %v, want mode 0600", info.Mode(), err)
			}
			cmd := exec.Command(binary, "--mode", "validate", "-c", file)
			cmd.Dir = path
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				// No other field serves listeners that name no tracer, as those of Istio's control plane.
				if strings.Contains(line, "eprecated") && !strings.Contains(line, "envoy.config.bootstrap.v3.Bootstrap.tracing") {
					t.Errorf("Envoy warns: %s", line)
				}
			}
		})
	}
}

func TestBuildRejectsInvalidInput(t *testing.T) {
	in := inputs()["plain"]
	in.XDSPath = ""
	if _, err := Build(in); err == nil || !strings.Contains(err.Error(), "Path") {
		t.Errorf("got %v, want an error about the path", err)
	}
}
