package normalise

import (
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// HostsOf lists the hostnames of a Service or ServiceEntry as Host writes them, each once; none for other kinds.
// Partial wildcards, which validation warns of, are left out: no traffic can be sent to them.
func HostsOf(o *object.Object, domain string) []string {
	switch b := o.Body.(type) {
	case *corev1.Service:
		return []string{Host(o.Key.Name, o.Key.Namespace, domain)}
	case *networking.ServiceEntry:
		out := make([]string, 0, len(b.Hosts))
		for _, h := range b.Hosts {
			if host := entryHost(h); !object.PartialWildcard(h) && !slices.Contains(out, host) {
				out = append(out, host)
			}
		}
		return out
	}
	return nil
}

// PortsOf lists the ports of a Service or ServiceEntry; an ExternalName Service has none.
func PortsOf(o *object.Object) []*configv1.ServicePort { return ownerPorts(o) }

// ObjectExportedTo resolves the exportTo of an object, or the mesh's default for its kind, as ExportedTo does. A
// DestinationRule with a workloadSelector is exported to its own namespace alone, and so is what the tenancy confines.
// Kinds without exportTo yield "*".
func ObjectExportedTo(o *object.Object, settings *mesh.MeshConfig, tenancy Tenancy) []string {
	ns := o.Key.Namespace
	exported := writtenExportedTo(o, settings)
	if !slices.Equal(exported, []string{ns}) && tenancy.Confined(o, settings.GetRootNamespace()) != "" {
		if !VisibleTo(exported, ns) {
			return []string{exportedToNone}
		}
		return []string{ns}
	}
	return exported
}

// LeavesNamespace reports whether an object's exportTo, or the mesh's default for its kind, names others than its own
// namespace.
func LeavesNamespace(o *object.Object, settings *mesh.MeshConfig) bool {
	return slices.ContainsFunc(writtenExportedTo(o, settings), func(to string) bool { return to != o.Key.Namespace && to != exportedToNone })
}

func writtenExportedTo(o *object.Object, settings *mesh.MeshConfig) []string {
	ns := o.Key.Namespace
	switch s := o.Body.(type) {
	case *corev1.Service, *networking.ServiceEntry:
		return ExportedTo(object.ExportTo(o), settings.GetDefaultServiceExportTo(), ns)
	case *networking.VirtualService:
		return ExportedTo(s.ExportTo, settings.GetDefaultVirtualServiceExportTo(), ns)
	case *networking.DestinationRule:
		if len(s.GetWorkloadSelector().GetMatchLabels()) > 0 {
			return []string{ns}
		}
		return ExportedTo(s.ExportTo, settings.GetDefaultDestinationRuleExportTo(), ns)
	}
	return []string{exportedToAll}
}

// WorkloadLabels are the labels of a Pod or WorkloadEntry that selectors match; ok is false for other kinds and for a
// Pod that has ended.
func WorkloadLabels(o *object.Object) (labels map[string]string, ok bool) {
	switch b := o.Body.(type) {
	case *object.Pod:
		return o.Labels, !b.Ended
	case *networking.WorkloadEntry:
		return merged(o.Labels, b.Labels), true
	}
	return nil, false
}

// Kinds of servers of a Gateway by the first bytes of a connection: an HTTP request, a TLS handshake, or any bytes.
// Servers of different kinds cannot share a port.
const (
	BeginsHTTP = "HTTP"
	BeginsTLS  = "TLS"
	BeginsTCP  = "TCP"
)

// ServerKind returns the kind of a server.
func ServerKind(s *networking.Server) string {
	switch protocol := contract.ParseProtocol(s.GetPort().GetProtocol()); {
	case contract.IsHTTP(protocol):
		return BeginsHTTP
	case contract.IsTLS(protocol) || s.GetTls() != nil:
		return BeginsTLS
	default:
		return BeginsTCP
	}
}
