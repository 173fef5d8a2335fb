package normalise

import (
	"cmp"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// rebuildWorkload recomputes the Workload of a Pod, or else of a WorkloadEntry.
func (m *Mesh) rebuildWorkload(w namespacedName) {
	key := resource.Key{Kind: resource.KindWorkload, Namespace: w.namespace, Name: contract.WorkloadName(w.name, w.cluster)}
	in := m.pod(w)
	if in == nil {
		in, _ = m.stored[w.key(kinds.GroupNetworking, "WorkloadEntry")].value.(*instance)
	}
	if in == nil || in.registered != "" && in.account == "" {
		m.emit(key, nil) // nobody could prove to be the proxy of one that a registry gives no account
		return
	}
	m.emit(key, &configv1.Workload{
		Name: w.name, Namespace: w.namespace, Addresses: in.addresses, Labels: merged(nodeLabels(in), in.labels), ServiceAccount: in.account,
		Identity: m.identity(w.namespace, in.account),
		Locality: m.localityOf(in), Network: m.networkOf(in), Cluster: m.clusterID(w.cluster), Targets: m.targets(in, false), TlsMode: in.tlsMode,
		Annotations: m.workloadAnnotations(in), Source: sourceRef(in.object), UdpTargets: m.targets(in, true),
	})
}

// targets are the service ports, of UDP or all others, that lead to an instance, ready or not: a sidecar must listen
// before its Pod is ready.
func (m *Mesh) targets(in *instance, udp bool) []*configv1.ServiceTarget {
	var out []*configv1.ServiceTarget
	m.owners.of(in, func(o *owner) {
		for _, h := range o.hosts {
			if set := o.object.ClusterSet; set != nil && h.Hostname == set.Host {
				continue // the same ports
			}
			out = appendTargets(out, h, o.ports, udp, func(port *configv1.ServicePort) (uint32, bool) { return targetPort(in, port) })
		}
	})
	// The EndpointSlices of Services without a selector.
	for s := range m.slices.of(in) {
		if o := m.service(s.service); o != nil && len(o.selector) == 0 {
			out = appendTargets(out, s.host, o.ports, udp, func(port *configv1.ServicePort) (uint32, bool) { return slicePort(s.body, port) })
		}
	}
	slices.SortFunc(out, func(a, b *configv1.ServiceTarget) int {
		return cmp.Or(strings.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Port, b.Port), cmp.Compare(a.TargetPort, b.TargetPort),
			strings.Compare(a.Namespace, b.Namespace))
	})
	return slices.CompactFunc(out, func(a, b *configv1.ServiceTarget) bool {
		return a.Hostname == b.Hostname && a.Port == b.Port && a.TargetPort == b.TargetPort && a.Namespace == b.Namespace
	})
}

// appendTargets appends those ports of a host, of UDP or all others, that have a target.
func appendTargets(out []*configv1.ServiceTarget, h hostKey, ports []*configv1.ServicePort, udp bool,
	target func(*configv1.ServicePort) (uint32, bool)) []*configv1.ServiceTarget {
	for _, port := range ports {
		if number, ok := target(port); ok && (port.Protocol == configv1.Protocol_PROTOCOL_UDP) == udp {
			out = append(out, &configv1.ServiceTarget{Hostname: h.Hostname, Port: port.Number, TargetPort: number, Namespace: h.Namespace})
		}
	}
	return out
}
