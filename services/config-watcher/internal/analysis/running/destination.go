package running

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkDestinations finds destinations of a VirtualService whose host, port or subset does not exist.
func checkDestinations(r *reader) {
	vs := r.object.Body.(*networking.VirtualService)
	clients := r.clients(vs)
	EachDestination(vs, func(field string, d *networking.Destination) {
		if d.GetHost() == "" || r.effort > maxEffort {
			return
		}
		services := r.destinationHost(field+".host", d.Host, clients)
		if len(services) == 0 || isAlias(services) {
			return
		}
		r.destinationPort(field+".port.number", d, services)
		r.destinationSubset(field+".subset", d, services, clients)
	})
}

// EachDestination calls f for every destination of a VirtualService, mirrors included, with its JSON path.
func EachDestination(vs *networking.VirtualService, f func(field string, d *networking.Destination)) {
	for i, in := range vs.GetHttp() {
		for j, to := range in.GetRoute() {
			f(fmt.Sprintf("spec.http[%d].route[%d].destination", i, j), to.GetDestination())
		}
		if in.GetMirror() != nil {
			f(fmt.Sprintf("spec.http[%d].mirror", i), in.GetMirror())
		}
		for j, to := range in.GetMirrors() {
			f(fmt.Sprintf("spec.http[%d].mirrors[%d].destination", i, j), to.GetDestination())
		}
	}
	for i, in := range vs.GetTls() {
		for j, to := range in.GetRoute() {
			f(fmt.Sprintf("spec.tls[%d].route[%d].destination", i, j), to.GetDestination())
		}
	}
	for i, in := range vs.GetTcp() {
		for j, to := range in.GetRoute() {
			f(fmt.Sprintf("spec.tcp[%d].route[%d].destination", i, j), to.GetDestination())
		}
	}
}

// clients lists the namespaces whose proxies use a VirtualService's routes; none if they are not known. A
// VirtualService that is exported to every namespace is assumed to be meant for its own, and for unknown ones if that
// is the root namespace. For a gateway the clients are the gateway's workloads. A delegate has no clients of its own.
func (r *reader) clients(vs *networking.VirtualService) []string {
	if len(vs.GetHosts()) == 0 {
		return nil
	}
	exported := r.exported(r.object)
	var out []string
	for _, name := range gatewaysOf(vs, r.namespace()) {
		if name != contract.MeshGateway {
			ns, rest, _ := strings.Cut(name, "/")
			if g := r.config("Gateway", ns, rest); g != nil {
				for _, from := range r.selected(g.Body.(*networking.Gateway).GetSelector()) {
					if normalise.VisibleTo(exported, from) {
						out = append(out, from)
					}
				}
			}
			continue
		}
		switch {
		case !slices.Contains(exported, allNamespaces):
			out = append(out, exported...)
		case r.namespace() == r.settings().GetRootNamespace():
			return nil
		default:
			out = append(out, r.namespace())
		}
	}
	return out
}

// destinationHost returns the services of a host that the clients see, and reports if there are none.
func (r *reader) destinationHost(field, name string, clients []string) []*object.Object {
	host := r.host(name)
	found := r.services(host)
	if len(found) == 0 {
		r.noHost(finding.HostNotFound, field, name, host)
		return nil
	}
	if len(clients) == 0 {
		return found
	}
	var seen []*object.Object
	var exported []string
	for _, o := range found {
		to := r.exported(o)
		if r.effort += len(clients) * (1 + len(to)); r.effort > maxEffort {
			return nil
		}
		exported = append(exported, to...)
		if slices.ContainsFunc(clients, func(ns string) bool { return normalise.VisibleTo(to, ns) }) {
			seen = append(seen, o)
		}
	}
	if len(seen) == 0 {
		r.report(finding.HostNotFound, field, name, fmt.Sprintf("%s of namespace %s is not exported to namespace %s, only to %s",
			found[0].Key.Kind, found[0].Key.Namespace, listed(clients), exportedText(exported)),
			"export it there, or bring the VirtualService to where it is seen")
	}
	return seen
}

// maxHosts bounds the hosts among which the nearest is looked for.
const maxHosts = 20_000

// nearestHost is the host of a Service or ServiceEntry that a misspelt one most likely means: of a Service, one of its
// namespace; "" if none is near. In a mesh with tenants nobody learns what there is in other namespaces.
func (r *reader) nearestHost(host string) string {
	if len(r.mesh.services) > maxHosts {
		return ""
	}
	name, rest, _ := strings.Cut(host, ".")
	cluster := strings.HasSuffix(host, ".svc."+r.mesh.domain)
	if r.mesh.tenancy.Enabled && rest != r.namespace()+".svc."+r.mesh.domain {
		return ""
	}
	names := []string{}
	for other := range r.mesh.services {
		switch first, after, _ := strings.Cut(other, "."); {
		case cluster && after == rest:
			names = append(names, first)
		case !cluster && !strings.HasPrefix(other, "*") && !strings.HasSuffix(other, ".svc."+r.mesh.domain):
			names = append(names, other)
		}
	}
	slices.Sort(names)
	if !cluster {
		return nearest.Name(host, names)
	}
	if near := nearest.Name(name, names); near != "" {
		return near + "." + rest
	}
	return ""
}

// noHost reports a host without any service, and suggests the likely one.
func (r *reader) noHost(code finding.Code, field, name, host string) {
	reason, remedy := fmt.Sprintf("no Service or ServiceEntry has the host %s", host), "create it, or correct the name"
	full := host + ".svc." + r.mesh.domain
	_, namespace, _ := strings.Cut(strings.TrimSuffix(host, ".svc."+r.mesh.domain), ".")
	wildcard := r.covering(host)
	switch {
	case wildcard != "":
		reason = fmt.Sprintf("no Service or ServiceEntry has the host %s; the wildcard host %s covers it, but routes and rules are for hosts "+
			"as they are listed", host, wildcard)
		remedy = "add a ServiceEntry for the host"
	case !strings.Contains(name, "."):
		remedy = fmt.Sprintf("create it, or write %s.<namespace>.svc.%s if it is in another namespace", name, r.mesh.domain)
	case strings.Count(host, ".") == 1 && len(r.services(full)) > 0:
		remedy = "write " + full + ": a name with a dot is taken as it is"
	case strings.HasSuffix(host, ".svc."+r.mesh.domain) && !strings.Contains(namespace, ".") && !r.namespaceExists(namespace):
		reason += "; " + noNamespace(namespace)
	}
	if near := r.nearestHost(host); near != "" {
		remedy += fmt.Sprintf("; did you mean %q?", near)
	}
	r.report(code, field, name, reason, remedy)
}

// isAlias reports whether the services are ExternalName Services, whose ports and subsets are those of another host.
func isAlias(services []*object.Object) bool {
	return !slices.ContainsFunc(services, func(o *object.Object) bool { return len(normalise.PortsOf(o)) > 0 })
}

func (r *reader) destinationPort(field string, d *networking.Destination, services []*object.Object) {
	number := d.GetPort().GetNumber()
	if number == 0 {
		return
	}
	var has []string
	for _, o := range services {
		for _, p := range normalise.PortsOf(o) {
			if p.GetNumber() == number {
				return
			}
			has = append(has, portText(p.GetNumber()))
		}
	}
	slices.Sort(has)
	r.report(finding.PortNotFound, field, number, fmt.Sprintf("%s %s/%s has no such port", services[0].Key.Kind, services[0].Key.Namespace,
		services[0].Key.Name),
		"use one of its ports: "+listed(slices.Compact(has)))
}

// destinationSubset reports a subset that no client's DestinationRule for the host defines.
func (r *reader) destinationSubset(field string, d *networking.Destination, services []*object.Object, clients []string) {
	if d.GetSubset() == "" {
		return
	}
	host := r.host(d.Host)
	candidates := slices.Clone(clients)
	if len(candidates) == 0 {
		candidates = []string{r.namespace()}
	}
	exported := r.exported(r.object)
	for _, o := range r.rules(host) {
		// A rule in the namespace of other clients may define the subset for them.
		if ns := o.Key.Namespace; defines(o, d.Subset) && (len(clients) == 0 || normalise.VisibleTo(exported, ns)) {
			candidates = append(candidates, ns)
		}
	}
	var decides *object.Object
	for _, client := range candidates {
		if r.effort > maxEffort {
			return
		}
		rules := r.rulesFor(host, client, services[0].Key.Namespace)
		if slices.ContainsFunc(rules, func(o *object.Object) bool { return defines(o, d.Subset) }) {
			return
		}
		if decides == nil && len(rules) > 0 {
			decides = rules[0]
		}
	}
	if decides == nil {
		r.report(finding.SubsetNotFound, field, d.Subset, fmt.Sprintf("namespace %s has no DestinationRule for host %s that would define it",
			listed(candidates), host),
			"add a DestinationRule with the subset, or leave the subset out")
		return
	}
	var names []string
	for _, s := range decides.Body.(*networking.DestinationRule).GetSubsets() {
		names = append(names, s.GetName())
	}
	remedy := "add the subset there"
	if len(names) > 0 {
		remedy += ", or use one of its subsets: " + listed(names)
	}
	r.report(finding.SubsetNotFound, field, d.Subset,
		fmt.Sprintf("DestinationRule %s/%s, which holds for host %s, does not define it", decides.Key.Namespace, decides.Key.Name, host), remedy)
}

func defines(rule *object.Object, subset string) bool {
	return slices.ContainsFunc(rule.Body.(*networking.DestinationRule).GetSubsets(),
		func(s *networking.Subset) bool { return s.GetName() == subset })
}

// rulesFor lists the DestinationRules that may apply to a client's requests to a host, oldest first. They come from the
// client's namespace, else the service's, else the root namespace; in each the most specific host wins. A rule with a
// workloadSelector is assumed to select the client.
func (r *reader) rulesFor(host, client, owner string) []*object.Object {
	root := r.settings().GetRootNamespace()
	order := []string{client, owner, root}
	if client == root {
		order = []string{owner, root}
	}
	for _, ns := range order {
		for h := range covering(host) {
			var found []*object.Object
			general := false
			rules := r.rules(h)
			r.effort += len(rules)
			for _, o := range rules {
				if o.Key.Namespace == ns && normalise.VisibleTo(r.exported(o), client) {
					found = append(found, o)
					general = general || len(o.Body.(*networking.DestinationRule).GetWorkloadSelector().GetMatchLabels()) == 0
				}
			}
			if general {
				return found
			}
			if len(found) > 0 {
				return append(found, r.rulesElsewhere(host, client, order[slices.Index(order, ns)+1:])...)
			}
		}
	}
	return nil
}

// rulesElsewhere lists the rules for exactly a host in further namespaces. They apply to workloads that no earlier rule
// selects.
func (r *reader) rulesElsewhere(host, client string, namespaces []string) []*object.Object {
	var out []*object.Object
	for _, o := range r.rules(host) {
		if slices.Contains(namespaces, o.Key.Namespace) && normalise.VisibleTo(r.exported(o), client) {
			out = append(out, o)
		}
	}
	return out
}

// covering yields a host and the wildcard hosts that cover it, the most specific first.
func covering(host string) func(func(string) bool) {
	return func(yield func(string) bool) {
		if !yield(host) {
			return
		}
		for wildcard := range wildcards(host) {
			if !yield(wildcard) {
				return
			}
		}
		if host != "*" {
			yield("*")
		}
	}
}

// maxListed bounds the names in a message.
const maxListed = 8

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// exportedText lists the namespaces that an object is exported to.
func exportedText(exported []string) string {
	exported = slices.DeleteFunc(slices.Clone(exported), func(ns string) bool { return ns == "~" })
	slices.Sort(exported)
	if exported = slices.Compact(exported); len(exported) == 0 {
		return "nobody"
	}
	return listed(exported)
}
