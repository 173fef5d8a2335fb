package normalise

import (
	"fmt"
	"testing"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// annotated is a Pod with annotations in YAML's flow form.
func annotated(name, app, annotations string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: apps, labels: {app: %s}, annotations: %s}\nspec: "+
		"{containers: []}\nstatus: {podIP: 10.1.0.1}\n",
		name, app, annotations)
}

func proxyConfig(namespace, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: %s, namespace: %s}\nspec: %s\n",
		name, namespace, spec)
}

func (s *state) onDemand(name string) string {
	s.t.Helper()
	w := s.held[resource.Key{Kind: resource.KindWorkload, Namespace: "apps", Name: name}].GetWorkload()
	if w == nil {
		s.t.Fatalf("no workload %s", name)
	}
	return w.GetAnnotations()[object.OnDemandAnnotation]
}

// TestOnDemandPrecedence: the annotation fairlead.dev/on-demand wins, then the ProxyConfig that selects the workload,
// the annotation proxy.istio.io/config, the namespace's ProxyConfig, and the mesh's.
func TestOnDemandPrecedence(t *testing.T) {
	const (
		lean     = `{fairlead.dev/on-demand: "true"}`
		whole    = `{fairlead.dev/on-demand: "false"}`
		config   = `{proxy.istio.io/config: "onDemand: true"}`
		metadata = `{proxy.istio.io/config: "proxyMetadata: {FAIRLEAD_ON_DEMAND: 'false'}"}`
	)
	selecting := func(value string) string {
		return proxyConfig("apps", "selecting", "{selector: {matchLabels: {app: a}}, onDemand: "+value+"}")
	}
	own := func(value string) string { return proxyConfig("apps", "own", "{onDemand: "+value+"}") }
	root := func(value string) string { return proxyConfig("istio-system", "root", "{onDemand: "+value+"}") }
	for _, c := range []struct{ name, annotations, more, want string }{
		{"nothing", "{}", "", ""},
		{"annotation", lean, "", "true"},
		{"annotation before all", whole, selecting("true") + own("true") + root("true"), "false"},
		{"selecting before ProxyConfig annotation", config, selecting("false"), "false"},
		{"ProxyConfig annotation before namespace", config, own("false"), "true"},
		{"its metadata", metadata, own("true"), "false"},
		{"namespace before mesh", "{}", own("false") + root("true"), "false"},
		{"mesh", "{}", root("true"), "true"},
		{"selects another", "{}", proxyConfig("apps", "other", "{selector: {matchLabels: {app: b}}, onDemand: true}"), ""},
		{"another namespace's", "{}", proxyConfig("else", "other", "{onDemand: true}"), ""},
		{"says nothing of it", "{}", proxyConfig("apps", "own", "{concurrency: 2}") + root("true"), "true"},
		{"the older of two", "{}", proxyConfig("apps", "b", "{onDemand: true}") + proxyConfig("apps", "a", "{onDemand: false}"), "false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newState(t, annotated("a-1", "a", c.annotations)+c.more)
			if got := s.onDemand("a-1"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			// The order of arrival does not matter.
			s = newState(t, c.more)
			s.apply(annotated("a-1", "a", c.annotations))
			if got := s.onDemand("a-1"); got != c.want {
				t.Errorf("workload after its configuration: %q, want %q", got, c.want)
			}
		})
	}
}

// TestOnDemandFollowsProxyConfigs: a changed ProxyConfig changes the Workloads that it applies to, and no others.
func TestOnDemandFollowsProxyConfigs(t *testing.T) {
	s := newState(t, annotated("a-1", "a", "{}")+annotated("b-1", "b", "{}"))
	for _, step := range []struct{ name, apply, a, b, touched string }{
		{"selects one", proxyConfig("apps", "one", "{selector: {matchLabels: {app: a}}, onDemand: true}"), "true", "",
			"ProxyConfig one, Workload a-1"},
		{"selects the other", proxyConfig("apps", "one", "{selector: {matchLabels: {app: b}}, onDemand: true}"), "", "true",
			"ProxyConfig one, Workload a-1, Workload b-1"},
		{"the mesh's", proxyConfig("istio-system", "all", "{onDemand: true}"), "true", "true", "ProxyConfig all, Workload a-1"},
		{"says nothing any more", proxyConfig("istio-system", "all", "{}"), "", "true", "ProxyConfig all, Workload a-1"},
		{"relabelled", annotated("a-1", "b", "{}"), "true", "true", "Workload a-1"},
	} {
		s.apply(step.apply)
		if a, b := s.onDemand("a-1"), s.onDemand("b-1"); a != step.a || b != step.b {
			t.Errorf("%s: %q and %q, want %q and %q", step.name, a, b, step.a, step.b)
		}
		if got := s.touched(); got != step.touched {
			t.Errorf("%s: touched %s, want %s", step.name, got, step.touched)
		}
	}
	s.change(Change{Key: object.Key{Group: kinds.GroupNetworking, Kind: "ProxyConfig", Namespace: "apps", Name: "one"}})
	if got, want := s.touched(), "-ProxyConfig one, Workload a-1, Workload b-1"; got != want {
		t.Errorf("removed: touched %s, want %s", got, want)
	}
}
