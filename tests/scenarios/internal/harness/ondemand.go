package harness

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"fairlead.dev/tests/scenarios/internal/format"
)

// onDemand tells whether the workload's sidecar asks for what it calls, and keeps that.
func (l *workload) onDemand() bool {
	return l.harness.options.OnDemand && l.spec.Kind == format.Sidecar && l.spec.Capture != format.None
}

// virtualHostsIn names the kind of the virtual hosts in a route configuration.
func virtualHostsIn(routeConfig string) string {
	return "virtual host of route configuration " + routeConfig
}

// apart has the virtual hosts of each route configuration as holdings of their own: a sidecar on demand asks for them
// one by one.
func (h holdings) apart() holdings {
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

// leadsNowhere tells whether a cluster is the answer for what is not there: a sidecar on demand that was told "none"
// would never ask again.
func leadsNowhere(cluster json.RawMessage) bool {
	var c struct {
		Type      string          `json:"type"`
		Custom    json.RawMessage `json:"cluster_type"`
		Endpoints json.RawMessage `json:"load_assignment"`
	}
	return json.Unmarshal(cluster, &c) == nil && (c.Type == "" || c.Type == "STATIC") && c.Custom == nil && c.Endpoints == nil
}

// differenceOnDemand says what a sidecar on demand holds otherwise than before. What it asked for since is no
// difference; it is remembered in before, and must be the same whenever the sidecar has it again.
func differenceOnDemand(proxy string, before, now holdings) []string {
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
