// Package cluster builds clusters: one per service port and subset that the class may reach (outbound.go), one per
// inbound port (inbound.go), and BlackHoleCluster, PassthroughCluster and InboundPassthroughCluster (builtin.go).
// Translator builds them for CDS.
//
// Each part of a traffic policy has a file: connectionpool.go (with circuit breakers and the connect timeout),
// outlierdetection.go, lbpolicy.go, transportsocket.go (TLS), httpprotocoloptions.go. Package discovery decides which
// clusters there are and how they find their endpoints.
package cluster

import (
	"slices"

	"google.golang.org/protobuf/proto"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/inbound"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Translator builds Clusters (CDS).
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.ClusterType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the clusters that every proxy has, those of the workload's own ports and those of the authorization
// providers that its policies ask.
func (Translator) Names(r *input.Reader) ([]string, error) {
	out := builtinNames(r.Class())
	if r.Class().Type == class.Sidecar {
		ports, err := inbound.Ports(r)
		if err != nil {
			return nil, err
		}
		for _, port := range ports {
			out = append(out, resourcename.InboundCluster(port.Number))
		}
	}
	out = append(out, policy.Clusters(r)...)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// HostNames lists the clusters of a service. On-demand proxies request theirs by name.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	return discovery.Names(r, host), nil
}

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	out, err := build(r, name)
	if out == nil || err != nil {
		return nil, err
	}
	return out, nil
}

func build(r *input.Reader, name string) (*clusterv3.Cluster, error) {
	if slices.Contains(builtinNames(r.Class()), name) {
		return builtinCluster(r, name)
	}
	if found, ok := resourcename.ParseOnDemandCluster(name); ok && r.Class().OnDemand {
		return onDemand(r, name, found)
	}
	parsed, ok := resourcename.ParseCluster(name)
	if !ok {
		return nil, nil
	}
	if parsed.Direction == resourcename.DirectionInbound {
		return inboundCluster(r, parsed)
	}
	resolved, ok := discovery.Resolve(r, parsed)
	switch {
	case ok:
		return outbound(r, resolved)
	case r.Class().OnDemand:
		// A proxy that is told that a cluster does not exist never requests it again, and later requests wait in vain.
		// A cluster without endpoints fails requests at once, and is updated when a service for the name appears.
		out, err := builtinCluster(r, resourcename.BlackHoleCluster)
		if err != nil {
			return nil, err
		}
		out.Name = name
		return out, nil
	default:
		return nil, nil
	}
}
