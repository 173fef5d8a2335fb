package class

import (
	"maps"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Topology labels: they say where a workload runs. A workload has them whether or not its object does.
const (
	RegionLabel  = "topology.kubernetes.io/region"
	ZoneLabel    = "topology.kubernetes.io/zone"
	SubzoneLabel = "topology.istio.io/subzone"
	NetworkLabel = "topology.istio.io/network"
	ClusterLabel = "topology.istio.io/cluster"
)

// Topology returns the value of a topology label; "" for other labels and for unknown values.
func Topology(key string, l *configv1.Locality, network, cluster string) string {
	switch key {
	case RegionLabel:
		return l.GetRegion()
	case ZoneLabel:
		return l.GetZone()
	case SubzoneLabel:
		return l.GetSubzone()
	case NetworkLabel:
		return network
	case ClusterLabel:
		return cluster
	default:
		return ""
	}
}

// withTopologyLabels returns the labels with the topology labels added; locality is "region/zone/subzone".
func withTopologyLabels(labels map[string]string, locality, network, cluster string) map[string]string {
	region, rest, _ := strings.Cut(locality, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	l := &configv1.Locality{Region: region, Zone: zone, Subzone: subzone}
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	for _, key := range []string{RegionLabel, ZoneLabel, SubzoneLabel, NetworkLabel, ClusterLabel} {
		if v := Topology(key, l, network, cluster); v != "" {
			out[key] = v
		}
	}
	return out
}
