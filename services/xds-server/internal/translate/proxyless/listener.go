package proxyless

import (
	"net"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

const (
	// inboundPrefix is the prefix of the names of gRPC servers' listeners; the server's address follows. It is part of
	// the bootstrap that an agent writes (server_listener_resource_name_template).
	inboundPrefix = "xds.istio.io/grpc/lds/inbound/"

	managerFilter = "envoy.filters.network.http_connection_manager"
	routerFilter  = "envoy.filters.http.router"
)

// listener builds the listener that a channel to "xds:///host:port" or a gRPC server requests first.
func listener(r *input.Reader, name string) (*listenerv3.Listener, error) {
	if address, ok := strings.CutPrefix(name, inboundPrefix); ok {
		return server(r, name, address), nil
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
// Service selects it: it depends only on the mTLS mode of the port. A gRPC server cannot tell TLS from plaintext on one
// port; in PERMISSIVE mode it accepts what clients use by default (Reader.OffersMTLS).
func server(r *input.Reader, name, address string) *listenerv3.Listener {
	host, number, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) == nil {
		return nil
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return nil
	}
	chain := &listenerv3.FilterChain{Name: "plaintext", Filters: []*listenerv3.Filter{inboundManager(uint32(port))}}
	switch mode := r.InboundMTLS(uint32(port)); {
	case mode == input.Strict, mode == input.Permissive && r.OffersMTLS():
		chain.Name, chain.TransportSocket = "mtls", serverTLS()
	}
	return &listenerv3.Listener{
		Name:         name,
		Address:      coreconfig.SocketAddress(host, uint32(port)),
		FilterChains: []*listenerv3.FilterChain{chain},
	}
}

// inboundManager passes every request to the gRPC server.
func inboundManager(port uint32) *listenerv3.Filter {
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
			HttpFilters: []*managerv3.HttpFilter{filter(routerFilter, &routerv3.Router{})},
		}),
	}}
}

func filter(name string, m proto.Message) *managerv3.HttpFilter {
	return &managerv3.HttpFilter{Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: typedconfig.Any(m)}}
}
