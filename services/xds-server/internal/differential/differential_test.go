package differential_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/proxytest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/servetest"
	"fairlead.dev/services/xds-server/internal/translate"
)

const (
	// wantEdits is the number of edits with rapid's default number of checks.
	wantEdits    = 10_000
	editsPerMesh = 100
	patience     = testkit.Patience
)

// TestMain makes fewer meshes under the race detector, which takes ten times as long.
func TestMain(m *testing.M) {
	flag.Parse()
	checks := flag.Lookup("rapid.checks")
	if raceDetector && checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("10"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// start starts a replica with the real translators. The caller stops it.
func start(t *testing.T) *servetest.Server {
	return servetest.Start(t, servetest.Config{Translators: translate.All(), Change: func(c *serve.Config) {
		c.OrderTimeout = 200 * time.Millisecond // the order of types is tested elsewhere; here nothing should wait for long
	}})
}

func node(kind, name, namespace, ip string, fields map[string]any) *core.Node {
	meta, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err) // a broken test
	}
	return &core.Node{
		Id:       fmt.Sprintf("%s~%s~%s.%s~%s.svc.cluster.local", kind, ip, name, namespace, namespace),
		Locality: &core.Locality{Region: "eu", Zone: "a"}, Metadata: meta,
	}
}

// drawProxies returns proxies of every kind, of both protocol variants.
func drawProxies(t *rapid.T, rejecting bool) []*proxytest.Proxy {
	demands := map[string][]string{
		resource.VirtualHostType: {"80/a.x.svc.cluster.local", "80/nowhere.example.com", "8080/c.y:8080", "80/a"},
		resource.ClusterType:     {"outbound|80||a.x.svc.cluster.local", "outbound|3306||c.y.svc.cluster.local", "ondemand|tcp|10.96.0.1|3306"},
	}
	var all []*proxytest.Proxy
	add := func(delta bool, n *core.Node, demands map[string][]string) {
		all = append(all, proxytest.New(proxytest.Config{
			Delta: delta, Node: n, Agent: true, Children: children, Extensions: extensions, Demands: demands,
			RejectsAtRandom: rejecting, Seed: rapid.Uint64().Draw(t, "seed"),
		}))
	}
	for i, delta := range []bool{true, false} {
		ip := func(n int) string { return fmt.Sprintf("10.0.%d.%d", i+1, n) }
		add(delta, listing(node("sidecar", "d", "x", "10.0.1.100", nil), complete), nil)
		add(delta, listing(node("sidecar", "w", "y", ip(2), nil), unchained), nil)
		add(delta, node("sidecar", "direct", "x", ip(3), map[string]any{"INTERCEPTION_MODE": "NONE"}), nil)
		add(delta, listing(node("sidecar", "far", "elsewhere", ip(4), nil), tokenless), nil)
		add(delta, listing(node("router", "gw", "istio-system", ip(5), map[string]any{"LABELS": map[string]any{"istio": "ingressgateway"}}),
			complete), nil)
	}
	add(true, listing(node("sidecar", "lean", "x", "10.0.3.1", map[string]any{class.OnDemandMetadata: "true"}), complete), demands)
	return all
}

// children lists what Envoy would subscribe to because of a cluster or a listener.
func children(url, name string, content []byte) []string {
	var out []string
	switch url {
	case resource.ClusterType:
		c := &cluster.Cluster{}
		if proto.Unmarshal(content, c) == nil && c.GetType() == cluster.Cluster_EDS {
			if out = append(out, c.GetEdsClusterConfig().GetServiceName()); out[0] == "" {
				out[0] = name
			}
		}
	case resource.ListenerType:
		l := &listener.Listener{}
		if proto.Unmarshal(content, l) != nil {
			return nil
		}
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, m := range managers(chain) {
				if m.GetRds().GetRouteConfigName() != "" {
					out = append(out, m.GetRds().GetRouteConfigName())
				}
			}
		}
	}
	return out
}

// extensions lists the extension configs that Envoy would subscribe to because of a listener.
func extensions(_, _ string, content []byte) []string {
	l := &listener.Listener{}
	if proto.Unmarshal(content, l) != nil {
		return nil
	}
	var out []string
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, m := range managers(chain) {
			for _, f := range m.GetHttpFilters() {
				if f.GetConfigDiscovery() != nil {
					out = append(out, f.GetName())
				}
			}
		}
	}
	return out
}

// managers lists the HTTP connection managers of a filter chain.
func managers(chain *listener.FilterChain) []*hcm.HttpConnectionManager {
	var out []*hcm.HttpConnectionManager
	for _, f := range chain.GetFilters() {
		m := &hcm.HttpConnectionManager{}
		if f.GetTypedConfig().MessageIs(m) && f.GetTypedConfig().UnmarshalTo(m) == nil {
			out = append(out, m)
		}
	}
	return out
}

// testingT is what rapid.T and testing.T have in common.
type testingT interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// buildFromScratch builds what a proxy should hold without an engine, a class from earlier revisions, or anything
// recorded.
func buildFromScratch(t testingT, p *proxytest.Proxy, state *mesh.Snapshot, demands map[string][]string) map[string]map[string]string {
	parsed, err := class.ParseNode(p.Node)
	if err != nil {
		t.Fatal(err)
	}
	parsed.VirtualHosts = p.Delta
	key, _ := parsed.Key(state)
	byURL := map[string]plan.Translator{}
	for _, tr := range translate.All() {
		byURL[tr.TypeURL()] = tr
	}
	want := map[string]map[string]string{}
	for _, url := range []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType,
		resource.VirtualHostType, resource.ExtensionConfigType} {
		want[url] = map[string]string{}
	}
	build := func(url, name string) {
		m, err := byURL[url].Build(input.NewView(key, state).Reader(), name)
		if _, ok := errors.AsType[*plan.Incomplete](err); err != nil && !ok {
			t.Fatalf("%s %s: %v", url, name, err)
		}
		if m == nil {
			return
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		want[url][name] = string(raw)
	}
	wildcard := func(url string) {
		names, err := plan.List(byURL[url], key, state)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(names, demands[url]...) {
			build(url, name)
		}
	}
	wildcard(resource.ClusterType)
	wildcard(resource.ListenerType)
	if p.Agent {
		want[ndsv1.NameTableType] = map[string]string{}
		wildcard(ndsv1.NameTableType)
	}
	for _, of := range []struct {
		parent, child string
		list          proxytest.Children
	}{
		{resource.ClusterType, resource.EndpointType, children},
		{resource.ListenerType, resource.RouteType, children},
		{resource.ListenerType, resource.ExtensionConfigType, extensions},
	} {
		for name, content := range want[of.parent] {
			for _, c := range of.list(of.parent, name, []byte(content)) {
				build(of.child, c)
			}
		}
	}
	if p.Delta {
		wildcard(resource.VirtualHostType)
		maps.DeleteFunc(want[resource.VirtualHostType], func(name, _ string) bool { return !discovers(want, name) })
	}
	return want
}

// discovers reports whether the route configuration of a virtual host is in the state and has VHDS.
func discovers(state map[string]map[string]string, host string) bool {
	rc := &route.RouteConfiguration{}
	content := state[resource.RouteType][host[:strings.LastIndexByte(host, '/')]]
	return proto.Unmarshal([]byte(content), rc) == nil && rc.GetVhds() != nil
}

// used returns what a proxy holds without the virtual hosts of route configurations that it holds without VHDS: as
// Envoy does, it keeps them for a later version with VHDS, and uses none of them.
func used(state map[string]map[string]string) map[string]map[string]string {
	maps.DeleteFunc(state[resource.VirtualHostType], func(name, _ string) bool {
		_, held := state[resource.RouteType][name[:strings.LastIndexByte(name, '/')]]
		return held && !discovers(state, name)
	})
	return state
}

// TestDeltaSotwAndScratchAgree edits the meshes of two replicas at random. Meanwhile proxies of every class connect,
// disconnect, lose their streams, change replicas and, in half of the meshes, reject responses. The second replica
// receives its revisions by package configsource, where endpoints overtake configuration that waits for proxies. Every
// few edits, and in the end, all must hold what a build from scratch returns. -rapid.checks sets the number of meshes;
// each has a hundred edits.
func TestDeltaSotwAndScratchAgree(t *testing.T) {
	edits := 0
	rapid.Check(t, func(rt *rapid.T) { edits += editMesh(t, rt, rapid.Bool().Draw(rt, "rejecting")) })
	t.Logf("%d random edits", edits)
	if flag.Lookup("rapid.checks").Value.String() == "100" && edits < wantEdits && !t.Failed() {
		t.Errorf("%d edits, want %d", edits, wantEdits)
	}
}

func editMesh(t *testing.T, rt *rapid.T, rejecting bool) (edits int) {
	servers := []*servetest.Server{start(t), start(t)}
	held := map[string]*configv1.Resource{}
	waiting := &gate{}
	lanes, stop := servers[1].Follow(t, waiting.busy)
	defer stop()
	for _, s := range servers {
		defer s.Stop()
	}
	apply := func(upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
		servers[0].Apply(upserts, removed)
		lanes.Commit(upserts, removed)
	}
	apply([]*configv1.Resource{settings(0)}, nil)
	lanes.WaitApplied()
	proxies := drawProxies(rt, rejecting)
	for i, p := range proxies {
		p.Connect(t, servers[i%2].Conn)
		defer p.Disconnect()
	}
	checked := 0
	for edits < editsPerMesh {
		waiting.set(rapid.Bool().Draw(rt, "configuration waits"))
		upserts, removed := drawRevision(rt, held)
		if rapid.IntRange(0, 2).Draw(rt, "endpoints alone") == 0 {
			upserts, removed = drawEndpoints(rt, held)
		}
		if rapid.IntRange(0, 40).Draw(rt, "settings") == 0 {
			upserts = append(upserts, settings(edits))
		}
		edits += len(upserts) + len(removed)
		apply(upserts, removed)
		if rapid.IntRange(0, 2).Draw(rt, "move") == 0 {
			who := rapid.IntRange(0, len(proxies)-1).Draw(rt, "who")
			proxies[who].Connect(t, servers[rapid.IntRange(0, 1).Draw(rt, "where")].Conn)
		}
		if !rejecting && edits-checked >= 25 {
			waiting.set(false)
			waitForAgreement(rt, proxies, servers[0].Snapshot)
			checked = edits
		}
	}
	waiting.set(false)
	if rejecting {
		stopRejecting(t, proxies, servers)
	}
	waitForAgreement(rt, proxies, servers[0].Snapshot)
	return edits
}

// stopRejecting ends the rejections and connects the proxies to a server that knows of none: the others do not send a
// rejected version again.
func stopRejecting(t *testing.T, proxies []*proxytest.Proxy, servers []*servetest.Server) {
	fresh := start(t)
	t.Cleanup(fresh.Stop)
	fresh.Sequence = servers[0].Sequence
	fresh.Snapshot = servers[0].Snapshot
	fresh.ADS.Apply(fresh.Snapshot, &mesh.Change{Topics: mesh.Topics{}})
	for _, p := range proxies {
		p.StopRejecting()
		p.Connect(t, fresh.Conn)
	}
}

// waitForAgreement waits until every proxy holds what it should.
func waitForAgreement(rt testingT, proxies []*proxytest.Proxy, state *mesh.Snapshot) {
	for _, p := range proxies {
		demanded := buildFromScratch(rt, p, state, p.Demands())
		deadline := time.Now().Add(patience)
		for {
			got := used(p.State())
			want := withMirroredClusters(rt, p, state, demanded, got)
			if maps.EqualFunc(want, got, maps.Equal[map[string]string]) {
				break
			}
			if time.Now().After(deadline) {
				rt.Fatalf("%s (delta %v) does not hold what a build from scratch gives:\n%s", p.Node.GetId(), p.Delta, difference(want, got))
			}
			<-time.After(time.Millisecond)
		}
	}
}

// withMirroredClusters adds to what a proxy should hold the clusters to which some virtual host of an on-demand proxy
// has mirrored requests at some time. They are sent without a request and stay subscribed; their content must be right
// all the same.
func withMirroredClusters(
	t testingT, p *proxytest.Proxy, state *mesh.Snapshot, want, got map[string]map[string]string,
) map[string]map[string]string {
	if len(p.Demands()) == 0 {
		return want
	}
	var extra []string
	for name := range got[resource.ClusterType] {
		if _, ok := want[resource.ClusterType][name]; !ok {
			extra = append(extra, name)
		}
	}
	if len(extra) == 0 {
		return want
	}
	demands := maps.Clone(p.Demands())
	demands[resource.ClusterType] = append(extra, demands[resource.ClusterType]...)
	return buildFromScratch(t, p, state, demands)
}

// difference describes the differences for people.
func difference(want, got map[string]map[string]string) string {
	var out []string
	for url := range want {
		for name, content := range want[url] {
			if have, ok := got[url][name]; !ok {
				out = append(out, url+" "+name+" is missing")
			} else if have != content {
				out = append(out, url+" "+name+" is another:\n"+cmp.Diff(content, have))
			}
		}
		for name := range got[url] {
			if _, ok := want[url][name]; !ok {
				out = append(out, url+" "+name+" should not be there")
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
