package validate

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkServiceEntry follows https://istio.io/latest/docs/reference/config/networking/service-entry/ and the rules of its CRD.
func checkServiceEntry(c *checker, o *object.Object, se *networking.ServiceEntry) {
	if len(se.Hosts) == 0 {
		c.fail("spec.hosts", nil, "missing", "list the hosts")
	}
	seen := map[string]int{}
	for i, h := range se.Hosts {
		at := index("spec.hosts", i)
		c.host(at, h)
		if h == "*" {
			c.fail(at, h, "would take over every host", `name hosts, or a part of the DNS such as "*.example.com"`)
		}
		if first, dup := seen[strings.ToLower(h)]; dup {
			c.fail(at, h, fmt.Sprintf("same host as hosts[%d]", first), "keep one of them")
		}
		seen[strings.ToLower(h)] = i
	}
	if se.WorkloadSelector != nil {
		c.workloadLabels("spec.workloadSelector.labels", se.WorkloadSelector.Labels)
		if len(se.Endpoints) > 0 {
			c.fail("spec.workloadSelector", nil, "cannot be combined with endpoints", "keep one of them")
		}
		if len(se.WorkloadSelector.Labels) == 0 {
			c.fail("spec.workloadSelector.labels", nil, "selects nothing", "name labels")
		}
	}
	for i, a := range se.Addresses {
		at := index("spec.addresses", i)
		c.ipOrCIDR(at, a)
		if strings.Contains(a, "/") && se.Resolution != networking.ServiceEntry_NONE && se.Resolution != networking.ServiceEntry_STATIC {
			c.fail(at, a, "a CIDR block needs resolution NONE or STATIC", "write single addresses")
		}
	}
	c.entryPorts(se)
	c.entryResolution(se)
	c.trafficDistribution(o)
	if v, ok := o.Labels[AutoAllocateLabel]; ok && v != "true" && v != "false" {
		c.fail(field("metadata.labels", AutoAllocateLabel), v, "neither true nor false", `write "false" for no address, or remove the label`)
	}
	for i, e := range se.Endpoints {
		at := index("spec.endpoints", i)
		c.workloadEntry(at, e, se.Resolution == networking.ServiceEntry_STATIC || se.Resolution == networking.ServiceEntry_NONE)
		if strings.HasPrefix(e.Address, "unix://") && len(se.Ports) > 1 {
			c.fail(at+".address", e.Address, "a unix socket stands for one port, the ServiceEntry has several", "write one ServiceEntry for each port")
		}
		for _, name := range sortedKeys(e.Ports) {
			if !hasPort(se.Ports, name) {
				c.fail(field(at+".ports", name), name, "no port of the ServiceEntry has this name", "use the name of one of spec.ports")
			}
		}
	}
	c.exportTo("spec.exportTo", se.ExportTo)
	for i, san := range se.SubjectAltNames {
		if san == "" {
			c.fail(index("spec.subjectAltNames", i), nil, "empty name", "remove it")
		}
	}
}

func hasPort(ports []*networking.ServicePort, name string) bool {
	for _, p := range ports {
		if p.Name == name {
			return true
		}
	}
	return false
}

func (c *checker) entryPorts(se *networking.ServiceEntry) {
	if len(se.Ports) == 0 {
		c.fail("spec.ports", nil, "missing", "list the ports with number, name and protocol")
	}
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range se.Ports {
		at := index("spec.ports", i)
		c.port(at+".number", p.Number)
		c.portName(at+".name", p.Name)
		if p.TargetPort != 0 {
			c.port(at+".targetPort", p.TargetPort)
		}
		if p.Protocol != "" {
			c.protocol(at+".protocol", p.Protocol)
		}
		if first, dup := names[p.Name]; dup {
			c.fail(at+".name", p.Name, fmt.Sprintf("same name as ports[%d]", first), "rename one of them")
		}
		if first, dup := numbers[p.Number]; dup {
			c.fail(at+".number", p.Number, fmt.Sprintf("same number as ports[%d]", first), "keep one of them")
		}
		names[p.Name], numbers[p.Number] = i, i
	}
}

func (c *checker) entryResolution(se *networking.ServiceEntry) {
	switch se.Resolution {
	case networking.ServiceEntry_NONE:
		if len(se.Endpoints) > 0 {
			c.fail("spec.endpoints", nil, "resolution NONE goes where the client asked for, endpoints have no effect", "set resolution STATIC or DNS, or remove endpoints")
		}
	case networking.ServiceEntry_STATIC:
		for i, h := range se.Hosts {
			if strings.HasPrefix(h, "*") && len(se.Endpoints) == 0 && se.WorkloadSelector == nil && len(se.Addresses) == 0 {
				c.fail(index("spec.hosts", i), h, "a wildcard host with resolution STATIC has nowhere to go", "add endpoints, or use resolution NONE")
			}
		}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(se.Endpoints) == 0 && se.WorkloadSelector == nil {
			for i, h := range se.Hosts {
				if strings.HasPrefix(h, "*") {
					c.fail(index("spec.hosts", i), h, "a wildcard host cannot be looked up in DNS", "add endpoints, or use resolution NONE or DYNAMIC_DNS")
				}
			}
		}
		if se.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(se.Endpoints) > 1 {
			c.fail("spec.endpoints", nil, "resolution DNS_ROUND_ROBIN has at most one endpoint", "keep one, or use resolution DNS")
		}
		for i, e := range se.Endpoints {
			if e.Address == "" && e.Network != "" {
				c.fail(index("spec.endpoints", i)+".address", nil, "nothing to look up in DNS", "set address, or use resolution STATIC")
			}
			if strings.HasPrefix(e.Address, "unix://") {
				c.fail(index("spec.endpoints", i)+".address", e.Address, "a unix socket cannot be looked up in DNS", "use resolution STATIC")
			}
		}
	case networking.ServiceEntry_DYNAMIC_DNS:
		if len(se.Endpoints) > 0 {
			c.fail("spec.endpoints", nil, "resolution DYNAMIC_DNS looks up the requested host, endpoints have no effect", "remove endpoints, or use resolution DNS")
		}
		for i, h := range se.Hosts {
			if !strings.HasPrefix(h, "*.") {
				c.fail(index("spec.hosts", i), h, "resolution DYNAMIC_DNS is for wildcard hosts", "use resolution DNS")
			}
		}
		if se.WorkloadSelector != nil {
			c.fail("spec.workloadSelector", nil, "resolution DYNAMIC_DNS looks up the requested host, workloads have no effect", "remove workloadSelector, or use resolution STATIC")
		}
		for i, p := range se.Ports {
			if !namesHost(p) {
				c.fail(index("spec.ports", i)+".protocol", p.Protocol, "resolution DYNAMIC_DNS needs a protocol whose clients name the host", "use HTTP, HTTP2, GRPC, HTTPS or TLS")
			}
			if p.TargetPort != 0 && p.TargetPort != p.Number {
				c.fail(index("spec.ports", i)+".targetPort", p.TargetPort, "resolution DYNAMIC_DNS connects to the port that was asked for", "remove targetPort")
			}
		}
	}
}

// namesHost tells whether clients of a port say which host they want.
func namesHost(p *networking.ServicePort) bool {
	said := p.Protocol
	if said == "" {
		said, _, _ = strings.Cut(p.Name, "-")
	}
	switch strings.ToUpper(said) {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS":
		return true
	default:
		return false
	}
}

func checkWorkloadEntry(c *checker, o *object.Object, we *networking.WorkloadEntry) {
	c.onDemandAnnotations(o)
	c.workloadEntry("spec", we, false)
}

// workloadEntry checks one endpoint; ipOnly where names cannot be resolved.
func (c *checker) workloadEntry(at string, we *networking.WorkloadEntry, ipOnly bool) {
	switch a := we.Address; {
	case a == "" && we.Network != "": // reached through the network's gateways alone
	case a == "":
		c.fail(at+".address", nil, "missing", "set an IP address, a DNS name or unix:///path, or the network whose gateways lead there")
	case strings.HasPrefix(a, "unix://"):
		c.unixSocket(at+".address", a)
		if len(we.Ports) > 0 {
			c.fail(at+".ports", nil, "a unix socket has no ports", "remove ports")
		}
	case isIP(a):
	case ipOnly:
		c.fail(at+".address", a, "not an IP address, which resolution STATIC needs", "write an IP address, or use resolution DNS")
	case !fqdn(a):
		c.fail(at+".address", a, "neither an IP address nor a DNS name", "correct it")
	}
	for _, name := range sortedKeys(we.Ports) {
		c.portName(field(at+".ports", name), name)
		c.port(field(at+".ports", name), we.Ports[name])
	}
	c.labels(at+".labels", we.Labels)
	if we.Locality != "" {
		c.locality(at+".locality", we.Locality)
		if strings.Contains(we.Locality, "*") {
			c.fail(at+".locality", we.Locality, "wildcard", "name the place in full")
		}
	}
	if sa := we.ServiceAccount; sa != "" && !dnsSubdomain(sa) {
		c.fail(at+".serviceAccount", sa, "not a service account's name", "use at most 253 lower-case letters, digits, '-' and '.'")
	}
}
