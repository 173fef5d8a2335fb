package oracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	beta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"fairlead.dev/pkg/testkit/protorand"
)

// messages are the kinds that random objects are of.
var messages = []struct {
	version, kind string
	spec          func() proto.Message
}{
	{"networking.istio.io/v1", "VirtualService", func() proto.Message { return &networking.VirtualService{} }},
	{"networking.istio.io/v1", "DestinationRule", func() proto.Message { return &networking.DestinationRule{} }},
	{"networking.istio.io/v1", "ServiceEntry", func() proto.Message { return &networking.ServiceEntry{} }},
	{"networking.istio.io/v1", "WorkloadEntry", func() proto.Message { return &networking.WorkloadEntry{} }},
	{"networking.istio.io/v1", "WorkloadGroup", func() proto.Message { return &networking.WorkloadGroup{} }},
	{"networking.istio.io/v1", "Gateway", func() proto.Message { return &networking.Gateway{} }},
	{"networking.istio.io/v1", "Sidecar", func() proto.Message { return &networking.Sidecar{} }},
	{"networking.istio.io/v1beta1", "ProxyConfig", func() proto.Message { return &beta.ProxyConfig{} }},
	{"networking.istio.io/v1alpha3", "EnvoyFilter", func() proto.Message { return &networking.EnvoyFilter{} }},
	{"security.istio.io/v1", "PeerAuthentication", func() proto.Message { return &security.PeerAuthentication{} }},
	{"security.istio.io/v1", "AuthorizationPolicy", func() proto.Message { return &security.AuthorizationPolicy{} }},
	{"security.istio.io/v1", "RequestAuthentication", func() proto.Message { return &security.RequestAuthentication{} }},
	{"telemetry.istio.io/v1", "Telemetry", func() proto.Message { return &telemetry.Telemetry{} }},
	{"extensions.istio.io/v1alpha1", "WasmPlugin", func() proto.Message { return &extensions.WasmPlugin{} }},
}

// Random makes objects whose fields and values are drawn, n of them from seed on.
func Random(seed uint64, n int) ([]Object, error) {
	var out []Object
	for ; len(out) < n; seed++ {
		k := messages[seed%uint64(len(messages))]
		spec := k.spec()
		protorand.Istio.FillSeeded(seed, spec)
		raw, err := protojson.Marshal(spec)
		if err != nil {
			continue // text that is no UTF-8
		}
		o := Object{Origin: fmt.Sprintf("random %s of seed %d", k.kind, seed)}
		tree := map[string]any{"apiVersion": k.version, "kind": k.kind, "metadata": map[string]any{"name": "random", "namespace": "apps"},
			"spec": json.RawMessage(raw)}
		if o.Tree, err = plain(tree); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

// plain makes a tree of maps, lists and scalars of v.
func plain(v any) (map[string]any, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	return out, json.Unmarshal(raw, &out)
}

// Mutants makes n objects of others, each with one to three changes: a field removed, doubled, emptied, set to a value
// near a border, or replaced by what a field of the same name has elsewhere. Such objects are near what people write,
// and near the rules.
func Mutants(seed uint64, n int, from []Object) ([]Object, error) {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeated by its seed
	pool := map[string][]any{}
	for _, o := range from {
		collect(pool, "spec", o.Tree["spec"])
	}
	var out []Object
	for i := range n {
		parent := from[random.IntN(len(from))]
		tree, err := plain(parent.Tree)
		if err != nil {
			return nil, err
		}
		for range 1 + random.IntN(3) {
			spec, ok := tree["spec"].(map[string]any)
			if !ok {
				spec = map[string]any{}
			}
			tree["spec"] = mutate(random, pool, spec)
		}
		out = append(out, Object{Origin: fmt.Sprintf("mutant %d of seed %d, of %s", i, seed, parent.Origin), Tree: tree})
	}
	return out, nil
}

// collect gathers the values of all fields by name.
func collect(pool map[string][]any, name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range sortedKeys(v) {
			pool[k] = append(pool[k], v[k])
			collect(pool, k, v[k])
		}
	case []any:
		for _, item := range v {
			collect(pool, name, item)
		}
	}
}

// Values near borders, by type.
var (
	texts = []any{"", "*", "a", "A", "-", "a.b", "*.a", "*a.b", "a_b", "1.2.3.4", "1.2.3.0/24", "::1", "a/b", "./a", "~/a", "mesh", "http",
		"HTTP", "0s", "1ms", "500us", "1.5s", "-1s", "[", ".*"}
	numbers = []any{-1.0, 0.0, 1.0, 2.0, 99.0, 100.0, 101.0, 199.0, 200.0, 599.0, 600.0, 601.0, 65535.0, 65536.0, 0.00001, 4294967295.0,
		4294967296.0}
)

// mutate changes one place of a tree.
func mutate(random *rand.Rand, pool map[string][]any, tree map[string]any) map[string]any {
	type place struct {
		get  any
		name string
		set  func(any)
		drop func()
	}
	var places []place
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range sortedKeys(v) {
				places = append(places, place{v[k], k, func(to any) { v[k] = to }, func() { delete(v, k) }})
				walk(k, v[k])
			}
		case []any:
			for i, item := range v {
				places = append(places, place{item, name, func(to any) { v[i] = to }, func() { v[i] = v[len(v)-1] }})
				walk(name, item)
			}
		}
	}
	walk("spec", tree)
	if len(places) == 0 {
		return tree
	}
	p := places[random.IntN(len(places))]
	switch choice := random.IntN(10); {
	case choice < 2:
		p.drop()
	case choice < 5 && len(pool[p.name]) > 0:
		p.set(clone(pool[p.name][random.IntN(len(pool[p.name]))]))
	default:
		p.set(changed(random, pool, p.name, p.get))
	}
	return tree
}

// changed is another value of the same type, mostly.
func changed(random *rand.Rand, pool map[string][]any, name string, v any) any {
	if random.IntN(40) == 0 {
		return []any{"text", 1.0, true, map[string]any{}, []any{}, nil}[random.IntN(6)]
	}
	switch v := v.(type) {
	case string:
		return texts[random.IntN(len(texts))]
	case float64:
		return numbers[random.IntN(len(numbers))]
	case bool:
		return !v
	case []any:
		if len(v) == 0 || random.IntN(4) == 0 {
			return []any{}
		}
		return append(append([]any{}, v...), clone(v[random.IntN(len(v))]))
	case map[string]any:
		if random.IntN(4) == 0 {
			return map[string]any{}
		}
		return wider(random, pool, name, v)
	}
	return v
}

// clone copies a tree, so that a change of it changes no other.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, member := range v {
			out[k] = clone(member)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = clone(item)
		}
		return out
	}
	return v
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// wider is a message with one field more: one that a message of the same name has elsewhere, or seldom one that it does
// not have at all.
func wider(random *rand.Rand, pool map[string][]any, name string, v map[string]any) map[string]any {
	out := maps.Clone(v)
	if others := pool[name]; len(others) > 0 && random.IntN(12) > 0 {
		if other, ok := others[random.IntN(len(others))].(map[string]any); ok && len(other) > 0 {
			fields := sortedKeys(other)
			field := fields[random.IntN(len(fields))]
			out[field] = clone(other[field])
		}
		return out
	}
	fields := sortedKeys(pool)
	field := fields[random.IntN(len(fields))]
	out[field] = clone(pool[field][random.IntN(len(pool[field]))])
	return out
}
