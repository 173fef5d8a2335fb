package meshclient

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/controlplane"
)

func TestTheCAOfAClusterIsOne(t *testing.T) {
	ca := func(revision string) *controlplane.Replica {
		return &controlplane.Replica{Program: controlplane.CA, Namespace: "mesh", Revision: revision}
	}
	for name, tc := range map[string]struct {
		replicas []*controlplane.Replica
		code     int
		want     string
	}{
		"none": {[]*controlplane.Replica{{Program: controlplane.XDSServer}}, process.ExitFailure,
			"no ca runs in namespace mesh; `fairlead verify-install`"},
		"revisions": {[]*controlplane.Replica{ca("old"), ca("new"), ca("new")}, process.ExitUsage,
			"revisions new, old: choose one with --revision"},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{Cluster: &Cluster{}})
			m.controlPlane = &controlplane.Mesh{Namespace: "mesh", Replicas: tc.replicas}
			if _, err := m.CAs(t.Context()); process.ExitCode(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Error(err)
			}
		})
	}
}
