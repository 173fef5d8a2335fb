package proxy_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/proxyname"
)

func TestProxyStatus(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(clitest.TwoProxies(), nil)
	for name, tc := range map[string]struct {
		args []string
		file string
	}{
		"all":     {[]string{"proxy-status"}, "proxy-status.txt"},
		"verbose": {[]string{"proxy-status", "-v"}, "proxy-status-v.txt"},
		"one":     {[]string{"proxy-status", "a"}, "proxy-status-one.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := m.Run("", tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			testkit.Golden(t, filepath.Join("testdata", tc.file), []byte(out))
		})
	}
	if out, _, err := m.Run("", "proxy-status", "b", "-o", "json"); err != nil || strings.Contains(out, "a.shop") ||
		!strings.Contains(out, "b.shop") {
		t.Errorf("one proxy: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "proxy-status", "a", "-o", "yaml"); err != nil || !strings.Contains(out, "message: bad  filter") {
		t.Errorf("yaml: %q, %v", out, err)
	}
	if _, code, err := m.Run("", "proxy-status", "c"); code != process.ExitFailure || !strings.Contains(err.Error(), "a.shop, b.shop") {
		t.Errorf("no such proxy: %d, %v", code, err)
	}
}

// What nobody reports any more is told as that.
func TestProxyStatusWithoutXDSServers(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(clitest.TwoProxies(), nil)
	const note = "no xds-server reports to config-watcher"
	for reporters, want := range []bool{true, false} {
		m.SetReporters(uint32(reporters))
		if said, _, err := m.Run("", "proxy-status"); err != nil || strings.Contains(said, note) != want {
			t.Errorf("with %d: %q, %v", reporters, said, err)
		}
	}
	m.SetFleet(nil, nil)
	m.SetReporters(0)
	if said, _, err := m.Run("", "proxy-status"); err != nil || !strings.Contains(said, note+": which proxies are connected is not known") {
		t.Errorf("without proxies: %q, %v", said, err)
	}
}

// explain answers /debug/why as an xds-server does; the name "many" has a virtual host and a cluster, "two" has two
// clusters.
func explain(q url.Values) (any, error) {
	if q.Get("name") == "none" {
		return nil, errors.New("proxy has no resource \"none\"")
	}
	if q.Get("name") == "nobody" {
		return json.RawMessage(`{"proxy": "sidecar~127.0.0.1~a.shop~x", "type": "virtualhosts", "name": "nobody", "problem": "the class has no such resource", "madeFrom": []}`), nil
	}
	if q.Get("name") == "two" {
		return json.RawMessage(`{"proxy": "sidecar~127.0.0.1~a.shop~x", "madeFrom": [], "candidates": [
			{"type": "clusters", "name": "outbound|80|v1|reviews"}, {"type": "clusters", "name": "outbound|80||reviews"}]}`), nil
	}
	if q.Get("name") == "many" {
		return json.RawMessage(`{"proxy": "sidecar~127.0.0.1~a.shop~x", "madeFrom": [], "candidates": [
			{"type": "virtualhosts", "name": "80/reviews:80"}, {"type": "clusters", "name": "outbound|80||reviews"}]}`), nil
	}
	return json.RawMessage(`{"proxy": "sidecar~127.0.0.1~a.shop~x", "type": "clusters", "name": "` + q.Get("name") +
		`", "version": "abc", "revision": 12,
		"sent": 11, "acked": 10, "class": "c1", "workload": {"kind": "Pod", "namespace": "shop", "name": "a", "generation": 2},
		"madeFrom": [
			{"kind": "DestinationRule", "namespace": "shop", "name": "reviews", "source": "memory", "generation": 5},
			{"kind": "EndpointSet", "namespace": "shop", "name": "reviews:80", "detail": "2 endpoints of 1 cluster"},
			{"kind": "Service", "namespace": "shop", "name": "reviews", "source": "file", "generation": 1, "location": "mesh.yaml:4", "detail": "reviews.shop"}],
		"passedOver": [{"kind": "DestinationRule", "namespace": "else", "name": "reviews", "detail": "rules are looked up in shop"}],
		"notFound": ["no PeerAuthentication in namespace shop"], "lookedUp": ["MeshConfig"]}`), nil
}

func TestWhy(t *testing.T) {
	m := clitest.New(t)
	node := clitest.TwoProxies()[0].GetNodeId()
	here := clitest.XDSPort(t, node, map[string]func(url.Values) (any, error){"/debug/why": explain})
	elsewhere := clitest.XDSPort(t, "sidecar~nobody", map[string]func(url.Values) (any, error){"/debug/why": explain})
	ask := func(token string, args ...string) (string, int, error) {
		return clitest.Run("", append(append([]string{"why"}, args...),
			"--xds-server-address", elsewhere+","+here, "--token-file", clitest.TokenFile(t, token))...)
	}
	out, _, err := ask("good", node, "outbound|80||reviews")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, filepath.Join("testdata", "why.txt"), []byte(out))

	if out, code, err := ask("good", node, "nobody", "--type", "virtualhosts"); code != process.ExitFailure || err == nil ||
		!strings.Contains(err.Error(), "virtualhosts --served") {
		t.Errorf("no such resource: %q, %d, %v", out, code, err)
	}
	out, _, err = ask("good", node, "many")
	if err != nil || strings.Count(out, "made from:") != 1 || !strings.Contains(out, "resource:  80/reviews:80") ||
		!strings.Contains(out, "--all explains every one") {
		t.Errorf("one virtual host: %q, %v", out, err)
	}
	out, _, err = ask("good", node, "many", "--all")
	if err != nil || strings.Count(out, "made from:") != 2 || !strings.Contains(out, "resource:  80/reviews:80") {
		t.Errorf("--all: %q, %v", out, err)
	}
	out, _, err = ask("good", node, "outbound|80||reviews", "-o", "json")
	var answer struct {
		MadeFrom []struct{ Generation int }
		LookedUp []string
	}
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil || len(answer.MadeFrom) != 3 || answer.MadeFrom[0].Generation != 5 ||
		len(answer.LookedUp) != 1 {
		t.Errorf("json: %q, %v", out, err)
	}
	if out, _, err := ask("good", node, "outbound|80||reviews", "-o", "yaml"); err != nil || !strings.Contains(out, "generation: 5") {
		t.Errorf("yaml: %q, %v", out, err)
	}
	for name, tc := range map[string]struct {
		token, proxy, resource string
		says                   []string
	}{
		"ambiguous":       {"good", node, "two", []string{"clusters", "outbound|80|v1|reviews", "outbound|80||reviews", "--type"}},
		"no resource":     {"good", node, "none", []string{here, "has no resource"}},
		"no proxy":        {"good", "c.shop", "reviews", []string{"no xds-server knows proxy \"c.shop\"", here, elsewhere}},
		"another's token": {"forbidden", node, "reviews", []string{"does not allow it", "--token-file"}},
		"no credentials":  {"unknown", node, "reviews", []string{"does not allow it"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := ask(tc.token, tc.proxy, tc.resource)
			if code != process.ExitFailure {
				t.Errorf("exit code %d, %v", code, err)
			}
			for _, want := range tc.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
	m.SetFleet(clitest.TwoProxies(), nil)
	if _, code, err := m.Run("", "why", "a", "reviews"); code != process.ExitUsage || !strings.Contains(err.Error(), "--xds-server-address") {
		t.Errorf("no xds-server is known: %d, %v", code, err)
	}
}

// TestProxyIsFound: the xds-server that config-watcher names is asked, and another one if the proxy has moved.
func TestProxyIsFound(t *testing.T) {
	m := clitest.New(t)
	proxies := clitest.TwoProxies()
	m.SetFleet(proxies, nil)
	live := &configv1.ProxyStatus{NodeId: proxies[0].GetNodeId(), XdsServer: "xds-server-1/2", Types: []*configv1.ProxyTypeStatus{{
		TypeUrl: clitest.TypePrefix + "cluster.v3.Cluster", Sent: clitest.Revision(9), Acked: clitest.Revision(8), Awaiting: true, Pending: 1,
		PendingNames:  []string{"late"},
		AwaitingSince: timestamppb.New(time.Now().Add(-time.Hour)),
	}}}
	status := func(url.Values) (any, error) {
		raw, err := protojson.Marshal(live)
		return map[string]any{"proxies": []json.RawMessage{raw}}, err
	}
	served := func(q url.Values) (any, error) {
		if q.Get("spelling") != "proto" {
			return nil, errors.New("the spelling of Envoy's dump was not asked for")
		}
		if q.Get("type") == "nametables" {
			return json.RawMessage(`{"x/istio.networking.nds.v1.NameTable": [{"name": "", "version": "v1", "resource": {"table": {"web.shop": {"ips": ["10.0.0.1", "10.0.0.2"]}}}}]}`), nil
		}
		return json.RawMessage(`{"x/envoy.config.cluster.v3.Cluster": [
			{"name": "one", "version": "v1", "resource": {"name": "outbound|80|v1|one.shop"}}, {"name": "two", "version": "v2", "resource": {"name": "two", "private_key": "c2VjcmV0"}}]}`), nil
	}
	// config-watcher names xds-server-0, but the proxy has moved.
	zero := clitest.XDSPort(t, "sidecar~nobody", map[string]func(url.Values) (any, error){"/debug/why": explain, "/debug/proxies": status,
		"/debug/resources": served})
	one := clitest.XDSPort(t, proxies[0].GetNodeId(), map[string]func(url.Values) (any, error){"/debug/why": explain, "/debug/proxies": status,
		"/debug/resources": served})
	dir := m.RunMesh(t, zero, one)
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"why":                  {[]string{"why", "a", "outbound|80||reviews"}, "outbound|80||reviews"},
		"proxy-status is live": {[]string{"proxy-status", "a"}, "ack for 36"},
		"served":               {[]string{"proxy-config", "a", "clusters", "--served"}, "one.shop       80     v1"},
		"served to the agent":  {[]string{"proxy-config", "a", "nametable", "--served"}, "web.shop   10.0.0.1, 10.0.0.2"},
		"served, of a name":    {[]string{"proxy-config", "a", "clusters", "--served", "--name", "tw", "-o", "yaml"}, "- name: two"},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := clitest.Run("", append(tc.args, "--run-dir", dir)...)
			if err != nil || !strings.Contains(out, tc.says) || strings.Contains(out, "c2VjcmV0") {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	if out, _, err := clitest.Run("", "proxy-config", "a", "clusters", "--served", "--name", "tw", "--run-dir", dir); err != nil ||
		strings.Contains(out, "one") {
		t.Errorf("another name is shown: %q, %v", out, err)
	}
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: "sidecar~127.0.0.1~web-0.shop~x"}, {NodeId: "sidecar~127.0.0.1~web-1.shop~x"}}, nil)
	_, code, err := clitest.Run("", "why", "web", "reviews", "--run-dir", dir)
	if ambiguous := new(proxyname.AmbiguousError); code != process.ExitFailure || !errors.As(err, &ambiguous) {
		t.Errorf("a name that two proxies have: %d, %v", code, err)
	}
}
