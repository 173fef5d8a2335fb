package gatewayapi

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// gateway is a Gateway that is judged together with its ListenerSets.
type gateway struct {
	name       Name
	controller gatewayv1.GatewayController
	// refused is why the Gateway as a whole is not accepted; its listeners are served nevertheless, as it may have been
	// accepted before. Nil if it is.
	refused    *finding
	listeners  []*listener
	sets       []*listenerSet
	selections []*configv1.WorkloadSelection
	// status lacks the listeners, which need counts, and is not passed on.
	status GatewayStatus
	// frontend are the certificates that clients are verified with, by port, and for the other ports under 0.
	frontend map[uint32]*frontend
	// backend is GatewayListeners.backend_credential.
	backend string
	// expires is when the next certificate expires; zero if none does.
	expires  time.Time
	resource *configv1.GatewayAPIConfig
}

// listenerSet is a ListenerSet whose parent is a Gateway of ours.
type listenerSet struct {
	name      Name
	gateway   *gateway
	listeners []*listener
	object    *object.Object
	status    ListenerSetStatus
	resource  *configv1.GatewayAPIConfig
}

// judge judges a Gateway and its ListenerSets again.
func (s *State) judge(n Name) {
	old := s.gateways[n]
	l := s.lookup(key(Gateway, n))
	now := l.gateway(n)
	l.done()
	store(s.gateways, n, now)
	s.shared.use(old, now)
	s.recount[key(Gateway, n)] = struct{}{}
	if old == nil && now == nil {
		return
	}
	if old == nil || now == nil || !sameListeners(old.listeners, now.listeners) || old.controller != now.controller {
		s.graph.touch(key(Gateway, n))
	}
	before := map[Name]*listenerSet{}
	for _, set := range old.listenerSets() {
		if before[set.name] = set; s.judged[set.name] == set {
			delete(s.judged, set.name)
		}
	}
	for _, set := range now.listenerSets() {
		was := before[set.name]
		delete(before, set.name)
		s.judged[set.name] = set
		if was == nil || !sameListeners(was.listeners, set.listeners) || was.gateway.controller != set.gateway.controller {
			s.graph.touch(key(ListenerSet, set.name))
		}
		if was == nil || !set.sameAs(was) {
			s.recount[key(ListenerSet, set.name)] = struct{}{}
		}
	}
	for name := range before { // gone, or another Gateway's
		s.graph.touch(key(ListenerSet, name))
		if s.judged[name] == nil {
			s.emit(key(ListenerSet, name), nil, nil)
		}
	}
}

// listenerSets are the ListenerSets of a Gateway, which may be nil.
func (g *gateway) listenerSets() []*listenerSet {
	if g == nil {
		return nil
	}
	return g.sets
}

// gateway judges a Gateway; nil if there is none, or not of ours.
func (l *lookup) gateway(n Name) *gateway {
	o := l.objects[key(Gateway, n)]
	if o == nil {
		return nil
	}
	spec := &o.Body.(*gatewayv1.Gateway).Spec
	controller := l.controller(string(spec.GatewayClassName))
	if controller == "" {
		return nil
	}
	g := &gateway{name: n, controller: controller, status: GatewayStatus{
		Generation: o.Generation, Controller: controller, Addresses: spec.Addresses, Remote: controller == gatewaydeploy.UnmanagedController,
	}}
	l.workloads(g, spec)
	l.frontends(g, spec.TLS)

	if address := l.unsupportedAddress(g, spec); address != "" {
		g.refused = &finding{string(gatewayv1.GatewayReasonUnsupportedAddress), address}
	} else if why := l.undeployable(g, o); why != "" {
		g.refused = &finding{string(gatewayv1.GatewayReasonInvalidParameters), why}
	}
	claims := &claims{}
	for i := range spec.Listeners {
		g.listeners = append(g.listeners, l.listener(g, Gateway, o, ListenerID{Gateway: n}, &spec.Listeners[i]))
	}
	claims.add(g.listeners)
	l.addSets(g, spec, claims)
	claims.overlaps()
	l.shared.lose(g)
	for _, listener := range g.listeners {
		listener.finish(o.Generation)
	}
	for _, set := range g.sets {
		if set.finish(); set.status.Accepted {
			g.status.AttachedListenerSets++
		}
	}
	g.conclude(l, o, spec)
	g.resource = g.listenersOf(o, "", g.listeners)
	for _, set := range g.sets {
		set.resource = g.listenersOf(set.object, set.name.String(), set.listeners)
	}
	return g
}

// conclude makes the Gateway's own conditions.
func (g *gateway) conclude(l *lookup, o *object.Object, spec *gatewayv1.GatewaySpec) {
	var bad []string
	good, unresolved := 0, 0
	for _, listener := range g.listeners {
		if listener.served {
			good++
		} else {
			bad = append(bad, fmt.Sprintf("%s (%s)", listener.id.Listener, listener.reason))
		}
		if listener.unresolved != nil {
			unresolved++
		}
	}
	for _, set := range g.sets {
		for _, listener := range set.listeners {
			if listener.served {
				good++
			}
		}
	}
	add := func(typ gatewayv1.GatewayConditionType, ok bool, reason gatewayv1.GatewayConditionReason, message string) {
		c := condition(o.Generation, string(typ), ok, string(reason), object.Cut(message, maxMessage))
		g.status.Conditions = append(g.status.Conditions, c)
	}
	accepted := func(ok bool, reason gatewayv1.GatewayConditionReason, message string) {
		g.status.Accepted = ok
		add(gatewayv1.GatewayConditionAccepted, ok, reason, message)
	}
	switch {
	case g.refused != nil:
		accepted(false, gatewayv1.GatewayConditionReason(g.refused.reason), g.refused.message)
	case len(bad) > 0:
		accepted(good > 0, gatewayv1.GatewayReasonListenersNotValid, "listeners that are not served: "+strings.Join(bad, ", "))
	default:
		accepted(true, gatewayv1.GatewayReasonAccepted, "all listeners are served")
	}
	reason, message := l.backendCertificate(g, o, spec.TLS)
	switch {
	case reason != "":
		add(gatewayv1.GatewayConditionResolvedRefs, false, reason, message)
	case unresolved > 0:
		add(gatewayv1.GatewayConditionResolvedRefs, false, gatewayv1.GatewayReasonListenersNotResolved,
			"references of listeners cannot be resolved, see their conditions")
	case message != "":
		add(gatewayv1.GatewayConditionResolvedRefs, true, gatewayv1.GatewayReasonResolvedRefs, "all references are resolved; "+message)
	default:
		add(gatewayv1.GatewayConditionResolvedRefs, true, gatewayv1.GatewayReasonResolvedRefs, "all references are resolved")
	}
	if insecure(spec.TLS) {
		add(gatewayv1.GatewayConditionInsecureFrontendValidationMode, true, gatewayv1.GatewayReasonConfigurationChanged,
			"clients are let in without a valid certificate where mode is AllowInsecureFallback")
	}
}

// unsupportedAddress says which address is of a type that is not supported, or names a Service that the Gateway may not
// have.
func (l *lookup) unsupportedAddress(g *gateway, spec *gatewayv1.GatewaySpec) string {
	for i, a := range spec.Addresses {
		t := addressType(&a)
		if t != gatewayv1.IPAddressType && t != gatewayv1.HostnameAddressType {
			return fmt.Sprintf("spec.addresses[%d].type: %q is not supported; use IPAddress or Hostname", i, t)
		}
		if n, ok := l.serviceOf(a.Value, g.name.Namespace); ok && t == gatewayv1.HostnameAddressType && !g.status.Remote &&
			l.foreign(n, g.name.Namespace) {
			return fmt.Sprintf("spec.addresses[%d].value: Service %s is of another namespace, and the mesh has tenants", i, n)
		}
	}
	return ""
}

func addressType(a *gatewayv1.GatewaySpecAddress) gatewayv1.AddressType {
	if a.Type == nil {
		return gatewayv1.IPAddressType
	}
	return *a.Type
}

// workloads finds the workloads of a Gateway: those of the Services that its addresses of type Hostname name, or else
// those that are made for it.
func (l *lookup) workloads(g *gateway, spec *gatewayv1.GatewaySpec) {
	if g.status.Remote {
		return
	}
	named, there := false, false
	for i, a := range spec.Addresses {
		if addressType(&a) != gatewayv1.HostnameAddressType || a.Value == "" {
			continue
		}
		named = true
		n, ok := l.serviceOf(a.Value, g.name.Namespace)
		if !ok {
			g.unusable(i, false, "%q is no Service of the cluster; write NAME, NAME.NAMESPACE.svc or NAME.NAMESPACE.svc.%s", a.Value, l.cfg.Domain)
			continue
		}
		o := l.service(n)
		if o == nil {
			g.unusable(i, true, "there is no Service %s; create it, or correct the name", n)
		}
		if g.status.Service == (Name{}) || o != nil && !there {
			g.status.Service, there = n, o != nil
		}
		if o == nil || l.foreign(n, g.name.Namespace) {
			continue
		}
		if selector := o.Body.(*corev1.Service).Spec.Selector; len(selector) > 0 {
			g.selections = append(g.selections, &configv1.WorkloadSelection{Namespace: n.Namespace, Labels: selector})
		}
	}
	if !named {
		g.selections = []*configv1.WorkloadSelection{{
			Namespace: g.name.Namespace, Labels: map[string]string{contract.GatewayNameLabel: gatewaydeploy.LabelValue(g.name.Name)},
		}}
	}
}

// unusable notes that an address of the Gateway names no Service that is there.
func (g *gateway) unusable(address int, missing bool, format string, args ...any) {
	g.status.Unusable = append(g.status.Unusable,
		UnusableAddress{fmt.Sprintf("spec.addresses[%d].value: ", address) + fmt.Sprintf(format, args...), missing})
}

// foreign reports whether tenancy forbids a Gateway of a namespace to have the workloads of a Service.
func (l *lookup) foreign(service Name, namespace string) bool {
	return l.cfg.Tenants && service != (Name{}) && service.Namespace != namespace && namespace != l.cfg.MeshNamespace
}

// serviceOf is the Service of a host, which may be a short name; false for a host outside the cluster.
func (l *lookup) serviceOf(host, namespace string) (Name, bool) {
	if !strings.Contains(host, ".") {
		return Name{Namespace: namespace, Name: host}, true
	}
	short, ok := strings.CutSuffix(strings.TrimSuffix(host, "."), ".svc."+l.cfg.Domain)
	if !ok {
		short, ok = strings.CutSuffix(host, ".svc")
	}
	name, ns, found := strings.Cut(short, ".")
	return Name{Namespace: ns, Name: name}, ok && found
}

// count makes the resource and status of a Gateway or ListenerSet, with the routes that are attached.
func (s *State) count(k object.Key) {
	if k.Kind == ListenerSet {
		if set := s.judged[nameOf(k)]; set != nil {
			status := set.status
			status.Listeners = s.listenerStatuses(set.listeners)
			s.emit(k, set.resource, &Status{ListenerSet: &status})
		}
		return
	}
	g := s.gateways[nameOf(k)]
	if g == nil {
		s.emit(k, nil, nil)
		return
	}
	status := g.status
	status.Listeners = s.listenerStatuses(g.listeners)
	s.emit(k, g.resource, &Status{Gateway: &status})
}

func (s *State) listenerStatuses(listeners []*listener) []ListenerStatus {
	out := make([]ListenerStatus, len(listeners))
	for i, l := range listeners {
		out[i] = ListenerStatus{Port: l.port, Served: l.served, Reason: l.reason, Message: l.message, Taken: l.taken()}
		out[i].ListenerStatus = gatewayv1.ListenerStatus{
			Name: gatewayv1.SectionName(l.id.Listener), SupportedKinds: l.supportedKinds, Conditions: l.conditions,
			AttachedRoutes: int32(s.attached[l.id]), //nolint:gosec // a count of objects
		}
	}
	return out
}

// listenersOf is the resource of the Gateway or of a ListenerSet; nil if no listener is served or revoked. Listeners
// that lose to another Gateway are in it: each of the workloads decides which it serves, by the same rule.
func (g *gateway) listenersOf(o *object.Object, set string, listeners []*listener) *configv1.GatewayAPIConfig {
	out := &configv1.GatewayListeners{Gateway: g.name.String(), ListenerSet: set, Selections: g.selections, BackendCredential: g.backend}
	for _, l := range listeners {
		if l.claims() {
			out.Listeners = append(out.Listeners, l.proto)
		} else if l.revoked() {
			out.Revoked = append(out.Revoked, l.proto)
		}
	}
	if len(out.Listeners)+len(out.Revoked) == 0 || len(out.Selections) == 0 {
		return nil
	}
	r := config(o)
	r.Object = &configv1.GatewayAPIConfig_Listeners{Listeners: out}
	return r
}
