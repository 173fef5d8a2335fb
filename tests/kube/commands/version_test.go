package commands

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/controlplane"
)

// server adds an xds-server that follows a config-watcher.
func (p *plane) server(t *testing.T, n int, watcher *controlplane.Service) *controlplane.Service {
	t.Helper()
	server, err := p.XDSServer(n, freePorts(t), watcher.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// versions is the form of `fairlead version -o json`, in the names of istioctl.
type versions struct {
	ClientVersion struct{ Version string }
	MeshVersion   []struct {
		Component, Revision, Pod, Unknown string
		Info                              *struct{ Version, Service string }
	}
	DataPlaneVersion []struct{ ID, IstioVersion string }
}

// TestVersionsOfACluster asks a control plane of two revisions, with a replica that does not answer, for its versions.
func TestVersionsOfACluster(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	if out, said := does(t, s, 1, "version"); !strings.HasPrefix(out, "client version: ") || strings.Count(out, "\n") != 1 ||
		!strings.Contains(said, "no control plane runs in namespace istio-system") {
		t.Errorf("without a control plane: %q, %q", out, said)
	}
	k := &kubelet{ports: map[string]string{}}
	k.node(t, s)
	p := startPlane(t, s, k)
	w := p.watcher(t, s, "config-watcher-1", "", "config-watcher:1.2.3")
	p.runs(t, s, p.server(t, 1, w), "xds-server", "xds-server-1", "", "xds-server:1.2.3")

	alone, _ := does(t, s, 0, "version", "--remote=false", "-o", "json")
	var own versions
	if err := json.Unmarshal([]byte(alone), &own); err != nil {
		t.Fatalf("%s, %v", alone, err)
	}
	v := own.ClientVersion.Version
	out, _ := does(t, s, 0, "version", "--short")
	if out != "client version: "+v+"\ncontrol plane version: "+v+"\ndata plane version: none\n" {
		t.Errorf("of one version:\n%s", out)
	}

	p.watcher(t, s, "config-watcher-blue-1", "blue", "config-watcher:1.2.4")
	p.pod(t, s, controlplane.Ports{GRPC: "127.0.0.1:1", Ops: "127.0.0.1:1"}, "injector", "injector-1", "blue", "injector:1.2.4")
	out, _ = does(t, s, 0, "version")
	for _, row := range []string{
		`blue +config-watcher +config-watcher-blue-1.istio-system +` + regexp.QuoteMeta(v),
		`default +config-watcher +config-watcher-1.istio-system +` + regexp.QuoteMeta(v),
		`default +xds-server +xds-server-1.istio-system`,
		`blue +injector +injector-1.istio-system +unknown: .*connection refused.*; image injector:1.2.4`,
	} {
		if !regexp.MustCompile(`(?m)^` + row).MatchString(out) {
			t.Errorf("no row %s in\n%s", row, out)
		}
	}
	if out, _ = does(t, s, 0, "version", "-s"); !strings.Contains(out, "\ninjector version: unknown (revision blue)\n") ||
		!strings.Contains(out, "\nxds-server version: "+v+" (revision default)\n") {
		t.Errorf("of several versions:\n%s", out)
	}
	var got versions
	if out, _ := does(t, s, 0, "version", "-o", "json", "--revision", "blue"); json.Unmarshal([]byte(out), &got) != nil ||
		len(got.MeshVersion) != 2 ||
		got.MeshVersion[0].Component != "config-watcher" || got.MeshVersion[0].Info.Version != v || got.MeshVersion[1].Info != nil ||
		got.MeshVersion[1].Unknown == "" {
		t.Errorf("of revision blue:\n%s", out)
	}
	if out, _ := does(t, s, 0, "version", "--remote=false"); strings.Count(out, "\n") != 1 {
		t.Errorf("of the client alone:\n%s", out)
	}
}
