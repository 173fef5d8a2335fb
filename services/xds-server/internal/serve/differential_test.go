package serve_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/proxytest"
)

var (
	drawnHosts      = []string{"a.x", "b.x", "c.y", "d.y"}
	drawnNamespaces = []string{"x", "y"}
)

// drawEdit makes a resource of a small mesh, in which random edits often touch the same objects.
func drawEdit(t *rapid.T) *configv1.Resource {
	ns := rapid.SampledFrom(drawnNamespaces).Draw(t, "namespace")
	host := rapid.SampledFrom(drawnHosts).Draw(t, "host")
	port := rapid.Uint32Range(80, 81).Draw(t, "port")
	visible := rapid.SampledFrom([][]string{{"*"}, {"x"}, {"y"}}).Draw(t, "visible")
	name := rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "name")
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0, 1:
		return meshtest.Service(ns, host, port, meshtest.Visible(visible...))
	case 2:
		return meshtest.Endpoints(ns, host, port, fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 3).Draw(t, "address")))
	case 3:
		seconds := rapid.IntRange(0, 2).Draw(t, "seconds")
		return meshtest.Config(mesh.KindDestinationRule, ns, name, meshtest.DestinationRule(host, time.Duration(seconds)*time.Second),
			meshtest.ExportedTo(visible...))
	case 4:
		return meshtest.Config(mesh.KindVirtualService, ns, name, &networking.VirtualService{Hosts: []string{host}},
			meshtest.ExportedTo(visible...))
	case 5:
		s := &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{
			rapid.SampledFrom([]string{"./*", "*/*", "x/*", "~/*", "*/" + host}).Draw(t, "egress"),
		}}}}
		if rapid.Bool().Draw(t, "selects") {
			s.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": rapid.SampledFrom([]string{"d", "w"}).Draw(t, "app")}}
		}
		return meshtest.Config(mesh.KindSidecar, ns, name, s)
	case 6:
		return routeConfigs(rapid.SampledFrom([]string{"", "x-a", "x-b"}).Draw(t, "header"))
	default:
		return meshtest.PeerAuthentication(ns, name, rapid.SampledFrom([]string{"STRICT", "PERMISSIVE"}).Draw(t, "mode"))
	}
}

// fromScratch builds what the proxy should hold without an engine, a class from earlier revisions, or anything
// recorded.
func fromScratch(t *rapid.T, p *proxytest.Proxy, resources map[string]*configv1.Resource) map[string]map[string]string {
	var all []*configv1.Resource
	for _, r := range resources {
		all = append(all, r)
	}
	state, err := mesh.FromResources(all)
	if err != nil {
		t.Fatal(err)
	}
	node, err := class.ParseNode(p.Node)
	if err != nil {
		t.Fatal(err)
	}
	node.VirtualHosts = p.Delta
	key, _ := node.Key(state)
	want := map[string]map[string]string{}
	for _, tr := range withVirtualHosts(plantest.New()) {
		names, err := tr.Names(input.NewView(key, state).Reader())
		for _, host := range drawnHosts {
			if err != nil {
				t.Fatal(err)
			}
			var more []string
			more, err = tr.HostNames(input.NewView(key, state).Reader(), host)
			names = append(names, more...)
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tr.TypeURL() {
		case eds:
			for name := range want[short(cds)] {
				names = append(names, name)
			}
		case rds:
			names = nil
			for name := range want[short(lds)] {
				names = append(names, name)
			}
		}
		if tr.TypeURL() == vhds {
			// Only virtual hosts of route configurations that the proxy holds, and only for delta.
			names = slices.DeleteFunc(names, func(name string) bool {
				routeConfig, _, _ := strings.Cut(name, "/")
				_, ok := want[short(rds)][routeConfig]
				return !ok || !p.Delta
			})
		}
		built := map[string]string{}
		for _, name := range names {
			m, err := tr.Build(input.NewView(key, state).Reader(), name)
			if err != nil {
				t.Fatal(err)
			}
			if m != nil {
				built[name] = string(marshal(t, m))
			}
		}
		want[short(tr.TypeURL())] = built
	}
	return want
}

// TestProxiesAgreeWithAScratchBuild edits the mesh of two replicas at random. Meanwhile, delta and sotw proxies of
// several classes connect, disconnect, change replicas and reject responses. In the end each must hold what a build
// from scratch returns.
func TestProxiesAgreeWithAScratchBuild(t *testing.T) {
	for name, rejecting := range map[string]bool{"content": false, "with rejections": true} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { differential(t, rt, rejecting) })
		})
	}
}

func differential(t *testing.T, rt *rapid.T, rejecting bool) {
	seed := meshtest.Workload("x", "d", "10.0.9.1")
	apart := setup{translators: withVirtualHosts}
	servers := []*fixture{startWith(t, apart, []*configv1.Resource{seed}), startWith(t, apart, []*configv1.Resource{seed})}
	defer servers[0].Stop()
	defer servers[1].Stop()
	held := map[string]*configv1.Resource{seed.GetKey().String(): seed}
	var proxies []*proxytest.Proxy
	for i, ns := range []string{"x", "x", "y", "y"} {
		p := proxytest.New(proxytest.Config{
			Delta: i%2 == 0, Node: node([]string{"d", "w"}[i%2], ns), Children: proxytest.SameName, RejectsAtRandom: rejecting,
			StatesDroppedVersions: true,
			Seed:                  rapid.Uint64().Draw(rt, "seed"),
		})
		p.Connect(t, servers[i%2].Conn)
		defer p.Disconnect()
		proxies = append(proxies, p)
	}
	apply := func(upserts, removed []*configv1.Resource) {
		for _, r := range removed {
			delete(held, r.GetKey().String())
		}
		for _, r := range upserts {
			held[r.GetKey().String()] = r
		}
		for _, s := range servers {
			s.change(upserts, removed)
		}
	}
	for range rapid.IntRange(1, 15).Draw(rt, "steps") {
		var upserts, removed []*configv1.Resource
		seen := map[string]bool{}
		for range rapid.IntRange(1, 4).Draw(rt, "size") {
			r := drawEdit(rt)
			if k := r.GetKey().String(); !seen[k] {
				seen[k] = true
				if held[k] != nil && rapid.Bool().Draw(rt, "remove") {
					removed = append(removed, r)
				} else {
					upserts = append(upserts, r)
				}
			}
		}
		apply(upserts, removed)
		if rapid.IntRange(0, 3).Draw(rt, "move") == 0 {
			proxies[rapid.IntRange(0, len(proxies)-1).Draw(rt, "who")].Connect(t, servers[rapid.IntRange(0, 1).Draw(rt, "where")].Conn)
		}
	}
	if rejecting {
		settle(proxies, apply)
	}
	for _, p := range proxies {
		want := fromScratch(rt, p, held)
		deadline := time.Now().Add(patience)
		for {
			d := cmp.Diff(want, byShortType(p.State()))
			if d == "" {
				break
			}
			if time.Now().After(deadline) {
				rt.Fatalf("%s (delta %v) does not hold what a build from scratch gives (-want +got):\n%s", p.Node.GetId(), p.Delta, d)
			}
			<-time.After(time.Millisecond)
		}
	}
}

// settle ends the rejections and changes every resource once more, so that no rejected version is current.
func settle(proxies []*proxytest.Proxy, apply func(upserts, removed []*configv1.Resource)) {
	for _, p := range proxies {
		p.StopRejecting()
	}
	var sidecars []*configv1.Resource
	for _, ns := range drawnNamespaces {
		for _, name := range []string{"n1", "n2"} {
			sidecars = append(sidecars, meshtest.Config(mesh.KindSidecar, ns, name, &networking.Sidecar{}))
		}
	}
	apply(nil, sidecars)
	for round := range 2 {
		var upserts []*configv1.Resource
		for _, ns := range drawnNamespaces {
			upserts = append(upserts,
				meshtest.Config(mesh.KindVirtualService, ns, "n1", &networking.VirtualService{Hosts: []string{fmt.Sprint("final", round)}}),
				meshtest.PeerAuthentication(ns, "n1", []string{"STRICT", "DISABLE"}[round], nil...))
			for i, host := range drawnHosts {
				upserts = append(upserts, meshtest.Service(ns, host, 80), meshtest.Endpoints(ns, host, 80, fmt.Sprintf("10.9.%d.%d", round, i)),
					meshtest.Endpoints(ns, host, 81, fmt.Sprintf("10.9.%d.%d", round, i)),
					meshtest.Config(mesh.KindVirtualService, ns, fmt.Sprint("final-", round, host), &networking.VirtualService{Hosts: []string{host}}),
					meshtest.Config(mesh.KindDestinationRule, ns, "final-"+host, meshtest.DestinationRule(host, time.Duration(100+round)*time.Second)))
			}
		}
		apply(append(upserts, routeConfigs(fmt.Sprint("x-final-", round))), nil)
	}
}

// routeConfigs is a mesh setting that all route configurations contain.
func routeConfigs(header string) *configv1.Resource {
	return meshtest.Mesh(&meshv1alpha1.MeshConfig{AccessLogFile: header})
}

func marshal(t *rapid.T, m proto.Message) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func byShortType(state map[string]map[string]string) map[string]map[string]string {
	out := map[string]map[string]string{}
	for url, held := range state {
		if len(held) > 0 || url != resource.ExtensionConfigType { // which no translator here makes
			out[short(url)] = held
		}
	}
	return out
}
