// Package endpoint builds ClusterLoadAssignments: the endpoints of a service port or of one of its subsets, grouped by
// locality. Translator builds them for EDS; Assignment also builds those inside DNS clusters, and those of proxyless
// gRPC clients. Locality load balancing is in locality.go, endpoints of other networks in network.go, those of clusters
// that are away in away.go.
package endpoint

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Translator builds ClusterLoadAssignments (EDS).
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.EndpointType }

// Traits of the type: proxies subscribe to the endpoints of every cluster that they are sent.
func (Translator) Traits() plan.Traits { return plan.Traits{AlwaysListed: true} }

// Names lists the load assignments of the authorization providers that the class's policies ask, whose clusters it has
// also where HostNames does not list them.
func (Translator) Names(r *input.Reader) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	return withEndpoints(r, policy.Clusters(r)), nil
}

// HostNames lists the load assignments of a service's EDS clusters.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	return withEndpoints(r, discovery.Names(r, host)), nil
}

// withEndpoints lists those of the clusters whose endpoints come by EDS.
func withEndpoints(r *input.Reader, clusters []string) (out []string) {
	for _, name := range clusters {
		if parsed, ok := resourcename.ParseCluster(name); ok {
			if c, ok := discovery.Resolve(r, parsed); ok && c.Kind == discovery.EDS {
				out = append(out, name)
			}
		}
	}
	return out
}

// Build builds the load assignment of an outbound cluster, or nil if the class has no such EDS cluster. A cluster
// without endpoints has an empty load assignment: without one the proxy would wait for it.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	c, ok := resourcename.ParseCluster(name)
	if !ok || c.Direction != resourcename.DirectionOutbound {
		return nil, nil
	}
	out, ok := discovery.Resolve(r, c)
	if !ok || out.Kind != discovery.EDS {
		return nil, nil
	}
	return Assignment(r, out), nil
}
