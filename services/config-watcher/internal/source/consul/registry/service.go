package registry

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

const (
	// MainPort is the name of the port of a service without named ports.
	MainPort = "service"
	// defaultPort is the number of a service port that nothing else decides about.
	defaultPort = 80
	// metaPort and metaProtocol are the keys by which a registration names the service port and its protocol.
	metaPort, metaProtocol = "port", "protocol"
)

// port is a service port.
type port struct {
	name     string
	number   uint32
	protocol string
}

// nameService sets the names of the service's objects and hosts; false if the service cannot have any.
func (b *builder) nameService(rule *Rule) bool {
	b.name = strings.ToLower(b.out.Service)
	if !check.DNSLabel(b.name) {
		b.problem("", "is no label of the DNS, so it has no host", "register it under a name of at most 63 letters, digits and '-'")
		return false
	}
	if host := b.suffixed(b.name); len(host) > 253 {
		b.problem("", fmt.Sprintf("its host would have %d characters, 253 are possible", len(host)), "register it under a shorter name")
		return false
	}
	b.rule, b.entry = rule, "consul."+b.registry.Name+"."+b.name
	return true
}

// suffixed is the host of a name below "service".
func (b *builder) suffixed(name string) string {
	if b.registry.Qualified {
		return b.qualified(name)
	}
	return name + ".service." + b.registry.Domain
}

func (b *builder) qualified(name string) string {
	return name + ".service." + b.registry.Datacenter + ".dc." + b.registry.Domain
}

// hosts are the service's host and its aliases. A tag is an alias only while all instances have it: Consul's DNS
// answers with those that have the tag, and an alias leads to all.
func (b *builder) hosts(instances []Instance) (host string, aliases []string) {
	host = b.suffixed(b.name)
	if !b.registry.Qualified {
		aliases = append(aliases, b.qualified(b.name), b.name+".virtual."+b.registry.Domain)
	}
	count := map[string]int{}
	for _, in := range instances {
		seen := map[string]bool{}
		for _, tag := range in.Tags {
			tag = strings.ToLower(tag)
			if check.DNSLabel(tag) && !seen[tag] {
				seen[tag] = true
				count[tag]++
			}
		}
	}
	tags := slices.DeleteFunc(sortedKeys(count), func(tag string) bool { return count[tag] < len(instances) })
	if len(tags) > maxTags {
		b.problem("", fmt.Sprintf("all instances have the same %d tags, the first %d of them become hosts", len(tags), maxTags),
			"remove tags that are no part of a host")
		tags = tags[:maxTags]
	}
	for _, tag := range tags {
		aliases = append(aliases, tag+"."+host)
	}
	aliases = slices.DeleteFunc(aliases, func(a string) bool { return len(a) > 253 })
	return host, aliases
}

// portsOf are the ports of a service. Those of a service without instances that say any are the rule's.
func (b *builder) portsOf(instances []Instance) []port {
	numbers := map[string][]uint32{MainPort: nil} // what instances say, by name
	named := false
	for _, in := range instances {
		for name, number := range statedPorts(&in) {
			numbers[name] = append(numbers[name], number)
			named = named || name != MainPort
		}
	}
	if named && len(numbers[MainPort]) == 0 {
		delete(numbers, MainPort)
	}
	byMeta := b.majority(instances, metaProtocol, func(text string) bool { return Protocol(text) != "" },
		"use http, http2, grpc, grpc-web, https, tls, tcp, mongo, mysql or redis")
	var out []port
	taken := map[uint32]string{}
	for _, name := range sortedKeys(numbers) {
		if !check.DNSLabel(name) {
			b.problem("port "+object.Quote(name), "is no name of a port", "name it by at most 63 lower-case letters, digits and '-'")
			continue
		}
		p := port{name: name, number: b.numberOf(name, numbers[name], instances)}
		if other, is := taken[p.number]; is {
			b.problem("port "+name, fmt.Sprintf("has the number %d, which port %s has", p.number, other),
				"give the numbers in the rule's field ports")
			continue
		}
		taken[p.number] = name
		p.protocol = b.rule.Protocol
		if p.protocol == "" && name != MainPort {
			p.protocol = contract.ProtocolName(contract.PortProtocol(0, name, "", nil))
		}
		p.protocol = cmp.Or(Protocol(p.protocol), Protocol(byMeta), contract.ProtocolName(configv1.Protocol_PROTOCOL_TCP))
		out = append(out, p)
	}
	return out
}

// Protocol is how Istio's kinds write a protocol; "" for one that no service port can have.
func Protocol(text string) string {
	switch p := contract.ParseProtocol(text); p {
	case configv1.Protocol_PROTOCOL_UDP, configv1.Protocol_PROTOCOL_HTTP_PROXY:
		return ""
	default:
		return contract.ProtocolName(p)
	}
}

// numberOf is the number of a service port: the rule's, that of the meta, the one that all instances have, or 80.
func (b *builder) numberOf(name string, said []uint32, instances []Instance) uint32 {
	if name != MainPort {
		if n := b.rule.Ports[name]; n != 0 {
			return n
		}
	} else if b.rule.Port != 0 {
		return b.rule.Port
	} else if text := b.majority(instances, metaPort, func(text string) bool { return portOf(text) != 0 }, "use 1 to 65535"); text != "" {
		return portOf(text)
	}
	if len(said) > 0 && !slices.ContainsFunc(said, func(n uint32) bool { return n != said[0] }) {
		return said[0]
	}
	return defaultPort
}

// portOf parses the number of a port; 0 for what is none.
func portOf(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// majority is the value of a meta key that most instances state, the first of several by the order of bytes. It notes
// invalid values, which do not count, and different ones.
func (b *builder) majority(instances []Instance, key string, valid func(string) bool, remedy string) string {
	count := map[string]int{}
	for _, in := range instances {
		if text, ok := in.Meta[key]; ok && text != "" {
			count[strings.ToLower(text)]++
		}
	}
	best := ""
	for _, text := range sortedKeys(count) {
		switch {
		case !valid(text):
			b.problem("meta "+key, object.Quote(text)+" is not possible", remedy)
			delete(count, text)
		case best == "" || count[text] > count[best]:
			best = text
		}
	}
	if len(count) > 1 {
		b.problem("meta "+key, fmt.Sprintf("instances say %s; %s counts, which most of them say, or else the first of these",
			strings.Join(sortedKeys(count), ", "), best), "say the same in all registrations, or give "+key+" in the rule")
	}
	return best
}
