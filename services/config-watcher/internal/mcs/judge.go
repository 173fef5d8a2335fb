package mcs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/status"
)

// member is what one cluster has under a name.
type member struct {
	// cluster is the id, also of the own cluster.
	cluster string
	own     bool
	// service, export and imported are a Service, a ServiceExport and a ServiceImport; nil if there is none.
	service, export, imported *object.Object
}

func (m *member) empty() bool { return m.service == nil && m.export == nil && m.imported == nil }

// spec is the Service's; nil if there is none that has endpoints.
func (m *member) spec() *corev1.Service {
	if m.service == nil {
		return nil
	}
	s, _ := m.service.Body.(*corev1.Service)
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return s
}

// exporters are the members whose Service is exported, that with the oldest export first. Control planes of different
// clusters come to the same order.
func exporters(all []*member) []*member {
	out := lists.Filter(all, func(m *member) bool { return m.export != nil && m.spec() != nil })
	slices.SortFunc(out, func(a, b *member) int {
		return cmp.Or(a.export.Created.Compare(b.export.Created), strings.Compare(a.cluster, b.cluster))
	})
	return out
}

// property is one that all exported Services of a name must have in common.
type property struct {
	reason mcsv1beta1.ServiceExportConditionReason
	name   string
	of     func(*corev1.Service) string
}

// properties are those of KEP-1645, in the order in which reasons are joined.
var properties = []property{
	{mcsv1beta1.ServiceExportReasonPortConflict, "ports", portsText},
	{mcsv1beta1.ServiceExportReasonTypeConflict, "type", func(s *corev1.Service) string {
		if headless(s) {
			return string(mcsv1beta1.Headless)
		}
		return string(mcsv1beta1.ClusterSetIP)
	}},
	{mcsv1beta1.ServiceExportReasonSessionAffinityConflict, "sessionAffinity", func(s *corev1.Service) string {
		return string(cmp.Or(s.Spec.SessionAffinity, corev1.ServiceAffinityNone))
	}},
	{mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, "sessionAffinityConfig", func(s *corev1.Service) string {
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			return fmt.Sprintf("%d s", *c.ClientIP.TimeoutSeconds)
		}
		return unset
	}},
	{mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy", func(s *corev1.Service) string {
		if p := s.Spec.InternalTrafficPolicy; p != nil {
			return string(*p)
		}
		return string(corev1.ServiceInternalTrafficPolicyCluster)
	}},
	{mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution", func(s *corev1.Service) string {
		if d := s.Spec.TrafficDistribution; d != nil {
			return *d
		}
		return unset
	}},
}

// unset stands for a property that a Service does not state.
const unset = "none"

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// portsText has what clients see of the ports, in no order.
func portsText(s *corev1.Service) string {
	out := lists.Map(s.Spec.Ports, func(p corev1.ServicePort) string {
		text := fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP))
		if p.Name != "" {
			text = p.Name + " " + text
		}
		if p.AppProtocol != nil {
			text += " " + *p.AppProtocol
		}
		return text
	})
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// conflict compares the exported Services of a name with that of the oldest export. It returns the joined reasons; ""
// if they agree. The message names the first cluster that differs in each property.
func conflict(exported []*member) (reasons, message string) {
	var which, texts []string
	for _, p := range properties {
		for _, m := range exported {
			if first, own := p.of(exported[0].spec()), p.of(m.spec()); first != own {
				which = append(which, string(p.reason))
				texts = append(texts, fmt.Sprintf("%s: %s in cluster %s, %s in cluster %s, whose export is the oldest, so this counts", p.name,
					object.Quote(own), m.cluster, object.Quote(first), exported[0].cluster))
				break
			}
		}
	}
	return strings.Join(which, ","), strings.Join(texts, "; ")
}

// conditions are those of a member's export. all are the members of its name.
func conditions(m *member, all []*member) []status.Condition {
	valid := status.Condition{Type: string(mcsv1beta1.ServiceExportConditionValid), Holds: true,
		Reason: string(mcsv1beta1.ServiceExportReasonValid), Message: "the Service can be exported"}
	switch {
	case m.service == nil:
		valid.Holds, valid.Reason = false, string(mcsv1beta1.ServiceExportReasonNoService)
		valid.Message = "there is no Service of this name in the namespace; create it, or remove the export"
	case m.spec() == nil:
		valid.Holds, valid.Reason = false, string(mcsv1beta1.ServiceExportReasonInvalidServiceType)
		valid.Message = "a Service of type ExternalName has no endpoints; change its type, or remove the export"
	}
	ready := status.Condition{Type: string(mcsv1beta1.ServiceExportConditionReady), Holds: valid.Holds,
		Reason: string(mcsv1beta1.ServiceExportReasonExported), Message: "clients of the mesh in other clusters find the endpoints"}
	conflicts := status.Condition{Type: string(mcsv1beta1.ServiceExportConditionConflict),
		Reason: string(mcsv1beta1.ServiceExportReasonNoConflicts), Message: "the exported Services of this name agree"}
	if !valid.Holds {
		ready.Reason, ready.Message = string(mcsv1beta1.ServiceExportReasonPending), "the export is not valid"
		conflicts.Message = "the export takes no part, because it is not valid"
	} else if reasons, message := conflict(exporters(all)); reasons != "" {
		conflicts.Holds, conflicts.Reason, conflicts.Message = true, reasons, message
	}
	return []status.Condition{valid, ready, conflicts}
}

// importers are the members whose import gives a host: a headless one, or one with addresses. That of the own cluster
// comes first, then by id.
func importers(all []*member) []*member {
	out := lists.Filter(all, func(m *member) bool {
		if m.imported == nil {
			return false
		}
		in := m.imported.Body.(*mcsv1beta1.ServiceImport)
		return in.Spec.Type == mcsv1beta1.Headless || len(in.Spec.IPs) > 0
	})
	slices.SortFunc(out, func(a, b *member) int {
		switch {
		case a.own != b.own && a.own:
			return -1
		case a.own != b.own:
			return 1
		}
		return strings.Compare(a.cluster, b.cluster)
	})
	return out
}

// joined makes the Service that all clusters together have, and its addresses by cluster; nil if no cluster has a
// Service of the name, or none imports it. The oldest export's Service decides, without an export the own cluster's,
// else the first cluster's.
func joined(all []*member) (*corev1.Service, []object.ClusterVIPs) {
	imports := importers(all)
	sources := exporters(all)
	if len(sources) == 0 {
		sources = lists.Filter(all, func(m *member) bool { return m.spec() != nil })
		sources = sources[:min(len(sources), 1)]
	}
	if len(imports) == 0 || len(sources) == 0 {
		return nil, nil
	}
	out := sources[0].spec().DeepCopy()
	for _, m := range sources[1:] {
		for _, p := range m.spec().Spec.Ports {
			taken := slices.ContainsFunc(out.Spec.Ports, func(q corev1.ServicePort) bool {
				return p.Name == q.Name || p.Port == q.Port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == cmp.Or(q.Protocol, corev1.ProtocolTCP)
			})
			if !taken && p.Name != "" {
				out.Spec.Ports = append(out.Spec.Ports, p)
			}
		}
	}
	decides := imports[0].imported.Body.(*mcsv1beta1.ServiceImport)
	out.Spec.ClusterIP, out.Spec.ClusterIPs = corev1.ClusterIPNone, nil
	if decides.Spec.Type != mcsv1beta1.Headless {
		out.Spec.ClusterIPs = canonical(decides.Spec.IPs)
		out.Spec.ClusterIP = out.Spec.ClusterIPs[0]
	}
	var vips []object.ClusterVIPs
	for _, m := range imports {
		at := object.ClusterVIPs{Cluster: m.cluster}
		if in := m.imported.Body.(*mcsv1beta1.ServiceImport); decides.Spec.Type != mcsv1beta1.Headless {
			at.IPs = canonical(in.Spec.IPs)
		}
		vips = append(vips, at)
	}
	slices.SortFunc(vips, func(a, b object.ClusterVIPs) int { return strings.Compare(a.Cluster, b.Cluster) })
	return out, vips
}

// canonical are addresses, which validation has checked, in canonical form, sorted.
func canonical(ips []string) []string {
	out := lists.Map(ips, func(text string) string {
		if ip, err := netip.ParseAddr(text); err == nil {
			return ip.String()
		}
		return text
	})
	slices.Sort(out)
	return slices.Compact(out)
}
