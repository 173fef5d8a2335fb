// Package route builds route configurations: for a sidecar one per outbound HTTP port, for a gateway one per HTTP port or TLS server.
package route

import (
	"google.golang.org/protobuf/proto"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Translator makes RouteConfigurations (RDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.RouteType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names is nil: proxies ask for the route configurations that their listeners name.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames is nil, like Names.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build makes one route configuration; nil if the class has no listener for it.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	var out *routev3.RouteConfiguration
	var err error
	if r.Class().Type == class.Router {
		out, err = routerConfiguration(r, name)
	} else {
		out, err = outbound(r, name)
	}
	if out == nil || err != nil {
		return nil, err
	}
	applyHeaders(r, out.GetVirtualHosts()...)
	return out, nil
}
