package route

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/undelivered"
)

// Inbound returns the route configuration of an inbound port, for package listener: all requests go to the application,
// without a timeout. A request is retried if the connection closed before the application can have seen it, as happens
// when the application closes an idle connection.
func Inbound(cluster, operation string, port uint32) *routev3.RouteConfiguration {
	all := defaultRoute(cluster, operation, &routev3.RetryPolicy{
		RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(defaultAttempts),
	}, nil)
	host := &routev3.VirtualHost{
		Name:    resourcename.InboundVirtualHost(port),
		Domains: []string{"*"},
		Routes:  []*routev3.Route{all},
	}
	return &routev3.RouteConfiguration{
		Name:                    cluster,
		VirtualHosts:            []*routev3.VirtualHost{host},
		ValidateClusters:        wrapperspb.Bool(false),
		ResponseHeadersToRemove: []string{undelivered.Header},
	}
}
