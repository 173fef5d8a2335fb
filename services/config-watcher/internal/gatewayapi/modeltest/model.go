// Package modeltest is a small model of the Gateway API's specification, which tests compare package gatewayapi with:
// New takes all objects, Statuses says their conditions, and Answer which rule answers a request. It shares no code
// with that package, and looks at everything for each question. Draw draws random objects.
package modeltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	v1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Model is objects that all are there at once, the oldest first.
type Model struct {
	all    []*object.Object
	routes map[*object.Object]*route
}

// route is what all kinds of routes have.
type route struct {
	Spec struct {
		ParentRefs []v1.ParentReference
		Hostnames  []string // one "" for none
		Rules      []struct {
			Matches     []v1.HTTPRouteMatch
			BackendRefs []v1.BackendRef
		}
	}
}

// New returns a model of objects. GRPCRoutes must be without matches.
func New(objects []*object.Object) *Model {
	m := &Model{all: slices.Clone(objects), routes: map[*object.Object]*route{}}
	slices.SortFunc(m.all, func(a, b *object.Object) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Key.Namespace+"/"+a.Key.Name, b.Key.Namespace+"/"+b.Key.Name),
			strings.Compare(b.Key.Kind, a.Key.Kind)) // HTTPRoutes before GRPCRoutes
	})
	for _, o := range m.all {
		if strings.HasSuffix(o.Key.Kind, "Route") {
			raw, _ := json.Marshal(o.Body)
			m.routes[o] = &route{}
			if err := json.Unmarshal(raw, m.routes[o]); err != nil {
				panic(err)
			}
			if s := &m.routes[o].Spec; len(s.Hostnames) == 0 {
				s.Hostnames = []string{""}
			}
		}
	}
	return m
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func each[T any](m *Model, f func(o *object.Object, body T)) {
	for _, o := range m.all {
		if body, ok := o.Body.(T); ok {
			f(o, body)
		}
	}
}

func (m *Model) find(kind, namespace, name string) *object.Object {
	for _, o := range m.all {
		if o.Key.Kind == kind && o.Key.Namespace == namespace && o.Key.Name == name {
			return o
		}
	}
	return nil
}

// section is a listener. Its reasons are those of conditions that are not as usual, or "".
type section struct {
	v1.Listener
	owner                         *object.Object // Gateway or ListenerSet
	kinds                         []string
	refused, conflict, unresolved string
	unusable /* no certificate */, lost/* to an earlier object */ bool
}

func (s *section) served() bool { return s.refused == "" && s.conflict == "" && !s.unusable }
func (s *section) host() string { return string(or(s.Hostname, "")) }

// ours reports whether a Gateway is of a class that is served.
func (m *Model) ours(g *object.Object) bool {
	class := string(g.Body.(*v1.Gateway).Spec.GatewayClassName)
	if o := m.find("GatewayClass", "", class); o != nil {
		class = strings.TrimSuffix(string(o.Body.(*v1.GatewayClass).Spec.ControllerName), ".io/gateway-controller")
	}
	return class == "istio"
}

func (m *Model) granted(from *object.Object, kind, namespace, name string) bool {
	allowed := from.Key.Namespace == namespace
	each(m, func(o *object.Object, g *v1.ReferenceGrant) {
		for _, f := range g.Spec.From {
			for _, t := range g.Spec.To {
				allowed = allowed || o.Key.Namespace == namespace && string(f.Kind) == from.Key.Kind && string(f.Namespace) == from.Key.Namespace &&
					string(t.Kind) == kind && string(or(t.Name, v1.ObjectName(name))) == name
			}
		}
	})
	return allowed
}

func (m *Model) allows(from *v1.FromNamespaces, selector *metav1.LabelSelector, otherwise v1.FromNamespaces, owner, namespace string) bool {
	switch or(from, otherwise) {
	case v1.NamespacesFromAll:
		return true
	case v1.NamespacesFromSame:
		return owner == namespace
	case v1.NamespacesFromSelector:
		s, _ := metav1.LabelSelectorAsSelector(selector)
		o := m.find("Namespace", "", namespace)
		return o != nil && s.Matches(labels.Set(o.Labels))
	}
	return false
}

var kindsOf = map[v1.ProtocolType][]string{
	"HTTP": {"HTTPRoute", "GRPCRoute"}, "HTTPS": {"HTTPRoute", "GRPCRoute"}, "TLS": {"TLSRoute"}, "TCP": {"TCPRoute"}, "UDP": {"UDPRoute"},
}

func (m *Model) section(owner *object.Object, l v1.Listener) *section {
	s := &section{Listener: l, owner: owner, kinds: kindsOf[l.Protocol]}
	if s.kinds == nil {
		s.refused = "UnsupportedProtocol"
		return s
	}
	if l.AllowedRoutes != nil && len(l.AllowedRoutes.Kinds) > 0 {
		s.kinds = nil
		for _, k := range l.AllowedRoutes.Kinds {
			if slices.Contains(kindsOf[l.Protocol], string(k.Kind)) {
				s.kinds = append(s.kinds, string(k.Kind))
			} else {
				s.unresolved = "InvalidRouteKinds"
			}
		}
	}
	if l.TLS != nil && or(l.TLS.Mode, v1.TLSModeTerminate) == v1.TLSModeTerminate {
		s.unusable = true
		for _, ref := range l.TLS.CertificateRefs {
			problem := m.certificate(owner, ref)
			s.unresolved = cmp.Or(s.unresolved, problem)
			s.unusable = s.unusable && problem != ""
		}
	}
	return s
}

func (m *Model) certificate(owner *object.Object, ref v1.SecretObjectReference) string {
	namespace := string(or(ref.Namespace, v1.Namespace(owner.Key.Namespace)))
	switch o := m.find("CredentialState", namespace, string(ref.Name)); {
	case or(ref.Kind, "Secret") != "Secret":
		return "InvalidCertificateRef"
	case !m.granted(owner, "Secret", namespace, string(ref.Name)):
		return "RefNotPermitted"
	case o == nil || o.Body.(*object.CredentialState).Problem != "":
		return "InvalidCertificateRef"
	}
	return ""
}

// sections are the listeners of a Gateway and of its allowed ListenerSets, the oldest first, with their conflicts.
func (m *Model) sections(g *object.Object) []*section {
	var all []*section
	for _, l := range g.Body.(*v1.Gateway).Spec.Listeners {
		all = append(all, m.section(g, l))
	}
	each(m, func(o *object.Object, set *v1.ListenerSet) {
		for _, l := range set.Spec.Listeners {
			if m.parent(o) == g && m.allowed(g, o) {
				all = append(all, m.section(o, v1.Listener(l)))
			}
		}
	})
	meet := func(s *section, others []*section, own bool, c func(s, o *section) string) {
		for _, o := range others {
			if s != o && (s.owner == o.owner) == own && !o.lost && c(s, o) != "" {
				s.conflict = min(cmp.Or(s.conflict, "z"), c(s, o))
			}
		}
	}
	for i, s := range all {
		meet(s, all[:i], false, conflict)
		s.lost = s.conflict != ""
	}
	spoilt := func(s, o *section) string { // listeners of several protocols spoil the whole port
		if samePort(s, o) && o.conflict == excluded {
			return excluded
		}
		return ""
	}
	for _, c := range []func(s, o *section) string{conflict, spoilt} {
		for _, s := range all {
			if !s.lost {
				meet(s, all, true, c)
			}
		}
	}
	for _, s := range all {
		s.conflict = strings.TrimLeft(s.conflict, "12 ")
	}
	return all
}

func samePort(a, b *section) bool {
	return a.refused == "" && b.refused == "" && a.Port == b.Port && (a.Protocol == "UDP") == (b.Protocol == "UDP")
}

// excluded is the conflict of listeners whose protocols exclude each other on a port.
const excluded = "1 ProtocolConflict"

func conflict(a, b *section) string {
	family := strings.NewReplacer("HTTPS", "TLS")
	switch {
	case !samePort(a, b):
		return ""
	case family.Replace(string(a.Protocol)) != family.Replace(string(b.Protocol)):
		return excluded
	case a.Protocol == "TCP" || a.Protocol == "UDP" || a.host() == b.host() && a.Protocol != b.Protocol:
		return "2 ProtocolConflict"
	case a.host() == b.host():
		return "HostnameConflict"
	}
	return ""
}

// parent is the Gateway of ours that a ListenerSet names; nil if there is none.
func (m *Model) parent(set *object.Object) *object.Object {
	ref := set.Body.(*v1.ListenerSet).Spec.ParentRef
	g := m.find("Gateway", string(or(ref.Namespace, v1.Namespace(set.Key.Namespace))), string(ref.Name))
	if g == nil || !m.ours(g) {
		return nil
	}
	return g
}

func (m *Model) allowed(g, set *object.Object) bool {
	a := g.Body.(*v1.Gateway).Spec.AllowedListeners
	return a != nil && m.allows(a.Namespaces.From, a.Namespaces.Selector, v1.NamespacesFromNone, g.Key.Namespace, set.Key.Namespace)
}

// matches reports whether a host is that of a hostname, below its wildcard, or any if it is empty.
func matches(hostname, host string) bool {
	return hostname == "" || hostname == host || strings.HasPrefix(hostname, "*") && strings.HasSuffix(host, hostname[1:])
}

// common is what two hostnames have in common; false if that is nothing.
func common(a, b string) (string, bool) {
	if matches(a, b) && (a == "" || b != "") {
		return b, true
	}
	return a, matches(b, a)
}

// attach returns the listeners of a parentRef that take a route, or why none does; "none" if the parent is not ours.
func (m *Model) attach(o *object.Object, ref v1.ParentReference) (out []*section, reason string) {
	kind := string(or(ref.Kind, "Gateway"))
	owner := m.find(kind, string(or(ref.Namespace, v1.Namespace(o.Key.Namespace))), string(ref.Name))
	reason = "NoMatchingParent"
	if kind == "Service" && owner != nil && o.Key.Kind == "UDPRoute" {
		return nil, "UnsupportedValue"
	} else if kind == "Service" {
		if owner != nil && (ref.Port == nil || slices.ContainsFunc(owner.Body.(*corev1.Service).Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == *ref.Port
		})) {
			reason = ""
		}
		return nil, reason
	}
	g := owner
	if owner != nil && kind == "ListenerSet" {
		g = m.parent(owner)
	}
	if g == nil || !m.ours(g) {
		return nil, "none"
	}
	for _, s := range m.sections(g) {
		if s.owner != owner || or(ref.SectionName, s.Name) != s.Name || or(ref.Port, s.Port) != s.Port {
			continue
		}
		n := or(or(s.AllowedRoutes, v1.AllowedRoutes{}).Namespaces, v1.RouteNamespaces{})
		if !slices.Contains(s.kinds, o.Key.Kind) || !m.allows(n.From, n.Selector, v1.NamespacesFromSame, owner.Key.Namespace, o.Key.Namespace) {
			if reason == "NoMatchingParent" {
				reason = "NotAllowedByListeners"
			}
			continue
		}
		reason = "NoMatchingListenerHostname"
		if s.Protocol == "TCP" || s.Protocol == "UDP" || slices.ContainsFunc(m.routes[o].Spec.Hostnames, func(h string) bool {
			_, some := common(h, s.host())
			return some
		}) {
			out = append(out, s)
		}
	}
	if len(out) > 0 {
		reason = ""
	}
	return out, reason
}

// backend is why a backend cannot be resolved, or "". In the mesh, clients may send to any namespace.
func (m *Model) backend(o *object.Object, ref v1.BackendObjectReference, mesh bool) string {
	namespace := string(or(ref.Namespace, v1.Namespace(o.Key.Namespace)))
	service := m.find("Service", namespace, string(ref.Name))
	if or(ref.Kind, "Service") != "Service" {
		return "InvalidKind"
	} else if !mesh && !m.granted(o, "Service", namespace, string(ref.Name)) {
		return "RefNotPermitted"
	} else if service == nil {
		return "BackendNotFound"
	}
	reason := "BackendNotFound"
	for _, p := range service.Body.(*corev1.Service).Spec.Ports {
		if p.Port == *ref.Port && (p.Protocol == corev1.ProtocolUDP) == (o.Key.Kind == "UDPRoute") {
			return ""
		} else if p.Port == *ref.Port {
			reason = "UnsupportedProtocol"
		}
	}
	return reason
}

// state writes a condition, for which no reason speaks if it is true.
func state(typ, reason string) string {
	if reason == "" {
		return fmt.Sprintf("%s=True/%s ", typ, typ)
	}
	return fmt.Sprintf("%s=False/%s ", typ, reason)
}

// Statuses are the conditions of Gateways, ListenerSets and routes: "Accepted=True/Accepted ...", and in further lines
// those of listeners and parents.
func (m *Model) Statuses() map[object.Key]string {
	out := map[object.Key]string{}
	for _, o := range m.all {
		if _, is := o.Body.(*v1.Gateway); is && m.ours(o) {
			m.statuses(o, out)
		} else if r := m.routes[o]; r != nil {
			mesh, text, unresolved := true, "", ""
			for _, p := range r.Spec.ParentRefs {
				_, reason := m.attach(o, p)
				mesh = mesh && (or(p.Kind, "Gateway") == "Service" || reason == "none")
			}
			for _, rule := range r.Spec.Rules {
				for _, ref := range rule.BackendRefs {
					unresolved = cmp.Or(unresolved, m.backend(o, ref.BackendObjectReference, mesh))
				}
			}
			for _, p := range r.Spec.ParentRefs {
				if _, reason := m.attach(o, p); reason != "none" {
					text += string(p.Name) + ": " + state("Accepted", reason) + state("ResolvedRefs", unresolved) + "\n"
				}
			}
			if text != "" {
				out[o.Key] = text
			}
		}
	}
	return out
}

// statuses are those of a Gateway and its ListenerSets.
func (m *Model) statuses(g *object.Object, out map[object.Key]string) {
	good, bad, text, sets, unresolved := map[*object.Object]int{}, map[*object.Object]int{}, map[*object.Object]string{}, 0, ""
	for _, s := range m.sections(g) {
		if s.served() {
			good[s.owner]++
			good[g]++
		} else {
			bad[s.owner]++
		}
		if s.owner == g && s.unresolved != "" {
			unresolved = "ListenersNotResolved"
		}
		attached := 0
		for o := range m.routes {
			if m.takes(o, s) {
				attached++
			}
		}
		conflicted := "Conflicted=False/NoConflicts "
		if s.conflict != "" {
			conflicted = "Conflicted=True/" + s.conflict + " "
		}
		text[s.owner] += fmt.Sprintf("%s: %d %v ", s.Name, attached, s.kinds) + state("Accepted", cmp.Or(s.refused, s.conflict)) +
			conflicted + state("ResolvedRefs", s.unresolved) + "\n"
	}
	accepted := func(o *object.Object) string {
		if bad[o] > 0 && good[o] > 0 {
			return "Accepted=True/ListenersNotValid "
		}
		return state("Accepted", map[bool]string{true: "ListenersNotValid"}[bad[o] > 0])
	}
	each(m, func(o *object.Object, _ *v1.ListenerSet) {
		if m.parent(o) == g && !m.allowed(g, o) {
			out[o.Key] = state("Accepted", "NotAllowed") + "\n"
		} else if m.parent(o) == g {
			sets += min(good[o], 1)
			out[o.Key] = accepted(o) + "\n" + text[o]
		}
	})
	out[g.Key] = fmt.Sprintf("%s%ssets: %d\n%s", accepted(g), state("ResolvedRefs", unresolved), sets, text[g])
}

// takes reports whether a listener takes a route by any of its parentRefs.
func (m *Model) takes(o *object.Object, s *section) bool {
	return slices.ContainsFunc(m.routes[o].Spec.ParentRefs, func(p v1.ParentReference) bool {
		taken, _ := m.attach(o, p)
		return slices.ContainsFunc(taken, func(t *section) bool { return t.owner == s.owner && t.Name == s.Name })
	})
}

// Request is an HTTP request.
type Request struct {
	Host, Path, Method string
	Headers, Query     map[string]string
}

// specific orders hostnames: exact ones before wildcards, longer ones before shorter ones.
func specific(hostname string) int {
	if hostname == "" || strings.HasPrefix(hostname, "*") {
		return len(hostname)
	}
	return 1000 + len(hostname)
}

// Answer names the rule that answers a request to a port of a Gateway, such as "HTTPRoute a/b 0", or nothing. Of the
// domains that routes have at the most specific listener, the most specific one decides alone.
func (m *Model) Answer(g *object.Object, port int32, r Request) string {
	var listener *section
	for _, s := range m.sections(g) {
		if s.served() && s.Port == port && strings.HasPrefix(string(s.Protocol), "HTTP") && matches(s.host(), r.Host) &&
			(listener == nil || specific(s.host()) > specific(listener.host())) {
			listener = s
		}
	}
	type candidate struct {
		order []int
		rule  string
	}
	var best []candidate
	domain := -1
	for age, o := range m.all {
		of := m.routes[o]
		if of == nil || listener == nil || !m.takes(o, listener) {
			continue
		}
		for _, own := range of.Spec.Hostnames {
			d, some := common(own, listener.host())
			if !some || !matches(d, r.Host) || specific(d) < domain {
				continue
			} else if specific(d) > domain {
				best, domain = nil, specific(d)
			}
			for i, rule := range of.Spec.Rules {
				for j, match := range append(rule.Matches, make([]v1.HTTPRouteMatch, max(0, 1-len(rule.Matches)))...) {
					if order, ok := r.matches(match); ok {
						order = append(append([]int{-specific(own)}, order...), age, i, j)
						best = append(best, candidate{order, fmt.Sprintf("%s %s/%s %d", o.Key.Kind, o.Key.Namespace, o.Key.Name, i)})
					}
				}
			}
		}
	}
	if len(best) == 0 {
		return ""
	}
	return slices.MinFunc(best, func(a, b candidate) int { return slices.Compare(a.order, b.order) }).rule
}

// matches reports whether a match is met, and its place: exact path, longest prefix, method, headers, query parameters.
func (r Request) matches(m v1.HTTPRouteMatch) ([]int, bool) {
	path := or(m.Path, v1.HTTPPathMatch{})
	value, exact := strings.TrimSuffix(or(path.Value, "/"), "/"), or(path.Type, v1.PathMatchPathPrefix) == v1.PathMatchExact
	ok := r.Path == value || strings.HasPrefix(r.Path, value+"/")
	order := []int{1, -len(value), 1, -len(m.Headers), -len(m.QueryParams)}
	if exact {
		ok, order[0], order[1] = r.Path == *path.Value, 0, 0
	}
	if m.Method != nil {
		ok, order[2] = ok && string(*m.Method) == r.Method, 0
	}
	for _, h := range m.Headers {
		ok = ok && r.Headers[string(h.Name)] == h.Value
	}
	for _, q := range m.QueryParams {
		ok = ok && r.Query[string(q.Name)] == q.Value
	}
	return order, ok
}
