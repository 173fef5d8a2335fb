package translate_test

import (
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
)

// built is everything that a proxy of the class receives.
type built struct {
	clusters, endpoints, listeners, routes, extensions, names []proto.Message
}

// buildAll acts like a proxy: it receives all clusters and listeners, and requests what they refer to.
func buildAll(t testing.TB, w fixture) built {
	t.Helper()
	r := w.reader()
	byType := map[string]plan.Translator{}
	for _, translator := range translate.All() {
		byType[translator.TypeURL()[strings.LastIndexByte(translator.TypeURL(), '.')+1:]] = translator
	}
	one := func(kind, name string) proto.Message {
		m, err := byType[kind].Build(r, name)
		if err != nil {
			t.Fatalf("%s %q: %v", kind, name, err)
		}
		if m == nil {
			t.Fatalf("%s %q: promised, not built", kind, name)
		}
		if kind != "NameTable" { // which has no rules
			if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
				t.Errorf("%s %q: %v", kind, name, err)
			}
		}
		return m
	}
	all := func(kind string) []proto.Message {
		names, err := plan.List(byType[kind], w.key, w.state)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		var out []proto.Message
		for _, name := range names {
			out = append(out, one(kind, name))
		}
		return out
	}
	var out built
	out.clusters = all("Cluster")
	for _, name := range w.asks {
		out.clusters = append(out.clusters, one("Cluster", name))
	}
	for _, m := range out.clusters {
		if c := m.(*clusterv3.Cluster); c.GetType() == clusterv3.Cluster_EDS {
			out.endpoints = append(out.endpoints, one("ClusterLoadAssignment", c.GetEdsClusterConfig().GetServiceName()))
		}
	}
	out.listeners = all("Listener")
	routes, extensions := map[string]bool{}, map[string]bool{}
	for _, m := range out.listeners {
		for _, manager := range managers(t, m.(*listenerv3.Listener)) {
			if name := manager.GetRds().GetRouteConfigName(); name != "" {
				routes[name] = true
			}
			for _, f := range manager.GetHttpFilters() {
				if f.GetConfigDiscovery() != nil {
					extensions[f.GetName()] = true
				}
			}
		}
	}
	for _, name := range sorted(routes) {
		out.routes = append(out.routes, one("RouteConfiguration", name))
	}
	for _, name := range sorted(extensions) {
		out.extensions = append(out.extensions, one("TypedExtensionConfig", name))
	}
	out.names = all("NameTable")
	return out
}

// managers lists the HTTP connection managers of a listener.
func managers(t testing.TB, l *listenerv3.Listener) []*managerv3.HttpConnectionManager {
	t.Helper()
	chains := l.GetFilterChains()
	if l.GetDefaultFilterChain() != nil {
		chains = append(chains[:len(chains):len(chains)], l.GetDefaultFilterChain())
	}
	var out []*managerv3.HttpConnectionManager
	for _, chain := range chains {
		for _, filter := range chain.GetFilters() {
			manager := &managerv3.HttpConnectionManager{}
			if filter.GetTypedConfig().MessageIs(manager) {
				if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
					t.Fatal(err)
				}
				if err := manager.ValidateAll(); err != nil {
					t.Errorf("listener %s: %v", l.GetName(), err)
				}
				out = append(out, manager)
			}
		}
	}
	return out
}

func caseNames(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/in/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	out := map[string]string{}
	for _, file := range files {
		out[strings.TrimSuffix(filepath.Base(file), ".yaml")] = file
	}
	return out
}

// The resources of every case equal the reviewed ones in testdata/out.
func TestGoldens(t *testing.T) {
	var used []string
	for name, file := range caseNames(t) {
		t.Run(name, func(t *testing.T) {
			got := buildAll(t, load(t, file))
			again := buildAll(t, load(t, file))
			for _, part := range []struct {
				kind          string
				first, second []proto.Message
			}{
				{"clusters", got.clusters, again.clusters},
				{"endpoints", got.endpoints, again.endpoints},
				{"listeners", got.listeners, again.listeners},
				{"routes", got.routes, again.routes},
				{"extensions", got.extensions, again.extensions},
				{"names", got.names, again.names},
			} {
				if part.kind == "extensions" && len(part.first)+len(part.second) == 0 {
					continue // as of most cases
				}
				path := filepath.Join("testdata", "out", name+"."+part.kind+".yaml")
				used = append(used, path)
				rendered := render(t, part.first)
				if string(rendered) != string(render(t, part.second)) {
					t.Errorf("%s: two builds differ", part.kind)
				}
				testkit.Golden(t, path, rendered)
			}
		})
	}
	testkit.GoldenStale(t, filepath.Join("testdata", "out", "*.yaml"), used)
}
