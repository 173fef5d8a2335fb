package running

import (
	"slices"
	"strconv"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkRegistryHosts finds the hosts of a ServiceEntry that have no effect because one of the two that claim them is of
// a registry, and the other is older: nothing is joined with what a registry makes.
func checkRegistryHosts(r *reader) {
	hosts := r.object.Body.(*networking.ServiceEntry).GetHosts()
	exported := r.exported(r.object)
	for _, host := range normalise.HostsOf(r.object, r.mesh.domain) {
		for _, o := range r.services(host) {
			if o.Key == r.object.Key {
				break
			}
			if o.Registered == nil && r.object.Registered == nil || !meet(exported, r.exported(o)) {
				continue
			}
			field, of := "", "it has effects for other hosts alone"
			if i := slices.IndexFunc(hosts, func(h string) bool { return r.host(h) == host }); i >= 0 {
				field = "spec.hosts[" + strconv.Itoa(i) + "]"
			} else {
				of = "it is another name of its first host"
			}
			r.report(finding.RegistryHostTaken, field, host,
				"has no effect where "+o.Key.String()+" of source "+o.Source+" is seen, which "+object.Precedence(o, r.object)+"; "+of,
				"remove the host there, or register the service under another name, or leave it out of the registry's rules")
			break
		}
	}
}

// meet reports whether some namespace sees both of two objects.
func meet(a, b []string) bool {
	return slices.ContainsFunc(a, func(namespace string) bool { return normalise.VisibleTo(b, namespace) }) ||
		slices.ContainsFunc(b, func(namespace string) bool { return normalise.VisibleTo(a, namespace) })
}
