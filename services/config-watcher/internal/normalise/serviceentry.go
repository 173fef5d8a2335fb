package normalise

import (
	"cmp"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise/ipaddress"
	"fairlead.dev/services/config-watcher/internal/object"
)

var serviceEntryKind = ownerRules(func(_ *Mesh, o *object.Object) *owner {
	se := o.Body.(*networking.ServiceEntry)
	return &owner{entry: se, ports: fromServiceEntry(o, se, "").Ports, selector: entrySelector(se)}
})

// entrySelector is the selector of a ServiceEntry's workloads; nil if it selects none.
func entrySelector(se *networking.ServiceEntry) map[string]string {
	if se.GetWorkloadSelector() != nil && len(se.GetWorkloadSelector().GetLabels()) == 0 {
		return allWorkloads
	}
	return se.GetWorkloadSelector().GetLabels()
}

var resolutions = map[networking.ServiceEntry_Resolution]configv1.Resolution{
	networking.ServiceEntry_NONE:            configv1.Resolution_RESOLUTION_PASSTHROUGH,
	networking.ServiceEntry_STATIC:          configv1.Resolution_RESOLUTION_STATIC,
	networking.ServiceEntry_DNS:             configv1.Resolution_RESOLUTION_DNS,
	networking.ServiceEntry_DNS_ROUND_ROBIN: configv1.Resolution_RESOLUTION_DNS_ROUND_ROBIN,
	networking.ServiceEntry_DYNAMIC_DNS:     configv1.Resolution_RESOLUTION_DYNAMIC_DNS,
}

// fromServiceEntry builds the Service of one host of a ServiceEntry, without exportedTo.
func fromServiceEntry(o *object.Object, se *networking.ServiceEntry, hostname string) *configv1.Service {
	out := &configv1.Service{
		Hostname: hostname, Name: o.Key.Name, Namespace: o.Key.Namespace, Resolution: resolutions[se.Resolution],
		MeshExternal: se.Location == networking.ServiceEntry_MESH_EXTERNAL,
		Selector:     entrySelector(se), Labels: o.Labels, CreationTime: created(o.Created), Source: sourceRef(o),
	}
	out.Addresses = ipaddress.Canonical(se.Addresses)
	out.TrafficDistribution = trafficDistribution(nil, o.Annotations)
	out.SubjectAltNames = sortedUnique(se.SubjectAltNames)
	for _, p := range se.Ports {
		out.Ports = append(out.Ports, &configv1.ServicePort{Name: p.Name, Number: p.Number, Protocol: entryProtocol(p),
			TargetPort: entryTarget(p)})
	}
	return out
}

func entryTarget(p *networking.ServicePort) uint32 { return cmp.Or(p.TargetPort, p.Number) }

// entryProtocol is the declared protocol, or else the one that the port's name declares.
func entryProtocol(p *networking.ServicePort) configv1.Protocol {
	if p.Protocol != "" {
		return contract.ParseProtocol(p.Protocol)
	}
	return contract.PortProtocol(int32(p.Number), p.Name, "", nil)
}
