package proxy_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// kept is an Envoy's dump in a file.
const kept = "../../envoyadmin/testdata/config_dump.json"

// firstCells are the first cells of a table's rows, each once.
func firstCells(out string) (list []string) {
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if cell, _, _ := strings.Cut(line, "  "); i > 0 && !slices.Contains(list, cell) {
			list = append(list, cell)
		}
	}
	return list
}

func TestProxyConfigOfAFile(t *testing.T) {
	for args, want := range map[string]string{
		"c --fqdn reviews --subset v1":                "reviews.default.svc.cluster.local",
		"clusters --direction bound":                  "",
		"listener --port 15080":                       "127.66.1.2_15080",
		"l --address 127.66 --type HTTP --port 15090": "agent_stats",
		"routes --name agent_ready":                   "agent_ready",
		"s --name ROOT":                               "ROOTCA",
		"ecds":                                        "",
	} {
		t.Run(args, func(t *testing.T) {
			out, diagnostics, _, err := clitest.Split(nil, append(append([]string{"pc"}, strings.Fields(args)...), "--file", kept)...)
			if got := strings.Join(firstCells(out), " "); err != nil || got != want || (diagnostics == "") != (want != "") {
				t.Errorf("%q, %q, %v, want %q", got, diagnostics, err, want)
			}
		})
	}
	out, _, _, err := clitest.Split(nil, "pc", "all", "-f", kept)
	if err != nil || strings.Count(out, "\n\n") < 3 || !strings.Contains(out, "SERVICE FQDN") ||
		!strings.Contains(out, "v1 (50%), v2 (30%), v3 (20%)") {
		t.Errorf("all: %v\n%s", err, out)
	}
	out, _, _, err = clitest.Split(nil, "pc", "all", "-f", kept, "-o", "json", "--fqdn", "reviews")
	var tree struct{ Configs []json.RawMessage }
	if err != nil || json.Unmarshal([]byte(out), &tree) != nil || len(tree.Configs) < 4 ||
		strings.Contains(out, `"name": "PassthroughCluster"`) {
		t.Errorf("all as JSON: %d configs, %v", len(tree.Configs), err)
	}
	// The output of -o json can be read with --file.
	file := filepath.Join(t.TempDir(), "dump")
	testkit.WriteFile(t, file, []byte(out))
	if out, _, _, err := clitest.Split(nil, "pc", "c", "-f", file); err != nil ||
		strings.Join(firstCells(out), " ") != "reviews.default.svc.cluster.local" {
		t.Errorf("again: %q, %v", out, err)
	}
	if _, _, code, err := clitest.Split(nil, "pc", "c", "-f", filepath.Join(t.TempDir(), "none")); code != process.ExitFailure {
		t.Error(err)
	}
	if _, _, code, err := clitest.Split(nil, "pc", "c", "-f", "proxyconfig_test.go"); code != process.ExitRefused ||
		!strings.Contains(err.Error(), "fairlead proxy-config all") {
		t.Errorf("no dump: %d, %v", code, err)
	}
}

// envoy answers on an admin socket with the dump and two loggers.
func envoy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	levels := map[string]string{"http": "warning", "main": "warning"}
	mux := http.NewServeMux()
	mux.HandleFunc("/config_dump", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, kept) })
	mux.HandleFunc("/clusters", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "../../envoyadmin/testdata/clusters.json")
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"command_line_options": {"log_level": "warning"}}`)
	})
	mux.HandleFunc("POST /logging", func(w http.ResponseWriter, r *http.Request) {
		for name := range levels {
			if all := r.URL.Query().Get("level"); all != "" {
				levels[name] = all
			}
			if _, level, ok := strings.Cut(r.URL.Query().Get("paths"), name+":"); ok {
				levels[name], _, _ = strings.Cut(level, ",")
			}
			fmt.Fprintf(w, "  %s: %s\n", name, levels[name])
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	return lis.Addr().String()
}

// addPods adds an Envoy, a proxyless gRPC client and a plain Pod to the state of a run directory.
func addPods(t *testing.T, dir string) {
	t.Helper()
	s, err := runstate.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	stateDir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(stateDir, "grpc-bootstrap.json"), []byte(`{"xds_servers": [{"server_uri": "unix:///x"}]}`))
	s.Pods = []runstate.Pod{
		{Name: "web-0", Namespace: "shop", Workload: "web", Kind: "sidecar", Labels: map[string]string{"app": "web"},
			Agent: &runstate.Agent{AdminSocket: envoy(t)}},
		{Name: "grpc-0", Namespace: "shop", Workload: "grpc", Kind: "proxyless",
			Agent: &runstate.Agent{AdminSocket: "/does/not/exist", StateDir: stateDir}},
		{Name: "plain-0", Namespace: "shop", Kind: "plain"},
	}
	if err := rundir.Write(rundir.Layout{Dir: dir}, s); err != nil {
		t.Fatal(err)
	}
}

func TestProxyConfigOfAMesh(t *testing.T) {
	m := clitest.New(t)
	const node, far = "sidecar~10.0.0.1~grpc-0.shop~shop.svc.cluster.local#0001", "sidecar~10.0.0.2~far-0.shop~x"
	m.SetFleet([]*configv1.ProxyStatus{
		{NodeId: node, Namespace: "shop", XdsServer: "xds-server-0/1"}, {NodeId: far, Namespace: "shop", XdsServer: "xds-server-1/1"},
	}, nil)
	served := func(q url.Values) (any, error) {
		all := map[string]string{
			"clusters":  `"x/envoy.config.cluster.v3.Cluster": [{"name": "outbound|7070||server.apps", "version": "v7", "resource": {"name": "outbound|7070||server.apps", "type": "EDS"}}]`,
			"listeners": `"x/envoy.config.listener.v3.Listener": [{"name": "server:7070", "version": "v8", "resource": {"name": "server:7070", "api_listener": {"api_listener": {"rds": {"route_config_name": "server-routes"}}}}}]`,
			"routes": `"x/envoy.config.route.v3.RouteConfiguration": [{"name": "server-routes", "version": "v9", "resource": {"name": "server-routes", "virtual_hosts": [
				{"name": "server", "domains": ["server"], "routes": [{"match": {"prefix": ""}, "route": {"cluster": "outbound|7070||server.apps"}}]}]}}]`,
			"endpoints": `"x/envoy.config.endpoint.v3.ClusterLoadAssignment": [{"name": "outbound|7070||server.apps", "version": "v1", "resource": {"cluster_name": "outbound|7070||server.apps",
				"endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "10.0.0.9", "port_value": 7070}}}}]}]}}]`,
		}
		if kind := q.Get("type"); kind != "" {
			return json.RawMessage("{" + all[kind] + "}"), nil
		}
		return json.RawMessage("{" + all["clusters"] + "," + all["listeners"] + "," + all["routes"] + "," + all["endpoints"] + "}"), nil
	}
	answers := map[string]func(url.Values) (any, error){"/debug/resources": served}
	dir := m.RunMesh(t, clitest.XDSPort(t, node, answers), clitest.XDSPort(t, far, answers))
	addPods(t, dir)
	env := map[string]string{"FAIRLEAD_RUN_DIR": dir}
	for args, tc := range map[string]struct{ says, notes string }{
		"c web-0.shop --fqdn reviews --subset v1":                 {"reviews.default.svc.cluster.local   9080", ""},
		"deploy/web clusters --fqdn reviews --subset v1":          {"reviews.default.svc.cluster.local   9080", ""},
		"ep web -n shop --status HEALTHY --cluster 9080||reviews": {"outbound|9080||reviews", ""},
		"clusters grpc-0":                          {"server.apps    7070", "gRPC program without an Envoy"},
		"listeners grpc-0":                         {"calls of the program   Route: server-routes", "gRPC program"},
		"routes grpc-0":                            {"server.apps:7070", "gRPC program"},
		"all deploy/grpc -n shop":                  {"10.0.0.9:7070", "gRPC program"},
		"endpoints grpc-0 --address 10.0.0.9":      {"10.0.0.9:7070", "gRPC program"},
		"endpoints grpc-0 --address 10.0.0.1":      {"", "has no endpoints"},
		"clusters grpc-0 -o json":                  {`"version": "v7"`, "gRPC program"},
		"clusters grpc-0 -o json --fqdn elsewhere": {"[]", "gRPC program"},
		"b grpc-0":       {"unix:///x", ""},
		"clusters far-0": {"server.apps    7070", "not started by this run directory"},
		"routes far-0.shop --served --fqdn server --port 80": {"", "has no routes"},
	} {
		t.Run(args, func(t *testing.T) {
			out, diagnostics, _, err := clitest.Split(env, append([]string{"proxy-config"}, strings.Fields(args)...)...)
			if err != nil || !strings.Contains(out, tc.says) || !strings.Contains(diagnostics, tc.notes) || tc.notes == "" && diagnostics != "" {
				t.Errorf("%v\n%s\n%s", err, out, diagnostics)
			}
		})
	}
	for _, tc := range []struct{ args, says string }{
		{"log web", "http     warning"},
		{"log pod/web-0 --level http:debug", "http     debug"},
		{"log web --level main:error -o json", `"level": "error"`},
		{"log web --reset", "http     warning"},
		{"log -l app=web -n shop --level info", "web-0.shop   http     info"},
		{"log -l app=none -o json", "{}"},
	} {
		if out, _, _, err := clitest.Split(env, append([]string{"pc"}, strings.Fields(tc.args)...)...); err != nil ||
			!strings.Contains(out, tc.says) {
			t.Errorf("%s: %v\n%s", tc.args, err, out)
		}
	}
	for args, says := range map[string]string{
		"clusters wbe-0":           `did you mean "web-0.shop"?`,
		"clusters web-0 -n shpo":   `did you mean "shop"?`,
		"clusters plain-0":         "there are grpc-0.shop, web-0.shop",
		"log grpc-0":               "GRPC_GO_LOG_SEVERITY_LEVEL",
		"secrets grpc-0":           "its agent keeps key",
		"bootstrap far-0":          "cannot be asked for bootstrap",
		"log web --level htpt:off": `did you mean "http"?`,
	} {
		_, _, code, err := clitest.Split(env, append([]string{"proxy-config"}, strings.Fields(args)...)...)
		if code != process.ExitFailure || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v", args, code, err)
		}
	}
	if _, _, code, err := clitest.Split(env, "proxy", "renew", "grpc-0"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "without an Envoy") {
		t.Errorf("renew: %d, %v", code, err)
	}
}
