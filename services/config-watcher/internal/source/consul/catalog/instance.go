package catalog

import (
	"cmp"
	"maps"
	"slices"
)

// Status values of an Instance.
const (
	Passing  = "passing"
	Warning  = "warning"
	Critical = "critical"
	// Maintenance: the instance or its node is in maintenance mode.
	Maintenance = "maintenance"
)

// Instance is one registered instance of a service, with its health. All strings are as Consul has them, unchecked:
// whoever may register chooses them.
type Instance struct {
	Node, Datacenter string
	// NodeAddress is where the instance is if Address is empty.
	NodeAddress         string
	NodeTaggedAddresses map[string]string
	NodeMeta            map[string]string

	// ID is unique on the node.
	ID, Service string
	// Kind is empty, "connect-proxy" or the kind of a gateway.
	Kind    string
	Address string
	// Port is 0 if the registration has none. With Ports of Consul 1.22 it is that of the default port.
	Port int
	// Ports are the ports with names; nil if there are none.
	Ports           map[string]int
	TaggedAddresses map[string]Address
	Tags            []string
	Meta            map[string]string
	Weights         Weights
	// Locality is the instance's own, else its node's.
	Locality Locality

	// Status is Maintenance if a check of the instance or its node says so, else the worst of all checks; Passing
	// without any. A check with a status that Consul does not define counts as Critical.
	Status string
}

// Address is a tagged address of an instance.
type Address struct {
	Address string
	Port    int
}

// Weights are how much traffic an instance gets, by its health. Consul's default is 1 and 1.
type Weights struct{ Passing, Warning int }

// Locality is where an instance runs.
type Locality struct{ Region, Zone string }

// key tells instances of a service apart.
type key struct{ node, id string }

func (i *Instance) key() key { return key{i.Node, i.ID} }

// Compare orders instances by node and id, which tell them apart.
func Compare(a, b Instance) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
}

// Missing returns the instances of known that a reading lacks. Both are sorted.
func Missing(known, reading []Instance) (out []Instance) {
	for i := range known {
		if _, there := slices.BinarySearchFunc(reading, known[i], Compare); !there {
			out = append(out, known[i])
		}
	}
	return out
}

// Merged returns a reading with the instances of kept, which it lacks. Both are sorted.
func Merged(reading, kept []Instance) []Instance {
	out := slices.Concat(reading, kept)
	slices.SortFunc(out, Compare)
	return out
}

func sameInstances(a, b []Instance) bool { return slices.EqualFunc(a, b, same) }

func same(a, b Instance) bool { return a.Equal(&b) }

// Equal reports whether two instances are the same in all that is read of them.
func (i *Instance) Equal(to *Instance) bool {
	return i.Node == to.Node && i.Datacenter == to.Datacenter && i.NodeAddress == to.NodeAddress && i.ID == to.ID && i.Service == to.Service &&
		i.Kind == to.Kind && i.Address == to.Address && i.Port == to.Port && i.Weights == to.Weights && i.Locality == to.Locality &&
		i.Status == to.Status && slices.Equal(i.Tags, to.Tags) && maps.Equal(i.Meta, to.Meta) && maps.Equal(i.Ports, to.Ports) &&
		maps.Equal(i.NodeMeta, to.NodeMeta) && maps.Equal(i.TaggedAddresses, to.TaggedAddresses) &&
		maps.Equal(i.NodeTaggedAddresses, to.NodeTaggedAddresses)
}

func nodesOf(instances []Instance) []string {
	out := make([]string, 0, len(instances))
	for i := range instances {
		out = append(out, instances[i].Node)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
