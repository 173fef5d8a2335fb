package normalise

import (
	"fmt"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// everyone is the visibility of what all namespaces see.
const everyone = "*"

// exportedTo are the namespaces that an owner is exported to.
func (m *Mesh) exportedTo(o *object.Object) []string { return ObjectExportedTo(o, m.settings) }

// audiences divides the namespaces by which of the claimants they see; ["*"] stands for those that no other audience names. Mostly there is one.
func (m *Mesh) audiences(claimants []*object.Object) [][]string {
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
	var seen []string
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

// forAudience keeps of the claimants of a hostname those that an audience sees.
func (m *Mesh) forAudience(claimants []*object.Object, audience []string) []*object.Object {
	if len(claimants) < 2 {
		return claimants
	}
	var out []*object.Object
	for _, o := range claimants {
		if VisibleTo(m.exportedTo(o), audience[0]) {
			out = append(out, o)
		}
	}
	return out
}

// buildServices builds the Services of a hostname, one for each audience; those of objects without a port, which are no alias, are left out.
func (m *Mesh) buildServices(h hostKey) []*configv1.Service {
	claimants := m.claimants(h)
	audiences := m.audiences(claimants)
	var out []*configv1.Service
	for _, audience := range audiences {
		s := buildService(h, m.forAudience(claimants, audience))
		if s == nil {
			continue
		}
		s.ExportedTo = audience
		if len(audiences) > 1 && audience[0] != everyone {
			s.Audience = audience[0]
		}
		out = append(out, s)
	}
	return out
}

// sameAudience reports whether two Services of one hostname and namespace are one.
func sameAudience(a *configv1.Service) func(*configv1.Service) bool {
	return func(b *configv1.Service) bool { return a.Audience == b.Audience }
}

// firstToWantVIP returns the oldest of a host's Services for which an address is allocated; nil if there is none.
func firstToWantVIP(h hostKey, services []*configv1.Service) *configv1.Service {
	var first *configv1.Service
	for _, s := range services {
		if wantsVIP(h, s) && (first == nil || s.GetCreationTime().AsTime().Before(first.GetCreationTime().AsTime())) {
			first = s
		}
	}
	return first
}
