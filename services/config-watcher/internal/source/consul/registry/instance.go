package registry

import "fairlead.dev/services/config-watcher/internal/source/consul/catalog"

// Instance is one instance of a service as Consul tells it.
type Instance = catalog.Instance

// Address is a tagged address of a service.
type Address = catalog.Address

// Weights are those of an instance while its checks pass, and while one warns.
type Weights = catalog.Weights

// Locality is where an instance runs.
type Locality = catalog.Locality

// Values of Instance.Status.
const (
	StatusPassing     = catalog.Passing
	StatusWarning     = catalog.Warning
	StatusCritical    = catalog.Critical
	StatusMaintenance = catalog.Maintenance
)
