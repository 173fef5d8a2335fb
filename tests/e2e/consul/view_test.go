package consul

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// dump is the part of Envoy's /config_dump that the tests look at.
type dump struct {
	Configs []struct {
		Type     string `json:"@type"`
		Clusters []struct {
			Cluster json.RawMessage `json:"cluster"`
		} `json:"dynamic_active_clusters"`
		Endpoints []struct {
			Config assignment `json:"endpoint_config"`
		} `json:"dynamic_endpoint_configs"`
	} `json:"configs"`
}

type assignment struct {
	Name   string `json:"cluster_name"`
	Groups []struct {
		Locality struct {
			Region string `json:"region"`
			Zone   string `json:"zone"`
		} `json:"locality"`
		Endpoints []struct {
			Endpoint struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
			} `json:"endpoint"`
			Health   string `json:"health_status"`
			Weight   int    `json:"load_balancing_weight"`
			Metadata struct {
				Filter map[string]struct {
					TLSMode string `json:"tlsMode"`
				} `json:"filter_metadata"`
			} `json:"metadata"`
		} `json:"lb_endpoints"`
	} `json:"endpoints"`
}

// byAddress lists the endpoints. Envoy's dump has no word of its own for those that drain: they are not healthy, and
// others that are not healthy are never sent. A field that is absent means that one is healthy.
func (a *assignment) byAddress() map[string]endpoint {
	out := map[string]endpoint{}
	for _, g := range a.Groups {
		for _, e := range g.Endpoints {
			at := e.Endpoint.Address.Socket
			out[fmt.Sprintf("%s:%d", at.Address, at.Port)] = endpoint{weight: e.Weight, draining: e.Health != "HEALTHY" && e.Health != "",
				locality: strings.TrimSuffix(g.Locality.Region+"/"+g.Locality.Zone, "/"),
				tls:      e.Metadata.Filter["envoy.transport_socket_match"].TLSMode == "istio"}
		}
	}
	return out
}

// view is what the client's Envoy has of the services of Consul, by name of the cluster.
func (r *rig) view() (map[string]cluster, error) {
	raw, err := r.Pod(r.t, "client-0").Admin(r.t.Context(), "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	var all dump
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	out := map[string]cluster{}
	for _, part := range all.Configs {
		for _, c := range part.Clusters {
			var of struct {
				Name string `json:"name"`
				Type struct {
					Name string `json:"name"`
				} `json:"cluster_type"`
				Assigned *assignment `json:"load_assignment"`
			}
			if err := json.Unmarshal(c.Cluster, &of); err != nil {
				return nil, err
			}
			if !strings.Contains(of.Name, ".service.") {
				continue
			}
			seen := cluster{dns: strings.Contains(of.Type.Name, "dns"), endpoints: map[string]endpoint{},
				http2: strings.Contains(string(c.Cluster), `"explicit_http_config"`) && strings.Contains(string(c.Cluster), `"http2_protocol_options"`)}
			if of.Assigned != nil {
				seen.endpoints = of.Assigned.byAddress()
			}
			var tree any
			if err := json.Unmarshal(c.Cluster, &tree); err != nil {
				return nil, err
			}
			seen.identities = identities(tree, nil)
			slices.Sort(seen.identities)
			seen.identities = slices.Compact(seen.identities)
			out[of.Name] = seen
		}
	}
	for _, part := range all.Configs {
		for _, e := range part.Endpoints {
			if c, is := out[e.Config.Name]; is && !c.dns { // those of DNS are what it has looked up
				c.endpoints = e.Config.byAddress()
				out[e.Config.Name] = c
			}
		}
	}
	return out, nil
}

// identities are all SPIFFE ids that are anywhere in a tree.
func identities(tree any, found []string) []string {
	switch at := tree.(type) {
	case map[string]any:
		for _, v := range at {
			found = identities(v, found)
		}
	case []any:
		for _, v := range at {
			found = identities(v, found)
		}
	case string:
		if strings.HasPrefix(at, "spiffe://") {
			found = append(found, at)
		}
	}
	return found
}
