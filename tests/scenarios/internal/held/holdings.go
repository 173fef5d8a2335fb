// Package held reads what an Envoy holds of what came by xDS, and compares it with what it held before.
package held

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/tests/scenarios/internal/runner"
)

// Holdings are what Envoy holds that came by xDS, by kind and name.
type Holdings map[string]map[string]json.RawMessage

// Kinds of holdings.
const (
	clusters  = "cluster"
	listeners = "listener"
	routes    = "route configuration"
	endpoints = "endpoints of cluster"
	// extensions are configurations of filters that travel beside their listeners.
	extensions = "extension config"
)

type clusterDump struct {
	Cluster json.RawMessage `json:"cluster"`
}

// listenerDump is a listener in use, one that waits for its last connections to end, or both.
type listenerDump struct {
	Name   string `json:"name"`
	Active *struct {
		Version  string          `json:"version_info"`
		Listener json.RawMessage `json:"listener"`
	} `json:"active_state"`
	Draining *struct {
		Listener json.RawMessage `json:"listener"`
	} `json:"draining_state"`
}

type routeDump struct {
	Config json.RawMessage `json:"route_config"`
}

type extensionDump struct {
	Config json.RawMessage `json:"ecds_filter"`
}

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
		Clusters        []clusterDump   `json:"dynamic_active_clusters"`
		Listeners       []listenerDump  `json:"dynamic_listeners"`
		Routes          []routeDump     `json:"dynamic_route_configs"`
		Endpoints       []endpointDump  `json:"dynamic_endpoint_configs"`
		StaticEndpoints []endpointDump  `json:"static_endpoint_configs"`
		Extensions      []extensionDump `json:"ecds_filters"`
	} `json:"configs"`
}

func nameOf(raw json.RawMessage) string {
	var named struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(raw, &named) // what has no name is kept without one
	return named.Name
}

// Proxy is an Envoy.
type Proxy struct {
	// Name is what messages call it.
	Name string
	// Get asks its admin interface.
	Get func(ctx context.Context, path string) ([]byte, error)
	// draining are route configurations that were seen to belong to listeners which are gone but for their last
	// connections.
	draining map[string]bool
}

// Holdings reads what Envoy holds.
func (p *Proxy) Holdings(ctx context.Context) (Holdings, error) {
	raw, err := p.Get(ctx, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	var dump configDump
	if err := json.Unmarshal(raw, &dump); err != nil {
		return nil, fmt.Errorf("configuration dump of %s: %w", p.Name, err)
	}
	h := Holdings{clusters: {}, listeners: {}, routes: {}, endpoints: {}, extensions: {}}
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
		for _, item := range c.Extensions {
			h[extensions][nameOf(item.Config)] = item.Config
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

// forgetDraining leaves out the route configurations, and the extension configs, that only listeners have which are
// gone but for their last connections.
func (h Holdings) forgetDraining() {
	used := h.routeReferences()
	maps.DeleteFunc(h[routes], func(name string, _ json.RawMessage) bool { return !used[name] })
	maps.DeleteFunc(h[extensions], func(name string, _ json.RawMessage) bool { return !h.usesExtension(name) })
}

// usesExtension reports whether a listener has a filter of the name.
func (h Holdings) usesExtension(name string) bool {
	filter := regexp.MustCompile(`"name":\s*` + regexp.QuoteMeta(strconv.Quote(name)))
	for _, raw := range h[listeners] {
		if filter.Match(raw) {
			return true
		}
	}
	return false
}

// routeReferences are the names of the route configurations that the listeners use.
func (h Holdings) routeReferences() map[string]bool {
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

// Names lists what there is; asked tells that the proxy has some of it only because it asked, see runner.Held.
func (h Holdings) Names(asked bool) (runner.Held, error) {
	held := runner.Held{
		Asked:    asked,
		Clusters: slices.Sorted(maps.Keys(h[clusters])), Listeners: slices.Sorted(maps.Keys(h[listeners])),
		Routes: slices.Sorted(maps.Keys(h[routes])),
	}
	if held.Asked {
		held.Clusters = slices.DeleteFunc(held.Clusters,
			func(name string) bool { return askedFor(clusters, name) && leadsNowhere(h[clusters][name]) })
	}
	for _, raw := range h[routes] {
		held.VirtualHosts = append(held.VirtualHosts, virtualHosts(raw)...)
	}
	for _, raw := range h[listeners] {
		held.VirtualHosts = append(held.VirtualHosts, inlineVirtualHosts(raw)...)
	}
	slices.Sort(held.VirtualHosts)
	held.VirtualHosts = slices.Compact(held.VirtualHosts)
	for _, cluster := range slices.Sorted(maps.Keys(h[endpoints])) {
		var lines []string
		if err := json.Unmarshal(h[endpoints][cluster], &lines); err != nil {
			return held, err
		}
		for _, line := range lines {
			address, _, _ := strings.Cut(line, " ")
			held.Endpoints = append(held.Endpoints, cluster+"::"+address)
		}
	}
	return held, nil
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
