// Package kubernetes has the rules of Kubernetes' own kinds.
package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
)

type checker struct{ *check.Checker }

// Check applies the rules of the object's kind.
func Check(base *check.Checker, o *object.Object) {
	c := checker{base}
	switch b := o.Body.(type) {
	case *corev1.Service:
		c.service(o, b)
	case *object.Endpoints:
		c.endpoints(b)
	case *corev1.Pod:
		c.pod(o, b)
	case *corev1.ConfigMap:
		c.configMap(o, b)
	case *corev1.Secret:
		c.secret(b)
	case *discoveryv1.EndpointSlice:
		c.endpointSlice(b)
	case *networkingv1.Ingress:
		c.ingress(o, b)
	case *networkingv1.IngressClass:
		c.ingressClass(o, b)
	}
}

func (c checker) service(o *object.Object, s *corev1.Service) {
	c.TrafficDistribution(o)
	if d := s.Spec.TrafficDistribution; d != nil && !slices.Contains(object.TrafficDistributions, *d) {
		c.Fail("spec.trafficDistribution", *d, "unknown traffic distribution", decode.Suggest(*d, object.TrafficDistributions))
	}
	if v := o.Annotations[object.ExportToAnnotation]; v != "" {
		to := lists.Map(strings.Split(v, ","), strings.TrimSpace)
		c.ExportTo(manifest.Field("metadata.annotations", object.ExportToAnnotation), to, check.Exporter{Service: true})
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		c.FailIf(!check.FQDN(s.Spec.ExternalName), "spec.externalName", s.Spec.ExternalName, "not a DNS name",
			"name the host the service stands for")
	} else if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone {
		c.Fail("spec.ports", nil, "missing", "list the ports")
	}
	names, numbers := map[string]int{}, map[string]int{}
	for i, p := range s.Spec.Ports {
		at := manifest.Index("spec.ports", i)
		check.Port(c.Verdict, at+".port", p.Port)
		c.FailIf(p.Name == "" && len(s.Spec.Ports) > 1, at+".name", nil, "missing", "name every port of a service that has several")
		if p.Name != "" {
			c.PortName(at+".name", p.Name)
		}
		if first, dup := check.Again(names, p.Name, i); dup && p.Name != "" {
			c.Fail(at+".name", p.Name, fmt.Sprintf("same name as ports[%d]", first), "rename one of them")
		}
		switch p.Protocol {
		case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			c.Fail(at+".protocol", string(p.Protocol), "unknown protocol", "use TCP, UDP or SCTP")
		}
		key := fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP))
		if first, dup := check.Again(numbers, key, i); dup {
			c.Fail(at+".port", p.Port, fmt.Sprintf("same port as ports[%d]", first), "keep one of them")
		}
		if p.TargetPort.Type == intstr.Int && (p.TargetPort.IntVal < 0 || p.TargetPort.IntVal > 65535) {
			c.Fail(at+".targetPort", p.TargetPort.IntVal, "not a port", "use 1 to 65535, or a container port's name")
		}
	}
	for i, family := range s.Spec.IPFamilies {
		if family != corev1.IPv4Protocol && family != corev1.IPv6Protocol {
			c.Fail(manifest.Index("spec.ipFamilies", i), string(family), "unknown family", "use IPv4 or IPv6")
		} else if slices.Contains(s.Spec.IPFamilies[:i], family) {
			c.Fail(manifest.Index("spec.ipFamilies", i), string(family), "listed twice", "keep one of them")
		}
	}
	for i, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			c.IP(manifest.Index("spec.clusterIPs", i), ip)
		}
	}
	if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone && !check.IsIP(ip) {
		c.Fail("spec.clusterIP", ip, "not an IP address", `correct it, or use "None" for a headless service`)
	}
	c.Labels("spec.selector", s.Spec.Selector)
}

func (c checker) pod(o *object.Object, p *corev1.Pod) {
	ondemand.Annotations(c.Verdict, o)
	if ip := p.Status.PodIP; ip != "" {
		c.IP("status.podIP", ip)
	}
	for i, ip := range p.Status.PodIPs {
		c.IP(manifest.Index("status.podIPs", i)+".ip", ip.IP)
	}
	for i, ct := range p.Spec.Containers {
		for j, port := range ct.Ports {
			check.Port(c.Verdict, manifest.Index(manifest.Index("spec.containers", i)+".ports", j)+".containerPort", port.ContainerPort)
		}
	}
	if sa := p.Spec.ServiceAccountName; sa != "" && !check.DNSSubdomain(sa) {
		c.Fail("spec.serviceAccountName", sa, "not a service account's name", "use at most 253 lower-case letters, digits, '-' and '.'")
	}
}

func (c checker) endpoints(e *object.Endpoints) {
	for at, s := range manifest.Items("subsets", e.Subsets) {
		c.endpointAddresses(at+".addresses", s.Addresses)
		c.endpointAddresses(at+".notReadyAddresses", s.NotReadyAddresses)
		for j, p := range s.Ports {
			check.Port(c.Verdict, manifest.Index(at+".ports", j)+".port", p.Port)
		}
	}
}

func (c checker) endpointAddresses(at string, addresses []object.EndpointAddress) {
	for i, a := range addresses {
		c.IP(manifest.Index(at, i)+".ip", a.IP)
	}
}

func (c checker) endpointSlice(s *discoveryv1.EndpointSlice) {
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		c.Fail("addressType", string(s.AddressType), "unknown address type", "use IPv4, IPv6 or FQDN")
		return
	}
	for at, e := range manifest.Items("endpoints", s.Endpoints) {
		c.FailIf(len(e.Addresses) == 0, at+".addresses", nil, "missing", "list the address")
		for j, a := range e.Addresses {
			if s.AddressType != discoveryv1.AddressTypeFQDN && !check.IsIP(a) {
				c.Fail(manifest.Index(at+".addresses", j), a, "not an IP address", "correct it, or use addressType FQDN")
			}
		}
	}
	for i, p := range s.Ports {
		if p.Port != nil {
			check.Port(c.Verdict, manifest.Index("ports", i)+".port", *p.Port)
		}
	}
}

func (c checker) configMap(o *object.Object, m *corev1.ConfigMap) {
	if !kinds.IsMeshConfig(o.Key) {
		return
	}
	_, warnings, problems := meshconfig.ParseNetworks("", []byte(m.Data[kinds.NetworksKey]))
	c.entry(kinds.NetworksKey, warnings, problems)
	text, ok := m.Data[kinds.MeshKey]
	if !ok {
		return
	}
	_, warnings, problems = meshconfig.Parse("", []byte(text))
	c.entry(kinds.MeshKey, warnings, problems)
}

// entry adds what was found in an entry of the ConfigMap.
func (c checker) entry(key string, warnings, problems object.Problems) {
	at := func(p object.Problem) string {
		return strings.TrimSuffix("data."+key+"."+p.Field, ".")
	}
	for _, p := range problems {
		c.Fail(at(p), nil, p.Description(), "")
	}
	for _, w := range warnings {
		w.Object, w.Field = c.Object, at(w)
		if c.Doc != nil {
			w.Location = c.Doc.FieldLocation(w.Field)
		}
		c.Warnings = append(c.Warnings, w)
	}
}
