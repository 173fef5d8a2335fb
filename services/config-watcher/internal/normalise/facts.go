package normalise

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// namespacedName names an object among those of its kind, or a Workload, which a Pod and a WorkloadEntry of the same
// name share (the Pod wins).
type namespacedName struct{ namespace, name, cluster string }

func nameOf(k object.Key) namespacedName { return namespacedName{k.Namespace, k.Name, k.Cluster} }

func (n namespacedName) key(group, kind string) object.Key {
	return object.Key{Group: group, Kind: kind, Namespace: n.namespace, Name: n.name, Cluster: n.cluster}
}

// Host turns a short name into an FQDN. As in Istio only a name without a dot is short: "reviews.apps" stays. The
// result is in lower case, without a dot at the end, and IP addresses are in their shortest form, so that hostnames can
// be compared as text.
func Host(name, namespace, domain string) string {
	name = strings.ToLower(name)
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.String()
	}
	if name == "" || name == "*" || strings.Contains(name, ".") {
		return strings.TrimSuffix(name, ".")
	}
	return name + "." + namespace + ".svc." + domain
}

// entryHost is Host for the hosts of a ServiceEntry, which are complete names even without a dot.
func entryHost(name string) string {
	if !strings.Contains(name, ".") {
		name += "."
	}
	return Host(name, "", "")
}

// exportedToAll is the visibility of an object that all namespaces see.
const exportedToAll = "*"

// exportedToNone is the exportedTo of an object that no namespace sees. No namespace has this name.
const exportedToNone = "~"

// ExportedTo resolves exportTo, or fallback if it is empty, to sorted namespaces; ["*"] means all of them.
func ExportedTo(exportTo, fallback []string, namespace string) []string {
	if len(exportTo) == 0 {
		exportTo = fallback
	}
	if len(exportTo) == 0 {
		return []string{exportedToAll}
	}
	var out []string
	for _, e := range exportTo {
		switch e = strings.TrimSpace(e); e {
		case "*":
			return []string{exportedToAll}
		case ".":
			out = append(out, namespace)
		case "~", "":
		default:
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return []string{exportedToNone}
	}
	return sortedUnique(out)
}

// VisibleTo reports whether a namespace is among those that ExportedTo has returned.
func VisibleTo(exported []string, namespace string) bool {
	return slices.Contains(exported, exportedToAll) || slices.Contains(exported, namespace)
}

// MeshAnnotations keeps the annotations of Istio and Fairlead. It drops the injector's status, which is large.
func MeshAnnotations(annotations map[string]string) map[string]string {
	var out map[string]string
	for k, v := range annotations {
		domain, _, _ := strings.Cut(k, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") && domain != "fairlead.dev" || k == "sidecar.istio.io/status" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

func merged(base, over map[string]string) map[string]string {
	if len(base) == 0 {
		return over
	}
	out := maps.Clone(base)
	maps.Copy(out, over)
	return out
}

func sourceRef(o *object.Object) *configv1.SourceRef {
	if o.Origin != nil {
		o = o.Origin
	}
	return &configv1.SourceRef{
		Source: o.Source, ApiVersion: o.APIVersion, Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Generation: o.Generation,
		Location: o.Location,
	}
}

// HostsOf lists the hostnames of a Service or ServiceEntry as Host writes them, each once; none for other kinds.
// Partial wildcards, which validation warns of, are left out: no traffic can be sent to them. Aliases of a registry's
// ServiceEntry, and the host that the Services of all clusters have together, come last.
func HostsOf(o *object.Object, domain string) []string {
	switch b := o.Body.(type) {
	case *corev1.Service:
		out := []string{Host(o.Key.Name, o.Key.Namespace, domain)}
		if o.ClusterSet != nil && o.ClusterSet.Host != "" {
			out = append(out, o.ClusterSet.Host)
		}
		return out
	case *networking.ServiceEntry:
		out := make([]string, 0, len(b.Hosts))
		for _, h := range b.Hosts {
			if host := entryHost(h); !object.PartialWildcard(h) && !slices.Contains(out, host) {
				out = append(out, host)
			}
		}
		if o.Registered != nil {
			out = append(out, o.Registered.Aliases...)
		}
		return out
	}
	return nil
}

// PortsOf lists the ports of a Service or ServiceEntry; an ExternalName Service has none.
func PortsOf(o *object.Object) []*configv1.ServicePort {
	switch b := o.Body.(type) {
	case *corev1.Service:
		return fromService(o, b, "").Ports
	case *networking.ServiceEntry:
		return fromServiceEntry(o, b, "").Ports
	}
	return nil
}

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
