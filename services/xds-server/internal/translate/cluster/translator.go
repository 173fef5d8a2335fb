// Package cluster builds clusters: one per visible service port and subset, one per inbound port, and those that every proxy has.
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
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// Translator makes Clusters (CDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.ClusterType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the clusters that every proxy has and those of the workload's own ports.
func (Translator) Names(r *input.Reader) ([]string, error) {
	out := fixed(r.Class())
	if r.Class().Type == class.Sidecar {
		ports, err := inbound.Ports(r)
		if err != nil {
			return nil, err
		}
		for _, port := range ports {
			out = append(out, names.Inbound(port.Number))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// HostNames lists the clusters of a service; none for proxies that ask for the clusters they call.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().OnDemand {
		return nil, nil
	}
	return discovery.Names(r, host), nil
}

// Build makes one cluster.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	out, err := build(r, name)
	if out == nil || err != nil {
		return nil, err
	}
	return out, nil
}

func build(r *input.Reader, name string) (*clusterv3.Cluster, error) {
	if slices.Contains(fixed(r.Class()), name) {
		return fixedCluster(r, name)
	}
	if found, ok := names.ParseOnDemand(name); ok && r.Class().OnDemand {
		return onDemand(r, name, found)
	}
	parsed, ok := names.ParseCluster(name)
	if !ok {
		return nil, nil
	}
	if parsed.Direction == names.DirectionInbound {
		return inboundCluster(r, parsed)
	}
	resolved, ok := discovery.Resolve(r, parsed)
	switch {
	case ok:
		return outbound(r, resolved)
	case r.Class().OnDemand:
		// A proxy that is told "there is none" never asks again, and lets every later request wait in vain. One without endpoints refuses at once,
		// and is updated when there is something behind the name.
		out, err := fixedCluster(r, names.BlackHoleCluster)
		if err != nil {
			return nil, err
		}
		out.Name = name
		return out, nil
	default:
		return nil, nil
	}
}
