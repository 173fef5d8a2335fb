package running

import (
	"fmt"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// subject is the kind of a topic. Each constant says what a and b of the topic are.
type subject uint8

const (
	// subjectHost is about the services of a host: a = host, which may be a wildcard.
	subjectHost subject = iota
	// subjectRule is about the DestinationRules for a host: a = host.
	subjectRule
	// subjectObject is about an object of a networking kind: a = kind, b = "<namespace>/<name>".
	subjectObject
	// subjectSecret is about a Secret or ConfigMap: a = namespace, b = name.
	subjectSecret
	// subjectNamespace is about the existence of a namespace: a = namespace.
	subjectNamespace
	// subjectSelected is about the workloads that a selector selects: a = selector.
	subjectSelected
	// subjectGatewayNamespaces is about the namespaces of the workloads that Gateways select.
	subjectGatewayNamespaces
	// subjectRoutes is about the VirtualServices of a gateway for a host: a = gateway, b = host.
	subjectRoutes
	// subjectServers is about the Gateways with servers of a kind on a port: a = port, b = kind.
	subjectServers
	// subjectServerNames is about the Gateways that terminate TLS for a host on a port: a = port, b = host.
	subjectServerNames
	// subjectOccupied is about what is in a namespace for other objects to be about: a = namespace.
	subjectOccupied
	// subjectIngressClass is about an IngressClass: a = name, "" for the default one.
	subjectIngressClass
)

// topic is a part of the mesh that a check reads and a change may affect.
type topic struct {
	subject subject
	a, b    string
}

// reader gives the checks of one object access to the mesh. It records the topics that they read and collects their
// findings.
type reader struct {
	mesh   *Mesh
	object *object.Object
	topics []topic
	known  map[topic]bool // the same as topics
	found  []finding.Finding
	effort int // comparisons so far, see maxEffort
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

// maxFindings bounds the findings about one object, which are shown with it everywhere.
const maxFindings = 100

// report adds a finding about the object.
func (r *reader) report(code finding.Code, field string, value any, reason, remedy string) {
	if len(r.found) == maxFindings {
		return
	}
	r.found = append(r.found, finding.Finding{
		Code: code, Severity: finding.Warning, Key: r.object.Key, Source: r.object.Source,
		Problem: object.Problem{
			Location: r.object.Location, Object: r.object.Key.String(), Field: field, Value: object.Quote(value), Reason: reason, Remedy: remedy,
		},
	})
}

func (r *reader) namespace() string { return r.object.Key.Namespace }

func (r *reader) settings() *mesh.MeshConfig { return r.mesh.settings }

// host resolves a name to the form in which hosts are compared.
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

func (r *reader) exported(o *object.Object) []string {
	return normalise.ObjectExportedTo(o, r.mesh.settings, r.mesh.tenancy)
}

// rules lists the DestinationRules for exactly a host, oldest first.
func (r *reader) rules(host string) []*object.Object {
	r.record(subjectRule, host, "")
	return r.mesh.rules[host]
}

// config returns an object of a networking kind; nil if there is none.
func (r *reader) config(kind, namespace, name string) *object.Object {
	r.record(subjectObject, kind, namespace+"/"+name)
	if j := r.mesh.analyzed[object.Key{Group: kinds.GroupNetworking, Kind: kind, Namespace: namespace, Name: name}]; j != nil {
		return j.object
	}
	return nil
}

// namespaceExists reports whether a namespace has a Namespace object or any other object.
func (r *reader) namespaceExists(namespace string) bool {
	r.record(subjectNamespace, namespace, "")
	return r.mesh.namespaces[namespace] > 0 || namespace == r.settings().GetRootNamespace() || namespace == kinds.MeshNamespace
}

// noNamespace says in a message that a namespace does not exist.
func noNamespace(namespace string) string {
	return fmt.Sprintf("nothing is in namespace %s, and it has no object", namespace)
}

// selected lists the namespaces of the workloads that a selector selects, sorted.
func (r *reader) selected(selector map[string]string) []string {
	key := object.LabelText(selector)
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

// sharesWorkload reports whether two Gateways have equal selectors or select a common workload.
func (r *reader) sharesWorkload(a, b *networking.Gateway) bool {
	one, other := object.LabelText(a.GetSelector()), object.LabelText(b.GetSelector())
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

// allNamespaces is the exportedTo of an object that every namespace sees.
const allNamespaces = "*"

// within reports whether all namespaces that see one object see the other as well.
func within(inner, outer []string) bool {
	if slices.Contains(outer, allNamespaces) {
		return true
	}
	seen := make(map[string]bool, len(outer))
	for _, ns := range outer {
		seen[ns] = true
	}
	return !slices.ContainsFunc(inner, func(ns string) bool { return !seen[ns] })
}
