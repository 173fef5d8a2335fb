// Package endpoint builds ClusterLoadAssignments: the addresses behind a service port or one of its subsets, grouped by locality.
package endpoint

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// Translator makes ClusterLoadAssignments (EDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.EndpointType }

// Traits of the type: proxies subscribe to the endpoints of every cluster that they are sent.
func (Translator) Traits() plan.Traits { return plan.Traits{AlwaysListed: true} }

// Names is nil: proxies ask for the assignments of the clusters they have.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames lists the assignments of a service's clusters that find their endpoints by EDS.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	var out []string
	for _, name := range discovery.Names(r, host) {
		if parsed, ok := names.ParseCluster(name); ok {
			if c, ok := discovery.Resolve(r, parsed); ok && c.Kind == discovery.EDS {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// Build makes the assignment of one outbound cluster; nil if the class has no such cluster, or one that needs no EDS. A cluster whose
// endpoints are all gone has an empty assignment, not none: otherwise the proxy would wait for it.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	c, ok := names.ParseCluster(name)
	if !ok || c.Direction != names.DirectionOutbound {
		return nil, nil
	}
	out, ok := discovery.Resolve(r, c)
	if !ok || out.Kind != discovery.EDS {
		return nil, nil
	}
	return Assignment(r, out), nil
}
