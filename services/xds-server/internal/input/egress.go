package input

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// egress says which services of which namespaces a client may address: those that one of the rules admits.
type egress []rules

// rules are the hosts of one egress listener of a Sidecar, "<namespace>/<dnsName>", by namespace; "*" means all
// namespaces. An excluded host is never admitted. See istio.networking.v1alpha3.IstioEgressListener.hosts.
type rules struct{ admitted, excluded map[string][]string }

// allEgress admits every service that is exported to the client's namespace, as for a class without a Sidecar.
func allEgress() egress { return egress{{admitted: map[string][]string{"*": {"*"}}}} }

// parseEgress parses the egress hosts of a listener for a client in the namespace. No hosts admit all services.
func parseEgress(clientNamespace string, hosts []string) egress {
	if len(hosts) == 0 {
		return allEgress()
	}
	out := rules{admitted: map[string][]string{}, excluded: map[string][]string{}}
	for _, h := range hosts {
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			// Validation rejects this form. Istio's shorthand means any namespace.
			ns, host = "*", h
		}
		into := out.admitted
		if rest, excluded := strings.CutPrefix(ns, "~"); excluded {
			ns, into = rest, out.excluded
		}
		switch ns {
		case "":
			ns = "*" // "~" alone is no namespace: the host is reached in none
		case ".":
			ns = clientNamespace
		}
		into[ns] = append(into[ns], host)
	}
	for _, list := range []map[string][]string{out.admitted, out.excluded} {
		for ns := range list {
			slices.Sort(list[ns])
			list[ns] = slices.Compact(list[ns])
		}
	}
	return egress{out}
}

func (e egress) equal(o egress) bool {
	return slices.EqualFunc(e, o, func(a, b rules) bool {
		return maps.EqualFunc(a.admitted, b.admitted, slices.Equal) && maps.EqualFunc(a.excluded, b.excluded, slices.Equal)
	})
}

// namespaces lists the namespaces of admitted services; [""] means all.
func (e egress) namespaces() []string {
	all := map[string]bool{}
	for _, r := range e {
		for ns := range r.admitted {
			all[ns] = true
		}
	}
	if all["*"] {
		return []string{""}
	}
	return slices.Sorted(maps.Keys(all))
}

// service reports whether the service is admitted.
func (e egress) service(svc *configv1.Service) bool {
	return e.admits(svc.GetNamespace(), svc.GetHostname(), covers)
}

func (e egress) admits(namespace, host string, match func(pattern, host string) bool) bool {
	return slices.ContainsFunc(e, func(r rules) bool {
		return matchesAny(r.admitted, namespace, host, match) && !matchesAny(r.excluded, namespace, host, covers)
	})
}

// matchesAny reports whether a pattern for the namespace, or for all, matches the host.
func matchesAny(hosts map[string][]string, namespace, host string, match func(pattern, host string) bool) bool {
	for _, ns := range []string{namespace, "*"} {
		for _, pattern := range hosts[ns] {
			if match(pattern, host) {
				return true
			}
		}
	}
	return false
}

// all reports whether every service is admitted.
func (e egress) all() bool {
	return slices.ContainsFunc(e, func(r rules) bool { return len(r.excluded) == 0 && slices.Contains(r.admitted["*"], "*") })
}

// virtualServices returns those VirtualServices of which at least one host overlaps with a host that is admitted in
// their namespace.
func (e egress) virtualServices(found []*mesh.VirtualService) []*mesh.VirtualService {
	if e.all() {
		return found
	}
	var kept []*mesh.VirtualService
	for _, vs := range found {
		if slices.ContainsFunc(vs.Spec.GetHosts(), func(h string) bool { return e.admits(vs.Key.Namespace, h, overlap) }) {
			kept = append(kept, vs)
		}
	}
	return kept
}

// virtualServicesBy lists the visible VirtualServices of sidecars that the rules admit.
func (r *Reader) virtualServicesBy(rules egress) (found []*mesh.VirtualService) {
	r.record(mesh.VirtualServicesTopics(r.client(), contract.MeshGateway)...)
	for _, from := range rules.namespaces() {
		found = append(found, rules.virtualServices(r.view.State().VirtualServicesIn(r.client(), contract.MeshGateway, from))...)
	}
	return found
}

// covers reports whether the pattern, a host or a wildcard host, matches the host. A wildcard host is matched by an
// equal or wider pattern.
func covers(pattern, host string) bool {
	if pattern == "*" || pattern == host {
		return true
	}
	suffix, ok := strings.CutPrefix(pattern, "*")
	return ok && strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
}

// overlap reports whether two hosts, each of which may be a wildcard, can match the same name.
func overlap(a, b string) bool { return covers(a, b) || covers(b, a) }

// imports reports whether an admitted VirtualService routes to a service that no rule admits. A client that may address
// the VirtualService's host needs the service too.
func (r *Reader) imports(e egress, svc *configv1.Service) bool {
	if e.all() {
		return false
	}
	r.record(mesh.VirtualServicesToTopic(svc.GetHostname()))
	found := r.view.State().VirtualServicesTo(r.client(), svc.GetHostname())
	return slices.ContainsFunc(e, func(one rules) bool {
		return len(egress{one}.virtualServices(found)) > 0 && !matchesAny(one.excluded, svc.GetNamespace(), svc.GetHostname(), covers)
	})
}

// reaches reports whether the rules admit or import a service.
func (r *Reader) reaches(e egress, svc *configv1.Service) bool {
	return e.service(svc) || r.imports(e, svc)
}

// EgressListeners lists the egress listeners of the class's Sidecar; nil if it has no Sidecar, and may address all
// services. A Sidecar without egress listeners inherits those of its namespace's default Sidecar, or else of the
// mesh's.
func (r *Reader) EgressListeners() []*networking.IstioEgressListener {
	own := r.Sidecar()
	if own == nil {
		return nil
	}
	root := r.Mesh().GetRootNamespace()
	if len(own.Spec.GetEgress()) == 0 {
		r.record(mesh.SidecarTopics(own.Key.Namespace, root)...)
	}
	found, from := r.view.State().EgressListeners(own, root)
	if from != own {
		traceOne(r.trace, from)
	}
	return found
}

// AdmitsHost reports whether an egress listener admits a host that only VirtualServices of the namespace have. A nil
// listener admits all hosts.
func (r *Reader) AdmitsHost(l *networking.IstioEgressListener, namespace, host string) bool {
	return l == nil || parseEgress(r.client(), l.GetHosts()).admits(namespace, host, covers)
}
