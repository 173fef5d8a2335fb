package consul

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"fairlead.dev/pkg/testkit/consultest"
)

// rule is one of a declaration.
type rule struct {
	services                     []string
	namespace, protocol, account string
	port                         int
}

// catalog is what Consul has: the instances of each service.
type catalog map[string][]consultest.Registration

// drawn chooses.
type drawn struct{ *rand.Rand }

func of[T any](d drawn, from ...T) T { return from[d.IntN(len(from))] }

// tricks are entries of meta by which a registration would like to be somebody else.
var tricks = []string{"account", "service-account", "serviceAccount", "spiffe", "identity", "subjectAltNames", "security.istio.io/tlsMode",
	"tlsMode", "namespace", "topology.istio.io/cluster", "istio.io/workloadController", "workloadgroup"}

const someone = "spiffe://cluster.local/ns/istio-system/sa/xds-server"

// atOnce is how many instances a registry may lose without a second reading: other tests wait for that.
const atOnce = 10

// catalog draws services with instances of unique addresses.
func (d drawn) catalog() catalog {
	out := catalog{}
	n := 0
	for range d.IntN(8) {
		if n == atOnce {
			break
		}
		name := of(d, "web", "web-2", "db", "api", "Cache", "cache", "a_b", "*", strings.Repeat("x", 300), "shop.svc")
		out[name] = nil
		for range min(1+d.IntN(5), atOnce-n) {
			n++
			id := fmt.Sprint("i", n)
			r := consultest.Registration{Node: fmt.Sprint("n", n), Address: fmt.Sprint("10.1.0.", n)}
			r.Service = &consultest.Service{ID: id, Service: name, Kind: of(d, "", "", "", "", "", "connect-proxy"),
				Address: of(d, fmt.Sprint("10.0.0.", n), fmt.Sprint("10.0.0.", n), "", "169.254.169.254", fmt.Sprintf("h%d.example.com", n)),
				Port:    of(d, 0, 8080, 8080, 8080, 20000+n),
				Meta:    map[string]string{"version": of(d, "v1", "v2"), "protocol": of(d, "", "http", "grpc", "smtp"), "port": of(d, "", "", "81", "82", "x")},
				Weights: &consultest.Weights{Passing: 1 + d.IntN(9), Warning: d.IntN(10)},
				Tags:    []string{of(d, "v1", "v2"), "account=admin", someone},
			}
			if r.Service.Address == fmt.Sprintf("h%d.example.com", n) && d.IntN(3) > 0 {
				r.Service.Address = ""
			}
			if r.Service.Kind != "" {
				r.Service.Port, r.Service.Proxy = 9000, &consultest.Proxy{DestinationServiceName: "web"}
			}
			if d.IntN(2) == 0 {
				r.Service.Locality = &consultest.Locality{Region: "eu", Zone: of(d, "", "a")}
			}
			for range 2 {
				r.Service.Meta[of(d, tricks...)] = someone
			}
			r.Checks = []consultest.Check{{CheckID: "service:" + id, Name: "check", ServiceID: id,
				Status: of(d, "passing", "passing", "passing", "warning", "critical")}}
			if d.IntN(8) == 0 {
				r.Checks = append(r.Checks, consultest.Check{CheckID: "_service_maintenance:" + id, Name: "maintenance", ServiceID: id, Status: "critical"})
			}
			out[name] = append(out[name], r)
		}
	}
	return out
}

func (d drawn) rules() []rule {
	var out []rule
	for range 1 + d.IntN(3) {
		out = append(out, rule{
			services: []string{of(d, "web*", "*", "*", "db", "a?i"), of(d, "api", "*b", "[ac]*")}, namespace: of(d, "shop", "store"),
			port: of(d, 0, 0, 90), protocol: of(d, "", "", "http2", "tcp"), account: of(d, "", "", "web", "buyer"),
		})
	}
	return out
}

// text is how a declaration has the rules.
func text(rules []rule) string {
	var out strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&out, "  - {services: ['%s'], namespace: %s", strings.Join(r.services, "', '"), r.namespace)
		if r.port != 0 {
			fmt.Fprintf(&out, ", port: %d", r.port)
		}
		if r.protocol != "" {
			fmt.Fprintf(&out, ", protocol: %s", r.protocol)
		}
		if r.account != "" {
			fmt.Fprintf(&out, ", account: %s", r.account)
		}
		out.WriteString("}\n")
	}
	return out.String()
}

// cluster is what an Envoy has of a port of a service.
type cluster struct {
	http2, dns bool
	// identities are the names that it accepts of servers.
	identities []string
	// endpoints are its endpoints by address.
	endpoints map[string]endpoint
}

type endpoint struct {
	weight   int
	draining bool
	locality string
	// tls: by the TLS of the mesh.
	tls bool
}

func (c cluster) equal(to cluster) bool {
	return c.http2 == to.http2 && c.dns == to.dns && slices.Equal(c.identities, to.identities) && maps.Equal(c.endpoints, to.endpoints)
}

// modelOf says in a few lines what an Envoy has of a catalog, by name of the cluster. It shares no code with what
// config-watcher does.
func modelOf(domain string, rules []rule, all catalog) map[string]cluster {
	out := map[string]cluster{}
	for name, registered := range all {
		var instances []consultest.Registration
		for _, r := range registered {
			if r.Service.Kind == "" {
				instances = append(instances, r)
			}
		}
		by := ruleOf(rules, name)
		if _, both := all["cache"]; by == nil || len(instances) == 0 || len(name) > 63 || strings.ContainsAny(name, "_*.") || both && name == "Cache" {
			continue
		}
		c := cluster{endpoints: map[string]endpoint{}}
		protocol := cmp.Or(by.protocol, mostly(instances, "protocol", "grpc", "http"))
		c.http2 = protocol == "grpc" || protocol == "http2"
		if by.account != "" {
			c.identities = []string{"spiffe://cluster.local/ns/" + by.namespace + "/sa/" + by.account}
		}
		for _, r := range instances {
			address, port := cmp.Or(r.Service.Address, r.Address), cmp.Or(r.Service.Port, by.port)
			if address == "169.254.169.254" || port == 0 {
				continue
			}
			c.dns = c.dns || strings.HasSuffix(address, ".com")
			weight := r.Service.Weights.Passing
			if r.Checks[0].Status == "warning" {
				weight = r.Service.Weights.Warning
			}
			e := endpoint{weight: weight, draining: len(r.Checks) > 1, locality: "dc1", tls: by.account != ""}
			if l := r.Service.Locality; l != nil {
				e.locality = strings.TrimSuffix(l.Region+"/"+l.Zone, "/")
			}
			if e.draining && r.Checks[0].Status == "warning" { // which weight it had counts no more
				e.weight = r.Service.Weights.Passing
			}
			if e.draining || r.Checks[0].Status != "critical" && weight > 0 {
				c.endpoints[fmt.Sprintf("%s:%d", address, port)] = e
			}
		}
		out[fmt.Sprintf("outbound|%d||%s.service.%s", numberOf(by, instances), strings.ToLower(name), domain)] = c
	}
	return out
}

// ruleOf is the first rule that matches a service.
func ruleOf(rules []rule, service string) *rule {
	for i := range rules {
		for _, pattern := range rules[i].services {
			if ok, _ := path.Match(pattern, service); ok {
				return &rules[i]
			}
		}
	}
	return nil
}

// numberOf is the number of the service port.
func numberOf(by *rule, instances []consultest.Registration) int {
	if by.port != 0 {
		return by.port
	}
	switch mostly(instances, "port", "81", "82") {
	case "81":
		return 81
	case "82":
		return 82
	}
	ports := map[int]bool{}
	for _, r := range instances {
		if r.Service.Port != 0 {
			ports[r.Service.Port] = true
		}
	}
	if len(ports) == 1 {
		return slices.Collect(maps.Keys(ports))[0]
	}
	return 80
}

// mostly is the value, of those that are possible, that most instances have in their meta, the first of as many.
func mostly(instances []consultest.Registration, key string, possible ...string) (best string) {
	most := 0
	for _, value := range possible {
		n := 0
		for _, r := range instances {
			if r.Service.Meta[key] == value {
				n++
			}
		}
		if n > most {
			best, most = value, n
		}
	}
	return best
}
