package networking

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// serviceEntry follows https://istio.io/latest/docs/reference/config/networking/service-entry/ and the rules of
// its CRD.
func (c Checker) serviceEntry(o *object.Object, se *networking.ServiceEntry) {
	c.FailIf(len(se.Hosts) == 0, "spec.hosts", nil, "missing", "list the hosts")
	seen := map[string]int{}
	for i, h := range se.Hosts {
		at := manifest.Index("spec.hosts", i)
		c.entryHost(at, h)
		if first, dup := check.Again(seen, strings.ToLower(h), i); dup {
			c.Remark(at, fmt.Sprintf("same host as hosts[%d]", first), "keep one of them")
		}
	}
	c.Selector("spec.workloadSelector.labels", se.WorkloadSelector != nil, se.WorkloadSelector.GetLabels())
	c.FailIf(se.WorkloadSelector != nil && len(se.Endpoints) > 0, "spec.workloadSelector", nil, "cannot be combined with endpoints",
		"keep one of them")
	for at, a := range manifest.Items("spec.addresses", se.Addresses) {
		c.IPOrCIDR(at, a)
		if strings.Contains(a, "/") && se.Resolution != networking.ServiceEntry_NONE && se.Resolution != networking.ServiceEntry_STATIC {
			c.Fail(at, a, "a CIDR block needs resolution NONE or STATIC", "write single addresses")
		}
	}
	c.entryPorts(se)
	c.entryResolution(se)
	c.TrafficDistribution(o)
	if v, ok := o.Labels[object.AutoAllocateLabel]; ok && v != "true" && v != "false" {
		c.Warn(manifest.Field("metadata.labels", object.AutoAllocateLabel),
			"neither true nor false", `write "false" for no address, or remove the label`)
	}
	const waypoint = "istio.io/use-waypoint"
	if v := o.Labels[waypoint]; v != "" && !strings.EqualFold(v, "none") {
		if se.Resolution == networking.ServiceEntry_DYNAMIC_DNS && se.Location == networking.ServiceEntry_MESH_INTERNAL {
			c.Fail(manifest.Field("metadata.labels", waypoint), v, "not possible with resolution DYNAMIC_DNS and location MESH_INTERNAL",
				"remove the label")
		} else {
			c.Warn(manifest.Field("metadata.labels", waypoint), "waypoints are of ambient mode, which is not supported", "remove the label")
		}
	}
	for at, e := range manifest.Items("spec.endpoints", se.Endpoints) {
		c.workloadEntry(at, e, se.Resolution == networking.ServiceEntry_STATIC || se.Resolution == networking.ServiceEntry_NONE)
		if strings.HasPrefix(e.Address, "unix://") && len(se.Ports) != 1 {
			c.Fail(at+".address", e.Address, fmt.Sprintf("a unix socket stands for one port, the ServiceEntry has %d", len(se.Ports)),
				"write one ServiceEntry for each port")
		}
		for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
			if !slices.ContainsFunc(se.Ports, func(p *networking.ServicePort) bool { return p.Name == name }) {
				c.Fail(manifest.Field(at+".ports", name), name, "no port of the ServiceEntry has this name", "use the name of one of spec.ports")
			}
		}
	}
	c.ExportTo("spec.exportTo", se.ExportTo, check.Exporter{Service: true})
	for i, san := range se.SubjectAltNames {
		c.RemarkIf(san == "", manifest.Index("spec.subjectAltNames", i), "matches no certificate: it is empty", "remove it")
	}
}

// entryHost checks a host. Like Istio it accepts a wildcard that is a part of the first label, with a warning.
func (c Checker) entryHost(at, h string) {
	name := h
	switch {
	case h == "":
		c.Fail(at, nil, "host is empty", `name a host such as "www.example.com"`)
		return
	case h == "*":
		c.Fail(at, h, "would take over every host", `name hosts, or a part of the DNS such as "*.example.com"`)
		return
	case strings.HasPrefix(h, "*."):
		name = h[2:]
	case strings.HasPrefix(h, "*"):
		name = strings.TrimPrefix(h[1:], "-")
		c.Warn(at, "a wildcard that is a part of a label is not looked for", `write a whole label, "*.example.com"`)
	}
	if check.IsIP(h) || !dnsName(name) && (strings.Contains(h, ".") || !check.NameLabel(name)) {
		c.Fail(at, h, "not a valid host", "use letters, digits, '-' and '.', at most 63 characters between dots, the last part no number")
	}
}

func (c Checker) entryPorts(se *networking.ServiceEntry) {
	c.RemarkIf(len(se.Ports) == 0, "spec", "has no ports: its hosts are treated like unknown ones",
		"list the ports with number, name and protocol")
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range se.Ports {
		at := manifest.Index("spec.ports", i)
		check.Port(c.Verdict, at+".number", p.Number)
		c.entryPortName(at+".name", p.Name)
		if p.TargetPort != 0 {
			check.Port(c.Verdict, at+".targetPort", p.TargetPort)
		}
		if p.Protocol != "" {
			c.protocol(at+".protocol", p.Protocol, "HTTP_PROXY")
		}
		if first, dup := check.Again(names, p.Name, i); dup {
			c.Fail(at+".name", p.Name, fmt.Sprintf("same name as ports[%d]", first), "rename one of them")
		}
		if first, dup := check.Again(numbers, p.Number, i); dup {
			c.Fail(at+".number", p.Number, fmt.Sprintf("same number as ports[%d]", first), "keep one of them")
		}
		if len(se.Hosts) > 1 && se.Resolution != networking.ServiceEntry_NONE &&
			!slices.Contains(protocolsWithHost, strings.ToUpper(p.Protocol)) {
			c.Fail(at+".protocol", p.Protocol, "the clients of several hosts must say which one they want",
				"declare HTTP, HTTP2, GRPC, GRPC-WEB, HTTPS or TLS, or write one ServiceEntry for each host")
		}
	}
}

// protocolsWithHost are the protocols in which clients name the host.
var protocolsWithHost = []string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "HTTPS", "TLS"}

func (c Checker) entryResolution(se *networking.ServiceEntry) {
	switch se.Resolution {
	case networking.ServiceEntry_NONE:
		if len(se.Endpoints) > 0 {
			c.Fail("spec.endpoints", nil, "resolution NONE goes where the client asked for, endpoints have no effect",
				"set resolution STATIC or DNS, or remove endpoints")
		}
	case networking.ServiceEntry_STATIC:
		for i, h := range se.Hosts {
			if strings.HasPrefix(h, "*") && len(se.Endpoints) == 0 && se.WorkloadSelector == nil && len(se.Addresses) == 0 {
				c.Remark(manifest.Index("spec.hosts", i), "a wildcard host with resolution STATIC and no endpoints has nowhere to go",
					"add endpoints, or use resolution NONE")
			}
		}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(se.Endpoints) == 0 {
			for i, h := range se.Hosts {
				if strings.HasPrefix(h, "*") {
					c.Fail(manifest.Index("spec.hosts", i), h, "a wildcard host cannot be looked up in DNS",
						"add endpoints, or use resolution NONE or DYNAMIC_DNS")
				} else if !dnsName(h) {
					c.Fail(manifest.Index("spec.hosts", i), h, "a number cannot be looked up in DNS", "add endpoints")
				}
			}
		}
		if se.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(se.Endpoints) > 1 {
			c.Fail("spec.endpoints", nil, "resolution DNS_ROUND_ROBIN has at most one endpoint", "keep one, or use resolution DNS")
		}
		for i, e := range se.Endpoints {
			if e.Address == "" && e.Network != "" {
				c.Fail(manifest.Index("spec.endpoints", i)+".address", nil, "nothing to look up in DNS", "set address, or use resolution STATIC")
			}
			if strings.HasPrefix(e.Address, "unix://") {
				c.Fail(manifest.Index("spec.endpoints", i)+".address", e.Address, "a unix socket cannot be looked up in DNS", "use resolution STATIC")
			}
		}
	case networking.ServiceEntry_DYNAMIC_DNS:
		if len(se.Endpoints) > 0 {
			c.Fail("spec.endpoints", nil, "resolution DYNAMIC_DNS looks up the requested host, endpoints have no effect",
				"remove endpoints, or use resolution DNS")
		}
		for i, h := range se.Hosts {
			c.FailIf(!strings.HasPrefix(h, "*"), manifest.Index("spec.hosts", i), h, "resolution DYNAMIC_DNS is for wildcard hosts",
				"use resolution DNS")
		}
		if len(se.Addresses) > 0 {
			c.Fail("spec.addresses", nil, "resolution DYNAMIC_DNS looks up the requested host, addresses have no effect",
				"remove addresses, or use resolution NONE")
		}
		if se.WorkloadSelector != nil {
			c.Warn("spec.workloadSelector",
				"resolution DYNAMIC_DNS looks up the requested host", "remove workloadSelector, or use resolution STATIC")
		}
		for i, p := range se.Ports {
			if !slices.Contains([]string{"HTTP", "HTTP2", "GRPC", "TLS"}, strings.ToUpper(p.Protocol)) {
				c.Fail(manifest.Index("spec.ports", i)+".protocol", p.Protocol, "resolution DYNAMIC_DNS needs a protocol whose clients name the host",
					"use HTTP, HTTP2, GRPC or TLS")
			}
			if p.TargetPort != 0 && p.TargetPort != p.Number {
				c.Warn(manifest.Index("spec.ports", i)+".targetPort",
					"resolution DYNAMIC_DNS connects to the port that was asked for", "remove targetPort")
			}
		}
	}
}

// workloadEntry checks one endpoint. ipOnly is true if the resolution looks up no names.
func (c Checker) workloadEntry(at string, we *networking.WorkloadEntry, ipOnly bool) {
	switch a := we.Address; {
	case a == "" && we.Network != "": // reached only through the network's gateways
	case a == "":
		c.Fail(at+".address", nil, "missing", "set an IP address, a DNS name or unix:///path, or the network whose gateways lead there")
	case strings.HasPrefix(a, "unix://"):
		c.unixSocket(at+".address", a)
		c.FailIf(len(we.Ports) > 0, at+".ports", nil, "a unix socket has no ports", "remove ports")
	case check.IsIP(a):
	case ipOnly:
		c.Fail(at+".address", a, "not an IP address, which resolution STATIC needs", "write an IP address, or use resolution DNS")
	case !dnsName(a):
		c.Fail(at+".address", a, "neither an IP address nor a DNS name", "correct it")
	}
	for _, name := range slices.Sorted(maps.Keys(we.Ports)) {
		c.entryPortName(manifest.Field(at+".ports", name), name)
		check.Port(c.Verdict, manifest.Field(at+".ports", name), we.Ports[name])
	}
	c.Labels(at+".labels", we.Labels)
	if parts := strings.Split(we.Locality, "/"); we.Locality != "" &&
		(len(parts) > 3 || strings.Contains(we.Locality, "*") || slices.Contains(parts, "")) {
		c.Remark(at+".locality", "is no place that a rule can name", "write region/zone/subzone without gaps and wildcards")
	}
	if sa := we.ServiceAccount; sa != "" && !check.DNSSubdomain(sa) {
		c.Remark(at+".serviceAccount", "no workload proves to be it: not a service account's name",
			"use at most 253 lower-case letters, digits, '-' and '.'")
	}
}
