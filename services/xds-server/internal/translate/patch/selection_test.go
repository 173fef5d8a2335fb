package patch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
)

// timeout is an EnvoyFilter that sets the connect timeout of all clusters; scope is the rest of its spec.
func timeout(scope string, seconds int) string {
	return fmt.Sprintf("%s\nconfigPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: %ds}}}]", scope, seconds)
}

func seconds(t *testing.T, key *class.Key, filters ...*configv1.Resource) int {
	t.Helper()
	m, err := build(t, key, resource.ClusterType, "outbound|80||"+web, filters...)
	if err != nil {
		t.Fatal(err)
	}
	return int(m.(*cluster.Cluster).GetConnectTimeout().AsDuration() / time.Second)
}

func TestSelectionAndOrderOfEnvoyFilters(t *testing.T) {
	older, younger := meshtest.Aged(time.Hour), meshtest.Aged(2*time.Hour)
	matching := timeout("", 3)
	matching = strings.Replace(matching, "applyTo: CLUSTER,", "applyTo: CLUSTER, match: {proxy: {proxyVersion: '^1\\.', metadata: {A: b}}},",
		1)
	gatewayTarget := timeout("targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: gw}]", 3)
	for name, c := range map[string]struct {
		change  func(*class.Key)
		filters []*configv1.Resource
		want    int
	}{
		"own namespace":     {filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", timeout("", 3))}, want: 3},
		"another namespace": {filters: []*configv1.Resource{meshtest.EnvoyFilter("other", "a", timeout("", 3))}, want: 10},
		"root namespace":    {filters: []*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a", timeout("", 3))}, want: 3},
		"selected": {
			filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", timeout("workloadSelector: {labels: {app: web}}", 3))}, want: 3},
		"selected from root": {
			filters: []*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a", timeout("workloadSelector: {labels: {app: web}}", 3))}, want: 3},
		"not selected": {
			filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", timeout("workloadSelector: {labels: {app: other}}", 3))}, want: 10},
		"gateway target": {
			change:  func(k *class.Key) { k.Labels = map[string]string{"gateway.networking.k8s.io/gateway-name": "gw"} },
			filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", gatewayTarget)}, want: 3,
		},
		"gateway target of root": {
			change:  func(k *class.Key) { k.Labels = map[string]string{"gateway.networking.k8s.io/gateway-name": "gw"} },
			filters: []*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a", gatewayTarget)}, want: 10,
		},
		"another gateway": {filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", gatewayTarget)}, want: 10},
		"no proxy match":  {filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "a", matching)}, want: 10},
		"root before own": {filters: []*configv1.Resource{
			meshtest.EnvoyFilter("shop", "a", timeout("", 3), older), meshtest.EnvoyFilter("istio-system", "a", timeout("", 4), younger),
		}, want: 3},
		"younger last": {filters: []*configv1.Resource{
			meshtest.EnvoyFilter("shop", "a", timeout("", 3), younger), meshtest.EnvoyFilter("shop", "b", timeout("", 4), older),
		}, want: 3},
		"by name": {filters: []*configv1.Resource{meshtest.EnvoyFilter("shop", "b", timeout("", 3)),
			meshtest.EnvoyFilter("shop", "a", timeout("", 4))}, want: 3},
		"priority before all": {filters: []*configv1.Resource{
			meshtest.EnvoyFilter("shop", "a", timeout("priority: -5", 3), younger), meshtest.EnvoyFilter("istio-system", "b", timeout("", 4), older),
		}, want: 4},
		"highest priority last": {filters: []*configv1.Resource{
			meshtest.EnvoyFilter("istio-system", "a", timeout("priority: 5", 3), older), meshtest.EnvoyFilter("shop", "b", timeout("", 4), younger),
		}, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			key := sidecar()
			if c.change != nil {
				c.change(key)
			}
			if got := seconds(t, key, c.filters...); got != c.want {
				t.Errorf("%d s, want %d s", got, c.want)
			}
		})
	}
	t.Run("proxy match", func(t *testing.T) {
		f := meshtest.EnvoyFilter("shop", "a", matching)
		state := meshtest.State(t, patchedMesh(f)...)
		for metadata, want := range map[string]int{"1.2 b": 3, "2.1 b": 10, "1.2 c": 10} {
			version, a, _ := strings.Cut(metadata, " ")
			node := &class.Node{Type: class.Sidecar, Name: "web", Namespace: "shop", Interception: class.Redirect,
				Metadata: map[string]string{"ISTIO_VERSION": version, "A": a}}
			key, _ := node.Key(state)
			if got := seconds(t, key, f); got != want {
				t.Errorf("%s: %d s, want %d s", metadata, got, want)
			}
		}
	})
}

func TestUnselectedResourcesAreShared(t *testing.T) {
	for name, c := range map[string]struct {
		filters []*configv1.Resource
		want    input.Scope
	}{
		"none":          {nil, input.MeshScope},
		"for everybody": {[]*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a", timeout("", 3))}, input.MeshScope},
		"selected elsewhere": {[]*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a",
			"workloadSelector: {labels: {app: web}}\n"+filter("CLUSTER", "cluster: {portNumber: 81}", "operation: REMOVE"))}, input.MeshScope},
		"selected": {[]*configv1.Resource{meshtest.EnvoyFilter("istio-system", "a", timeout("workloadSelector: {labels: {app: web}}", 3))},
			input.WorkloadScope},
	} {
		t.Run(name, func(t *testing.T) {
			r := input.NewView(sidecar().OfMesh(), meshtest.State(t, patchedMesh(c.filters...)...)).Reader()
			if _, err := translator(resource.ClusterType).Build(r, "PassthroughCluster"); err != nil {
				t.Fatal(err)
			}
			if got := r.Scope(); got != c.want {
				t.Errorf("reach %d, want %d", got, c.want)
			}
		})
	}
}

func TestAddedResourcesAreListedAndBuilt(t *testing.T) {
	const tcp = `address: {socket_address: {address: 0.0.0.0, port_value: %d}}, filter_chains: [{filters: [{name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: a}}]}]`
	add := func(applyTo, value string) string { return filter(applyTo, "", "operation: ADD, value: {"+value+"}") }
	for name, c := range map[string]struct {
		url, spec, want, refusal string
	}{
		"cluster":         {resource.ClusterType, add("CLUSTER", "name: mine, connect_timeout: 1s, type: STATIC"), "mine", ""},
		"cluster, broken": {resource.ClusterType, add("CLUSTER", "name: mine, type: EDS"), "mine", "edsClusterConfig"},
		"listener":        {resource.ListenerType, add("LISTENER", "name: mine, "+fmt.Sprintf(tcp, 7000)), "mine", ""},
		"listener's context": {resource.ListenerType, add("LISTENER", "name: mine, "+fmt.Sprintf(tcp, 15006)), "mine",
			"that of listener virtualInbound"},
		"extension config": {resource.ExtensionConfigType, filter("EXTENSION_CONFIG", "", "operation: ADD, value: "+lua), "lua", ""},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, patchedMesh(meshtest.EnvoyFilter("shop", "f", c.spec))...)
			names, err := plan.List(translator(c.url), sidecar(), state)
			if err != nil || !slices.Contains(names, c.want) || !slices.IsSorted(names) {
				t.Fatalf("%v, %v", names, err)
			}
			m, err := build(t, sidecar(), c.url, c.want, meshtest.EnvoyFilter("shop", "f", c.spec))
			switch {
			case c.refusal != "" && (err == nil || m != nil || !strings.Contains(err.Error(), c.refusal)):
				t.Errorf("%v, error %v, want %s", m, err, c.refusal)
			case c.refusal == "" && (err != nil || m == nil):
				t.Errorf("%v, %v", m, err)
			}
			if m, _ := build(t, router(), c.url, "none", meshtest.EnvoyFilter("shop", "f", c.spec)); m != nil {
				t.Errorf("another name gives %v", m)
			}
		})
	}
	t.Run("virtual host", func(t *testing.T) {
		for domains, refusal := range map[string]string{
			"mine.com": "", "MINE.com, '*.mine.com'": "", "web.shop": "is that of host " + web, "'*'": "is that of another virtual host",
			"a.b, A.b": "another virtual host",
		} {
			f := meshtest.EnvoyFilter("shop", "f",
				filter("VIRTUAL_HOST", "routeConfiguration: {name: '80'}", "operation: ADD, value: {name: mine, domains: ["+domains+"]}"))
			names, err := plan.List(translator(resource.VirtualHostType), discovered(), meshtest.State(t, patchedMesh(f)...))
			if err != nil || !slices.Contains(names, "80/mine") {
				t.Fatalf("%v, %v", names, err)
			}
			m, err := build(t, discovered(), resource.VirtualHostType, "80/mine", f)
			if refusal == "" && (err != nil || text(t, m) != "80/mine()") ||
				refusal != "" && (m != nil || err == nil || !strings.Contains(err.Error(), refusal)) {
				t.Errorf("%s: %v, %v", domains, m, err)
			}
		}
	})
	t.Run("twice", func(t *testing.T) {
		one, two := "name: mine, connect_timeout: 1s", "name: mine, connect_timeout: 2s"
		m, err := build(t, sidecar(), resource.ClusterType, "mine", meshtest.EnvoyFilter("shop", "a", add("CLUSTER", one)),
			meshtest.EnvoyFilter("shop", "b", add("CLUSTER", two)))
		if m.(*cluster.Cluster).GetConnectTimeout().GetSeconds() != 1 || err == nil || !strings.Contains(err.Error(), "EnvoyFilter shop/b") {
			t.Errorf("%v, %v", m, err)
		}
	})
}

func TestOnlyTheBreakingEnvoyFilterIsLeftOut(t *testing.T) {
	m, err := build(t, sidecar(), resource.ClusterType, "outbound|80||"+web,
		meshtest.EnvoyFilter("shop", "a", timeout("", 3)),
		meshtest.EnvoyFilter("shop", "b", filter("CLUSTER", "", "operation: MERGE, value: {connect_timeout: -1s}")),
		meshtest.EnvoyFilter("shop", "c", filter("CLUSTER", "", "operation: MERGE, value: {per_connection_buffer_limit_bytes: 7}")))
	if _, ok := errors.AsType[*plan.Incomplete](err); !ok || !strings.Contains(err.Error(), "shop/b") ||
		strings.Contains(err.Error(), "shop/a") {
		t.Errorf("error %v", err)
	}
	if c := m.(*cluster.Cluster); c.GetConnectTimeout().GetSeconds() != 3 || c.GetPerConnectionBufferLimitBytes().GetValue() != 7 {
		t.Errorf("got %v", m)
	}
}

// MERGE appends to lists, MERGE_AND_REPLACE_LIST replaces them; maps get entries; a duration is one value.
func TestMergeOfListsAndMaps(t *testing.T) {
	base := meshtest.EnvoyFilter("shop", "a",
		filter("CLUSTER", "", `operation: MERGE, value: {connect_timeout: 1.5s, filters: [{name: a}], metadata: {filter_metadata: {x: {a: 1}}}}`))
	for op, want := range map[string]int{"MERGE": 2, "MERGE_AND_REPLACE_LIST": 1} {
		m, err := build(t, sidecar(), resource.ClusterType, "PassthroughCluster", base,
			meshtest.EnvoyFilter("shop", "b",
				filter("CLUSTER", "", "operation: "+op+
					", value: {connect_timeout: 2s, filters: [{name: b}], metadata: {filter_metadata: {y: {b: 2}}}}")))
		if err != nil {
			t.Fatal(err)
		}
		c := m.(*cluster.Cluster)
		if len(c.GetFilters()) != want || c.GetFilters()[want-1].GetName() != "b" || c.GetConnectTimeout().AsDuration() != 2*time.Second ||
			len(c.GetMetadata().GetFilterMetadata()) < 2 {
			t.Errorf("%s: %v", op, c)
		}
	}
	one, err := build(t, sidecar(), resource.ClusterType, "PassthroughCluster", base)
	if err != nil {
		t.Fatal(err)
	}
	two, _ := build(t, sidecar(), resource.ClusterType, "PassthroughCluster", base)
	if !proto.Equal(one, two) {
		t.Error("not the same twice")
	}
}
