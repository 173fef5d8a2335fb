// Package cluster builds clusters: one per visible service port and subset, one per inbound port, and those that every proxy has.
package cluster

import (
	"slices"

	"google.golang.org/protobuf/proto"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/inbound"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
)

// Translator makes Clusters (CDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.ClusterType }

// Names lists the clusters of the class.
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
	for _, svc := range r.Services() {
		rule := r.DestinationRule(svc.GetHostname())
		for _, port := range svc.GetPorts() {
			if !protocol.IsProxied(port.GetProtocol()) {
				continue
			}
			out = append(out, names.Outbound(port.GetNumber(), "", svc.GetHostname()))
			if rule == nil {
				continue
			}
			for _, subset := range rule.Spec.GetSubsets() {
				out = append(out, names.Outbound(port.GetNumber(), subset.GetName(), svc.GetHostname()))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
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
	parsed, ok := names.ParseCluster(name)
	if !ok {
		return nil, nil
	}
	if parsed.Direction == names.DirectionInbound {
		return inboundCluster(r, parsed)
	}
	resolved, ok := discovery.Resolve(r, parsed)
	if !ok {
		return nil, nil
	}
	return outbound(r, resolved)
}
