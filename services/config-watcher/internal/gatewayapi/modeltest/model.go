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

// route is what all kinds of routes have. Hostnames are one "" for none.
type route struct {
	Spec struct {
		ParentRefs []v1.ParentReference
		Hostnames  []string
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
		if r := (&route{}); strings.HasSuffix(o.Key.Kind, "Route") {
			if raw, err := json.Marshal(o.Body); err != nil || json.Unmarshal(raw, r) != nil {
				panic(o.Key.String())
			}
			if m.routes[o] = r; len(r.Spec.Hostnames) == 0 {
				r.Spec.Hostnames = []string{""}
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

// find finds an object; the namespace is its own one's if none is given.
func (m *Model) find(kind string, namespace *v1.Namespace, own string, name v1.ObjectName) *object.Object {
	for _, o := range m.all {
		if o.Key.Kind == kind && o.Key.Namespace == string(or(namespace, v1.Namespace(own))) && o.Key.Name == string(name) {
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
	lost                          bool // to an earlier object
	unusable                      bool // without a certificate
}

func (s *section) served() bool { return s.refused == "" && s.conflict == "" && !s.unusable }
func (s *section) host() string { return string(or(s.Hostname, "")) }

// gateway is the Gateway of a class that is served which an object is or, a ListenerSet, names; nil if there is none.
func (m *Model) gateway(o *object.Object) *object.Object {
	if o != nil && o.Key.Kind == "ListenerSet" {
		ref := o.Body.(*v1.ListenerSet).Spec.ParentRef
		o = m.find("Gateway", ref.Namespace, o.Key.Namespace, ref.Name)
	}
	if o == nil || o.Key.Kind != "Gateway" {
		return nil
	}
	class := o.Body.(*v1.Gateway).Spec.GatewayClassName
	if c := m.find("GatewayClass", nil, "", class); c != nil &&
		c.Body.(*v1.GatewayClass).Spec.ControllerName != "istio.io/gateway-controller" ||
		c == nil && class != "istio" {
		return nil
	}
	return o
}

func (m *Model) granted(from *object.Object, kind string, namespace *v1.Namespace, name v1.ObjectName) bool {
	to := string(or(namespace, v1.Namespace(from.Key.Namespace)))
	allowed := from.Key.Namespace == to
	for _, o := range m.all {
		g, is := o.Body.(*v1.ReferenceGrant)
		allowed = allowed || is && o.Key.Namespace == to && slices.ContainsFunc(g.Spec.From, func(f v1.ReferenceGrantFrom) bool {
			return string(f.Kind) == from.Key.Kind && string(f.Namespace) == from.Key.Namespace
		}) && slices.ContainsFunc(g.Spec.To, func(t v1.ReferenceGrantTo) bool { return string(t.Kind) == kind && or(t.Name, name) == name })
	}
	return allowed
}

func (m *Model) allows(from v1.FromNamespaces, selector *metav1.LabelSelector, owner, o *object.Object) bool {
	team := labels.Set{}
	if ns := m.find("Namespace", nil, "", v1.ObjectName(o.Key.Namespace)); ns != nil {
		team = ns.Labels
	}
	s, _ := metav1.LabelSelectorAsSelector(selector)
	return from == v1.NamespacesFromAll || from == v1.NamespacesFromSame && owner.Key.Namespace == o.Key.Namespace ||
		from == v1.NamespacesFromSelector && s.Matches(team)
}

// allowed reports whether a Gateway allows a ListenerSet.
func (m *Model) allowed(g, set *object.Object) bool {
	a := g.Body.(*v1.Gateway).Spec.AllowedListeners
	return a != nil && m.allows(or(a.Namespaces.From, v1.NamespacesFromNone), a.Namespaces.Selector, g, set)
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
	if kinds := or(l.AllowedRoutes, v1.AllowedRoutes{}).Kinds; len(kinds) > 0 {
		s.kinds = nil
		for _, k := range kinds {
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
			problem, o := "", m.find("CredentialState", ref.Namespace, owner.Key.Namespace, ref.Name)
			if secret := or(ref.Kind, "Secret") == "Secret"; secret && !m.granted(owner, "Secret", ref.Namespace, ref.Name) {
				problem = "RefNotPermitted"
			} else if !secret || o == nil || o.Body.(*object.CredentialState).Problem != "" {
				problem = "InvalidCertificateRef"
			}
			s.unresolved, s.unusable = cmp.Or(s.unresolved, problem), s.unusable && problem != ""
		}
	}
	return s
}

// sections are the listeners of a Gateway and of its allowed ListenerSets, the oldest first, with their conflicts.
func (m *Model) sections(g *object.Object) []*section {
	var all []*section
	for _, l := range g.Body.(*v1.Gateway).Spec.Listeners {
		all = append(all, m.section(g, l))
	}
	for _, o := range m.all {
		if set, is := o.Body.(*v1.ListenerSet); is && m.gateway(o) == g && m.allowed(g, o) {
			for _, l := range set.Spec.Listeners {
				all = append(all, m.section(o, v1.Listener(l)))
			}
		}
	}
	meet := func(s *section, others []*section, own bool) {
		for _, o := range others {
			if c := conflict(s, o); s != o && (s.owner == o.owner) == own && !s.lost && !o.lost && c != "" {
				s.conflict = min(cmp.Or(s.conflict, "z"), c)
			}
		}
	}
	for i, s := range all {
		meet(s, all[:i], false)
		s.lost = s.conflict != ""
	}
	for _, s := range all {
		meet(s, all, true)
	}
	for _, s := range all {
		for _, o := range all { // listeners of several protocols spoil the whole port
			if s.owner == o.owner && !s.lost && !o.lost && samePort(s, o) && o.conflict == excluded {
				s.conflict = excluded
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
	owner := m.find(string(or(ref.Kind, "Gateway")), ref.Namespace, o.Key.Namespace, ref.Name)
	if or(ref.Kind, "Gateway") == "Service" {
		return nil, toService(o, ref, owner)
	}
	g := m.gateway(owner)
	if g == nil {
		return nil, "none"
	}
	reason = "NoMatchingParent"
	for _, s := range m.sections(g) {
		if s.owner != owner || or(ref.SectionName, s.Name) != s.Name || or(ref.Port, s.Port) != s.Port {
			continue
		}
		n := or(or(s.AllowedRoutes, v1.AllowedRoutes{}).Namespaces, v1.RouteNamespaces{})
		if !slices.Contains(s.kinds, o.Key.Kind) || !m.allows(or(n.From, v1.NamespacesFromSame), n.Selector, owner, o) {
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
	return out, map[bool]string{true: reason}[len(out) == 0]
}

func toService(o *object.Object, ref v1.ParentReference, service *object.Object) string {
	switch {
	case service == nil:
	case o.Key.Kind == "UDPRoute":
		return "UnsupportedValue"
	case ref.Port == nil || len(portsOf(service, *ref.Port)) > 0:
		return ""
	}
	return "NoMatchingParent"
}

// portsOf are the ports of a Service with a number, as whether they are of UDP.
func portsOf(service *object.Object, number int32) (udp []bool) {
	for _, p := range service.Body.(*corev1.Service).Spec.Ports {
		if p.Port == number {
			udp = append(udp, p.Protocol == corev1.ProtocolUDP)
		}
	}
	return udp
}

// backend is why a backend cannot be resolved, or "". In the mesh, clients may send to any namespace.
func (m *Model) backend(o *object.Object, ref v1.BackendObjectReference, mesh bool) string {
	service := m.find("Service", ref.Namespace, o.Key.Namespace, ref.Name)
	switch {
	case or(ref.Kind, "Service") != "Service":
		return "InvalidKind"
	case !mesh && !m.granted(o, "Service", ref.Namespace, ref.Name):
		return "RefNotPermitted"
	case service == nil || len(portsOf(service, *ref.Port)) == 0:
		return "BackendNotFound"
	case !slices.Contains(portsOf(service, *ref.Port), o.Key.Kind == "UDPRoute"):
		return "UnsupportedProtocol"
	}
	return ""
}

// state writes a condition, for which no reason speaks if it is true.
func state(typ, reason string) string {
	return typ + map[bool]string{true: "=True/" + typ + " ", false: "=False/" + reason + " "}[reason == ""]
}

// Statuses are the conditions of Gateways, ListenerSets and routes: "Accepted=True/Accepted ...", and in further lines
// those of listeners and parents.
func (m *Model) Statuses() map[object.Key]string {
	out := map[object.Key]string{}
	for _, o := range m.all {
		if m.gateway(o) == o {
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
					out[o.Key] = text
				}
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
		unresolved = cmp.Or(unresolved, map[bool]string{true: "ListenersNotResolved"}[s.owner == g && s.unresolved != ""])
		attached := 0
		for o := range m.routes {
			if m.takes(o, s) {
				attached++
			}
		}
		conflicted := "Conflicted=" + map[bool]string{true: "False/NoConflicts ", false: "True/" + s.conflict + " "}[s.conflict == ""]
		text[s.owner] += fmt.Sprintf("%s: %d %v ", s.Name, attached, s.kinds) + state("Accepted", cmp.Or(s.refused, s.conflict)) +
			conflicted + state("ResolvedRefs", s.unresolved) + "\n"
	}
	accepted := func(o *object.Object) string {
		if bad[o] > 0 && good[o] > 0 {
			return "Accepted=True/ListenersNotValid "
		}
		return state("Accepted", map[bool]string{true: "ListenersNotValid"}[bad[o] > 0])
	}
	for _, o := range m.all {
		if m.gateway(o) == g && o != g && !m.allowed(g, o) {
			out[o.Key] = state("Accepted", "NotAllowed") + "\n"
		} else if m.gateway(o) == g && o != g {
			sets += min(good[o], 1)
			out[o.Key] = accepted(o) + "\n" + text[o]
		}
	}
	out[g.Key] = fmt.Sprintf("%s%ssets: %d\n%s", accepted(g), state("ResolvedRefs", unresolved), sets, text[g])
}

// takes reports whether a listener takes a route by any of its parentRefs.
func (m *Model) takes(o *object.Object, s *section) bool {
	return slices.ContainsFunc(m.routes[o].Spec.ParentRefs, func(p v1.ParentReference) bool {
		taken, _ := m.attach(o, p)
		return slices.ContainsFunc(taken, func(t *section) bool { return t.owner == s.owner && t.Name == s.Name })
	})
}
