package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

func isGatewayProxy(p *proxy) bool {
	return strings.HasPrefix(p.Status.GetNodeId(), fleet.GatewayPrefix)
}

// verdict is whether something is programmed, and why not.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

func (v verdict) condition(generation int64) metav1.Condition {
	return metav1.Condition{Type: Programmed, Status: v.status, Reason: v.reason, Message: object.Cut(v.message, maxMessage),
		ObservedGeneration: generation}
}

// serving is what the connected proxies of a Gateway, and its Service, say of it.
type serving struct {
	// whole is the verdict of the proxies, ports that of single ports that a proxy has rejected.
	whole verdict
	ports map[string]verdict
	// keep is set if whole is of the moment.
	keep bool
	// addresses that the Gateway has got, and why they are not those that it should have; "" if they are.
	addresses               []gatewayv1.GatewayStatusAddress
	unassigned, notAssigned string
}

// servingOf asks the proxies and the Service of a Gateway. l is nil if there is no such Gateway.
func (t *Tracker) servingOf(snapshot *revision.Snapshot, f *fleetState, proxies proxyIndex, n gatewayapi.Name, l *listeners) *serving {
	k := object.Key{Group: gatewayapi.Group, Kind: gatewayapi.Gateway, Namespace: n.Namespace, Name: n.Name}
	e := t.entries[k]
	if e == nil || e.judged.status == nil || e.judged.status.Gateway == nil {
		return &serving{whole: verdict{metav1.ConditionFalse, reasonPending, "Gateway " + n.String() + " is not there"}}
	}
	judged := e.judged.status.Gateway
	out := &serving{}
	var connected []*apiProxy
	for _, of := range l.objects { // all have the same selections, those that serve nothing none
		for _, s := range snapshot.Get(resource.Of(of)).GetGatewayApi().GetListeners().GetSelections() {
			for _, p := range proxies.selected(s.GetNamespace(), s.GetLabels()) {
				if !slices.Contains(connected, p) {
					connected = append(connected, p)
				}
			}
		}
	}
	out.ask(f, judged, connected, l.since)
	out.address(t, n, judged, connected)
	return out
}

// ask makes the verdict of the proxies.
func (s *serving) ask(f *fleetState, judged *gatewayapi.GatewayStatus, connected []*apiProxy, since uint64) {
	var acked, pending, rejected []string
	s.ports = map[string]verdict{}
	invalid := func(words string) verdict {
		return verdict{metav1.ConditionFalse, reasonInvalid, "rejected by " + words}
	}
	for _, p := range connected {
		words := ""
		for _, r := range p.rejections {
			if r.kind != typeListener && r.kind != typeRoutes && r.kind != typeVirtualHost || !f.reached(r.GetRevision(), since) {
				continue
			}
			words = p.name + ": " + r.text()
			ports, ok := portsOf(r.GetResourceNames())
			if !ok {
				ports = []string{""} // all of them
			}
			for _, port := range ports {
				s.ports[port] = invalid(words)
			}
		}
		switch {
		case words != "":
			rejected = append(rejected, words)
		case f.reached(p.Acked, since):
			acked = append(acked, p.name)
		default:
			pending = append(pending, p.name)
		}
	}
	switch {
	case judged.Remote:
		s.whole = verdict{metav1.ConditionTrue, reasonProgrammed, "its workloads are in another cluster"}
	case len(rejected) > 0:
		s.whole = invalid(listed(rejected))
	case len(connected) == 0 && f.unreported:
		s.whole, s.keep = verdict{metav1.ConditionUnknown, reasonPending, unreportedCondition().Message}, true
	case len(connected) == 0:
		s.whole, s.keep = verdict{metav1.ConditionFalse, reasonPending, "no gateway that serves it is connected"}, f.incomplete
	case len(pending) > 0:
		s.whole, s.keep = verdict{metav1.ConditionFalse, reasonPending, "not acknowledged yet by " + listed(pending)}, true
	case f.incomplete:
		s.whole, s.keep = verdict{metav1.ConditionFalse, reasonPending, "not every xds-server has reported yet"}, true
	default:
		s.whole = verdict{metav1.ConditionTrue, reasonProgrammed, "acknowledged by " + listed(acked)}
	}
}

// address finds the addresses of a Gateway: those of the load balancer of its Service, else the Service's own name;
// without a Service those of the workloads.
func (s *serving) address(t *Tracker, n gatewayapi.Name, judged *gatewayapi.GatewayStatus, connected []*apiProxy) {
	add := func(value string) {
		kind := gatewayv1.HostnameAddressType
		if _, err := netip.ParseAddr(value); err == nil {
			kind = gatewayv1.IPAddressType
		}
		if len(s.addresses) < maxAddresses && !s.has(value) {
			s.addresses = append(s.addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: value})
		}
	}
	var asked []string
	for _, a := range judged.Addresses {
		if a.Value != "" && (a.Type == nil || *a.Type == gatewayv1.IPAddressType) {
			asked = append(asked, a.Value)
		}
	}
	o := t.services.of(n, judged.Service)
	service := body[*corev1.Service](o)
	switch {
	case judged.Remote:
		for _, a := range judged.Addresses {
			add(a.Value)
		}
		return
	case judged.Service == (gatewayapi.Name{}) && len(judged.Unusable) > 0: // it has no deployment of its own either
		s.unusable(judged.Unusable[0].Message)
		return
	case service == nil && judged.Service != (gatewayapi.Name{}):
		s.unusable("there is no Service " + judged.Service.String())
		return
	case service == nil:
		for _, p := range connected {
			for _, a := range p.addresses {
				add(a)
			}
		}
	default:
		for _, in := range service.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				add(in.IP)
			} else {
				add(in.Hostname)
			}
		}
		for _, ip := range slices.Concat(service.Spec.ExternalIPs, service.Spec.ClusterIPs) {
			if slices.Contains(asked, ip) {
				add(ip)
			}
		}
		switch {
		case len(s.addresses) > 0:
		case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
			add(o.Key.Name + "." + o.Key.Namespace + ".svc." + t.cfg.Domain)
		case o.Location != "" || o.Source == memory.Name: // nobody gives Services of files and the store an address
			for _, p := range connected {
				for _, a := range p.addresses {
					add(a)
				}
			}
			if len(connected) == 0 {
				return
			}
		}
	}
	for _, ip := range asked {
		if !s.has(ip) {
			s.unusable("address " + ip + " is not assigned to it")
			return
		}
	}
	if len(judged.Unusable) > 0 {
		s.unusable(judged.Unusable[0].Message)
		return
	}
	if len(s.addresses) == 0 && service != nil {
		s.unassigned, s.notAssigned = string(gatewayv1.GatewayReasonAddressNotAssigned),
			fmt.Sprintf("the load balancer has given Service %s/%s no address yet", o.Key.Namespace, o.Key.Name)
	}
}

// unusable says that an address that is asked for cannot be had.
func (s *serving) unusable(why string) {
	s.unassigned, s.notAssigned = string(gatewayv1.GatewayReasonAddressNotUsable), why
}

// has reports whether a value is among the addresses.
func (s *serving) has(value string) bool {
	return slices.ContainsFunc(s.addresses, func(a gatewayv1.GatewayStatusAddress) bool { return a.Value == value })
}

// maxAddresses is how many addresses a Gateway's status may have.
const maxAddresses = 16

// listener is the verdict on a listener.
func (s *serving) listener(l *gatewayapi.ListenerStatus) verdict {
	if !l.Served {
		return verdict{metav1.ConditionFalse, l.Reason, l.Message}
	}
	if v, rejected := s.ports[strconv.Itoa(int(l.Port))]; rejected {
		return v
	}
	if v, all := s.ports[""]; all {
		return v
	}
	if len(s.ports) > 0 {
		// Another port is rejected.
		return verdict{metav1.ConditionTrue, reasonProgrammed, "the gateway has not rejected it"}
	}
	return s.whole
}

// servedStatus is the status of a Gateway or ListenerSet.
func (t *Tracker) servedStatus(e *entry, of func(gatewayapi.Name) *serving) *Status {
	out := &Status{Generation: e.object.Generation, API: &API{}}
	if g := e.judged.status.Gateway; g != nil {
		s := of(gatewayapi.Name{Namespace: e.object.Key.Namespace, Name: e.object.Key.Name})
		v := s.whole
		switch {
		case !g.Accepted:
			v = verdict{metav1.ConditionFalse, reasonInvalid, "the Gateway is not accepted"}
		case v.reason != reasonInvalid && s.unassigned != "":
			v = verdict{metav1.ConditionFalse, s.unassigned, s.notAssigned}
		}
		st := &gatewayv1.GatewayStatus{Addresses: s.addresses, Conditions: append(slices.Clone(g.Conditions), v.condition(g.Generation))}
		if g.AttachedListenerSets > 0 {
			st.AttachedListenerSets = &g.AttachedListenerSets
		}
		for i := range g.Listeners {
			l := g.Listeners[i].ListenerStatus
			l.Conditions = append(slices.Clone(l.Conditions), s.listener(&g.Listeners[i]).condition(g.Generation))
			st.Listeners = append(st.Listeners, l)
		}
		out.API.Gateway, out.API.KeepTrue, out.Conditions = st, s.keep, conditionsOf(st.Conditions)
	} else {
		set := e.judged.status.ListenerSet
		s := of(set.Gateway)
		v := s.whole
		if !set.Accepted {
			v = verdict{metav1.ConditionFalse, set.Reason, set.Message}
		}
		st := &gatewayv1.ListenerSetStatus{Conditions: append(slices.Clone(set.Conditions), v.condition(set.Generation))}
		for i := range set.Listeners {
			l := &set.Listeners[i]
			st.Listeners = append(st.Listeners, gatewayv1.ListenerEntryStatus{Name: l.Name, SupportedKinds: l.SupportedKinds,
				AttachedRoutes: l.AttachedRoutes, Conditions: append(slices.Clone(l.Conditions), s.listener(l).condition(set.Generation))})
		}
		out.API.ListenerSet, out.API.KeepTrue, out.Conditions = st, s.keep, conditionsOf(st.Conditions)
	}
	for i := range out.Conditions {
		c := &out.Conditions[i]
		switch {
		case c.Type == Accepted && c.Holds:
			*c = withFindings(*c, e.object.Warnings, e.findings)
		case c.Type == Programmed:
			c.KeepTrue = out.API.KeepTrue
		}
	}
	return out
}

// gatewayServices are the Services that Gateways may have their addresses from.
type gatewayServices struct {
	all map[gatewayapi.Name]*object.Object
	// made finds those that were made for a Gateway, by the label that names it.
	made map[gatewayapi.Name]map[string]*object.Object
}

func newGatewayServices() gatewayServices {
	return gatewayServices{all: map[gatewayapi.Name]*object.Object{}, made: map[gatewayapi.Name]map[string]*object.Object{}}
}

// put takes over a Service; nil if it is gone.
func (g *gatewayServices) put(k object.Key, o *object.Object) {
	n := gatewayapi.Name{Namespace: k.Namespace, Name: k.Name}
	if old := g.all[n]; old != nil {
		if of := old.Labels[contract.GatewayNameLabel]; of != "" {
			at := gatewayapi.Name{Namespace: k.Namespace, Name: of}
			if delete(g.made[at], k.Name); len(g.made[at]) == 0 {
				delete(g.made, at)
			}
		}
	}
	set(g.all, n, o, o != nil)
	if o == nil || o.Labels[contract.GatewayNameLabel] == "" {
		return
	}
	at := gatewayapi.Name{Namespace: k.Namespace, Name: o.Labels[contract.GatewayNameLabel]}
	if g.made[at] == nil {
		g.made[at] = map[string]*object.Object{}
	}
	g.made[at][k.Name] = o
}

// of is the Service of a Gateway: the one that its addresses name, else the one that was made for it, the first by
// name; nil if there is none.
func (g *gatewayServices) of(gateway, named gatewayapi.Name) *object.Object {
	if named != (gatewayapi.Name{}) {
		return g.all[named]
	}
	var out *object.Object
	for _, o := range g.made[gatewayapi.Name{Namespace: gateway.Namespace, Name: gatewaydeploy.LabelValue(gateway.Name)}] {
		if out == nil || o.Key.Name < out.Key.Name {
			out = o
		}
	}
	return out
}
