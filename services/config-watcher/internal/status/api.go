package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// API is the status of an object of the Gateway API as it is written: exactly one field is set. A Route or Policy has
// the entries of the mesh's controllers alone. Conditions have no time.
type API struct {
	Class       *gatewayv1.GatewayClassStatus
	Gateway     *gatewayv1.GatewayStatus
	ListenerSet *gatewayv1.ListenerSetStatus
	Route       *gatewayv1.RouteStatus
	Policy      *gatewayv1.PolicyStatus
	// KeepTrue is set if a condition Programmed that holds for the same generation stays as it is while another would
	// be pending.
	KeepTrue bool
}

func isAPI(k object.Key) bool { return k.Group == contract.GroupGatewayAPI }

// judgement is what package gatewayapi says of an object.
type judgement struct {
	status *gatewayapi.Status
	// since is the number of the revision with the newest resource of the object.
	since uint64
	// told is true if status is known, which may be nil.
	told bool
}

// isFew reports whether objects of a kind of the Gateway API are few and their statuses wanted at once, while there are
// many routes.
func isFew(k object.Key) bool {
	return isAPI(k) && (k.Kind == gatewayapi.GatewayClass || k.Kind == gatewayapi.Gateway || k.Kind == gatewayapi.ListenerSet)
}

// sinkOf is what takes the status of an object; nil if its source cannot be written to.
func (t *Tracker) sinkOf(id ID) Sink {
	if few := t.cfg.Few[id.Source]; few != nil && isFew(id.Key) {
		return few
	}
	return t.cfg.Sinks[id.Source]
}

// evaluateAPI brings the rows of those among some entries up to date that are of the Gateway API.
func (t *Tracker) evaluateAPI(looked map[object.Key]*entry, snapshot *revision.Snapshot, f *fleetState, refused map[ID]*refusal) {
	states := map[gatewayapi.Name]*serving{}
	var gateways map[gatewayapi.Name]*listeners
	var proxies proxyIndex
	of := func(n gatewayapi.Name) *serving {
		if gateways == nil {
			gateways, proxies = t.listeners(), indexProxies(snapshot, f)
		}
		if states[n] == nil {
			states[n] = t.servingOf(snapshot, f, proxies, n, gateways[n])
		}
		return states[n]
	}
	for k, e := range looked {
		if !isAPI(k) {
			continue
		}
		id := ID{e.object.Source, k}
		findings, r, j := t.cfg.Findings.Of(k), refused[id], e.judged
		ours := t.cfg.Owner.Writes(e.object.Labels, t.namespaces[e.object.Key.Namespace])
		unchanged := e.row != nil && e.row.judged == j && e.row.InForce && e.row.Foreign != ours && e.latched != nil && r.equal(e.refused) &&
			slices.Equal(findings, e.findings)
		if unchanged && !isServed(j.status) {
			continue
		}
		e.findings, e.refused = findings, r
		row := &Row{ID: id, APIVersion: e.object.APIVersion, UID: e.object.UID, Location: e.object.Location, InForce: true, Foreign: !ours,
			judged: j}
		switch {
		case r != nil:
			row.Status, e.latched = r.status(e.object), nil
		case isServed(j.status):
			row.Status = t.servedStatus(e, of)
			e.latched = &Condition{} // whether it is served, each round decides
		default:
			row.Status = t.attachedStatus(e, f)
		}
		row.Status.Findings = codes(findings)
		if !e.row.equal(row) {
			e.row = row
		}
	}
}

// isServed reports whether a status depends on the gateways that serve the object.
func isServed(s *gatewayapi.Status) bool {
	return s != nil && (s.Gateway != nil || s.ListenerSet != nil)
}

// attachedStatus is the status of an object that no gateway serves by itself: a route, policy or class.
func (t *Tracker) attachedStatus(e *entry, f *fleetState) *Status {
	k, out := e.object.Key, &Status{Generation: e.object.Generation, API: &API{}}
	judged := cmp.Or(e.judged.status, &gatewayapi.Status{})
	switch {
	case judged.Class != nil:
		out.API.Class = judged.Class
		out.Conditions, e.latched = conditionsOf(judged.Class.Conditions), &Condition{}
		return out
	case k.Kind == gatewayapi.GatewayClass || k.Kind == gatewayapi.Gateway || k.Kind == gatewayapi.ListenerSet:
		out.API, e.latched = nil, &Condition{} // another controller's
		return out
	case k.Kind == gatewayapi.BackendTLSPolicy:
		out.API.Policy = cmp.Or(judged.Policy, &gatewayv1.PolicyStatus{})
		for _, a := range out.API.Policy.Ancestors {
			out.Conditions = worse(out.Conditions, conditionsOf(a.Conditions), gatewayOf(a.AncestorRef))
		}
	default:
		out.API.Route = cmp.Or(judged.Route, &gatewayv1.RouteStatus{})
		for _, p := range out.API.Route.Parents {
			out.Conditions = worse(out.Conditions, conditionsOf(p.Conditions), gatewayOf(p.ParentRef))
		}
	}
	if len(out.Conditions) == 0 {
		e.latched = &Condition{}
		return out
	}
	for i, c := range out.Conditions {
		if c.Type == Accepted && c.Holds {
			out.Conditions[i] = withFindings(c, e.object.Warnings, e.findings)
		}
	}
	c := Condition{Type: Programmed, Reason: reasonInvalid, Message: "nothing has accepted it"}
	if out.Get(Accepted).Holds {
		c = f.programmed(k, nil, e.judged.since)
		switch {
		case c.Holds && e.latched == nil && len(f.proxies) > 0:
			e.latched = &c
		case e.latched != nil && c.Reason != reasonRejected:
			c = *e.latched
		}
	} else {
		e.latched = &c
	}
	out.Conditions = append(out.Conditions, c)
	return out
}

// gatewayOf names a parent or ancestor.
func gatewayOf(ref gatewayv1.ParentReference) string {
	kind, name := gatewayapi.Gateway, string(ref.Name)
	if ref.Kind != nil {
		kind = string(*ref.Kind)
	}
	if ref.Namespace != nil {
		name = string(*ref.Namespace) + "/" + name
	}
	if ref.SectionName != nil {
		name += "/" + string(*ref.SectionName)
	}
	return kind + " " + name
}

// worse joins conditions for several parents: one that does not hold for a parent does not hold.
func worse(all, one []Condition, parent string) []Condition {
	for _, c := range one {
		c.Message = parent + ": " + c.Message
		i := slices.IndexFunc(all, func(o Condition) bool { return o.Type == c.Type })
		switch {
		case i < 0:
			all = append(all, c)
		case all[i].Holds && !c.Holds:
			all[i] = c
		}
	}
	return all
}

// conditionsOf are conditions of the API as rows have them.
func conditionsOf(list []metav1.Condition) []Condition {
	out := make([]Condition, 0, len(list))
	for _, c := range list {
		out = append(out, Condition{Type: c.Type, Holds: c.Status == metav1.ConditionTrue, Unknown: c.Status == metav1.ConditionUnknown,
			Reason: c.Reason, Message: c.Message})
	}
	return out
}

// listeners are those of a Gateway and its ListenerSets.
type listeners struct {
	// since is the revision since which they are as they are.
	since uint64
	// objects are the Gateway and the ListenerSets.
	objects []object.Key
}

// listeners finds the listeners of all Gateways.
func (t *Tracker) listeners() map[gatewayapi.Name]*listeners {
	out := map[gatewayapi.Name]*listeners{}
	for k, e := range t.due.watched {
		var of gatewayapi.Name
		switch s := e.judged.status; {
		case !isAPI(k) || s == nil:
			continue
		case s.Gateway != nil:
			of = gatewayapi.Name{Namespace: k.Namespace, Name: k.Name}
		case s.ListenerSet != nil:
			of = s.ListenerSet.Gateway
		default:
			continue
		}
		if out[of] == nil {
			out[of] = &listeners{}
		}
		out[of].since = max(out[of].since, e.judged.since)
		out[of].objects = append(out[of].objects, k)
	}
	return out
}

// proxyIndex finds the connected gateways of a namespace by one of their labels.
type proxyIndex map[[3]string][]*apiProxy

// apiProxy is a connected gateway with its Workload.
type apiProxy struct {
	*proxy
	labels    map[string]string
	addresses []string
}

func indexProxies(snapshot *revision.Snapshot, f *fleetState) proxyIndex {
	out := proxyIndex{}
	for i := range f.proxies {
		p := &f.proxies[i]
		if !isGatewayProxy(p) {
			continue
		}
		w := snapshot.Get(resource.Key{Kind: resource.KindWorkload, Namespace: p.Status.GetNamespace(),
			Name: p.Status.GetWorkload()}).GetWorkload()
		if w == nil {
			continue
		}
		indexed := &apiProxy{proxy: p, labels: w.GetLabels(), addresses: w.GetAddresses()}
		for name, value := range w.GetLabels() {
			at := [3]string{p.Status.GetNamespace(), name, value}
			out[at] = append(out[at], indexed)
		}
	}
	return out
}

// selected are the gateways of a namespace that have all labels, of which there is at least one; each once.
func (x proxyIndex) selected(namespace string, labels map[string]string) []*apiProxy {
	var least []*apiProxy
	for i, name := range slices.Sorted(maps.Keys(labels)) {
		if list := x[[3]string{namespace, name, labels[name]}]; i == 0 || len(list) < len(least) {
			least = list
		}
	}
	return slices.DeleteFunc(slices.Clone(least), func(p *apiProxy) bool { return !object.HasLabels(p.labels, labels) })
}

// portsOf are the ports in the names of rejected listeners and route configurations, such as "0.0.0.0_80" and
// "http.80"; ok is false if a name has none.
func portsOf(names []string) (ports []string, ok bool) {
	for _, name := range names {
		found := ""
		for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '_' || r == '.' || r == '|' || r == ':' || r == '/' }) {
			if strings.Trim(part, "0123456789") == "" {
				found = part
				if !strings.Contains(name, "_") {
					break
				}
			}
		}
		if found == "" {
			return nil, false
		}
		ports = append(ports, found)
	}
	return ports, len(ports) > 0
}
