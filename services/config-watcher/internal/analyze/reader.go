package analyze

import (
	"fmt"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// subject is what a topic is about.
type subject uint8

const (
	// subjectHost, the services of a host: a = host, which may be a wildcard.
	subjectHost subject = iota
	// subjectRule, the DestinationRules for a host: a = host.
	subjectRule
	// subjectObject, an object of a networking kind: a = kind, b = "<namespace>/<name>".
	subjectObject
	// subjectSecret, the credential of a reference: a = namespace, b = name.
	subjectSecret
	// subjectNamespace, whether anything is in a namespace: a = namespace.
	subjectNamespace
	// subjectSelected, the workloads that a selector selects: a = selector.
	subjectSelected
	// subjectGatewayNamespaces, the namespaces of the workloads that Gateways select.
	subjectGatewayNamespaces
	// subjectRoutes, the VirtualServices of a gateway for a host: a = gateway, b = host.
	subjectRoutes
	// subjectServers, the Gateways with servers of a kind on a port: a = port, b = kind.
	subjectServers
	// subjectServerNames, the Gateways that terminate TLS for a host on a port: a = port, b = host.
	subjectServerNames
)

// topic is a question that a change may answer in another way.
type topic struct {
	subject subject
	a, b    string
}

// reader answers the questions of checks about one object, records them and collects what the checks report.
type reader struct {
	mesh   *Mesh
	object *object.Object
	topics []topic
	known  map[topic]bool // those of topics
	found  []Finding
	effort int // comparisons so far, see mostEffort
}

func (r *reader) record(s subject, a, b string) {
	t := topic{s, a, b}
	if r.known[t] {
		return
	}
	if r.known == nil {
		r.known = map[topic]bool{}
	}
	r.known[t] = true
	r.topics = append(r.topics, t)
}

// mostFindings bounds the findings about one object: they are shown with it wherever it is read.
const mostFindings = 100

// report adds a finding about the object.
func (r *reader) report(code Code, field string, value any, reason, remedy string) {
	if len(r.found) == mostFindings {
		return
	}
	r.found = append(r.found, Finding{
		Code: code, Severity: Warning, Key: r.object.Key, Source: r.object.Source,
		Problem: object.Problem{
			Location: r.object.Location, Object: r.object.Key.String(), Field: field, Value: object.Quote(value), Reason: reason, Remedy: remedy,
		},
	})
}

func (r *reader) namespace() string { return r.object.Key.Namespace }

func (r *reader) settings() *mesh.MeshConfig { return r.mesh.settings }

// host is a name as hosts are compared.
func (r *reader) host(name string) string { return normalise.Host(name, r.namespace(), r.mesh.domain) }

// services lists the objects that have a host, visible or not.
func (r *reader) services(host string) []*object.Object {
	r.record(subjectHost, host, "")
	return r.mesh.services[host]
}

// covering returns the narrowest wildcard host of a service that covers a host; "" if there is none.
func (r *reader) covering(host string) string {
	for wildcard := range wildcards(host) {
		if len(r.services(wildcard)) > 0 {
			return wildcard
		}
	}
	return ""
}

// wildcards yields the wildcard hosts that cover a host, the narrowest first.
func wildcards(host string) func(func(string) bool) {
	return func(yield func(string) bool) {
		rest := strings.TrimPrefix(host, "*.")
		for rest != "" {
			if wildcard := "*." + rest; wildcard != host && rest != host && !yield(wildcard) {
				return
			}
			_, rest, _ = strings.Cut(rest, ".")
		}
	}
}

// exported are the namespaces that an object is exported to, see normalise.ExportedTo.
func (r *reader) exported(o *object.Object) []string {
	return normalise.ObjectExportedTo(o, r.mesh.settings)
}

// rules lists the DestinationRules for exactly a host, oldest first.
func (r *reader) rules(host string) []*object.Object {
	r.record(subjectRule, host, "")
	return r.mesh.rules[host]
}

// config returns an object of a networking kind; nil if there is none.
func (r *reader) config(kind, namespace, name string) *object.Object {
	r.record(subjectObject, kind, namespace+"/"+name)
	if j := r.mesh.judged[object.Key{Group: validate.GroupNetworking, Kind: kind, Namespace: namespace, Name: name}]; j != nil {
		return j.object
	}
	return nil
}

// inhabited reports whether the mesh has heard of a namespace: by its own object, or by any object in it.
func (r *reader) inhabited(namespace string) bool {
	r.record(subjectNamespace, namespace, "")
	return r.mesh.namespaces[namespace] > 0 || namespace == r.settings().GetRootNamespace() || namespace == validate.MeshNamespace
}

// noNamespace is what to say of a namespace in which nothing is.
func noNamespace(namespace string) string {
	return fmt.Sprintf("nothing is in namespace %s, and it has no object", namespace)
}

// selected lists the namespaces of the workloads that a selector selects, sorted.
func (r *reader) selected(selector map[string]string) []string {
	key := selectorKey(selector)
	r.record(subjectSelected, key, "")
	return r.mesh.selections[key].namespaces()
}

// gatewayNamespaces lists the namespaces of the workloads that Gateways select, sorted.
func (r *reader) gatewayNamespaces() []string {
	r.record(subjectGatewayNamespaces, "", "")
	var out []string
	for _, s := range r.mesh.selections {
		out = append(out, s.namespaces()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sharesWorkload reports whether two Gateways select a workload in common, or would.
func (r *reader) sharesWorkload(a, b *networking.Gateway) bool {
	one, other := selectorKey(a.GetSelector()), selectorKey(b.GetSelector())
	if one == other {
		return true
	}
	r.record(subjectSelected, one, "")
	r.record(subjectSelected, other, "")
	return r.mesh.selections[one].meets(r.mesh.selections[other])
}

// routes lists the VirtualServices of a gateway, "mesh" or "<namespace>/<name>", for exactly a host, oldest first.
func (r *reader) routes(gateway, host string) []*object.Object {
	r.record(subjectRoutes, gateway, host)
	return r.mesh.routes[binding{gateway, host}]
}

// all is the visibility of what every namespace sees.
const all = "*"

// within reports whether all who see one object see the other as well.
func within(inner, outer []string) bool {
	if slices.Contains(outer, all) {
		return true
	}
	seen := make(map[string]bool, len(outer))
	for _, ns := range outer {
		seen[ns] = true
	}
	return !slices.ContainsFunc(inner, func(ns string) bool { return !seen[ns] })
}
