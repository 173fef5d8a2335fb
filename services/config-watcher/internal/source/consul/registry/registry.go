// Package registry makes mesh objects of what Consul's catalog says: Registry.Map turns one service and its instances
// into a ServiceEntry and a WorkloadEntry for each instance, by the rules of a declaration. It is pure: equal input
// gives equal objects, on every replica and whatever came before. Package consul calls it for every reading.
//
// rule.go has the rules, service.go the ports and hosts of a service, instance.go what Consul says, workload.go what an
// instance becomes, preview.go the summary of a whole catalog.
package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// LabelService is the label by which a ServiceEntry selects its WorkloadEntries. Its value is the service's name in
	// lower case.
	LabelService = "consul.fairlead.dev/service"
	// tagPrefix begins the labels that stand for tags: "tag/v1".
	tagPrefix = "tag/"
	// Annotation of a WorkloadEntry names its instance in Consul, for people.
	Annotation = "consul.fairlead.dev/instance"
	// serversOwn is the service as which Consul's servers register themselves.
	serversOwn = "consul"
	// maxInstances bounds the instances of one service, maxTags the tags that become aliases, maxProblems the problems
	// that are told of one service.
	maxInstances = 20_000
	maxTags      = 16
	maxProblems  = 10
)

// Registry is what the mapping needs of a declaration.
type Registry struct {
	// Name is a DNS label, unique among registries.
	Name string
	// Datacenter and Domain are those of Consul: "dc1", "consul".
	Datacenter, Domain string
	// Qualified is true if hosts name the datacenter, because names without one mean another registry's.
	Qualified bool
	// WAN is true if instances are reached at their tagged address "wan".
	WAN bool
	// Network of the instances; "" is the mesh's default network.
	Network string
	// Rules are tried in their order.
	Rules []Rule
	// Created is the age of the made objects.
	Created time.Time
	// Addresses are those that instances may have.
	Addresses fetch.Addresses
}

// Source is the name of the registry as a source of objects.
func (r *Registry) Source() string { return SourcePrefix + r.Name }

// SourcePrefix begins the names of sources that are registries.
const SourcePrefix = "consul/"

// Mapping is what a service becomes.
type Mapping struct {
	Service string
	// Rule is the index of the rule that decides about the service, -1 if none does.
	Rule int
	// Entry is the ServiceEntry; nil if the service becomes nothing.
	Entry *object.Object
	// Workloads are the WorkloadEntries, sorted by name.
	Workloads []*object.Object
	// LeftOut counts usable-looking instances without a WorkloadEntry; Problems say why.
	LeftOut  int
	Problems object.Problems
}

// Map makes the objects of a service. A service that no rule matches, whose name is no DNS label or which has only
// instances of Connect's kinds becomes nothing. A service without instances keeps its ServiceEntry: that it has none
// now is no reason to send its name elsewhere. Map does not keep instances.
func (r *Registry) Map(service string, instances []Instance) Mapping {
	b := builder{registry: r, out: Mapping{Service: service, Rule: -1}}
	b.build(instances)
	b.finish()
	return b.out
}

// Shadowed finds the names of services that differ from another one in upper and lower case alone, as Consul's DNS does
// not, and are not the one that counts: the one in lower case, else the first in the order of bytes. It returns the one
// that counts for each.
func Shadowed(names []string) map[string]string {
	var out map[string]string
	first := make(map[string]string, len(names))
	for _, name := range slices.Sorted(slices.Values(names)) {
		lower := strings.ToLower(name)
		other, taken := first[lower]
		switch {
		case !taken:
			first[lower] = name
			continue
		case out == nil:
			out = map[string]string{}
		}
		if name == lower {
			first[lower] = name
			for k, v := range out {
				if v == other {
					out[k] = name
				}
			}
			name, other = other, name
		}
		out[name] = other
	}
	return out
}

// ShadowedProblem is about a service that Shadowed has found.
func (r *Registry) ShadowedProblem(service, counts string) object.Problem {
	return object.Problem{Location: r.Source(), Field: "service " + object.Quote(service),
		Reason: "has the same host as service " + object.Quote(counts) + ", which counts", Remedy: "register it under another name"}
}

// builder makes one Mapping.
type builder struct {
	registry *Registry
	rule     *Rule
	// name is the service's in lower case, entry the name of its objects.
	name, entry string
	ports       []port
	// last is what the service became last, shared the WorkloadEntry that was made last; nil if there is none.
	last    *Last
	shared  *object.Object
	out     Mapping
	dropped int // problems beyond maxProblems
}

// problem notes what is wrong. where is a part of the service, "" for the service as a whole.
func (b *builder) problem(where, reason, remedy string) {
	if len(b.out.Problems) >= maxProblems {
		b.dropped++
		return
	}
	field := "service " + object.Quote(b.out.Service)
	if where != "" {
		field += ", " + where
	}
	p := object.Problem{Location: b.registry.Source(), Field: field, Reason: reason, Remedy: remedy}
	if b.rule != nil {
		p.Object = "ServiceEntry " + b.rule.Namespace + "/" + b.entry
	}
	b.out.Problems = append(b.out.Problems, p)
}

func (b *builder) finish() {
	if b.dropped == 0 {
		return
	}
	last := &b.out.Problems[len(b.out.Problems)-1]
	last.Reason += fmt.Sprintf(" (and %d more problems of this service)", b.dropped)
}

func (b *builder) build(instances []Instance) {
	usual := make([]Instance, 0, len(instances))
	for _, in := range instances {
		if in.Kind == "" || in.Kind == "typical" {
			usual = append(usual, in)
		}
	}
	if len(usual) == 0 && len(instances) > 0 {
		return // sidecars and gateways of Connect
	}
	i := slices.IndexFunc(b.registry.Rules, func(rule Rule) bool { return rule.Matches(b.out.Service) })
	if i < 0 {
		return
	}
	b.out.Rule = i
	if !b.nameService(&b.registry.Rules[i]) {
		return
	}
	usual = b.distinct(usual)
	b.ports = b.portsOf(usual)
	workloads, dns := b.workloads(usual)
	b.out.Entry = b.serviceEntry(usual, dns)
	b.out.Workloads = workloads
}

// distinct sorts instances and drops those that are there twice.
func (b *builder) distinct(instances []Instance) []Instance {
	slices.SortStableFunc(instances, func(x, y Instance) int { return strings.Compare(identityOf(&x), identityOf(&y)) })
	instances = slices.CompactFunc(instances, func(x, y Instance) bool { return identityOf(&x) == identityOf(&y) })
	if len(instances) > maxInstances {
		b.out.LeftOut += len(instances) - maxInstances
		b.problem("", fmt.Sprintf("has %d instances, %d of them are read", len(instances), maxInstances), "divide the service")
		instances = instances[:maxInstances]
	}
	return instances
}

// objectOf makes an object of the registry. labels, annotations and what else is given are not changed later.
func (b *builder) objectOf(kind, name string, body proto.Message) *object.Object {
	return &object.Object{
		Key:        object.Key{Group: kinds.GroupNetworking, Kind: kind, Namespace: b.rule.Namespace, Name: name},
		APIVersion: kinds.GroupNetworking + "/v1", Created: b.registry.Created, Source: b.registry.Source(), Body: body,
	}
}

// seal sets the digest of an object that is complete.
func seal(o *object.Object) *object.Object {
	h := sha256.New()
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(o.Body.(proto.Message))
	if err != nil {
		body = []byte(err.Error())
	}
	_, _ = fmt.Fprintf(h, "%s %q %q %+v ", o.Key, object.LabelText(o.Labels), object.LabelText(o.Annotations), *o.Registered)
	if o.Health != nil {
		_, _ = fmt.Fprintf(h, "%+v ", *o.Health)
	}
	_, _ = fmt.Fprintf(h, "%d ", o.Created.UnixNano())
	_, _ = h.Write(body)
	copy(o.Digest[:], h.Sum(nil))
	return o
}

// hashOf is a short text that tells instances apart.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// serviceEntry makes the ServiceEntry. dns is true if an instance has a name for an address.
func (b *builder) serviceEntry(instances []Instance, dns bool) *object.Object {
	host, aliases := b.hosts(instances)
	se := &networking.ServiceEntry{
		Hosts: []string{host}, Location: networking.ServiceEntry_MESH_EXTERNAL, Resolution: networking.ServiceEntry_STATIC,
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{LabelService: b.name}},
		ExportTo:         slices.Clone(b.rule.ExportTo),
	}
	if b.rule.Account != "" {
		se.Location = networking.ServiceEntry_MESH_INTERNAL
	}
	if dns {
		se.Resolution = networking.ServiceEntry_DNS
	}
	for _, p := range b.ports {
		se.Ports = append(se.Ports, &networking.ServicePort{Name: p.name, Number: p.number, Protocol: p.protocol})
	}
	o := b.objectOf("ServiceEntry", b.entry, se)
	o.Registered = &object.Registered{Service: b.entry, Aliases: aliases, Account: b.rule.Account, Joins: b.rule.Joins, Share: b.rule.Share}
	return seal(o)
}

// sortedKeys lists the keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
