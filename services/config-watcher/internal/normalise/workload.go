package normalise

import (
	"cmp"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// workload builds the Workload of a Pod, or else of a WorkloadEntry; nil if there is neither.
func (m *Mesh) workload(w namespacedName) *configv1.Workload {
	in := cmp.Or(m.instances.byKey[instKey{"Pod", w.namespace, w.name, w.cluster}],
		m.instances.byKey[instKey{"WorkloadEntry", w.namespace, w.name, w.cluster}])
	if in == nil {
		return nil
	}
	return &configv1.Workload{
		Name: w.name, Namespace: w.namespace, Addresses: in.addresses, Labels: merged(nodeLabels(in), in.labels), ServiceAccount: in.account,
		Identity: m.identity(w.namespace, in.account),
		Locality: m.localityOf(in), Network: m.networkOf(in), Cluster: m.clusterID(w.cluster), Targets: m.targets(in), TlsMode: in.tlsMode,
		Annotations: m.workloadAnnotations(in), Source: sourceRef(in.object),
	}
}

// targets are the service ports that lead to an instance, ready or not: a sidecar must listen before its Pod is ready.
func (m *Mesh) targets(in *instance) []*configv1.ServiceTarget {
	var out []*configv1.ServiceTarget
	m.selectors.of(in, func(o owner) {
		for _, h := range m.hosts(o, m.owners[o]) {
			out = append(out, m.ownerTargets(in, o, h)...)
		}
	})
	for slice := range m.sliceRefs[in.key].all {
		out = append(out, m.sliceTargets(slice)...)
	}
	slices.SortFunc(out, func(a, b *configv1.ServiceTarget) int {
		return cmp.Or(strings.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Port, b.Port), cmp.Compare(a.TargetPort, b.TargetPort),
			strings.Compare(a.Namespace, b.Namespace))
	})
	return slices.CompactFunc(out, func(a, b *configv1.ServiceTarget) bool {
		return a.Hostname == b.Hostname && a.Port == b.Port && a.TargetPort == b.TargetPort && a.Namespace == b.Namespace
	})
}

func (m *Mesh) ownerTargets(in *instance, o owner, h hostKey) []*configv1.ServiceTarget {
	var out []*configv1.ServiceTarget
	for _, port := range m.ports[o] {
		if port.Protocol == configv1.Protocol_PROTOCOL_UDP {
			continue
		}
		if target, ok := targetPort(in, port); ok {
			out = append(out, &configv1.ServiceTarget{Hostname: h.hostname, Port: port.Number, TargetPort: target, Namespace: h.namespace})
		}
	}
	return out
}

// sliceTargets are the targets of Services without a selector, whose EndpointSlices name the Pod.
func (m *Mesh) sliceTargets(slice namespacedName) []*configv1.ServiceTarget {
	svc := m.sliceOf[slice]
	o := owner{"Service", svc.namespace, svc.name, svc.cluster}
	obj := m.owners[o]
	if obj == nil || len(ownerSelector(o, obj)) > 0 {
		return nil
	}
	var out []*configv1.ServiceTarget
	for _, port := range m.ports[o] {
		number, ok := slicePort(m.slices[slice].Body.(*discoveryv1.EndpointSlice), port)
		if ok && port.Protocol != configv1.Protocol_PROTOCOL_UDP {
			out = append(out, &configv1.ServiceTarget{Hostname: Host(svc.name, svc.namespace, m.cfg.Domain), Port: port.Number, TargetPort: number,
				Namespace: svc.namespace})
		}
	}
	return out
}
