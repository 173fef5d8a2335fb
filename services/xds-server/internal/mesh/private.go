package mesh

import (
	"slices"
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Global is the namespace of nobody: what a client there sees is what all namespaces see, as far as none has something of its own.
const Global = ""

// Private calls f for the topics whose answer for a client in the namespace may differ from the answer for Everybody: some object that
// is only exported to it, or that takes precedence in it, has a part in them. All other topics have one answer for all namespaces, except
// those that a client's own labels, targets or Sidecar decide.
func (s *Snapshot) Private(namespace string, f func(Topic)) {
	s.privates.scan(namespace+sep, func(key string, _ int) bool {
		f(parseTopic(key[len(namespace)+len(sep):]))
		return true
	})
	if namespace != Global {
		f(OwnNamespaceTopic(namespace))
	}
}

// OwnNamespaceTopic names the answer to whether a namespace is the client's own.
func OwnNamespaceTopic(namespace string) Topic { return Topic{SubjectOwnNamespace, namespace, ""} }

// IsPrivate reports whether Private names the topic.
func (s *Snapshot) IsPrivate(namespace string, t Topic) bool {
	if t.Subject == SubjectOwnNamespace {
		return t.A == namespace
	}
	_, ok := s.privates.get(join(namespace, t.key()))
	return ok
}

func (t Topic) key() string { return join(strconv.Itoa(int(t.Subject)), t.A, t.B) }

func parseTopic(key string) Topic {
	subject, rest, _ := strings.Cut(key, sep)
	a, b, _ := strings.Cut(rest, sep)
	n, _ := strconv.ParseUint(subject, 10, 8) // key wrote it
	return Topic{Subject(n), a, b}
}

// differs counts topics whose answers an object makes another one in the namespaces.
func (w *writer) differs(namespaces []string, add bool, topics ...Topic) {
	for _, namespace := range namespaces {
		for _, t := range topics {
			if n := w.count(w.state.privates, join(namespace, t.key()), add); n == 0 || n == 1 && add {
				if w.private[namespace] == nil {
					w.private[namespace] = Topics{}
				}
				w.private[namespace].Add(t)
			}
		}
	}
}

// explicit lists the namespaces that see an object which not everybody sees.
func explicit(exportedTo []string) []string {
	if slices.Contains(exportedTo, "*") {
		return nil
	}
	return exportedTo
}

// privateService: a service that not everybody sees is private to those who do. Of several services with one name that of the client's own
// namespace wins, so the name is private to each of their namespaces; while it is the only one of its name, it is nobody's in particular.
func (w *writer) privateService(e *entry, v *configv1.Service, add bool) {
	w.differs(explicit(v.GetExportedTo()), add, serviceTopics(v)...)
	var others []*configv1.Service
	w.state.services.scan(v.GetHostname()+sep, func(_ string, o *entry) bool {
		if o.key != e.key {
			others = append(others, o.value.(*configv1.Service))
		}
		return true
	})
	if len(others) == 0 {
		return
	}
	w.differs([]string{v.GetNamespace()}, add, serviceTopics(v)...)
	if len(others) == 1 {
		w.differs([]string{others[0].GetNamespace()}, add, serviceTopics(others[0])...)
	}
}

// serviceTopics are those whose answers tell which of several services counts, and whether one does.
func serviceTopics(v *configv1.Service) []Topic {
	return []Topic{ServiceTopic(v.GetHostname()), {SubjectServices, "*", v.GetNamespace()}, {SubjectServices, "*", ""}}
}

func (w *writer) privateVirtualService(v *VirtualService, gateways []string, add bool) {
	to := explicit(v.ExportedTo)
	if to == nil {
		return
	}
	for _, gw := range gateways {
		w.differs(to, add, Topic{SubjectGatewayRoutes, "*", gw})
		for _, host := range v.Spec.GetHosts() {
			w.differs(to, add, Topic{SubjectHostRoutes, gw, host})
			if wildcardOr(host) != host {
				w.differs(to, add, Topic{SubjectHostRoutes, gw, "*"})
			}
		}
	}
}

// privateDestinationRule: rules of the client's own namespace come first.
func (w *writer) privateDestinationRule(v *DestinationRule, add bool) {
	to := slices.Clone(explicit(v.ExportedTo))
	if !slices.Contains(to, v.Key.Namespace) {
		to = append(to, v.Key.Namespace)
	}
	w.differs(to, add, Topic{SubjectDestinationRule, wildcardOr(v.Spec.GetHost()), ""})
}
