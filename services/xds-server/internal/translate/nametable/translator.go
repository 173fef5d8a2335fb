// Package nametable builds the name table (NDS): the hostnames and addresses from which agents answer the DNS queries
// of their workload. Translator builds it; table.go has its content.
package nametable

import (
	"google.golang.org/protobuf/proto"

	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Name of the one resource that a class has. Agents of Istio ask for all, and look at no name.
const Name = "nametable"

// Translator builds name tables. An agent receives the whole table, so it is rebuilt when a service or an endpoint of a
// headless service comes or goes. It is shared by classes that see the same services, and built only for classes that
// request it.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return ndsv1.NameTableType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the table, also without any host: without a table agents answer no query.
func (Translator) Names(*input.Reader) ([]string, error) { return []string{Name}, nil }

// HostNames lists the table for every visible service, so that the table belongs to all classes that see the service.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Service(host) == nil {
		return nil, nil
	}
	return []string{Name}, nil
}

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	if name != Name {
		return nil, nil
	}
	return resource{table(r)}, nil
}

// resource gives the name to a name table, which has no field for it.
type resource struct{ *ndsv1.NameTable }

// GetName returns the resource's name.
func (resource) GetName() string { return Name }
