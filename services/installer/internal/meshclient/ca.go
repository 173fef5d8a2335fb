package meshclient

import (
	"context"
	"fmt"
	"strings"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/controlplane"
)

// CAs lists the replicas of the ca: those of the addresses, otherwise those of the cluster or the run directory, the
// ready ones of a cluster first; at least one.
func (m *Mesh) CAs(ctx context.Context) ([]Server, error) {
	if len(m.CAAddresses) > 0 {
		return m.at(m.CAAddresses)
	}
	found, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if found != nil {
		if revisions := found.Revisions(controlplane.CA); len(revisions) > 1 {
			return nil, process.Usagef("namespace %s has a ca of each of the revisions %s: choose one with --revision", found.Namespace,
				strings.Join(revisions, ", "))
		}
	}
	servers, where, err := m.Servers(ctx, controlplane.CA)
	switch {
	case err != nil:
		return nil, err
	case len(servers) == 0 && found != nil:
		return nil, fmt.Errorf("no ca runs in %s; `fairlead verify-install` says what is missing", where)
	case len(servers) == 0:
		return nil, fmt.Errorf("%s has no ca", where)
	}
	return servers, nil
}

// Is reports whether the server is the process, or the Pod, of a name without its namespace.
func (s Server) Is(process string) bool { return s.process == process }
