package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/scenarios/internal/runner"
)

// admin asks Envoy's admin interface.
func (l *workload) admin(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, ackedWithin)
	defer cancel()
	raw, err := probe.Get(ctx, l.envoy(), "http://envoy"+path)
	if err != nil {
		err = fmt.Errorf("the proxy of %s: %w", l.spec.Name, err)
	}
	return raw, err
}

// envoy is a client of Envoy's admin interface.
func (l *workload) envoy() *http.Client {
	return probe.Unix(filepath.Join(l.state(), probe.EnvoyAdmin))
}

// holdings are what Envoy holds that came by xDS, by kind and name.
type holdings map[string]map[string]json.RawMessage

// Kinds of holdings.
const (
	clusters  = "cluster"
	listeners = "listener"
	routes    = "route configuration"
	endpoints = "endpoints of cluster"
)

type endpointDump struct {
	Config struct {
		Cluster   string `json:"cluster_name"`
		Endpoints []struct {
			Locality  map[string]string `json:"locality"`
			Priority  int               `json:"priority"`
			Endpoints []struct {
				Endpoint struct {
					Address address `json:"address"`
				} `json:"endpoint"`
				Weight int `json:"load_balancing_weight"`
			} `json:"lb_endpoints"`
		} `json:"endpoints"`
	} `json:"endpoint_config"`
}

type address struct {
	Socket struct {
		Address string `json:"address"`
		Port    int    `json:"port_value"`
	} `json:"socket_address"`
	Pipe struct {
		Path string `json:"path"`
	} `json:"pipe"`
	Internal struct {
		Listener string `json:"server_listener_name"`
	} `json:"envoy_internal_address"`
}

func (a address) String() string {
	switch {
	case a.Pipe.Path != "":
		return a.Pipe.Path
	case a.Internal.Listener != "":
		return a.Internal.Listener
	}
	return net.JoinHostPort(a.Socket.Address, strconv.Itoa(a.Socket.Port))
}

// configDump is what is read of Envoy's.
type configDump struct {
	Configs []struct {
		Clusters        []clusterDump  `json:"dynamic_active_clusters"`
		Listeners       []listenerDump `json:"dynamic_listeners"`
		Routes          []routeDump    `json:"dynamic_route_configs"`
		Endpoints       []endpointDump `json:"dynamic_endpoint_configs"`
		StaticEndpoints []endpointDump `json:"static_endpoint_configs"`
	} `json:"configs"`
}

func nameOf(raw json.RawMessage) string {
	var named struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(raw, &named) // what has no name is kept without one
	return named.Name
}

// holdings reads what Envoy holds.
func (l *workload) holdings(ctx context.Context) (holdings, error) {
	raw, err := l.admin(ctx, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	var dump configDump
	if err := json.Unmarshal(raw, &dump); err != nil {
		return nil, fmt.Errorf("configuration dump of %s: %w", l.spec.Name, err)
	}
	h := holdings{clusters: {}, listeners: {}, routes: {}, endpoints: {}}
	for _, c := range dump.Configs {
		for _, item := range c.Clusters {
			h[clusters][nameOf(item.Cluster)] = item.Cluster
		}
		for _, item := range c.Listeners {
			if item.Active != nil {
				h[listeners][item.Name] = item.Active.Listener
			}
		}
		for _, item := range c.Routes {
			h[routes][nameOf(item.Config)] = item.Config
		}
	}
	h.forgetDraining()
	for _, c := range dump.Configs {
		for _, item := range append(c.Endpoints, c.StaticEndpoints...) {
			if _, dynamic := h[clusters][item.Config.Cluster]; !dynamic {
				continue // of the bootstrap
			}
			raw, err := json.Marshal(item.lines())
			if err != nil {
				return nil, err
			}
			h[endpoints][item.Config.Cluster] = raw
		}
	}
	return h, nil
}

var routeReference = regexp.MustCompile(`"route_config_name":\s*"([^"]*)"`)

// forgetDraining leaves out the route configurations that only listeners have which are gone but for their last
// connections.
func (h holdings) forgetDraining() {
	used := h.routeReferences()
	maps.DeleteFunc(h[routes], func(name string, _ json.RawMessage) bool { return !used[name] })
}

// routeReferences are the names of the route configurations that the listeners use.
func (h holdings) routeReferences() map[string]bool {
	used := map[string]bool{}
	for _, raw := range h[listeners] {
		for _, m := range routeReference.FindAllSubmatch(raw, -1) {
			used[string(m[1])] = true
		}
	}
	return used
}

// lines has one line per endpoint, sorted, which begins with its address.
func (e *endpointDump) lines() []string {
	lines := []string{}
	for _, group := range e.Config.Endpoints {
		for _, item := range group.Endpoints {
			lines = append(lines, fmt.Sprintf("%s priority %d locality %s/%s/%s weight %d", item.Endpoint.Address, group.Priority,
				group.Locality["region"], group.Locality["zone"], group.Locality["sub_zone"], item.Weight))
		}
	}
	slices.Sort(lines)
	return lines
}

// Held lists the names of what a proxy holds.
func (h *Harness) Held(ctx context.Context, name string) (runner.Held, error) {
	l, err := h.find(name)
	if err != nil {
		return runner.Held{}, err
	}
	if !l.spec.HasProxy() {
		return runner.Held{}, fmt.Errorf("%s has no proxy", name)
	}
	all, err := l.holdings(ctx)
	if err != nil {
		return runner.Held{}, err
	}
	held := runner.Held{
		Asked:    l.onDemand(),
		Clusters: slices.Sorted(maps.Keys(all[clusters])), Listeners: slices.Sorted(maps.Keys(all[listeners])),
		Routes: slices.Sorted(maps.Keys(all[routes])),
	}
	if held.Asked {
		held.Clusters = slices.DeleteFunc(held.Clusters,
			func(name string) bool { return askedFor(clusters, name) && leadsNowhere(all[clusters][name]) })
	}
	for _, raw := range all[routes] {
		held.VirtualHosts = append(held.VirtualHosts, virtualHosts(raw)...)
	}
	for _, raw := range all[listeners] {
		held.VirtualHosts = append(held.VirtualHosts, inlineVirtualHosts(raw)...)
	}
	slices.Sort(held.VirtualHosts)
	held.VirtualHosts = slices.Compact(held.VirtualHosts)
	for _, cluster := range slices.Sorted(maps.Keys(all[endpoints])) {
		var lines []string
		if err := json.Unmarshal(all[endpoints][cluster], &lines); err != nil {
			return held, err
		}
		for _, line := range lines {
			address, _, _ := strings.Cut(line, " ")
			held.Endpoints = append(held.Endpoints, cluster+"::"+address)
		}
	}
	return held, nil
}

func virtualHosts(routeConfig json.RawMessage) []string {
	var parsed struct {
		Name  string `json:"name"`
		Hosts []struct {
			Name string `json:"name"`
		} `json:"virtual_hosts"`
	}
	_ = json.Unmarshal(routeConfig, &parsed) // Envoy wrote it
	var out []string
	for _, h := range parsed.Hosts {
		out = append(out, h.Name)
	}
	return out
}

// inlineVirtualHosts finds the route configurations inside a listener.
func inlineVirtualHosts(listener json.RawMessage) []string {
	if !bytes.Contains(listener, []byte(`"route_config"`)) {
		return nil
	}
	var out []string
	var look func(any)
	look = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, member := range v {
				if name == "route_config" {
					if raw, err := json.Marshal(member); err == nil {
						out = append(out, virtualHosts(raw)...)
					}
					continue
				}
				look(member)
			}
		case []any:
			for _, member := range v {
				look(member)
			}
		}
	}
	var parsed any
	if json.Unmarshal(listener, &parsed) == nil {
		look(parsed)
	}
	return out
}

// lasting is a kind without what Envoy finds out by itself.
func (h holdings) lasting(kind string) map[string]json.RawMessage {
	if kind != endpoints {
		return h[kind]
	}
	out := maps.Clone(h[kind])
	maps.DeleteFunc(out, func(name string, _ json.RawMessage) bool { return !hasLastingEndpoints(h[clusters][name]) })
	return out
}

// difference says what a proxy holds otherwise than before.
func difference(proxy string, before, now holdings) []string {
	var out []string
	for _, kind := range []string{clusters, listeners, routes, endpoints} {
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
