package decisions

import (
	"fmt"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/tests/internal/policygen"
)

// Filters are those that enforce the policies of a workload: before its HTTP router, and in its TCP filter chains.
type Filters struct {
	HTTP    []*hcm.HttpFilter
	Network []*listener.Filter
	// Manager is the HTTP connection manager that the filters stand in; nil where nobody asks for it.
	Manager *hcm.HttpConnectionManager
}

// security are the types of filters that enforce policies.
var security = map[string]bool{
	"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC":                   true,
	"type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication": true,
	"type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz":          true,
	"type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC":                true,
	"type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz":       true,
}

const managerType = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

// chains finds the filter chains for a workload's HTTP and TCP: of a sidecar those of virtualInbound for its ports, of
// a gateway those of its listeners.
func chains(s policygen.Set, resources []*anypb.Any) (http, tcp *listener.FilterChain, err error) {
	var names []string
	for _, r := range resources {
		var l listener.Listener
		if err := r.UnmarshalTo(&l); err != nil {
			return nil, nil, err
		}
		names = append(names, l.GetName())
		own := l.GetAddress().GetSocketAddress().GetPortValue()
		if !s.Gateway && l.GetName() != "virtualInbound" {
			continue
		}
		all := l.GetFilterChains()
		if l.GetDefaultFilterChain() != nil {
			all = append(all, l.GetDefaultFilterChain())
		}
		for _, c := range all {
			port := own
			if !s.Gateway {
				port = c.GetFilterChainMatch().GetDestinationPort().GetValue()
			}
			switch {
			case port == httpPort && http == nil:
				http = c
			case port == tcpPort && tcp == nil:
				tcp = c
			}
		}
	}
	if http == nil || tcp == nil {
		return nil, nil, fmt.Errorf("%s: no filter chains for the ports %d and %d in the listeners %q", s.Name, httpPort, tcpPort, names)
	}
	return http, tcp, nil
}

// inListeners takes the filters of policies out of listeners.
func inListeners(s policygen.Set, resources []*anypb.Any) (Filters, error) {
	http, tcp, err := chains(s, resources)
	if err != nil {
		return Filters{}, err
	}
	manager, err := managerOf(http)
	if err != nil {
		return Filters{}, err
	}
	f := Filters{Network: enforcing(tcp)}
	for _, h := range manager.GetHttpFilters() {
		if security[h.GetTypedConfig().GetTypeUrl()] {
			f.HTTP = append(f.HTTP, h)
		}
	}
	return f, nil
}

// managerOf finds the HTTP connection manager of a filter chain.
func managerOf(c *listener.FilterChain) (*hcm.HttpConnectionManager, error) {
	for _, filter := range c.GetFilters() {
		if filter.GetTypedConfig().GetTypeUrl() == managerType {
			m := &hcm.HttpConnectionManager{}
			return m, filter.GetTypedConfig().UnmarshalTo(m)
		}
	}
	return nil, fmt.Errorf("filter chain %q has no HTTP connection manager", c.GetName())
}

// enforcing lists the filters of a chain that enforce policies.
func enforcing(c *listener.FilterChain) (out []*listener.Filter) {
	for _, filter := range c.GetFilters() {
		if security[filter.GetTypedConfig().GetTypeUrl()] {
			out = append(out, filter)
		}
	}
	return out
}
