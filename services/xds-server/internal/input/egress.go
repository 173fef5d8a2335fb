package input

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/replica"
)

// egress is a set of Sidecar egress hosts, "<namespace>/<dnsName>": which services of which namespaces a client may address.
// See istio.networking.v1alpha3.IstioEgressListener.hosts.
type egress struct {
	// hosts by namespace; "*" means any namespace.
	hosts map[string][]string
}

// allEgress admits everything that is exported to the client's namespace: what a class without a Sidecar may address.
func allEgress(string) *egress { return &egress{hosts: map[string][]string{"*": {"*"}}} }

// parseEgress reads egress hosts for a client in the namespace; no hosts at all admit everything.
func parseEgress(clientNamespace string, hosts []string) *egress {
	if len(hosts) == 0 {
		return allEgress(clientNamespace)
	}
	e := &egress{hosts: map[string][]string{}}
	for _, h := range hosts {
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			// Validation refuses this form; taken as Istio's own shorthand for any namespace.
			ns, host = "*", h
		}
		switch ns {
		case "~":
			continue
		case ".":
			ns = clientNamespace
		}
		e.hosts[ns] = append(e.hosts[ns], host)
	}
	for ns := range e.hosts {
		slices.Sort(e.hosts[ns])
		e.hosts[ns] = slices.Compact(e.hosts[ns])
	}
	return e
}

func (e *egress) equal(o *egress) bool {
	return maps.EqualFunc(e.hosts, o.hosts, slices.Equal)
}

// namespaces lists where admitted services live: [""] means everywhere.
func (e *egress) namespaces() []string {
	if _, ok := e.hosts["*"]; ok {
		return []string{""}
	}
	return slices.Sorted(maps.Keys(e.hosts))
}

// service reports whether the service is admitted.
func (e *egress) service(svc *configv1.Service) bool {
	return e.admits(svc.GetNamespace(), svc.GetHostname(), covers)
}

func (e *egress) admits(namespace, host string, match func(pattern, host string) bool) bool {
	for _, ns := range []string{namespace, "*"} {
		for _, pattern := range e.hosts[ns] {
			if match(pattern, host) {
				return true
			}
		}
	}
	return false
}

// virtualServices keeps those that have at least one host in common with what is admitted in their namespace.
func (e *egress) virtualServices(found []*replica.VirtualService) []*replica.VirtualService {
	if slices.Contains(e.hosts["*"], "*") {
		return found
	}
	var kept []*replica.VirtualService
	for _, vs := range found {
		if slices.ContainsFunc(vs.Spec.GetHosts(), func(h string) bool { return e.admits(vs.Key.Namespace, h, overlap) }) {
			kept = append(kept, vs)
		}
	}
	return kept
}

// covers reports whether the pattern, a host or a wildcard host, admits the host; a wildcard host is admitted by an equal or wider one.
func covers(pattern, host string) bool {
	if pattern == "*" || pattern == host {
		return true
	}
	suffix, ok := strings.CutPrefix(pattern, "*")
	return ok && strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
}

// overlap reports whether two hosts, either of which may be a wildcard, can mean the same name.
func overlap(a, b string) bool { return covers(a, b) || covers(b, a) }

// sidecarEgress bears a nil Sidecar.
func sidecarEgress(s *replica.Sidecar) []*networking.IstioEgressListener {
	if s == nil {
		return nil
	}
	return s.Spec.GetEgress()
}
