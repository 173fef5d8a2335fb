package registry

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
