package networking

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// routeRole is the part that an HTTP route has in a delegation.
type routeRole int

const (
	independent routeRole = iota
	root                  // has a delegate
	delegate              // belongs to a VirtualService without hosts
)

// virtualService follows https://istio.io/latest/docs/reference/config/networking/virtual-service/.
func (c Checker) virtualService(vs *networking.VirtualService) {
	isDelegate := len(vs.Hosts) == 0
	mesh := len(vs.Gateways) == 0 || slices.Contains(vs.Gateways, contract.MeshGateway)
	c.gatewayRefs("spec.gateways", vs.Gateways)
	if isDelegate {
		if len(vs.Gateways) > 0 {
			c.Fail("spec.gateways", nil, "a delegate (no hosts) takes its gateways from the VirtualService that delegates",
				"remove gateways, or add hosts")
		}
		c.FailIf(len(vs.Tcp) > 0 || len(vs.Tls) > 0, "spec.hosts", nil, "missing, and tcp and tls routes cannot be delegated to", "add hosts")
		c.FailIf(len(vs.Http) == 0, "spec.hosts", nil, "missing",
			"list the hosts whose traffic is routed; only a delegate with http routes has none")
	}
	c.virtualHosts(vs, mesh)
	c.FailIf(len(vs.Http)+len(vs.Tls)+len(vs.Tcp) == 0 && !isDelegate, "spec", nil, "no route", "add http, tls or tcp")
	if mesh {
		c.claims(vs)
	}
	for i, r := range vs.Http {
		role := independent
		switch {
		case isDelegate:
			role = delegate
		case r.Delegate != nil:
			role = root
		}
		c.httpRoute(manifest.Index("spec.http", i), r, role)
	}
	for i, r := range vs.Tls {
		c.tlsRoute(manifest.Index("spec.tls", i), r, vs.Hosts)
	}
	for at, r := range manifest.Items("spec.tcp", vs.Tcp) {
		for mp, m := range manifest.Items(at+".match", r.Match) {
			c.l4Match(mp, m.DestinationSubnets, m.Port, m.SourceLabels, m.Gateways, m.SourceNamespace)
			if m.SourceSubnet != "" {
				c.IPOrCIDR(mp+".sourceSubnet", m.SourceSubnet)
			}
		}
		c.l4Routes(at+".route", r.Route)
	}
	c.ExportTo("spec.exportTo", vs.ExportTo, check.Exporter{})
	c.unreachable(vs)
}

// virtualHosts checks the hosts. It refuses a host that another one covers, since it would be undefined whose routes
// apply.
func (c Checker) virtualHosts(vs *networking.VirtualService, mesh bool) {
	valid := true
	for at, h := range manifest.Items("spec.hosts", vs.Hosts) {
		switch {
		case check.IsIP(h):
		case !mesh && hasSNI(vs) && clusterSNI(h):
		case h == "*" && mesh:
			c.Fail(at, h, `host "*" is only allowed on gateways, not for the sidecars of the mesh`, "name the hosts, or bind to a gateway only")
			valid = false
		case !c.istioHost(at, h):
			valid = false
		case mesh:
			c.wholeWildcard(at, h)
		}
	}
	if !valid {
		return
	}
	first, folded := map[string]int{}, map[string]int{}
	for i, h := range vs.Hosts {
		at := manifest.Index("spec.hosts", i)
		if j, dup := first[h]; dup {
			c.Fail(at, h, fmt.Sprintf("same host as hosts[%d]", j), "keep one of them")
			continue
		}
		if j, dup := folded[strings.ToLower(h)]; dup {
			c.Warn(at, fmt.Sprintf("hosts have no upper case: it is hosts[%d]", j), "keep one of them")
		}
		first[h], folded[strings.ToLower(h)] = i, i
	}
	for i, h := range vs.Hosts {
		// Each wildcard that covers the host is "*" and an end of the host.
		rest := strings.TrimPrefix(h, "*")
		for cut := range len(rest) + 1 {
			if j, covers := first["*"+rest[cut:]]; covers && vs.Hosts[j] != h {
				c.Fail(manifest.Index("spec.hosts", i), h, fmt.Sprintf("hosts[%d], %s, covers it", j, vs.Hosts[j]),
					"divide them over two VirtualServices, or keep the wildcard alone")
				break
			}
		}
	}
}

// hasSNI reports whether a TLS route names SNI hosts.
func hasSNI(vs *networking.VirtualService) bool {
	return slices.ContainsFunc(vs.Tls, func(r *networking.TLSRoute) bool {
		return slices.ContainsFunc(r.Match, func(m *networking.TLSMatchAttributes) bool { return len(m.SniHosts) > 0 })
	})
}

var clusterSNIRE = regexp.MustCompile(`^outbound_[^_]*[0-9][^_]*_[^_]*_[^_]*[a-zA-Z]`)

// clusterSNI reports whether s is an SNI that sidecars send each other, like
// "outbound_.80_._.reviews.apps.svc.cluster.local".
func clusterSNI(s string) bool { return len(s) <= 255 && clusterSNIRE.MatchString(s) }

func (c Checker) tlsRoute(at string, r *networking.TLSRoute, hosts []string) {
	c.FailIf(len(r.Match) == 0, at+".match", nil, "missing", "add a match with sniHosts")
	for mp, m := range manifest.Items(at+".match", r.Match) {
		c.FailIf(len(m.SniHosts) == 0, mp+".sniHosts", nil, "missing", "list the server names this route serves")
		for k, sni := range m.SniHosts {
			c.sniHost(manifest.Index(mp+".sniHosts", k), sni, hosts)
		}
		c.l4Match(mp, m.DestinationSubnets, m.Port, m.SourceLabels, m.Gateways, m.SourceNamespace)
	}
	c.l4Routes(at+".route", r.Route)
}

// sniHost checks the SNI of a TLS route: one of the hosts, or a part of one.
func (c Checker) sniHost(at, s string, hosts []string) {
	switch {
	case check.IsIP(s):
		c.Remark(at, "clients send no server name where they ask for an address, so that few would match", "name the host")
	case object.PartialWildcard(s):
		c.Fail(at, s, "proxies take a wildcard as the whole first label alone", `write "*.example.com"`)
	case !clusterSNI(s) && !c.istioHost(at, s):
	case !covered(s, hosts):
		c.Fail(at, s, "server name is not covered by hosts", "add it to spec.hosts")
	}
}

func (c Checker) l4Match(at string, subnets []string, port uint32, labels map[string]string, gateways []string, namespace string) {
	for i, s := range subnets {
		c.IPOrCIDR(manifest.Index(at+".destinationSubnets", i), s)
	}
	if port != 0 {
		check.Port(c.Verdict, at+".port", port)
	}
	c.looseLabels(at+".sourceLabels", labels)
	c.gatewayRefs(at+".gateways", gateways)
	c.PossibleNamespace(at+".sourceNamespace", namespace)
}

// gatewayRefs checks the gateways of a VirtualService: "mesh", "name", "namespace/name", or an old dotted name.
func (c Checker) gatewayRefs(path string, list []string) {
	const remedy = `use "mesh", "<name>" or "<namespace>/<name>"`
	short := false
	for at, s := range manifest.Items(path, list) {
		ns, name, ok := strings.Cut(s, "/")
		switch {
		case s == contract.MeshGateway:
		case short:
			// Istio's webhook stops at the first name without a namespace.
			c.WarnIf(ok && (!check.DNSLabel(ns) || !check.DNSLabel(name)) || !ok && nameProblem(s) != "", at, "no Gateway can have this name",
				remedy)
		case !ok:
			if reason := nameProblem(s); reason != "" {
				c.Fail(at, s, "not a gateway's name: "+reason, remedy)
			} else if old := strings.Split(s, "."); len(old) > 1 {
				c.Remark(at, "an old form of a gateway's name", fmt.Sprintf("write %q", old[1]+"/"+old[0]))
			}
		case !check.NameLabel(ns), !check.NameLabel(name):
			c.Fail(at, s, "not a gateway's name", remedy)
		case !check.DNSLabel(ns), !check.DNSLabel(name):
			c.Warn(at, "no Gateway can have this name", "write it in lower case")
		}
		short = short || !ok
	}
}

func (c Checker) l4Routes(at string, routes []*networking.RouteDestination) {
	if len(routes) == 0 {
		c.Fail(at, nil, "missing", "add a destination")
		return
	}
	weights := make([]int32, len(routes))
	for i, r := range routes {
		weights[i] = r.Weight
		c.destination(manifest.Index(at, i)+".destination", r.Destination)
	}
	c.weights(at, weights)
}

// weights checks the weights of destinations, which are relative to their sum: not negative, and not all 0 if there are
// several.
func (c Checker) weights(at string, weights []int32) {
	var sum int64
	for i, w := range weights {
		if w < 0 {
			c.Fail(manifest.Index(at, i)+".weight", w, "weight is negative", "use 0 or more; weights are relative to their sum")
			return
		}
		sum += int64(w)
	}
	c.FailIf(len(weights) > 1 && sum == 0, manifest.Index(at, 0)+".weight", nil, "the weights of all destinations sum to 0",
		"give at least one destination a weight above 0")
	c.FailIf(sum > 1<<32-1, at, sum, "the weights of all destinations sum to more than 4294967295", "use smaller weights")
}

func (c Checker) destination(at string, d *networking.Destination) {
	if d == nil {
		c.Fail(at, nil, "missing", "name a destination host")
		return
	}
	if d.Host == "*" {
		c.Fail(at+".host", d.Host, "a destination cannot be every host", `name one service, or a ServiceEntry's host such as "*.example.com"`)
	} else {
		c.istioHost(at+".host", d.Host)
	}
	if d.Subset != "" {
		c.subsetName(at+".subset", d.Subset)
	}
	if d.Port != nil {
		check.Port(c.Verdict, at+".port.number", d.Port.Number)
	}
}

func (c Checker) subsetName(at, s string) {
	c.FailIf(!check.NameLabel(s), at, s, "not a valid subset name", "use at most 63 letters, digits and '-'")
}
