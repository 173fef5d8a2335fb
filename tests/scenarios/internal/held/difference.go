package held

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// lasting is a kind without what Envoy finds out by itself.
func (h Holdings) lasting(kind string) map[string]json.RawMessage {
	if kind != endpoints {
		return h[kind]
	}
	out := maps.Clone(h[kind])
	maps.DeleteFunc(out, func(name string, _ json.RawMessage) bool { return !hasLastingEndpoints(h[clusters][name]) })
	return out
}

// difference says what a proxy holds otherwise than before.
func difference(proxy string, before, now Holdings) []string {
	var out []string
	for _, kind := range []string{clusters, listeners, routes, endpoints, extensions} {
		before, now := before.lasting(kind), now.lasting(kind)
		names := slices.Sorted(maps.Keys(before))
		for name := range now {
			if _, ok := before[name]; !ok {
				names = append(names, name)
			}
		}
		for _, name := range names {
			old, was := before[name]
			is, still := now[name]
			switch {
			case !was:
				out = append(out, fmt.Sprintf("the proxy of %s has a new %s %s", proxy, kind, name))
			case !still:
				out = append(out, fmt.Sprintf("the proxy of %s has no %s %s any more", proxy, kind, name))
			case !bytes.Equal(old, is):
				if where := firstDifference(name, old, is); where != "" {
					out = append(out, fmt.Sprintf("the proxy of %s has another %s %s", proxy, kind, where))
				}
			}
		}
	}
	return out
}

// firstDifference finds the first place where two JSON texts differ; empty if nowhere.
func firstDifference(at string, a, b json.RawMessage) string {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return at
	}
	return differs(at, x, y)
}

func differs(at string, x, y any) string {
	if reflect.DeepEqual(x, y) {
		return ""
	}
	switch a := x.(type) {
	case map[string]any:
		if b, ok := y.(map[string]any); ok {
			for _, name := range slices.Sorted(maps.Keys(a)) {
				if where := differs(at+"."+name, a[name], b[name]); where != "" {
					return where
				}
			}
			for name := range b {
				if _, ok := a[name]; !ok {
					return at + "." + name + ": is new"
				}
			}
		}
	case []any:
		if b, ok := y.([]any); ok && len(a) == len(b) {
			for i := range a {
				if where := differs(fmt.Sprintf("%s[%d]", at, i), a[i], b[i]); where != "" {
					return where
				}
			}
		}
	}
	return fmt.Sprintf("%s: was %.200s, is %.200s", at, compact(x), compact(y))
}

func compact(v any) string {
	raw, _ := json.Marshal(v) // it was JSON
	return string(raw)
}

// virtualHostsIn names the kind of the virtual hosts in a route configuration.
func virtualHostsIn(routeConfig string) string {
	return "virtual host of route configuration " + routeConfig
}

// apart has the virtual hosts of each route configuration as holdings of their own: a sidecar on demand asks for them
// one by one.
func (h Holdings) apart() Holdings {
	out := maps.Clone(h)
	out[routes] = map[string]json.RawMessage{}
	for name, raw := range h[routes] {
		var config map[string]json.RawMessage
		var hosts []json.RawMessage
		if json.Unmarshal(raw, &config) != nil || json.Unmarshal(config["virtual_hosts"], &hosts) != nil {
			out[routes][name] = raw
			continue
		}
		kind := virtualHostsIn(name)
		out[kind] = map[string]json.RawMessage{}
		for _, host := range hosts {
			out[kind][nameOf(host)] = host
		}
		delete(config, "virtual_hosts")
		rest, err := json.Marshal(config)
		if err != nil {
			rest = raw
		}
		out[routes][name] = rest
	}
	return out
}

// askedFor tells whether a sidecar on demand has something because it asked: it comes when it is called, and may be
// gone until it is called again.
func askedFor(kind, name string) bool {
	switch kind {
	case clusters, endpoints:
		return strings.HasPrefix(name, "outbound|") || strings.HasPrefix(name, "ondemand|")
	}
	return strings.HasPrefix(kind, virtualHostsIn(""))
}

// differenceOnDemand says what a sidecar on demand holds otherwise than before. What it asked for since is no
// difference; it is remembered in before, and must be the same whenever the sidecar has it again.
func differenceOnDemand(proxy string, before, now Holdings) []string {
	var out []string
	kinds := map[string]bool{}
	for kind := range before {
		kinds[kind] = true
	}
	for kind := range now {
		kinds[kind] = true
	}
	for kind := range kinds {
		was, is := before.lasting(kind), now.lasting(kind)
		for name, raw := range is {
			old, known := was[name]
			switch {
			case known:
				if where := firstDifference(name, old, raw); where != "" {
					out = append(out, fmt.Sprintf("the proxy of %s has another %s %s", proxy, kind, where))
				}
			case !askedFor(kind, name):
				out = append(out, fmt.Sprintf("the proxy of %s has a new %s %s", proxy, kind, name))
			}
		}
		for name := range was {
			if _, still := is[name]; !still && !askedFor(kind, name) {
				out = append(out, fmt.Sprintf("the proxy of %s has no %s %s any more", proxy, kind, name))
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	for kind := range now {
		if before[kind] == nil {
			before[kind] = map[string]json.RawMessage{}
		}
		maps.Copy(before[kind], now[kind])
	}
	return nil
}
