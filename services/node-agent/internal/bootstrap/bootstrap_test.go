package bootstrap

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/statedir"
)

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
	}
	full := plain
	full.Delta = false
	full.Status = netip.MustParseAddrPort("[::1]:15020")
	full.Ready = netip.MustParseAddrPort("[::1]:15021")
	full.Stats = netip.MustParseAddrPort("[::1]:15090")
	full.RuntimeValues = map[string]string{"envoy.reloadable_features.x": "true"}
	full.ExtraTags = []string{"destination_zone"}
	full.StatsMatcher = StatsMatcherFrom(&meshv1alpha1.ProxyConfig{ProxyStatsMatcher: &meshv1alpha1.ProxyConfig_ProxyStatsMatcher{
		InclusionPrefixes: []string{"cluster.outbound"}, InclusionRegexps: []string{`http\..*\.rds\..*`},
	}}, map[string]string{suffixesAnnotation: "upstream_rq_total, upstream_cx_total"})
	return map[string]Input{"plain": plain, "full": full}
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
				if strings.Contains(line, "eprecated") {
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
