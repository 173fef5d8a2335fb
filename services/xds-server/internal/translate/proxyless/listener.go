package proxyless

import (
	"fmt"
	"net/netip"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

const (
	// inboundPrefix is the prefix of the names of gRPC servers' listeners; the server's address follows. It is part of
	// the bootstrap that an agent writes (server_listener_resource_name_template).
	inboundPrefix = "xds.istio.io/grpc/lds/inbound/"

	managerFilter = "envoy.filters.network.http_connection_manager"
	routerFilter  = "envoy.filters.http.router"
	rbacFilter    = "envoy.filters.http.rbac"
)

// listener builds the listener that a channel to "xds:///host:port" or a gRPC server requests first.
func listener(r *input.Reader, name string) (*listenerv3.Listener, error) {
	if address, ok := strings.CutPrefix(name, inboundPrefix); ok {
		return server(r, name, address)
	}
	to, ok := resolveTarget(r, name)
	if !ok {
		return nil, nil
	}
	config := resourcename.OutboundCluster(to.port, "", to.hostname)
	manager, err := typedconfig.Checked(&managerv3.HttpConnectionManager{
		StatPrefix: config,
		RouteSpecifier: &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{
			RouteConfigName: config, ConfigSource: coreconfig.ADS(),
		}},
		HttpFilters: []*managerv3.HttpFilter{filter(hcm.FaultFilter, &faultv3.HTTPFault{}), filter(routerFilter, &routerv3.Router{})},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager}}, nil
}

// server builds the listener of a gRPC server at an address. It exists for every address, so a server starts before a
// Service selects it: it depends only on the mTLS mode of the port and on policies. A gRPC server cannot tell TLS from
// plaintext on one port; in PERMISSIVE mode it accepts what clients use by default (Reader.OffersMTLS).
func server(r *input.Reader, name, address string) (*listenerv3.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Port() == 0 {
		return nil, nil //nolint:nilerr // there is no listener of such a name
	}
	host, port := at.Addr().WithZone("").String(), uint32(at.Port())
	policies, err := policy.Proxyless(r)
	if err != nil {
		return nil, err
	}
	chain := &listenerv3.FilterChain{Name: "plaintext", Filters: []*listenerv3.Filter{inboundManager(port, policies)}}
	switch mode := r.InboundMTLS(port); {
	case mode == input.Strict, mode == input.Permissive && r.OffersMTLS():
		chain.Name, chain.TransportSocket = "mtls", serverTLS()
	}
	return &listenerv3.Listener{
		Name:         name,
		Address:      coreconfig.SocketAddress(host, port),
		FilterChains: []*listenerv3.FilterChain{chain},
	}, nil
}

// inboundManager passes every request that policies allow to the gRPC server.
func inboundManager(port uint32, policies []*httprbacv3.RBAC) *listenerv3.Filter {
	var filters []*managerv3.HttpFilter
	for i, p := range policies {
		filters = append(filters, filter(fmt.Sprintf("%s.%d", rbacFilter, i), p)) // gRPC wants names that differ
	}
	name := resourcename.InboundVirtualHost(port)
	return &listenerv3.Filter{Name: managerFilter, ConfigType: &listenerv3.Filter_TypedConfig{
		TypedConfig: typedconfig.Any(&managerv3.HttpConnectionManager{
			StatPrefix: name,
			RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
				Name: name,
				VirtualHosts: []*routev3.VirtualHost{{
					Name: name, Domains: []string{"*"},
					Routes: []*routev3.Route{{
						Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
						Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
					}},
				}},
			}},
			HttpFilters: append(filters, filter(routerFilter, &routerv3.Router{})),
		}),
	}}
}

func filter(name string, m proto.Message) *managerv3.HttpFilter {
	return &managerv3.HttpFilter{Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: typedconfig.Any(m)}}
}
