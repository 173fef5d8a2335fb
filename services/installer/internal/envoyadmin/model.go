package envoyadmin

import (
	"encoding/json"
	"strings"
)

// The types below hold the fields of Envoy's configuration (envoy.config.*.v3, as its config dump spells them) that the
// tables show.

type metadata struct {
	Filter map[string]json.RawMessage `json:"filter_metadata"`
}

// istioConfig is the path of the object that a resource was made from, like
// /apis/networking.istio.io/v1/namespaces/default/virtual-service/reviews: field config of the metadata of "istio".
func (m metadata) istioConfig() string {
	var istio struct {
		Config string `json:"config"`
	}
	if raw, ok := m.Filter["istio"]; ok {
		_ = json.Unmarshal(raw, &istio) // other metadata has no path
	}
	return istio.Config
}

type cluster struct {
	Name        string          `json:"name"`
	Type        string          `json:"type"`
	ClusterType json.RawMessage `json:"cluster_type"`
	Metadata    metadata        `json:"metadata"`
}

type dumpedCluster struct {
	Cluster cluster `json:"cluster"`
}

type clustersDump struct {
	Static  []dumpedCluster `json:"static_clusters"`
	Active  []dumpedCluster `json:"dynamic_active_clusters"`
	Warming []dumpedCluster `json:"dynamic_warming_clusters"`
}

type socketAddress struct {
	Address string      `json:"address"`
	Port    json.Number `json:"port_value"`
}

type address struct {
	Socket *socketAddress `json:"socket_address"`
	Pipe   *struct {
		Path string `json:"path"`
	} `json:"pipe"`
	Internal *struct {
		Listener string `json:"server_listener_name"`
	} `json:"envoy_internal_address"`
}

func (a address) host() string {
	switch {
	case a.Socket != nil:
		return a.Socket.Address
	case a.Pipe != nil:
		return "unix://" + a.Pipe.Path
	case a.Internal != nil:
		return "envoy://" + a.Internal.Listener
	}
	return ""
}

func (a address) port() string {
	if a.Socket == nil {
		return ""
	}
	return a.Socket.Port.String()
}

func (a address) String() string {
	if p := a.port(); p != "" {
		return a.host() + ":" + p
	}
	return a.host()
}

type cidr struct {
	Prefix string      `json:"address_prefix"`
	Length json.Number `json:"prefix_len"`
}

type filter struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"typed_config"`
}

type filterChain struct {
	Match struct {
		Port      json.Number `json:"destination_port"`
		Prefixes  []cidr      `json:"prefix_ranges"`
		Names     []string    `json:"server_names"`
		Transport string      `json:"transport_protocol"`
		ALPN      []string    `json:"application_protocols"`
	} `json:"filter_chain_match"`
	Filters []filter `json:"filters"`
}

type listener struct {
	Name         string        `json:"name"`
	Address      address       `json:"address"`
	FilterChains []filterChain `json:"filter_chains"`
	Default      *filterChain  `json:"default_filter_chain"`
	// API is set for the listeners of proxyless gRPC clients, which have no address and one HttpConnectionManager.
	API *struct {
		Manager json.RawMessage `json:"api_listener"`
	} `json:"api_listener"`
	Additional []struct {
		Address address `json:"address"`
	} `json:"additional_addresses"`
}

type dumpedListener struct {
	Listener listener `json:"listener"`
}

type listenersDump struct {
	Static  []dumpedListener `json:"static_listeners"`
	Dynamic []struct {
		Name    string          `json:"name"`
		Active  *dumpedListener `json:"active_state"`
		Warming *dumpedListener `json:"warming_state"`
		Error   *struct {
			Details string `json:"details"`
		} `json:"error_state"`
	} `json:"dynamic_listeners"`
}

// httpOrTCP holds the fields of an HttpConnectionManager or a TcpProxy that the tables show.
type httpOrTCP struct {
	Type string `json:"@type"`
	RDS  *struct {
		Name string `json:"route_config_name"`
	} `json:"rds"`
	Inline  *routeConfig `json:"route_config"`
	Cluster string       `json:"cluster"`
	Weight  *struct {
		Clusters []weightedCluster `json:"clusters"`
	} `json:"weighted_clusters"`
}

type stringMatch struct {
	Prefix  string `json:"prefix"`
	Path    string `json:"path"`
	PathSep string `json:"path_separated_prefix"`
	Regex   *struct {
		Regex string `json:"regex"`
	} `json:"safe_regex"`
	Connect any   `json:"connect_matcher"`
	Headers []any `json:"headers"`
	Query   []any `json:"query_parameters"`
}

type route struct {
	Name     string       `json:"name"`
	Match    stringMatch  `json:"match"`
	Metadata metadata     `json:"metadata"`
	Route    *routeAction `json:"route"`
	Redirect *redirect    `json:"redirect"`
	Direct   *struct {
		Status json.Number `json:"status"`
	} `json:"direct_response"`
}

// object is the name of the object that the route was made from, "" if it does not say. Routes of the Gateway API on
// gateways have it in their name alone: <namespace>/<name>, and perhaps the name of the rule.
func (r route) object() string {
	if o := objectName(r.Metadata.istioConfig()); o != "" {
		return o
	}
	if parts := strings.Split(r.Name, "/"); len(parts) > 1 {
		return parts[1] + "." + parts[0]
	}
	return ""
}

type virtualHost struct {
	Name     string   `json:"name"`
	Domains  []string `json:"domains"`
	Routes   []route  `json:"routes"`
	Metadata metadata `json:"metadata"`
}

type routeConfig struct {
	Name         string        `json:"name"`
	VirtualHosts []virtualHost `json:"virtual_hosts"`
}

type dumpedRoutes struct {
	Config routeConfig `json:"route_config"`
}

type routesDump struct {
	Static  []dumpedRoutes `json:"static_route_configs"`
	Dynamic []dumpedRoutes `json:"dynamic_route_configs"`
}

// ClusterStatuses is the answer of /clusters?format=json.
type ClusterStatuses struct {
	Clusters []ClusterStatus `json:"cluster_statuses"`
}

// ClusterStatus is a cluster with its endpoints.
type ClusterStatus struct {
	Name  string `json:"name"`
	Hosts []struct {
		Address address `json:"address"`
		Health  struct {
			EDS     string `json:"eds_health_status"`
			Active  bool   `json:"failed_active_health_check"`
			Outlier bool   `json:"failed_outlier_check"`
		} `json:"health_status"`
		Weight json.Number `json:"weight"`
	} `json:"host_statuses"`
}

type lbEndpoint struct {
	Endpoint struct {
		Address address `json:"address"`
	} `json:"endpoint"`
	Health string `json:"health_status"`
}

// status is in the words of /clusters, where an endpoint without a known problem is HEALTHY.
func (e lbEndpoint) status() string {
	if e.Health == "" || e.Health == "UNKNOWN" {
		return "HEALTHY"
	}
	return e.Health
}

type endpointConfig struct {
	Config struct {
		Cluster    string `json:"cluster_name"`
		Localities []struct {
			Endpoints []lbEndpoint `json:"lb_endpoints"`
		} `json:"endpoints"`
	} `json:"endpoint_config"`
}

type endpointsDump struct {
	Static  []endpointConfig `json:"static_endpoint_configs"`
	Dynamic []endpointConfig `json:"dynamic_endpoint_configs"`
}

type dataSource struct {
	Bytes  []byte `json:"inline_bytes"`
	String string `json:"inline_string"`
}

func (d dataSource) text() []byte {
	if len(d.Bytes) > 0 {
		return d.Bytes
	}
	return []byte(d.String)
}

type dynamicSecret struct {
	Name   string `json:"name"`
	Secret struct {
		TLS *struct {
			Chain dataSource `json:"certificate_chain"`
		} `json:"tls_certificate"`
		Validation *struct {
			CA dataSource `json:"trusted_ca"`
		} `json:"validation_context"`
	} `json:"secret"`
}

type secretsDump struct {
	Static  []dynamicSecret `json:"static_secrets"`
	Active  []dynamicSecret `json:"dynamic_active_secrets"`
	Warming []dynamicSecret `json:"dynamic_warming_secrets"`
}
