package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Exporter says whose exportTo a list is.
type Exporter struct {
	// Service is true for a Service, a ServiceEntry and MeshConfig's defaults, which may have "~": exported to no
	// namespace.
	Service bool
	// Selective is true for a DestinationRule with a workloadSelector, which applies in its own namespace alone.
	Selective bool
}

// ExportTo checks a list of namespaces: names, "." for the object's own namespace, or "*" or "~" alone.
func (c *Checker) ExportTo(path string, list []string, of Exporter) {
	seen := map[string]bool{}
	for i, s := range list {
		to, named := s, s != "." && s != "*" && s != "~"
		if s == "." {
			to = c.Namespace
		}
		switch at := manifest.Index(path, i); {
		case seen[to]:
			c.Fail(at, s, "listed twice", `keep one of them; "." is the object's own namespace`)
		case s == "~" && !of.Service:
			c.Fail(at, s, "only a service can be exported to nobody", `write "." for the object's own namespace, or delete the object`)
		case named && !NameLabel(s):
			c.Fail(at, s, "not a namespace", `use a namespace, "." for the object's own or "*" for all`)
		case of.Selective && to != c.Namespace:
			c.Fail(at, s, "a rule with workloadSelector is about workloads of its own namespace alone", `remove it, or write "."`)
		case named:
			c.PossibleNamespace(at, s)
		}
		seen[to] = true
	}
	for _, alone := range []string{"~", "*"} {
		if seen[alone] && len(list) > 1 && (alone == "*" || of.Service) {
			c.Fail(path, nil, fmt.Sprintf("%q cannot be combined with other entries", alone), "keep it alone, or list namespaces only")
			break
		}
	}
}

// PossibleNamespace warns of a namespace that Istio's webhook accepts and Kubernetes does not.
func (c *Checker) PossibleNamespace(at, s string) {
	c.WarnIf(s != "" && !DNSLabel(s), at, "no namespace can have this name", "use at most 63 lower-case letters, digits and '-'")
}

// TrafficDistribution checks the annotation, whose value is not case-sensitive.
func (c *Checker) TrafficDistribution(o *object.Object) {
	v, ok := o.Annotations[object.TrafficDistributionAnnotation]
	if ok && v != "" && !slices.ContainsFunc(object.TrafficDistributions, func(known string) bool { return strings.EqualFold(v, known) }) {
		c.Warn(manifest.Field("metadata.annotations", object.TrafficDistributionAnnotation),
			"unknown traffic distribution "+strconv.Quote(v), decode.Suggest(v, object.TrafficDistributions))
	}
}
