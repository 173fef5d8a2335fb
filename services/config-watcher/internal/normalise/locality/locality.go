// Package locality reads the localities of Pods, Nodes and WorkloadEntries, as Istio does.
package locality

import (
	"cmp"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Labels that say where a Pod or a Node is.
const (
	labelPod          = "istio-locality"
	labelRegion       = "topology.kubernetes.io/region"
	labelZone         = "topology.kubernetes.io/zone"
	labelSubzone      = "topology.istio.io/subzone"
	labelRegionLegacy = "failure-domain.beta.kubernetes.io/region"
	labelZoneLegacy   = "failure-domain.beta.kubernetes.io/zone"
)

// Parse reads "region/zone/subzone"; nil for an empty text.
func Parse(s string) *configv1.Locality {
	if s == "" {
		return nil
	}
	parts := strings.SplitN(s, "/", 3)
	l := &configv1.Locality{Region: parts[0]}
	if len(parts) > 1 {
		l.Zone = parts[1]
	}
	if len(parts) > 2 {
		l.Subzone = parts[2]
	}
	return l
}

// Text writes a locality, of which nil is one without names, as Parse reads it.
func Text(l *configv1.Locality) string {
	return l.GetRegion() + "/" + l.GetZone() + "/" + l.GetSubzone()
}

// OfPod reads a Pod's label istio-locality; nil if the Pod has none. The label separates "region.zone.subzone" by dots,
// since labels have no slashes.
func OfPod(labels map[string]string) *configv1.Locality {
	s := labels[labelPod]
	if !strings.Contains(s, "/") {
		s = strings.ReplaceAll(s, ".", "/")
	}
	return Parse(s)
}

// OfTopology reads the labels of a Node, which a Pod may have too; nil without region and zone.
func OfTopology(labels map[string]string) *configv1.Locality {
	region, zone := cmp.Or(labels[labelRegion], labels[labelRegionLegacy]), cmp.Or(labels[labelZone], labels[labelZoneLegacy])
	if region == "" && zone == "" {
		return nil
	}
	return &configv1.Locality{Region: region, Zone: zone, Subzone: labels[labelSubzone]}
}
