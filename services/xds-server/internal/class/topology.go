package class

import (
	"maps"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Labels that say where a workload runs, whether or not its object has them.
const (
	RegionLabel  = "topology.kubernetes.io/region"
	ZoneLabel    = "topology.kubernetes.io/zone"
	SubzoneLabel = "topology.istio.io/subzone"
	NetworkLabel = "topology.istio.io/network"
	ClusterLabel = "topology.istio.io/cluster"
)

// Topology returns the value of a label that says where a workload runs, "" for other labels and where it is unknown.
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

// located returns the labels together with those that say where the workload runs; place is "region/zone/subzone".
func located(labels map[string]string, place, network, cluster string) map[string]string {
	region, rest, _ := strings.Cut(place, "/")
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
