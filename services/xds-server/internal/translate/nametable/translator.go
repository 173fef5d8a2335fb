// Package nametable builds the table of names and addresses that agents answer their workload's DNS queries from (NDS).
package nametable

import (
	"google.golang.org/protobuf/proto"

	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Name of the one resource that a class has. Agents of Istio ask for all, and look at no name.
const Name = "nametable"

// Translator makes name tables. Agents take a table whole, so it is made anew when a service comes or goes, or the endpoints of a headless
// one; it is kept with those that see alike, and only for classes of which somebody has asked for it.
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return ndsv1.NameTableType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the table, also where there is nothing in it: without one agents answer no query.
func (Translator) Names(*input.Reader) ([]string, error) { return []string{Name}, nil }

// HostNames lists the table for every service that is in sight, so that it belongs to all who see that service, not to one class.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Service(host) == nil {
		return nil, nil
	}
	return []string{Name}, nil
}

// Build makes the table.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	if name != Name {
		return nil, nil
	}
	return resource{table(r)}, nil
}

// resource gives a table, which has no field for it, its name.
type resource struct{ *ndsv1.NameTable }

// GetName returns the resource's name.
func (resource) GetName() string { return Name }
