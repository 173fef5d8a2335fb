package validate

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// routeRole says what a VirtualService's HTTP routes are: whole, or half of a delegation.
type routeRole int

const (
	independent routeRole = iota
	root                  // has a delegate
	delegate              // belongs to a VirtualService without hosts
)

// checkVirtualService follows the rules of Istio's VirtualService reference
// (https://istio.io/latest/docs/reference/config/networking/virtual-service/).
func checkVirtualService(c *checker, _ *object.Object, vs *networking.VirtualService) {
	isDelegate := len(vs.Hosts) == 0
	mesh := len(vs.Gateways) == 0
	for i, g := range vs.Gateways {
		at := index("spec.gateways", i)
		c.gatewayRef(at, g)
		mesh = mesh || g == "mesh"
	}
	if isDelegate {
		if len(vs.Gateways) > 0 {
			c.fail("spec.gateways", nil, "a delegate (no hosts) takes its gateways from the VirtualService that delegates", "remove gateways, or add hosts")
		}
		if len(vs.Tcp) > 0 || len(vs.Tls) > 0 {
			c.fail("spec.hosts", nil, "missing, and tcp and tls routes cannot be delegated to", "add hosts")
		}
		if len(vs.Http) == 0 {
			c.fail("spec.hosts", nil, "missing", "list the hosts whose traffic is routed; only a delegate with http routes has none")
		}
	}
	c.virtualHosts(vs.Hosts, mesh)
	if len(vs.Http)+len(vs.Tls)+len(vs.Tcp) == 0 && !isDelegate {
		c.fail("spec", nil, "no route", "add http, tls or tcp")
	}
	for i, r := range vs.Http {
		role := independent
		switch {
		case isDelegate:
			role = delegate
		case r.Delegate != nil:
			role = root
		}
		c.httpRoute(index("spec.http", i), r, role)
	}
	for i, r := range vs.Tls {
		c.tlsRoute(index("spec.tls", i), r, vs.Hosts)
	}
	for i, r := range vs.Tcp {
		at := index("spec.tcp", i)
		for j, m := range r.Match {
			c.l4Match(index(at+".match", j), m.DestinationSubnets, m.SourceSubnet, m.Port, m.SourceLabels, m.Gateways, m.SourceNamespace)
		}
		c.l4Routes(at+".route", r.Route)
	}
	c.exportTo("spec.exportTo", vs.ExportTo)
}

func (c *checker) virtualHosts(hosts []string, mesh bool) {
	seen := map[string]int{}
	for i, h := range hosts {
		at := index("spec.hosts", i)
		c.host(at, h)
		if first, dup := seen[strings.ToLower(h)]; dup {
			c.fail(at, h, fmt.Sprintf("same host as hosts[%d]", first), "keep one of them")
		}
		seen[strings.ToLower(h)] = i
		if h == "*" && mesh {
			c.fail(at, h, `host "*" is only allowed on gateways, not for the sidecars of the mesh`, "name the hosts, or bind to a gateway only")
		}
	}
}

func (c *checker) tlsRoute(at string, r *networking.TLSRoute, hosts []string) {
	if len(r.Match) == 0 {
		c.fail(at+".match", nil, "missing", "add a match with sniHosts")
	}
	for j, m := range r.Match {
		mp := index(at+".match", j)
		if len(m.SniHosts) == 0 {
			c.fail(mp+".sniHosts", nil, "missing", "list the server names this route serves")
		}
		for k, sni := range m.SniHosts {
			sp := index(mp+".sniHosts", k)
			c.host(sp, sni)
			if len(hosts) > 0 && !covered(sni, hosts) {
				c.fail(sp, sni, "server name is not covered by hosts", "add it to spec.hosts")
			}
		}
		c.l4Match(mp, m.DestinationSubnets, "", m.Port, m.SourceLabels, m.Gateways, m.SourceNamespace)
	}
	c.l4Routes(at+".route", r.Route)
}

// covered reports whether a server name, or each name of a wildcard, lies within one of the hosts.
func covered(name string, hosts []string) bool {
	for _, h := range hosts {
		if h == "*" || strings.EqualFold(h, name) {
			return true
		}
		if strings.HasPrefix(h, "*.") && strings.HasSuffix(strings.ToLower(name), strings.ToLower(h[1:])) {
			return true
		}
	}
	return false
}

func (c *checker) l4Match(at string, subnets []string, source string, port uint32, labels map[string]string, gateways []string, namespace string) {
	for i, s := range subnets {
		c.ipOrCIDR(index(at+".destinationSubnets", i), s)
	}
	if source != "" {
		c.ipOrCIDR(at+".sourceSubnet", source)
	}
	if port != 0 {
		c.port(at+".port", port)
	}
	c.labels(at+".sourceLabels", labels)
	for i, g := range gateways {
		c.gatewayRef(index(at+".gateways", i), g)
	}
	if namespace != "" && !dnsLabel(namespace) {
		c.fail(at+".sourceNamespace", namespace, "not a namespace", "name a namespace")
	}
}

func (c *checker) l4Routes(at string, routes []*networking.RouteDestination) {
	if len(routes) == 0 {
		c.fail(at, nil, "missing", "add a destination")
		return
	}
	weights := make([]int32, len(routes))
	for i, r := range routes {
		weights[i] = r.Weight
		c.destination(index(at, i)+".destination", r.Destination)
	}
	c.weights(at, weights)
}

// weights are relative: any not negative number, not all zero. A single destination gets everything whatever its weight.
func (c *checker) weights(at string, weights []int32) {
	var sum int64
	for i, w := range weights {
		if w < 0 {
			c.fail(index(at, i)+".weight", w, "weight is negative", "use 0 or more; weights are relative to their sum")
			return
		}
		sum += int64(w)
	}
	if len(weights) > 1 && sum == 0 {
		c.fail(index(at, 0)+".weight", nil, "the weights of all destinations sum to 0", "give at least one destination a weight above 0")
	}
	if sum > 1<<32-1 {
		c.fail(at, sum, "the weights of all destinations sum to more than 4294967295", "use smaller weights")
	}
}

func (c *checker) destination(at string, d *networking.Destination) {
	if d == nil {
		c.fail(at, nil, "missing", "name a destination host")
		return
	}
	c.destinationHost(at+".host", d.Host)
	if d.Subset != "" {
		c.subsetName(at+".subset", d.Subset)
	}
	if d.Port != nil {
		c.port(at+".port.number", d.Port.Number)
	}
}

func (c *checker) subsetName(at, s string) {
	if len(s) > 63 || !hostLabelRE.MatchString(s) {
		c.fail(at, s, "not a valid subset name", "use at most 63 letters, digits and '-'")
	}
}
