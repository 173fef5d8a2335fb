package policy

import (
	"fmt"
	"strings"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Datagrams is an error that names the policies which decide about datagrams to a port of the proxy; nil if all of them
// may pass (authz.Set.Datagrams).
func Datagrams(r *input.Reader, port uint32) error {
	found := r.ConnectionRules().Datagrams(port)
	if len(found) == 0 {
		return nil
	}
	return &plan.Unenforced{Err: fmt.Errorf("UDP port %d takes no datagrams: AuthorizationPolicy %s decides about them, and policies cannot "+
		"be applied to UDP; limit its rules to other ports, or allow all to this one", port, strings.Join(found, ", "))}
}
