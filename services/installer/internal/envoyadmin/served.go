package envoyadmin

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Served is a resource that an xds-server has for a proxy, in JSON with the field names of its proto file.
type Served struct {
	Name, Version string
	Resource      json.RawMessage
}

// servedAs says, by type, in which section and list Envoy's dump has a resource, and under which field.
var servedAs = map[string]struct {
	section     Section
	list, field string
}{
	"envoy.config.cluster.v3.Cluster":                  {Clusters, "dynamic_active_clusters", "cluster"},
	"envoy.config.listener.v3.Listener":                {Listeners, "dynamic_listeners", "listener"},
	"envoy.config.route.v3.RouteConfiguration":         {Routes, "dynamic_route_configs", "route_config"},
	"envoy.config.endpoint.v3.ClusterLoadAssignment":   {Endpoints, "dynamic_endpoint_configs", "endpoint_config"},
	"envoy.extensions.transport_sockets.tls.v3.Secret": {Secrets, "dynamic_active_secrets", "secret"},
	"envoy.config.core.v3.TypedExtensionConfig":        {Extensions, "ecds_filters", "ecds_filter"},
}

const virtualHostType = "envoy.config.route.v3.VirtualHost"

// ServedDump returns what an Envoy that holds the resources would dump. resources are keyed by type URL; types that
// Envoy does not dump are left out. Virtual hosts that are resources of their own, "<route configuration>/<virtual
// host>", are put into their route configuration, as Envoy does.
func ServedDump(resources map[string][]Served) (*Dump, error) {
	d := &Dump{sections: map[string]json.RawMessage{}}
	hosts := map[string][]json.RawMessage{}
	for url, list := range resources {
		if !strings.HasSuffix(url, "/"+virtualHostType) {
			continue
		}
		for _, r := range list {
			config, _, _ := strings.Cut(r.Name, "/")
			hosts[config] = append(hosts[config], r.Resource)
		}
	}
	for url, list := range resources {
		as, ok := servedAs[url[strings.LastIndexByte(url, '/')+1:]]
		if !ok {
			continue
		}
		elements := []map[string]any{}
		for _, r := range list {
			tree := map[string]json.RawMessage{}
			if err := json.Unmarshal(r.Resource, &tree); err != nil {
				return nil, fmt.Errorf("%s %s: %w", as.section, r.Name, err)
			}
			if as.section == Routes && len(hosts[r.Name]) > 0 {
				if err := join(tree, hosts[r.Name]); err != nil {
					return nil, fmt.Errorf("%s %s: %w", as.section, r.Name, err)
				}
			}
			element := map[string]any{"name": r.Name, "version_info": r.Version, as.field: tree}
			if as.section == Listeners {
				element = map[string]any{"name": r.Name, "active_state": map[string]any{"version_info": r.Version, as.field: tree}}
			}
			elements = append(elements, element)
		}
		text, err := json.Marshal(map[string]any{"@type": adminPrefix + string(as.section), as.list: elements})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", as.section, err)
		}
		d.sections[adminPrefix+string(as.section)] = text
	}
	return d, nil
}

// join adds virtual hosts to a route configuration.
func join(config map[string]json.RawMessage, more []json.RawMessage) error {
	var list []json.RawMessage
	if raw, ok := config["virtual_hosts"]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
	}
	text, err := json.Marshal(append(list, more...))
	config["virtual_hosts"] = text
	return err
}

// Wanted reports whether a filter matches a resource of a type URL.
func Wanted(url string, r Served, f Filter) (bool, error) {
	var tree any
	if err := json.Unmarshal(r.Resource, &tree); err != nil {
		return false, fmt.Errorf("%s: %w", r.Name, err)
	}
	if strings.HasSuffix(url, "/"+virtualHostType) {
		config, _, _ := strings.Cut(r.Name, "/")
		element := map[string]any{"route_config": map[string]any{"name": config, "virtual_hosts": []any{tree}}}
		return f.forSection(VirtualHosts).keep(VirtualHosts, element), nil
	}
	as, ok := servedAs[url[strings.LastIndexByte(url, '/')+1:]]
	if !ok {
		return strings.Contains(r.Name, f.Name), nil
	}
	return f.forSection(as.section).keep(as.section, map[string]any{"name": r.Name, as.field: tree}), nil
}
