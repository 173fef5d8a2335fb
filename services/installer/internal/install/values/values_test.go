package values

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

func mapping(t testing.TB) *profile.Mapping {
	t.Helper()
	pkg, err := profile.Open(fstest.MapFS{"charts/x": {}, "profiles/default.yaml": {}})
	if err != nil {
		t.Fatal(err)
	}
	return &pkg.Mapping
}

func parse(t testing.TB, text string) tree.Map {
	t.Helper()
	m, err := tree.ParseMap([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestValuesOfComponents holds what the chart of a component gets from its spec.
func TestValuesOfComponents(t *testing.T) {
	for _, tc := range []struct{ name, spec, component, namespace, values string }{
		{"fields of the spec are values", "{hub: h, tag: 7, revision: r, components: {base: {enabled: true}}}", "base", "istio-system",
			"{global: {hub: h, tag: '7'}, revision: r, pilot: {enabled: false, cni: {enabled: false}}}"},
		{"a value wins over the field", "{hub: h, values: {global: {hub: v}}, components: {base: {}}}", "base", "istio-system",
			"{global: {hub: v}, pilot: {enabled: false, cni: {enabled: false}}}"},
		{"mesh configuration of the spec wins, and merges", "{meshConfig: {a: 1}, values: {meshConfig: {a: 2, b: 3}}, components: {base: {}}}",
			"base", "istio-system",
			"{meshConfig: {a: 1, b: 3}, pilot: {enabled: false, cni: {enabled: false}}}"},
		{"unvalidated values lie over values", "{values: {x: 1}, unvalidatedValues: {x: 2}, components: {base: {}}}", "base", "istio-system",
			"{x: 2, pilot: {enabled: false, cni: {enabled: false}}}"},
		{"a component's settings go below its root",
			"{components: {pilot: {enabled: true, hub: h, k8s: {replicaCount: 2, hpaSpec: {minReplicas: 3}, resources: {requests: {cpu: 1}}}}}}",
			"pilot", "istio-system",
			"{pilot: {enabled: true, cni: {enabled: false}, hub: h, replicaCount: 2, autoscaleMin: 3, resources: {requests: {cpu: '1'}}}}"},
		{"a namespace of its own", "{values: {global: {istioNamespace: m}}, components: {cni: {enabled: true, namespace: nn}}}", "cni", "nn",
			"{global: {istioNamespace: m}, pilot: {enabled: false, cni: {enabled: true}}}"},
		{"the namespace of all", "{values: {global: {istioNamespace: m}}, components: {cni: {enabled: true}}}", "cni", "m",
			"{global: {istioNamespace: m}, pilot: {enabled: false, cni: {enabled: true}}}"},
		{"a flat chart", "{values: {ztunnel: {image: z}}, components: {ztunnel: {}}}", "ztunnel", "istio-system",
			"{image: z, ztunnel: {image: z}, pilot: {enabled: false, cni: {enabled: false}}}"},
		{"a gateway", "{components: {ingressGateways: [{name: g, label: {x: z}, k8s: {service: {ports: [{port: 1}]}}}]}}", "ingressGateways[g]",
			"istio-system",
			"{gateways: {istio-ingressgateway: {name: g, labels: {x: z}, ports: [{port: 1}]}}, pilot: {enabled: false, cni: {enabled: false}}}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := Instances(parse(t, tc.spec), mapping(t))
			if len(all) != 1 || all[0].Label != tc.component || all[0].Namespace != tc.namespace {
				t.Fatalf("components %+v", all)
			}
			if want := parse(t, tc.values); !reflect.DeepEqual(all[0].Values, want) {
				t.Errorf("values %v, want %v", all[0].Values, want)
			}
		})
	}
}

// TestDisabledComponentsAreLeftOut holds enablement: absent is disabled, present without enabled is enabled.
func TestDisabledComponentsAreLeftOut(t *testing.T) {
	spec := parse(t, "{components: {base: {enabled: false}, pilot: {}, cni: null, ingressGateways: [{name: a, enabled: false}, {name: b}], "+
		"egressGateways: null}}")
	var labels []string
	for _, in := range Instances(spec, mapping(t)) {
		labels = append(labels, in.Label)
	}
	if got := strings.Join(labels, " "); got != "pilot cni ingressGateways[b]" {
		t.Errorf("components %s", got)
	}
}

// TestRoundTrip draws values, makes a spec of them, and finds the same values in what charts get.
func TestRoundTrip(t *testing.T) {
	m := mapping(t)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's draw
		values := draw(r, m)
		spec := FromValues(values, m)
		got := Global(spec, m)
		for _, in := range Instances(enableAll(spec), m) {
			if in.List {
				tree.Delete(in.Values, append(in.RootPath(), "name")...)
			}
			part := tree.GetMap(in.Values, in.RootPath()...)
			if len(part) > 0 {
				tree.Put(got, part, in.RootPath()...)
			}
		}
		want := tree.CopyMap(values)
		for _, c := range m.Components { // switches are always said
			for _, s := range c.Switches {
				if _, ok := tree.Get(want, strings.Split(s, ".")...); !ok {
					tree.Put(want, false, strings.Split(s, ".")...)
				}
			}
		}
		for _, s := range []string{"pilot.enabled", "pilot.cni.enabled"} { // enableAll has changed them
			v, _ := tree.Get(want, strings.Split(s, ".")...)
			tree.Put(got, v, strings.Split(s, ".")...)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\nvalues %v\nspec   %v\nback   %v", seed, want, spec, got)
		}
	}
}

// enableAll enables every component that the spec has, so that all are asked for their values.
func enableAll(spec tree.Map) tree.Map {
	out := tree.CopyMap(spec)
	for _, part := range tree.GetMap(out, "components") {
		switch part := part.(type) {
		case tree.Map:
			part["enabled"] = true
		case []any:
			part[0].(tree.Map)["enabled"] = true
		}
	}
	return out
}

func draw(r *rand.Rand, m *profile.Mapping) tree.Map {
	out := tree.Map{"other": tree.Map{"x": float64(r.IntN(9))}}
	for _, f := range m.Values {
		if r.IntN(2) == 0 && f.Spec != "meshConfig" {
			tree.Put(out, fmt.Sprint("v", r.IntN(9)), strings.Split(f.Value, ".")...)
		}
	}
	for _, c := range m.Components {
		for _, s := range c.Switches {
			if r.IntN(2) == 0 {
				tree.Put(out, r.IntN(2) == 0, strings.Split(s, ".")...)
			}
		}
		for _, f := range c.Values {
			if r.IntN(3) == 0 && !c.Flatten {
				tree.Put(out, fmt.Sprint("v", r.IntN(9)), append(c.RootPath(), strings.Split(f.Value, ".")...)...)
			}
		}
	}
	return out
}

// FuzzFromValues holds that no values panic.
func FuzzFromValues(f *testing.F) {
	for _, s := range []string{"{pilot: {enabled: true}}", "{pilot: 1, global: [a]}", "{gateways: {istio-ingressgateway: {ports: x}}}"} {
		f.Add(s)
	}
	m := mapping(f)
	f.Fuzz(func(_ *testing.T, text string) {
		if values, err := tree.ParseMap([]byte(text)); err == nil {
			Instances(FromValues(values, m), m)
		}
	})
}
