// Package multicluster has the rules of the kinds of the Multi-Cluster Services API (KEP-1645).
package multicluster

import (
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// maxIPs is how many addresses an import may have, one of each family.
const maxIPs = 2

// Check applies the rules of the object's kind. Of an import the ports are not read.
func Check(c *check.Checker, o *object.Object) {
	c.FailIf(!check.DNSLabel(o.Key.Name), "metadata.name", o.Key.Name, "not the name of a Service",
		"give it the name of the Service that it is about")
	in, ok := o.Body.(*mcsv1beta1.ServiceImport)
	if !ok {
		return
	}
	switch in.Spec.Type {
	case mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless:
	default:
		c.Fail("spec.type", string(in.Spec.Type), "unknown type of an import", "use ClusterSetIP or Headless")
	}
	if len(in.Spec.IPs) > maxIPs {
		c.Fail("spec.ips", nil, "more than two addresses", "give one of each IP family")
	}
	for i, ip := range in.Spec.IPs {
		c.IP(manifest.Index("spec.ips", i), ip)
	}
}
