package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// trafficDistribution checks the annotation, whose value is not case-sensitive.
func (c *checker) trafficDistribution(o *object.Object) {
	v, ok := o.Annotations[object.TrafficDistributionAnnotation]
	if ok && v != "" && !slices.ContainsFunc(object.TrafficDistributions, func(known string) bool { return strings.EqualFold(v, known) }) {
		c.warn(field("metadata.annotations", object.TrafficDistributionAnnotation),
			verdict{"unknown traffic distribution " + strconv.Quote(v), suggestion(v, object.TrafficDistributions)})
	}
}

func checkService(c *checker, o *object.Object, s *corev1.Service) {
	c.trafficDistribution(o)
	if d := s.Spec.TrafficDistribution; d != nil && !slices.Contains(object.TrafficDistributions, *d) {
		c.fail("spec.trafficDistribution", *d, "unknown traffic distribution", suggestion(*d, object.TrafficDistributions))
	}
	if v := o.Annotations[object.ExportToAnnotation]; v != "" {
		to := lists.Map(strings.Split(v, ","), strings.TrimSpace)
		c.exportTo(field("metadata.annotations", object.ExportToAnnotation), to, exporter{service: true})
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		c.failIf(!fqdn(s.Spec.ExternalName), "spec.externalName", s.Spec.ExternalName, "not a DNS name", "name the host the service stands for")
	} else if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone {
		c.fail("spec.ports", nil, "missing", "list the ports")
	}
	names, numbers := map[string]int{}, map[string]int{}
	for i, p := range s.Spec.Ports {
		at := index("spec.ports", i)
		checkPort(c, at+".port", p.Port)
		c.failIf(p.Name == "" && len(s.Spec.Ports) > 1, at+".name", nil, "missing", "name every port of a service that has several")
		if p.Name != "" {
			c.portName(at+".name", p.Name)
		}
		if first, dup := again(names, p.Name, i); dup && p.Name != "" {
			c.fail(at+".name", p.Name, fmt.Sprintf("same name as ports[%d]", first), "rename one of them")
		}
		switch p.Protocol {
		case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			c.fail(at+".protocol", string(p.Protocol), "unknown protocol", "use TCP, UDP or SCTP")
		}
		key := fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP))
		if first, dup := again(numbers, key, i); dup {
			c.fail(at+".port", p.Port, fmt.Sprintf("same port as ports[%d]", first), "keep one of them")
		}
		if p.TargetPort.Type == intstr.Int && (p.TargetPort.IntVal < 0 || p.TargetPort.IntVal > 65535) {
			c.fail(at+".targetPort", p.TargetPort.IntVal, "not a port", "use 1 to 65535, or a container port's name")
		}
	}
	for i, family := range s.Spec.IPFamilies {
		if family != corev1.IPv4Protocol && family != corev1.IPv6Protocol {
			c.fail(index("spec.ipFamilies", i), string(family), "unknown family", "use IPv4 or IPv6")
		} else if slices.Contains(s.Spec.IPFamilies[:i], family) {
			c.fail(index("spec.ipFamilies", i), string(family), "listed twice", "keep one of them")
		}
	}
	for i, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			c.ip(index("spec.clusterIPs", i), ip)
		}
	}
	if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone && !isIP(ip) {
		c.fail("spec.clusterIP", ip, "not an IP address", `correct it, or use "None" for a headless service`)
	}
	c.labels("spec.selector", s.Spec.Selector)
}

func checkPod(c *checker, o *object.Object, p *corev1.Pod) {
	c.onDemandAnnotations(o)
	if ip := p.Status.PodIP; ip != "" {
		c.ip("status.podIP", ip)
	}
	for i, ip := range p.Status.PodIPs {
		c.ip(index("status.podIPs", i)+".ip", ip.IP)
	}
	for i, ct := range p.Spec.Containers {
		for j, port := range ct.Ports {
			checkPort(c, index(index("spec.containers", i)+".ports", j)+".containerPort", port.ContainerPort)
		}
	}
	if sa := p.Spec.ServiceAccountName; sa != "" && !dnsSubdomain(sa) {
		c.fail("spec.serviceAccountName", sa, "not a service account's name", "use at most 253 lower-case letters, digits, '-' and '.'")
	}
}

func checkEndpoints(c *checker, _ *object.Object, e *object.Endpoints) {
	for at, s := range each("subsets", e.Subsets) {
		c.endpointAddresses(at+".addresses", s.Addresses)
		c.endpointAddresses(at+".notReadyAddresses", s.NotReadyAddresses)
		for j, p := range s.Ports {
			checkPort(c, index(at+".ports", j)+".port", p.Port)
		}
	}
}

func (c *checker) endpointAddresses(at string, addresses []object.EndpointAddress) {
	for i, a := range addresses {
		c.ip(index(at, i)+".ip", a.IP)
	}
}

func checkEndpointSlice(c *checker, _ *object.Object, s *discoveryv1.EndpointSlice) {
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		c.fail("addressType", string(s.AddressType), "unknown address type", "use IPv4, IPv6 or FQDN")
		return
	}
	for at, e := range each("endpoints", s.Endpoints) {
		c.failIf(len(e.Addresses) == 0, at+".addresses", nil, "missing", "list the address")
		for j, a := range e.Addresses {
			if s.AddressType != discoveryv1.AddressTypeFQDN && !isIP(a) {
				c.fail(index(at+".addresses", j), a, "not an IP address", "correct it, or use addressType FQDN")
			}
		}
	}
	for i, p := range s.Ports {
		if p.Port != nil {
			checkPort(c, index("ports", i)+".port", *p.Port)
		}
	}
}

// meshNetworks warns of networks listed in meshNetworks, which Fairlead does not read. Every installation has the key,
// mostly with an empty value.
func (c *checker) meshNetworks(text string) {
	docs, problems := manifest.Parse("", []byte(text))
	if len(problems) > 0 || len(docs) == 0 {
		return
	}
	if networks, ok := docs[0].Tree["networks"].(map[string]any); ok && len(networks) > 0 {
		c.warn("data.meshNetworks", verdict{"networks are found by labels",
			"put the label topology.istio.io/network on their gateways' Services and on workloads"})
	}
}

func checkConfigMap(c *checker, o *object.Object, m *corev1.ConfigMap) {
	if !kinds.IsMeshConfig(o.Key) {
		return
	}
	c.meshNetworks(m.Data["meshNetworks"])
	text, ok := m.Data[kinds.MeshKey]
	if !ok {
		return
	}
	_, warnings, problems := MeshConfig("", []byte(text))
	at := func(p object.Problem) string {
		return strings.TrimSuffix("data."+kinds.MeshKey+"."+p.Field, ".")
	}
	for _, p := range problems {
		c.fail(at(p), nil, p.Description(), "")
	}
	for _, w := range warnings {
		w.Object, w.Field = c.object, at(w)
		if c.doc != nil {
			w.Location = c.doc.FieldLocation(w.Field)
		}
		c.warnings = append(c.warnings, w)
	}
}
