package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// Kinds of the Gateway API, as they stand in configv1.ResourceKey.kind.
const (
	KindGatewayListeners = "Gateway." + contract.GroupGatewayAPI
	KindListenerSet      = "ListenerSet." + contract.GroupGatewayAPI
	KindHTTPRoute        = "HTTPRoute." + contract.GroupGatewayAPI
	KindGRPCRoute        = "GRPCRoute." + contract.GroupGatewayAPI
	KindTLSRoute         = "TLSRoute." + contract.GroupGatewayAPI
	KindTCPRoute         = "TCPRoute." + contract.GroupGatewayAPI
	KindUDPRoute         = "UDPRoute." + contract.GroupGatewayAPI
	KindBackendTLSPolicy = "BackendTLSPolicy." + contract.GroupGatewayAPI
)

// object is what all objects of the Gateway API have. It is immutable.
type object struct {
	Key Key
	// Created decides between objects that want the same: the oldest wins. The zero time is the oldest.
	Created time.Time
	// Source is the user's object.
	Source *configv1.SourceRef
}

func (o *object) older(other *object) bool {
	return cmp.Or(o.Created.Compare(other.Created), cmp.Compare(o.Key.Namespace, other.Key.Namespace),
		cmp.Compare(o.Key.Name, other.Key.Name), cmp.Compare(o.Key.Kind, other.Key.Kind)) < 0
}

// GatewayListeners are the listeners of a Gateway or ListenerSet of the Gateway API, decoded.
type GatewayListeners struct {
	object
	Spec *configv1.GatewayListeners
	// TLS has the settings of each of Spec.Listeners; nil for one without TLS.
	TLS []*networking.ServerTLSSettings
}

// Older reports whether g precedes o where the oldest wins: by creation time, then namespace, then name.
func (g *GatewayListeners) Older(o *GatewayListeners) bool { return g.older(&o.object) }

// Reference names a listener for AttachedDomains and AttachedRoutes.
func (g *GatewayListeners) Reference(listener string) string {
	return listenerReference(g.Spec.GetGateway(), g.Spec.GetListenerSet(), listener)
}

// AttachedRoute is a route of the Gateway API, decoded.
type AttachedRoute struct {
	object
	Spec *configv1.AttachedRoute
	// Rules are Spec.Rules.
	Rules []AttachedRule
}

// AttachedRule is a rule whose parts of Istio's API are decoded.
type AttachedRule struct {
	*configv1.AttachedRule
	// HTTP is the body of a rule of an HTTPRoute or GRPCRoute; nil for other kinds.
	HTTP *networking.HTTPRoute
	// Requests has the match of each of Matches; nil for one that matches everything.
	Requests []*networking.HTTPMatchRequest
	// Rewrites has the rewrite of each of BackendRewrites.
	Rewrites []*networking.HTTPRewrite
}

// HostRoute is a route that serves a domain at a listener.
type HostRoute struct {
	*AttachedRoute
	// Rank is configv1.AttachedHost.rank; nil for kinds without hosts.
	Rank []byte
}

// BackendTLS is a BackendTLSPolicy, decoded.
type BackendTLS struct {
	object
	Spec *configv1.BackendTLS
}

func decodeGatewayListeners(e *entry, r *configv1.Resource) (any, error) {
	spec := r.GetGatewayApi().GetListeners()
	if spec == nil {
		return nil, errors.New("the body has no listeners")
	}
	out := &GatewayListeners{object: objectOf(e, r), Spec: spec, TLS: make([]*networking.ServerTLSSettings, len(spec.GetListeners()))}
	for i, l := range spec.GetListeners() {
		if l.GetTls() == nil {
			continue
		}
		out.TLS[i] = &networking.ServerTLSSettings{}
		if err := unpack(l.GetTls(), out.TLS[i]); err != nil {
			return nil, fmt.Errorf("listeners[%d].tls: %w", i, err)
		}
	}
	return out, nil
}

func decodeAttachedRoute(e *entry, r *configv1.Resource) (any, error) {
	spec := r.GetGatewayApi().GetRoute()
	if spec == nil {
		return nil, errors.New("the body has no route")
	}
	out := &AttachedRoute{object: objectOf(e, r), Spec: spec, Rules: make([]AttachedRule, len(spec.GetRules()))}
	for i, in := range spec.GetRules() {
		rule := AttachedRule{AttachedRule: in, Requests: make([]*networking.HTTPMatchRequest, len(in.GetMatches()))}
		if in.GetHttp() != nil {
			rule.HTTP = &networking.HTTPRoute{}
			if err := unpack(in.GetHttp(), rule.HTTP); err != nil {
				return nil, fmt.Errorf("rules[%d].http: %w", i, err)
			}
		}
		for j, own := range in.GetBackendRewrites() {
			rewrite := &networking.HTTPRewrite{}
			if err := unpack(own.GetRewrite(), rewrite); err != nil {
				return nil, fmt.Errorf("rules[%d].backend_rewrites[%d]: %w", i, j, err)
			}
			rule.Rewrites = append(rule.Rewrites, rewrite)
		}
		for j, m := range in.GetMatches() {
			if m.GetMatch() == nil {
				continue
			}
			rule.Requests[j] = &networking.HTTPMatchRequest{}
			if err := unpack(m.GetMatch(), rule.Requests[j]); err != nil {
				return nil, fmt.Errorf("rules[%d].matches[%d]: %w", i, j, err)
			}
		}
		out.Rules[i] = rule
	}
	return out, nil
}

func decodeBackendTLS(e *entry, r *configv1.Resource) (any, error) {
	spec := r.GetGatewayApi().GetBackendTls()
	if spec == nil {
		return nil, errors.New("the body has no backend_tls")
	}
	return &BackendTLS{object: objectOf(e, r), Spec: spec}, nil
}

func objectOf(e *entry, r *configv1.Resource) object {
	out := object{Key: e.key, Source: r.GetGatewayApi().GetSource()}
	if t := r.GetGatewayApi().GetCreationTime(); t != nil {
		out.Created = t.AsTime()
	}
	return out
}

// unpack decodes a message of Istio's API, of which all versions share one wire form.
func unpack(from *anypb.Any, into proto.Message) error {
	if got, want := from.MessageName().Name(), into.ProtoReflect().Descriptor().Name(); got != want {
		return fmt.Errorf("is a %q, not a %q", got, want)
	}
	return proto.Unmarshal(from.GetValue(), into)
}

func listenerReference(gateway, set, listener string) string {
	if set != "" {
		gateway += "/" + set
	}
	return gateway + "/" + listener
}

func (w *writer) indexGatewayListeners(e *entry, add bool) {
	v := e.value.(*GatewayListeners)
	for _, selection := range v.Spec.GetSelections() {
		label := firstLabel(selection.GetLabels())
		put(w, &w.next.gatewayListeners, add,
			join(selection.GetNamespace(), label, age(v.Created), v.Key.Namespace, v.Key.Name, v.Key.Kind), v)
		w.touch(SubjectGatewayListeners, selection.GetNamespace(), label)
		w.countRelevantLabels(selection.GetNamespace(), selection.GetLabels(), add)
	}
}

// firstLabel is the label under which an object with a selector is indexed, "key=value"; "" without a selector.
func firstLabel(selector map[string]string) string {
	if keys := sortedKeys(selector); len(keys) > 0 {
		return keys[0] + "=" + selector[keys[0]]
	}
	return ""
}

// GatewayListeners lists the listeners of the Gateway API that workloads of a namespace with the labels serve: those of
// the oldest Gateway or ListenerSet first.
func (s *Snapshot) GatewayListeners(namespace string, labels map[string]string) []*GatewayListeners {
	var prefixes []string
	for _, k := range sortedKeys(labels) {
		prefixes = append(prefixes, join(namespace, k+"="+labels[k])+sep)
	}
	found := slices.Compact(merge(s.gatewayListeners, prefixes...))
	return slices.DeleteFunc(found, func(g *GatewayListeners) bool {
		return !slices.ContainsFunc(g.Spec.GetSelections(), func(selection *configv1.WorkloadSelection) bool {
			return selection.GetNamespace() == namespace && len(selection.GetLabels()) > 0 && Matches(selection.GetLabels(), labels)
		})
	})
}

// ListenersOf returns the own listeners of a Gateway of the Gateway API; nil if it has none that are served.
func (s *Snapshot) ListenersOf(namespace, name string) *GatewayListeners {
	return lookup[*GatewayListeners](s, Key{KindGatewayListeners, namespace, name})
}

// GatewayListenersTopics names the answers of GatewayListeners.
func GatewayListenersTopics(namespace string, labels map[string]string) []Topic {
	var topics []Topic
	for _, k := range sortedKeys(labels) {
		topics = append(topics, Topic{SubjectGatewayListeners, namespace, k + "=" + labels[k]})
	}
	return topics
}

func (w *writer) indexAttachedRoute(e *entry, add bool) {
	v := e.value.(*AttachedRoute)
	for _, l := range v.Spec.GetListeners() {
		listener := listenerReference(l.GetGateway(), l.GetListenerSet(), l.GetListener())
		hosts := l.GetHosts()
		if len(hosts) == 0 {
			hosts = []*configv1.AttachedHost{{}}
		}
		for _, host := range hosts {
			put(w, &w.next.attachedRoutes, add, join(listener, host.GetDomain(), v.Key.Kind, v.Key.Namespace, v.Key.Name),
				&HostRoute{AttachedRoute: v, Rank: host.GetRank()})
			w.touch(SubjectAttachedRoutes, listener, host.GetDomain())
			if w.count(&w.next.attachedDomains, join(listener, host.GetDomain()), add) {
				w.turn(Topic{SubjectAttachedDomains, listener, ""}, host.GetDomain())
			}
			w.count(&w.next.routedHosts, routedHost(host.GetDomain()), add)
		}
	}
	if v.Key.Kind == KindUDPRoute {
		w.countUDPBackends(v, add)
	}
	if v.Key.Kind == KindGRPCRoute {
		w.countGRPCBackends(v, add)
	}
	for _, service := range v.Spec.GetServices() {
		client := service.GetClientNamespace()
		put(w, &w.next.serviceRoutes, add,
			join(service.GetHostname(), client, number(service.GetPort()), v.Key.Kind, v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectServiceRoutes, service.GetHostname(), "")
		if client != "" {
			w.countPrivate([]string{client}, add, ServiceRoutesTopic(service.GetHostname()))
		}
		if v.Key.Kind == KindHTTPRoute || v.Key.Kind == KindGRPCRoute {
			w.countRoutedPort(service, add)
		}
	}
}

func (w *writer) countRoutedPort(service *configv1.ServiceAttachment, add bool) {
	topic, client := Topic{SubjectRoutedPort, number(service.GetPort()), ""}, service.GetClientNamespace()
	if w.count(&w.next.routedPorts, join(topic.A, client), add) {
		w.turn(topic, client)
	}
	if client != "" {
		w.countPrivate([]string{client}, add, topic)
	}
}

func (w *writer) countUDPBackends(v *AttachedRoute, add bool) {
	for _, rule := range v.Spec.GetRules() {
		for _, to := range rule.GetDestinations() {
			if w.count(&w.next.udpBackends, to.GetHostname(), add) {
				w.turn(UDPBackendTopic(to.GetHostname()), to.GetHostname())
			}
		}
	}
}

// IsUDPBackend reports whether a UDPRoute sends to the service.
func (s *Snapshot) IsUDPBackend(hostname string) bool {
	_, ok := s.udpBackends.get(hostname)
	return ok
}

// UDPBackendTopic names the answer of IsUDPBackend.
func UDPBackendTopic(hostname string) Topic { return Topic{SubjectUDPBackend, hostname, ""} }

func (w *writer) countGRPCBackends(v *AttachedRoute, add bool) {
	for _, rule := range v.Rules {
		for _, to := range rule.HTTP.GetRoute() {
			hostname, port := to.GetDestination().GetHost(), number(to.GetDestination().GetPort().GetNumber())
			if w.count(&w.next.grpcBackends, join(hostname, port), add) {
				w.turn(GRPCBackendTopic(hostname), port)
			}
		}
	}
}

// IsGRPCBackend reports whether a GRPCRoute sends to the port of the service.
func (s *Snapshot) IsGRPCBackend(hostname string, port uint32) bool {
	_, ok := s.grpcBackends.get(join(hostname, number(port)))
	return ok
}

// GRPCBackendTopic names the answers of IsGRPCBackend.
func GRPCBackendTopic(hostname string) Topic { return Topic{SubjectGRPCBackend, hostname, ""} }

// AttachedDomains lists, sorted, the domains of the routes that a listener has taken (GatewayListeners.Reference): ""
// for any, and for kinds without hosts.
func (s *Snapshot) AttachedDomains(listener string) (domains []string) {
	prefix := listener + sep
	s.attachedDomains.scan(prefix, func(key string, _ int) bool {
		domains = append(domains, key[len(prefix):])
		return true
	})
	return domains
}

// AttachedDomainsTopic names the answer of AttachedDomains. It changes with the set, not with the routes of a domain.
func AttachedDomainsTopic(listener string) Topic { return Topic{SubjectAttachedDomains, listener, ""} }

// routedHost is a domain as RoutedHosts names it.
func routedHost(domain string) string { return cmp.Or(domain, "*") }

// RoutedHosts calls f once for every domain of AttachedDomains, whatever listener has it: "*" for any.
func (s *Snapshot) RoutedHosts(f func(host string)) {
	s.routedHosts.scan("", func(host string, _ int) bool {
		f(host)
		return true
	})
}

// RoutesHost reports whether RoutedHosts has the host.
func (s *Snapshot) RoutesHost(host string) bool {
	_, ok := s.routedHosts.get(host)
	return ok
}

// AttachedRoutes lists the routes that a listener has taken for exactly a domain of AttachedDomains, by kind, namespace
// and name.
func (s *Snapshot) AttachedRoutes(listener, domain string) []*HostRoute {
	return s.attachedRoutes.list(join(listener, domain) + sep)
}

// AttachedRoutesTopic names the answer of AttachedRoutes.
func AttachedRoutesTopic(listener, domain string) Topic {
	return Topic{SubjectAttachedRoutes, listener, domain}
}

// ServiceRoutes lists the routes of a kind in kinds that are attached to a port of a service, for clients in a
// namespace: those of the namespace alone if it has any, or else those for all clients. They are sorted by port, kind,
// namespace and name, and each comes once.
func (s *Snapshot) ServiceRoutes(hostname string, port uint32, client string, kinds ...string) []*AttachedRoute {
	for _, namespace := range slices.Compact([]string{client, ""}) {
		var found []*AttachedRoute
		for _, p := range []uint32{0, port} {
			for _, route := range s.serviceRoutes.list(join(hostname, namespace, number(p)) + sep) {
				if slices.Contains(kinds, route.Key.Kind) && !slices.Contains(found, route) {
					found = append(found, route)
				}
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// ServiceRoutesTopic names the answers of ServiceRoutes.
func ServiceRoutesTopic(hostname string) Topic { return Topic{SubjectServiceRoutes, hostname, ""} }

// RoutesPort reports whether a route of HTTP is attached to a port number of any service for clients in a namespace.
// One that is attached to all ports of its service counts for every number.
func (s *Snapshot) RoutesPort(port uint32, client string) bool {
	for _, topic := range RoutedPortTopics(port) {
		for _, namespace := range []string{"", client} {
			if _, ok := s.routedPorts.get(join(topic.A, namespace)); ok {
				return true
			}
		}
	}
	return false
}

// RoutedPortTopics names the answers of RoutesPort.
func RoutedPortTopics(port uint32) []Topic {
	return []Topic{{SubjectRoutedPort, number(port), ""}, {SubjectRoutedPort, number(0), ""}}
}

func (w *writer) indexBackendTLS(e *entry, add bool) {
	v := e.value.(*BackendTLS)
	for _, target := range v.Spec.GetTargets() {
		put(w, &w.next.backendTLS, add, join(target.GetHostname(), number(target.GetPort()), age(v.Created), v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectBackendTLS, target.GetHostname(), "")
	}
}

// BackendTLS returns the BackendTLSPolicy for a port of a service: the oldest of those that name the port, or else of
// those for all ports; nil if there is none.
func (s *Snapshot) BackendTLS(hostname string, port uint32) *BackendTLS {
	for _, p := range []uint32{port, 0} {
		if found := s.backendTLS.list(join(hostname, number(p)) + sep); len(found) > 0 {
			return found[0]
		}
	}
	return nil
}

// BackendTLSTopic names the answers of BackendTLS.
func BackendTLSTopic(hostname string) Topic { return Topic{SubjectBackendTLS, hostname, ""} }
