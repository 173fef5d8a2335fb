package registry

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

const (
	// maxWeight is Consul's.
	maxWeight = 65535
	// maxOdd bounds how many texts that are no labels are told of a service, and the length of each.
	maxOdd = 20
)

// workloads makes a WorkloadEntry of each instance that has an address and a port. dns is true if one of them has a
// name for an address.
func (b *builder) workloads(instances []Instance) (out []*object.Object, dns bool) {
	byAddress, byName := 0, ""
	odd := map[string]bool{} // texts that are no labels
	for i := range instances {
		in := &instances[i]
		if o := b.unchanged(in); o != nil {
			if address := o.Body.(*networking.WorkloadEntry).Address; check.IsIP(address) {
				byAddress++
			} else if dns = true; byName == "" {
				byName = describe(in) + " has the name " + address
			}
			out, b.shared = append(out, o), o
			continue
		}
		address, taggedPort, why, remedy := b.addressOf(in)
		if why != "" {
			b.leaveOut(in, why, remedy)
			continue
		}
		ports := b.targets(in, taggedPort)
		if len(ports) == 0 {
			b.leaveOut(in, fmt.Sprintf("has no port (it says %d)", in.Port),
				"register it with its port, or give port in the rule if all instances listen there")
			continue
		}
		if check.IsIP(address) {
			byAddress++
		} else if dns = true; byName == "" {
			byName = describe(in) + " has the name " + address
		}
		out = append(out, b.workload(in, address, ports, odd))
	}
	if dns && byAddress > 0 {
		b.problem("", fmt.Sprintf("%s and %d instances have IP addresses; proxies look up all of them by DNS", byName, byAddress),
			"register addresses, or names, for all instances")
	}
	if len(odd) > 0 {
		texts := sortedKeys(odd)
		b.problem("", fmt.Sprintf("%d entries of meta and tags are no labels and cannot be selected by: %s", len(texts),
			object.Cut(strings.Join(texts, ", "), maxName)), "use at most 63 letters, digits, '-', '_' and '.' where rules select by them")
	}
	slices.SortFunc(out, func(x, y *object.Object) int { return strings.Compare(x.Key.Name, y.Key.Name) })
	return out, dns
}

func (b *builder) leaveOut(in *Instance, why, remedy string) {
	b.out.LeftOut++
	b.problem("instance "+object.Quote(describe(in)), why+", so it gets no traffic", remedy)
}

// addressOf is the instance's address: the service's, else its tagged one of the local network, else the node's; across
// networks its tagged one "wan", else the node's of that tag if it has no address of its own, else as in the local
// network. taggedPort is that of a tagged address, 0 if it has none. why says why there is no usable one.
func (b *builder) addressOf(in *Instance) (address string, taggedPort int, why, remedy string) {
	tags := []string{"lan", "lan_ipv4", "lan_ipv6"}
	if b.registry.WAN {
		tags = []string{"wan", "wan_ipv4", "wan_ipv6"}
	} else {
		address = in.Address
	}
	for _, tag := range tags {
		if a := in.TaggedAddresses[tag]; address == "" && a.Address != "" {
			address, taggedPort = a.Address, a.Port
		}
	}
	for _, tag := range tags {
		if a := in.NodeTaggedAddresses[tag]; address == "" && in.Address == "" && a != "" {
			address = a
		}
	}
	address = strings.TrimSuffix(strings.ToLower(cmp.Or(address, in.Address, in.NodeAddress)), ".")
	ip, err := netip.ParseAddr(address)
	switch {
	case address == "":
		return "", 0, "has no address, and neither has its node", "register an address"
	case err == nil:
		if err := b.registry.Addresses.Check(ip); err != nil {
			return "", 0, err.Error(), "register the address at which others reach it, or allow it with --registry-allow-addresses"
		}
		return ip.WithZone("").Unmap().String(), taggedPort, "", ""
	case !check.DNSSubdomain(address), address == "localhost", strings.HasSuffix(address, ".localhost"):
		return "", 0, object.Quote(address) + " is neither an IP address nor a name that others can look up", "correct its address"
	}
	return address, taggedPort, "", ""
}

// targets are the instance's ports that are service ports.
func (b *builder) targets(in *Instance, taggedPort int) map[string]uint32 {
	has := statedPorts(in)
	if len(has) == 0 && len(in.Ports) == 0 && in.Port == 0 && b.rule.Port != 0 {
		has[MainPort] = b.rule.Port
	}
	if _, ok := has[MainPort]; ok && taggedPort >= 1 && taggedPort <= 65535 {
		has[MainPort] = uint32(taggedPort)
	}
	out := make(map[string]uint32, len(has))
	for _, p := range b.ports {
		if number, ok := has[p.name]; ok {
			out[p.name] = number
		}
	}
	return out
}

func (b *builder) workload(in *Instance, address string, ports map[string]uint32, odd map[string]bool) *object.Object {
	we := &networking.WorkloadEntry{
		Address: address, Ports: ports, Labels: b.labels(in, odd), ServiceAccount: b.rule.Account, Network: b.registry.Network,
		Locality: b.locality(in), Weight: 1,
	}
	health := &object.Health{Well: true, Counts: true, Message: "Consul says " + object.Cut(in.Status, maxName)}
	passing, warning := in.Weights.Passing, in.Weights.Warning
	if passing == 0 && warning == 0 {
		passing, warning = 1, 1 // Consul's default
	}
	we.Weight = uint32(min(max(passing, 1), maxWeight))
	switch in.Status {
	case StatusPassing:
	case StatusWarning:
		if warning > 0 {
			we.Weight = uint32(min(warning, maxWeight))
			break
		}
		health.Well = false
		health.Message += ", and its weight for that is 0"
	case StatusMaintenance:
		health.Well, health.Draining = false, true
	case StatusCritical:
		health.Well = false
	default:
		health.Well = false
		b.problem("instance "+object.Quote(describe(in)), object.Quote(in.Status)+" is no status of checks",
			"report it: Consul has another version")
	}
	o := b.objectOf("WorkloadEntry", b.entryOf(in), we)
	o.Health = health
	o.Annotations = map[string]string{Annotation: describe(in)}
	o.Registered = &object.Registered{Service: b.entry}
	b.share(o)
	return seal(o)
}

// entryOf is the name of the WorkloadEntry of an instance.
func (b *builder) entryOf(in *Instance) string { return b.entry + "." + hashOf(identityOf(in)) }

// labels are the instance's meta and tags as far as they can be labels: meta "version: v1" and the tag "version=v1" or
// "version|v1" are version=v1, any other tag "v1" is tag/v1=true. Meta comes before tags. A label with a prefix, which
// may have a meaning to the mesh, is never taken.
func (b *builder) labels(in *Instance, odd map[string]bool) map[string]string {
	out := map[string]string{}
	skip := func(text string) {
		if len(odd) < maxOdd {
			odd[object.Cut(text, maxOdd)] = true
		}
	}
	set := func(key, value string) {
		if strings.Contains(key, "/") || reserved[key] || !check.LabelKey(key) || !check.LabelValue(value) {
			skip(key)
			return
		}
		out[key] = value
	}
	for _, tag := range slices.Sorted(slices.Values(in.Tags)) {
		key, value, pair := strings.Cut(tag, "=")
		if !pair {
			key, value, pair = strings.Cut(tag, "|")
		}
		switch {
		case pair:
			set(key, value)
		case check.LabelKey(tagPrefix+tag) && !strings.Contains(tag, "/"):
			out[tagPrefix+tag] = "true"
		case tag != "":
			skip(tag)
		}
	}
	for _, key := range sortedKeys(in.Meta) {
		set(key, in.Meta[key])
	}
	out[LabelService] = b.name
	return out
}

// reserved are labels without a prefix that have a meaning to the mesh.
var reserved = map[string]bool{"istio-locality": true, "istio": true}

// locality is the instance's, else that in the meta of its node ("region" and "zone"), else the datacenter.
func (b *builder) locality(in *Instance) string {
	region, zone := in.Locality.Region, in.Locality.Zone
	if region == "" && zone == "" {
		region, zone = in.NodeMeta["region"], in.NodeMeta["zone"]
	}
	part := func(s string) string {
		if s == "" || len(s) > 63 || strings.ContainsAny(s, "/*") {
			return ""
		}
		return s
	}
	region, zone = cmp.Or(part(region), part(in.Datacenter), b.registry.Datacenter), part(zone)
	if zone == "" {
		return region
	}
	return region + "/" + zone
}

// identityOf tells instances of a service apart.
func identityOf(in *Instance) string { return in.Datacenter + "\x00" + in.Node + "\x00" + in.ID }

// describe names an instance for people.
func describe(in *Instance) string { return object.Cut(in.Node+"/"+in.ID, maxName) }

// maxName bounds what messages repeat of an instance's name.
const maxName = 120

// statedPorts are an instance's ports by name, those alone that are ports. The port of an instance without named ports,
// or with another one besides, is MainPort.
func statedPorts(in *Instance) map[string]uint32 {
	out := make(map[string]uint32, 1+len(in.Ports))
	add := func(name string, number int) {
		if number >= 1 && number <= 65535 {
			out[name] = uint32(number)
		}
	}
	main := true
	for name, number := range in.Ports {
		add(name, number)
		main = main && number != in.Port
	}
	if _, named := in.Ports[MainPort]; main && !named {
		add(MainPort, in.Port)
	}
	return out
}
