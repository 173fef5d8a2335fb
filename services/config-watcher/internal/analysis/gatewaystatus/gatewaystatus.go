// Package gatewaystatus tells what is wrong with objects of the Gateway API: Analyze judges them with package
// gatewayapi, as a running mesh does, and turns the conditions that do not hold into findings. It adds what no status
// can say: parents, classes and Gateways that are not there.
package gatewaystatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Finding is about an object of the Gateway API.
type Finding struct {
	Key  object.Key
	Code finding.Code
	// Field is what the finding is about, Reason what is found, and Remedy what to do; it may be empty.
	Field, Reason, Remedy string
}

// State judges objects: those of the Gateway API, Services, Namespaces, ConfigMaps, ServiceEntries and CredentialStates
// count.
func State(cfg gatewayapi.Config, now time.Time, objects []*object.Object) *gatewayapi.State {
	s := gatewayapi.New(cfg)
	s.Advance(now)
	for _, o := range objects {
		s.Put(o.Key, o)
	}
	return s
}

// Config is what Analyze needs to know of the mesh.
type Config struct {
	gatewayapi.Config
	// Now is the time that certificates are compared with.
	Now time.Time
	// Workloads are those that are known beside what labels of Gateways say.
	Workloads []Workload
	// Visible reports whether workloads of a namespace see a VirtualService; nil if all do.
	Visible func(vs *object.Object, namespace string) bool
}

// Analyze returns the findings about the objects of the Gateway API, sorted by object. Of objects of Istio's API, its
// Gateways, VirtualServices and AuthorizationPolicies count too.
func Analyze(cfg Config, objects []*object.Object) []Finding {
	a := &analysis{objects: map[object.Key]*object.Object{}}
	for _, o := range objects {
		a.objects[o.Key] = o
	}
	result := State(cfg.Config, cfg.Now, objects).Rebuild()
	for _, o := range objects {
		if o.Key.Group != gatewayapi.Group {
			continue
		}
		a.at = o
		a.missing()
		if s := result.Statuses[o.Key]; s != nil {
			a.status(s)
		}
	}
	a.besideIstio(cfg, result.Resources)
	a.closedPorts(cfg, result.Resources)
	slices.SortStableFunc(a.found, func(x, y Finding) int { return x.Key.Compare(y.Key) })
	return slices.CompactFunc(a.found, func(x, y Finding) bool { return x == y })
}

type analysis struct {
	objects map[object.Key]*object.Object
	// at is the object that is looked at.
	at    *object.Object
	found []Finding
}

func (a *analysis) add(code finding.Code, field, reason, remedy string) {
	a.found = append(a.found, Finding{a.at.Key, code, field, reason, remedy})
}

// told adds what a condition's message says: parts "[field: ]reason[; remedy]", divided by "; " before a field. field
// is that of a part which names none, or the beginning of one that is not a whole path.
func (a *analysis) told(code finding.Code, field, message string) {
	const next = "; spec."
	for i, part := range strings.Split(message, next) {
		if i > 0 {
			part = "spec." + part
		}
		at := field
		if name, rest, found := strings.Cut(part, ": "); found && !strings.Contains(name, " ") {
			if part = rest; strings.HasPrefix(name, "spec.") {
				at = name
			} else {
				at = field + "." + name
			}
		}
		reason, remedy, _ := strings.Cut(part, "; ")
		a.add(code, at, reason, remedy)
	}
}

// missing finds a class, Gateway or ListenerSet that is not there.
func (a *analysis) missing() {
	switch body := a.at.Body.(type) {
	case *gatewayv1.Gateway:
		a.class(string(body.Spec.GatewayClassName))
	case *gatewayv1.ListenerSet:
		ref := body.Spec.ParentRef
		parent := gatewayv1.ParentReference{Group: ref.Group, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
		a.parent("spec.parentRef", &parent)
	case *gatewayv1.HTTPRoute:
		a.parents(body.Spec.ParentRefs)
	case *gatewayv1.GRPCRoute:
		a.parents(body.Spec.ParentRefs)
	case *gatewayv1.TLSRoute:
		a.parents(body.Spec.ParentRefs)
	case *gatewayv1.TCPRoute:
		a.parents(body.Spec.ParentRefs)
	case *gatewayv1.UDPRoute:
		a.parents(body.Spec.ParentRefs)
	}
}

func (a *analysis) class(name string) {
	known := []string{}
	for _, class := range gatewaydeploy.Classes() {
		known = append(known, class.Name)
	}
	for k := range a.objects {
		if k.Group == gatewayapi.Group && k.Kind == gatewayapi.GatewayClass {
			known = append(known, k.Name)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if !slices.Contains(known, name) {
		a.add(finding.GatewayClassNotFound, "spec.gatewayClassName",
			fmt.Sprintf("there is no GatewayClass %q%s", name, nearest.Hint(name, known)),
			"write one of "+strings.Join(known, ", ")+", or create the class")
	}
}

func (a *analysis) parents(refs []gatewayv1.ParentReference) {
	if len(refs) == 0 {
		a.add(finding.RouteParentNotFound, "spec.parentRefs", "the route has no parent", "name a Gateway, ListenerSet or Service")
	}
	for i := range refs {
		a.parent(fmt.Sprintf("spec.parentRefs[%d]", i), &refs[i])
	}
}

// parent finds a Gateway or ListenerSet that is not there. Of Services the status says so.
func (a *analysis) parent(field string, ref *gatewayv1.ParentReference) {
	kind, namespace := gatewayapi.Gateway, a.at.Key.Namespace
	if ref.Kind != nil {
		kind = string(*ref.Kind)
	}
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	if ref.Group != nil && *ref.Group != gatewayapi.Group || kind != gatewayapi.Gateway && kind != gatewayapi.ListenerSet {
		return
	}
	k := object.Key{Group: gatewayapi.Group, Kind: kind, Namespace: namespace, Name: string(ref.Name)}
	if a.objects[k] != nil {
		return
	}
	var elsewhere, near []string
	for other := range a.objects {
		switch {
		case other.Group != k.Group || other.Kind != k.Kind:
		case other.Name == k.Name:
			elsewhere = append(elsewhere, other.Namespace)
		case other.Namespace == k.Namespace:
			near = append(near, other.Name)
		}
	}
	slices.Sort(elsewhere)
	slices.Sort(near)
	hint := nearest.Hint(k.Name, near)
	if len(elsewhere) > 0 {
		hint = "; there is one in namespace " + strings.Join(elsewhere, ", ")
	}
	remedy := "create it, or correct name or namespace"
	istio := object.Key{Group: groupIstio, Kind: gatewayapi.Gateway, Namespace: namespace, Name: k.Name}
	if kind == gatewayapi.Gateway && a.objects[istio] != nil {
		hint, remedy = "; the one of networking.istio.io takes no routes", "create a Gateway of "+gatewayapi.Group
	}
	a.add(finding.RouteParentNotFound, field, fmt.Sprintf("there is no %s %s/%s%s", kind, namespace, k.Name, hint), remedy)
}

// status finds the conditions that do not hold.
func (a *analysis) status(s *gatewayapi.Status) {
	switch {
	case s.Class != nil:
		for _, c := range failed(s.Class.Conditions) {
			a.told(finding.GatewayNotAccepted, "spec.parametersRef", c.Message)
		}
	case s.Gateway != nil:
		for _, c := range failed(s.Gateway.Conditions) {
			switch c.Reason {
			case string(gatewayv1.GatewayReasonListenersNotValid), string(gatewayv1.GatewayReasonListenersNotResolved): // see below
			default:
				a.told(finding.GatewayNotAccepted, "spec", c.Message)
			}
		}
		a.listeners(s.Gateway.Listeners)
		for _, u := range s.Gateway.Unusable {
			code := finding.GatewayAddressUnusable
			if u.Missing {
				code = finding.GatewayServiceNotFound
			}
			a.told(code, "spec.addresses", u.Message)
		}
	case s.ListenerSet != nil:
		a.listeners(s.ListenerSet.Listeners)
		if !s.ListenerSet.Accepted && s.ListenerSet.Reason != string(gatewayv1.ListenerSetReasonListenersNotValid) {
			a.told(finding.GatewayNotAccepted, "spec.parentRef", s.ListenerSet.Message)
		}
	case s.Route != nil:
		a.route(s.Route)
	case s.Policy != nil:
		for _, ancestor := range s.Policy.Ancestors {
			for _, c := range failed(ancestor.Conditions) {
				a.told(finding.TLSPolicyNotAccepted, "spec", c.Message)
			}
		}
	}
}

func (a *analysis) listeners(list []gatewayapi.ListenerStatus) {
	for i := range list {
		field := fmt.Sprintf("spec.listeners[%d]", i)
		for _, c := range list[i].Conditions {
			switch {
			case c.Type == string(gatewayv1.ListenerConditionResolvedRefs) && c.Status == metav1.ConditionFalse:
				a.told(finding.ListenerReferenceInvalid, field, c.Message)
			case c.Type == string(gatewayv1.ListenerConditionConflicted) && c.Status == metav1.ConditionTrue && list[i].Taken:
				a.told(finding.ListenerTaken, field, c.Message)
			case c.Type == string(gatewayv1.ListenerConditionConflicted) && c.Status == metav1.ConditionTrue:
				a.told(finding.ListenerNotServed, field, c.Message)
			case c.Type == string(gatewayv1.ListenerConditionAccepted) && c.Status == metav1.ConditionFalse && !conflicts(list[i].Conditions):
				a.told(finding.ListenerNotServed, field, c.Message)
			}
		}
	}
}

func conflicts(list []metav1.Condition) bool {
	return slices.ContainsFunc(list, func(c metav1.Condition) bool {
		return c.Type == string(gatewayv1.ListenerConditionConflicted) && c.Status == metav1.ConditionTrue
	})
}

func (a *analysis) route(status *gatewayv1.RouteStatus) {
	refs := gatewayapi.ParentsOf(a.at)
	for _, p := range status.Parents {
		i := slices.IndexFunc(refs, func(r gatewayv1.ParentReference) bool { return equality.Semantic.DeepEqual(r, p.ParentRef) })
		for _, c := range p.Conditions {
			holds := c.Status == metav1.ConditionTrue
			switch {
			case c.Type == string(gatewayv1.RouteConditionResolvedRefs) && !holds:
				a.told(finding.RouteBackendInvalid, "spec.rules", c.Message)
			case c.Type == string(gatewayv1.RouteConditionPartiallyInvalid) && holds,
				c.Reason == string(gatewayv1.RouteReasonUnsupportedValue) && strings.HasPrefix(c.Message, "Dropped Rule"),
				c.Reason == string(gatewayv1.RouteReasonIncompatibleFilters):
				a.told(finding.RouteRuleUnsupported, "spec", strings.TrimPrefix(c.Message, "Dropped Rule: "))
			case c.Type == string(gatewayv1.RouteConditionAccepted) && !holds && p.ParentRef.Group != nil && *p.ParentRef.Group != gatewayapi.Group:
				a.told(finding.RouteServiceInvalid, fmt.Sprintf("spec.parentRefs[%d]", i), c.Message)
			case c.Type == string(gatewayv1.RouteConditionAccepted) && !holds:
				a.told(finding.RouteNotAttached, fmt.Sprintf("spec.parentRefs[%d]", i), c.Message)
			}
		}
	}
}

// failed are the conditions that are false.
func failed(list []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(list), func(c metav1.Condition) bool { return c.Status != metav1.ConditionFalse })
}
