// Package route builds route configurations and virtual hosts. A sidecar has one route configuration per outbound HTTP
// port (routeConfig), a gateway one per HTTP port or TLS server (gatewayRouteConfig). Translator builds them for RDS;
// VirtualHosts builds the virtual hosts that are delivered by VHDS, see package sidecarscope for the listeners that use
// it. The routes of a VirtualService are built by builder, in virtualservice.go; RouteAction is in routeaction.go, and
// each policy of a route (retries, timeouts, faults, CORS, headers, hash policy) in a file of its own.
//
// Inbound builds the routes of inbound listeners; RoutesToHost those of proxyless gRPC clients.
package route

import (
	"google.golang.org/protobuf/proto"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Translator builds RouteConfigurations (RDS).
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.RouteType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names is nil: proxies request the route configurations that their listeners name.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames is nil, like Names.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build builds one route configuration, or nil if the class has no listener for it.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	var out *routev3.RouteConfiguration
	var err error
	if r.Class().Type == class.Router {
		out, err = gatewayRouteConfig(r, name)
	} else {
		out, err = outboundRouteConfig(r, name)
	}
	if out == nil {
		return nil, err
	}
	applyProxyHeaders(r, out.GetVirtualHosts()...)
	return out, err
}
