package registry

import (
	"path"
	"slices"
)

// Rule says what becomes of some services. The first rule that matches a service decides about it alone.
type Rule struct {
	// Services are names with '*' and '?' in them, or whole ones.
	Services []string
	// Namespace of the objects.
	Namespace string
	// Port is the number of the service port; 0: what the registration says. It is also the port of instances without
	// one.
	Port uint32
	// Ports are the numbers of named ports.
	Ports map[string]uint32
	// Protocol of all ports as Istio's kinds write it; "" for what the registration says.
	Protocol string
	// Account is the service account of the instances, in Namespace; "" if they have no identity.
	Account string
	// ExportTo is that of the ServiceEntry.
	ExportTo []string
	// Joins is the host of a Service in Namespace that gets the instances too, with Share percent of its traffic.
	Joins string
	Share uint32
}

// Own reports whether a service is Consul's servers themselves.
func Own(service string) bool { return service == serversOwn }

// Matches reports whether the rule decides about a service. Consul's servers themselves, which are the service
// "consul", are matched by that name alone and by no pattern.
func (r *Rule) Matches(service string) bool {
	return slices.ContainsFunc(r.Services, func(pattern string) bool {
		if service == serversOwn {
			return pattern == service
		}
		ok, err := path.Match(pattern, service)
		return err == nil && ok
	})
}
