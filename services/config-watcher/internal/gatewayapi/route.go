package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/config-watcher/internal/gatewayapi/rule"
	"fairlead.dev/services/config-watcher/internal/object"
)

// route is what a route counts for.
type route struct {
	// listeners that have taken it, each once.
	listeners []ListenerID
	// senders are the Gateways that have taken it and to which a BackendTLSPolicy applies, each once.
	senders []Name
	// services that it leads to, each once.
	services []Name
}

// specOf returns the parents and hostnames of a route.
func specOf(o *object.Object) ([]gatewayv1.ParentReference, []gatewayv1.Hostname) {
	switch b := o.Body.(type) {
	case *gatewayv1.HTTPRoute:
		return b.Spec.ParentRefs, b.Spec.Hostnames
	case *gatewayv1.GRPCRoute:
		return b.Spec.ParentRefs, b.Spec.Hostnames
	case *gatewayv1.TLSRoute:
		return b.Spec.ParentRefs, b.Spec.Hostnames
	case *gatewayv1.TCPRoute:
		return b.Spec.ParentRefs, nil
	case *gatewayv1.UDPRoute:
		return b.Spec.ParentRefs, nil
	}
	return nil, nil
}

// ParentsOf are the parents that a route names; none of an object of another kind.
func ParentsOf(o *object.Object) []gatewayv1.ParentReference {
	refs, _ := specOf(o)
	return refs
}

// route attaches a route again.
func (s *State) route(k object.Key) {
	o := s.objects[k]
	l := s.lookup(k)
	var now *route
	if o == nil {
		s.emit(k, nil, nil)
	} else {
		now = l.attached(o)
	}
	l.done()
	s.recountRoute(s.routes[k], now)
	store(s.routes, k, now)
}

// attached attaches a route to its parents and makes its resource and status.
func (l *lookup) attached(o *object.Object) *route {
	parents, hostnames := specOf(o)
	var attachments []*attachment
	for i := range parents {
		if a := l.attach(o, hostnames, &parents[i]); a != nil {
			attachments = append(attachments, a)
		}
	}
	if len(attachments) == 0 {
		l.emit(o.Key, nil, nil)
		return nil
	}
	b := &backends{lookup: l, route: o, free: !slices.ContainsFunc(attachments, func(a *attachment) bool { return !a.mesh })}
	body := &configv1.AttachedRoute{}
	invalid := b.rules(o, body)

	out, status := &route{}, &gatewayv1.RouteStatus{}
	for _, a := range attachments {
		if a.refused == nil && invalid.all {
			a.refused = &invalid.finding
		}
		status.Parents = append(status.Parents, gatewayv1.RouteParentStatus{
			ParentRef: a.ref, ControllerName: a.controller, Conditions: nil,
		})
		parent := &status.Parents[len(status.Parents)-1]
		add := func(typ gatewayv1.RouteConditionType, ok bool, f finding) {
			parent.Conditions = append(parent.Conditions, condition(o.Generation, string(typ), ok, f.reason, object.Cut(f.message, maxMessage)))
		}
		if a.refused != nil {
			add(gatewayv1.RouteConditionAccepted, false, *a.refused)
		} else {
			add(gatewayv1.RouteConditionAccepted, true, finding{string(gatewayv1.RouteReasonAccepted), "the parent has taken the route"})
			body.Listeners, body.Services = append(body.Listeners, a.listeners...), append(body.Services, a.services...)
			out.listeners, out.senders = append(out.listeners, a.ids...), append(out.senders, a.senders...)
		}
		if b.unresolved != nil {
			add(gatewayv1.RouteConditionResolvedRefs, false, *b.unresolved)
		} else {
			add(gatewayv1.RouteConditionResolvedRefs, true, finding{string(gatewayv1.RouteReasonResolvedRefs), "all references are resolved"})
		}
		if a.refused == nil && invalid.message != "" {
			add(gatewayv1.RouteConditionPartiallyInvalid, true, invalid.finding)
		}
	}
	out.tidy(body, b.services)
	if len(body.GetListeners()) == 0 && len(body.GetServices()) == 0 {
		l.emit(o.Key, nil, &Status{Route: status})
		return out
	}
	r := config(o)
	r.Object = &configv1.GatewayAPIConfig_Route{Route: body}
	l.emit(o.Key, r, &Status{Route: status})
	return out
}

// tidy sorts what the route is attached to, each once.
func (r *route) tidy(body *configv1.AttachedRoute, services []Name) {
	slices.SortFunc(body.Listeners, compareListeners)
	body.Listeners = slices.CompactFunc(body.Listeners, func(a, b *configv1.ListenerAttachment) bool { return compareListeners(a, b) == 0 })
	slices.SortFunc(body.Services, compareServices)
	body.Services = slices.CompactFunc(body.Services, func(a, b *configv1.ServiceAttachment) bool { return compareServices(a, b) == 0 })
	slices.SortFunc(r.listeners, ListenerID.compare)
	r.listeners = slices.Compact(r.listeners)
	r.senders, r.services = unique(r.senders), unique(services)
}

func unique(names []Name) []Name {
	slices.SortFunc(names, compareNames)
	return slices.Compact(names)
}

// invalidRules are the rules of a route that are not supported.
type invalidRules struct {
	finding
	// all is true if no rule is supported.
	all bool
}

// rules translates the rules of a route into its resource.
func (b *backends) rules(o *object.Object, body *configv1.AttachedRoute) invalidRules {
	rank := &routerank.Route{Created: o.Created, Namespace: o.Key.Namespace, Name: o.Key.Name, Kind: o.Key.Kind}
	var invalid []string
	var problem *rule.Problem
	add := func(i int, r *configv1.AttachedRule, p *rule.Problem) {
		if r != nil {
			body.Rules = append(body.Rules, r)
		}
		if p != nil {
			problem = p
			invalid = append(invalid, fmt.Sprintf("rules[%d]: %s", i, p.Message))
		}
	}
	total := 0
	switch spec := o.Body.(type) {
	case *gatewayv1.HTTPRoute:
		total = len(spec.Spec.Rules)
		for i := range spec.Spec.Rules {
			r, p := rule.HTTP(rank, i, &spec.Spec.Rules[i], b.resolve)
			add(i, r, p)
		}
	case *gatewayv1.GRPCRoute:
		total = len(spec.Spec.Rules)
		for i := range spec.Spec.Rules {
			r, p := rule.GRPC(rank, i, &spec.Spec.Rules[i], b.resolve)
			add(i, r, p)
		}
	case *gatewayv1.TLSRoute:
		for i := range spec.Spec.Rules {
			body.Rules = append(body.Rules, b.destinations(spec.Spec.Rules[i].Name, spec.Spec.Rules[i].BackendRefs))
		}
	case *gatewayv1.TCPRoute:
		for i := range spec.Spec.Rules {
			body.Rules = append(body.Rules, b.destinations(spec.Spec.Rules[i].Name, spec.Spec.Rules[i].BackendRefs))
		}
	case *gatewayv1.UDPRoute:
		for i := range spec.Spec.Rules {
			body.Rules = append(body.Rules, b.destinations(spec.Spec.Rules[i].Name, spec.Spec.Rules[i].BackendRefs))
		}
	}
	if o.Key.Kind != HTTPRoute && o.Key.Kind != GRPCRoute {
		body.Rank = rank.Whole()
	}
	if problem == nil {
		return invalidRules{}
	}
	out := invalidRules{
		finding{string(gatewayv1.RouteReasonUnsupportedValue), "Dropped Rule: " + strings.Join(invalid, "; ")}, len(invalid) == total,
	}
	if out.all && problem.Incompatible {
		out.reason = string(gatewayv1.RouteReasonIncompatibleFilters)
	}
	return out
}

// destinations are those of a rule of a TLSRoute, TCPRoute or UDPRoute.
func (b *backends) destinations(name *gatewayv1.SectionName, refs []gatewayv1.BackendRef) *configv1.AttachedRule {
	out := &configv1.AttachedRule{}
	if name != nil {
		out.Name = string(*name)
	}
	reachable := false
	for i := range refs {
		host, port, ok := b.resolve(&refs[i].BackendObjectReference)
		weight := rule.Weight(&refs[i])
		if weight == 0 {
			continue
		}
		d := &configv1.AttachedDestination{Hostname: contract.UnresolvedBackend, Weight: uint32(weight)} //nolint:gosec // not negative
		if ok {
			reachable = true
			d.Hostname, d.Port = host, port
		}
		out.Destinations = append(out.Destinations, d)
	}
	if !reachable {
		out.Destinations = nil
	}
	return out
}

// recountRoute counts a route at its listeners and Services anew.
func (s *State) recountRoute(old, now *route) {
	count := func(r *route, n int) {
		if r == nil {
			return
		}
		for _, id := range r.listeners {
			if s.attached[id] += n; s.attached[id] == 0 {
				delete(s.attached, id)
			}
		}
		for _, service := range r.services {
			for _, g := range r.senders {
				s.countRouted(service, g, n)
			}
		}
	}
	if old != nil && now != nil && slices.Equal(old.services, now.services) && slices.Equal(old.senders, now.senders) &&
		slices.Equal(old.listeners, now.listeners) {
		return
	}
	for _, r := range []*route{old, now} {
		if r != nil {
			for _, id := range r.listeners {
				s.recount[id.owner()] = struct{}{}
			}
		}
	}
	count(now, 1)
	count(old, -1)
}

// countRouted counts the routes of a Gateway that lead to a Service.
func (s *State) countRouted(service, gateway Name, n int) {
	m := s.routed[service]
	if m == nil {
		m = map[Name]int{}
		s.routed[service] = m
	}
	before := m[gateway]
	if m[gateway] += n; m[gateway] == 0 {
		if delete(m, gateway); len(m) == 0 {
			delete(s.routed, service)
		}
	}
	if before == 0 || before+n == 0 {
		s.graph.touch(routedTo(service))
	}
}

// owner is the Gateway or ListenerSet that has the listener.
func (id ListenerID) owner() object.Key {
	if id.Set != (Name{}) {
		return key(ListenerSet, id.Set)
	}
	return key(Gateway, id.Gateway)
}

func (id ListenerID) compare(o ListenerID) int {
	if c := compareNames(id.Gateway, o.Gateway); c != 0 {
		return c
	}
	if c := compareNames(id.Set, o.Set); c != 0 {
		return c
	}
	return compareText(id.Listener, o.Listener)
}
