package normalise

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

var serviceKind = ownerRules(func(_ *Mesh, o *object.Object) *owner {
	s := o.Body.(*corev1.Service)
	out := &owner{service: s, ports: fromService(o, s, "").Ports}
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		out.selector = s.Spec.Selector
	}
	return out
})

// fromService builds the Service of a Kubernetes Service, without exportedTo and network gateways.
func fromService(o *object.Object, s *corev1.Service, hostname string) *configv1.Service {
	out := &configv1.Service{
		Hostname: hostname, Name: o.Key.Name, Namespace: o.Key.Namespace, Resolution: configv1.Resolution_RESOLUTION_STATIC,
		Selector: s.Spec.Selector, Labels: o.Labels, CreationTime: created(o.Created), Source: sourceRef(o),
		Headless:                 s.Spec.ClusterIP == corev1.ClusterIPNone,
		SessionAffinityClientIp:  s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
	}
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

func created(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func sortedUnique(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}
