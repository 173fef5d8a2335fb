package registry

import "fairlead.dev/services/config-watcher/internal/object"

// Instance is one instance of a service as Consul's health endpoint tells it.
type Instance struct {
	// Node and ID name the instance within its datacenter.
	Node, Datacenter, ID, Service string
	// Kind is empty for a usual service, else one of Consul Connect's: "connect-proxy", "mesh-gateway", ...
	Kind string
	// Address is the service's, and may be empty; NodeAddress is that of its node.
	Address, NodeAddress string
	NodeTaggedAddresses  map[string]string
	Port                 int
	// Ports are the named ports of Consul 1.22; nil for a service of one port. Port is that of the default one then.
	Ports           map[string]int
	Tags            []string
	Meta, NodeMeta  map[string]string
	TaggedAddresses map[string]Address
	Weights         Weights
	Locality        Locality
	// Status is StatusPassing, StatusWarning, StatusCritical or StatusMaintenance: the worst of all checks.
	Status string
}

// Address is a tagged address of a service.
type Address struct {
	Address string
	Port    int
}

// Weights are those of an instance while its checks pass, and while one warns.
type Weights struct{ Passing, Warning int }

// Locality is where an instance runs.
type Locality struct{ Region, Zone string }

// Values of Instance.Status.
const (
	StatusPassing     = "passing"
	StatusWarning     = "warning"
	StatusCritical    = "critical"
	StatusMaintenance = "maintenance"
)

// identity tells instances of a service apart.
func (in *Instance) identity() string { return in.Datacenter + "\x00" + in.Node + "\x00" + in.ID }

// String names the instance for people.
func (in *Instance) String() string { return object.Cut(in.Node+"/"+in.ID, maxName) }

// maxName bounds what messages repeat of an instance's name.
const maxName = 120

// ports are the instance's ports by name, those alone that are ports. The port of an instance without named ports, or
// with another one besides, is MainPort.
func (in *Instance) ports() map[string]uint32 {
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
