package normalise

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// exportedToAll is the visibility of an object that all namespaces see.
const exportedToAll = "*"

func (m *Mesh) exportedTo(o *object.Object) []string {
	return ObjectExportedTo(o, m.settings, m.cfg.Tenancy)
}

// visibilities divides the namespaces into sets that see the same claimants of a hostname. The set {"*"} stands for all
// namespaces that no other set names. Most hostnames have one set.
func (m *Mesh) visibilities(claimants []*object.Object) [][]string {
	exported := make([][]string, 0, 1)
	same := true
	for _, o := range claimants {
		exported = append(exported, m.exportedTo(o))
		same = same && slices.Equal(exported[0], exported[len(exported)-1])
	}
	if len(exported) == 0 {
		return nil
	}
	if same {
		return exported[:1]
	}
	var out [][]string
	var seen []string // which claimants each set sees
	for _, namespace := range sortedUnique(slices.Concat(exported...)) {
		var which strings.Builder
		for i, to := range exported {
			if VisibleTo(to, namespace) {
				fmt.Fprint(&which, i, " ")
			}
		}
		i := slices.Index(seen, which.String())
		if i < 0 {
			seen, out = append(seen, which.String()), append(out, nil)
			i = len(out) - 1
		}
		out[i] = append(out[i], namespace)
	}
	return out
}

// visibleClaimants keeps of the claimants of a hostname those that the namespaces of a set see.
func (m *Mesh) visibleClaimants(claimants []*object.Object, visibility []string) []*object.Object {
	if len(claimants) < 2 {
		return claimants
	}
	return lists.Filter(claimants, func(o *object.Object) bool { return VisibleTo(m.exportedTo(o), visibility[0]) })
}

// buildServices builds the Services of a hostname, one for each visibility. A Service that has no port and is no alias
// (ExternalName) is left out.
func (m *Mesh) buildServices(h hostKey) []*configv1.Service {
	claimants := m.claimants(h)
	visibilities := m.visibilities(claimants)
	var out []*configv1.Service
	for _, visibility := range visibilities {
		s := buildService(h, m.visibleClaimants(claimants, visibility))
		if s == nil {
			continue
		}
		s.ExportedTo = visibility
		m.setClusters(h, s)
		if len(visibilities) > 1 && visibility[0] != exportedToAll {
			s.Audience = visibility[0]
		}
		out = append(out, s)
	}
	return out
}

// sameVisibility returns a function that reports whether another Service of the hostname has the key of a.
func sameVisibility(a *configv1.Service) func(*configv1.Service) bool {
	return func(b *configv1.Service) bool { return a.Audience == b.Audience }
}

// oldestWantingVIP returns the oldest of a host's Services that need an allocated address; nil if there is none.
func oldestWantingVIP(h hostKey, services []*configv1.Service) *configv1.Service {
	var first *configv1.Service
	for _, s := range services {
		if wantsVIP(h, s) && (first == nil || s.GetCreationTime().AsTime().Before(first.GetCreationTime().AsTime())) {
			first = s
		}
	}
	return first
}
