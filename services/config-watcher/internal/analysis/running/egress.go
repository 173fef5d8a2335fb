package running

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/object"
)

// managedBy is the label, and managedByUp its value, of objects that `fairlead up` makes from the user's objects.
// checkEgress skips them: the user's object is reported instead.
const managedBy, managedByUp = "app.kubernetes.io/managed-by", "fairlead-up"

// checkEgress finds egress hosts of a Sidecar that import nothing.
func checkEgress(r *reader) {
	if r.object.Labels[managedBy] == managedByUp {
		return
	}
	for i, l := range r.object.Body.(*networking.Sidecar).GetEgress() {
		for j, entry := range l.GetHosts() {
			ns, host, found := strings.Cut(entry, "/")
			if !found || strings.HasPrefix(ns, "~") {
				continue // an excluded host may be missing
			}
			field := fmt.Sprintf("spec.egress[%d].hosts[%d]", i, j)
			if ns == "." {
				if r.namespace() == r.settings().GetRootNamespace() {
					continue // the namespace of each workload
				}
				ns = r.namespace()
			}
			if ns != allNamespaces && !r.namespaceExists(ns) {
				r.report(finding.NamespaceNotFound, field, entry, noNamespace(ns), "create it, or correct the name")
				continue
			}
			if !strings.HasPrefix(host, "*") {
				r.checkEgressHost(field, entry, ns, strings.TrimSuffix(strings.ToLower(host), "."))
			}
		}
	}
}

func (r *reader) checkEgressHost(field, entry, ns, host string) {
	in := func(o *object.Object) bool { return ns == allNamespaces || o.Key.Namespace == ns }
	found := slices.Concat(r.services(host), r.routes(contract.MeshGateway, host))
	if slices.ContainsFunc(found, in) || r.covering(host) != "" {
		return
	}
	switch {
	case len(found) > 0:
		r.report(finding.HostNotFound, field, entry, fmt.Sprintf("namespace %s has no such host; namespace %s has", ns, found[0].Key.Namespace),
			"correct the namespace, or write */"+host)
	case !strings.Contains(host, "."):
		r.report(finding.HostNotFound, field, entry, "no Service, ServiceEntry or VirtualService has such a host",
			fmt.Sprintf("write the full name, %s.<namespace>.svc.%s", host, r.mesh.domain))
	default:
		r.report(finding.HostNotFound, field, entry, "no Service, ServiceEntry or VirtualService has such a host",
			"create it, or correct the name")
	}
}
