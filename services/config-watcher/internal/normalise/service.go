package normalise

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// buildService builds the Service of a hostname from its claimants; nil if none has a port or is an alias
// (ExternalName).
func buildService(h hostKey, claimants []*object.Object) *configv1.Service {
	var out *configv1.Service
	for _, o := range claimants {
		var s *configv1.Service
		switch b := o.Body.(type) {
		case *corev1.Service:
			s = fromService(o, b, h.hostname)
		case *networking.ServiceEntry:
			s = fromServiceEntry(o, b, h.hostname)
		}
		switch {
		case s == nil || len(s.Ports) == 0 && s.ExternalName == "":
		case out == nil:
			out = s
		default:
			join(out, s)
		}
	}
	return out
}

// ownerPorts are the ports that the object of an owner lists.
func ownerPorts(o *object.Object) []*configv1.ServicePort {
	switch b := o.Body.(type) {
	case *corev1.Service:
		return fromService(o, b, "").Ports
	case *networking.ServiceEntry:
		return fromServiceEntry(o, b, "").Ports
	}
	return nil
}

// join adds a later claimant of the same hostname: its SANs, and with the same resolution its ports and, from an object
// of the same kind, its addresses. A port number or name that is taken is not added.
func join(into, from *configv1.Service) {
	into.SubjectAltNames = sortedUnique(append(into.SubjectAltNames, from.SubjectAltNames...))
	if into.Resolution != from.Resolution || into.ExternalName != "" {
		return
	}
	if into.Source.Kind == from.Source.Kind {
		into.Addresses = sortedUnique(append(into.Addresses, from.Addresses...))
	}
	for _, p := range from.Ports {
		taken := slices.ContainsFunc(into.Ports, func(q *configv1.ServicePort) bool { return q.Number == p.Number || q.Name == p.Name })
		if !taken {
			into.Ports = append(into.Ports, p)
		}
	}
}

func created(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// fromService builds the Service of a Kubernetes Service, without exportedTo.
func fromService(o *object.Object, s *corev1.Service, hostname string) *configv1.Service {
	out := &configv1.Service{
		Hostname: hostname, Name: o.Key.Name, Namespace: o.Key.Namespace, Resolution: configv1.Resolution_RESOLUTION_STATIC,
		Selector: s.Spec.Selector, Labels: o.Labels, CreationTime: created(o.Created), Source: sourceRef(o),
		Headless:                 s.Spec.ClusterIP == corev1.ClusterIPNone,
		SessionAffinityClientIp:  s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
	}
	out.NetworkGateway = networkGateway(o, s)
	out.TrafficDistribution = trafficDistribution(s.Spec.TrafficDistribution, o.Annotations)
	out.NodeLocal = s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	for _, p := range s.Spec.Ports {
		port := &configv1.ServicePort{Name: p.Name, Number: uint32(p.Port),
			Protocol: contract.PortProtocol(p.Port, p.Name, string(p.Protocol), p.AppProtocol)}
		switch {
		case p.TargetPort.Type == intstr.String && p.TargetPort.StrVal != "":
			port.TargetPortName = p.TargetPort.StrVal
		case p.TargetPort.IntVal != 0:
			port.TargetPort = uint32(p.TargetPort.IntVal)
		default:
			port.TargetPort = uint32(p.Port)
		}
		out.Ports = append(out.Ports, port)
	}
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		out.Resolution, out.ExternalName = configv1.Resolution_RESOLUTION_DNS, Host(strings.TrimSuffix(s.Spec.ExternalName, ".")+".", "", "")
		out.Selector, out.Ports, out.MeshExternal = nil, nil, true
	case out.Headless:
		out.Resolution = configv1.Resolution_RESOLUTION_PASSTHROUGH
	default:
		out.Addresses = clusterIPs(s)
	}
	return out
}

func clusterIPs(s *corev1.Service) []string {
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{s.Spec.ClusterIP}
	}
	out := lists.Filter(ips, func(ip string) bool { return ip != "" && ip != corev1.ClusterIPNone })
	return sortedUnique(out)
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
	out.Addresses = canonicalAddresses(se.Addresses)
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

func sortedUnique(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// canonicalAddresses writes addresses and CIDRs in their shortest form, sorted. A CIDR of one address becomes that
// address.
func canonicalAddresses(texts []string) []string {
	var out []string
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			text = ip.String()
		} else if network, err := netip.ParsePrefix(text); err == nil {
			if text = network.Masked().String(); network.IsSingleIP() {
				text = network.Addr().String()
			}
		}
		out = append(out, text)
	}
	return sortedUnique(out)
}

// trafficDistribution is the field of a Service, or the annotation in Kubernetes' spelling.
func trafficDistribution(own *string, annotations map[string]string) string {
	if own != nil {
		return *own
	}
	for _, known := range object.TrafficDistributions {
		if strings.EqualFold(annotations[object.TrafficDistributionAnnotation], known) {
			return known
		}
	}
	return ""
}

// wantsVIP reports whether a service needs an allocated address: it comes from ServiceEntries alone, its hostname is
// one name, it has no address, no label forbids it, and proxies do not connect to whatever the client asked for.
func wantsVIP(h hostKey, s *configv1.Service) bool {
	if s.Source.Kind != "ServiceEntry" || len(s.Addresses) > 0 || strings.HasPrefix(h.hostname, "*") ||
		s.Labels[object.AutoAllocateLabel] == "false" {
		return false
	}
	if _, err := netip.ParseAddr(h.hostname); err == nil {
		return false
	}
	return s.Resolution != configv1.Resolution_RESOLUTION_PASSTHROUGH && s.Resolution != configv1.Resolution_RESOLUTION_DYNAMIC_DNS
}
