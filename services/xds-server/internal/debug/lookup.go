package debug

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// lookup explains what a build has looked up: the lookups that found nothing, and the objects about the same hosts that
// have no effect.
type lookup struct {
	state  *mesh.Snapshot
	key    *class.Key
	client string
	root   string
	used   map[mesh.Key]bool
	// origins are all objects that the build has read.
	origins []input.Origin
	// host is the host of the virtual host in question; "" means the whole resource.
	host string
}

func newLookup(state *mesh.Snapshot, key *class.Key, origins []input.Origin) *lookup {
	l := &lookup{
		state: state, key: key, client: key.Namespace, root: state.Mesh().GetRootNamespace(), used: map[mesh.Key]bool{}, origins: origins,
	}
	for _, o := range origins {
		l.used[o.Key] = true
	}
	return l
}

// describe shows the origins. Endpoints have no object of their own: it shows the service port and their number.
func (l *lookup) describe(origins []input.Origin) []contract.ExplainedObject {
	list := []contract.ExplainedObject{}
	seen := map[string]bool{}
	for _, o := range origins {
		if o.Key.Kind != mesh.KindEndpointSet {
			list = append(list, describeOrigin(o))
			continue
		}
		// "<host>:<port>/<cluster>", and the visibility if it is limited
		name, _, _ := strings.Cut(o.Key.Name, "/")
		host, port, ok := resourcename.ParseSniffedRouteConfig(name)
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		var sets []*configv1.EndpointSet
		for _, svc := range l.state.ServicesOf(host, l.client) {
			if svc.GetNamespace() == o.Key.Namespace {
				sets = lists.Filter(l.state.Endpoints(svc, port), func(s *configv1.EndpointSet) bool { return mesh.Sees(l.key.Cluster, s) })
			}
		}
		count := 0
		for _, set := range sets {
			count += len(set.GetEndpoints())
		}
		list = append(list, contract.ExplainedObject{
			Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: name,
			Detail: fmt.Sprintf("%s of %s", plural(count, "endpoint"), plural(len(sets), "cluster")),
		})
	}
	return list
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// absent lists the lookups that found nothing. Those for wildcard hosts are part of those for a host.
func (l *lookup) absent(topics []mesh.Topic) []string {
	var list []string
	selected := false
	for _, t := range topics {
		missing, where := false, ""
		switch t.Subject {
		case mesh.SubjectService:
			missing, where = len(l.state.ServicesOf(t.A, l.client)) == 0, l.visible()
		case mesh.SubjectEndpoints:
			missing = !slices.ContainsFunc(l.state.ServicesOf(t.A, l.client), func(s *configv1.Service) bool {
				return len(l.state.Endpoints(s, parsePort(t.B))) > 0
			})
		case mesh.SubjectHostRoutes:
			missing, where = t.B != "*" && len(l.state.VirtualServicesOf(l.client, t.A, t.B)) == 0, l.visible()
		case mesh.SubjectDestinationRule:
			missing, where = t.A != "*" && !l.usedRuleFor(t.A), " in namespaces "+strings.Join(l.ruleNamespaces(t.A), ", ")
		case mesh.SubjectPeerAuthentications:
			missing = len(l.state.PeerAuthentications(t.A)) == 0
		case mesh.SubjectGateways:
			if !selected {
				selected = true
				if len(l.state.Gateways(l.key.Namespace, l.key.Labels)) == 0 {
					list = append(list, "no Gateway that selects the proxy's labels")
				}
			}
		case mesh.SubjectWorkload:
			missing = l.state.Workload(t.A, t.B) == nil
		case mesh.SubjectAddress:
			missing = len(l.state.WorkloadsAt(t.A)) == 0
		case mesh.SubjectMesh:
			missing, where = l.state.MeshSource() == nil, ": all mesh-wide settings are defaults"
		case mesh.SubjectServicesAt:
			missing, where = len(l.state.ServicesAt(l.client, parsePort(t.A), t.B)) == 0, l.visible()
		case mesh.SubjectSuffix:
			missing, where = !l.state.AnyUnder(l.client, t.A), l.visible()
		}
		if missing {
			list = append(list, "no "+t.String()+where)
		}
	}
	return list
}

func (l *lookup) visible() string { return ", visible to namespace " + l.client }

// usedRuleFor reports whether the build has used a DestinationRule for the host.
func (l *lookup) usedRuleFor(host string) bool {
	return slices.ContainsFunc(l.rules(l.ruleNamespaces(host), host), func(r *mesh.DestinationRule) bool { return l.used[r.Key] })
}

// rules lists the DestinationRules of the namespaces that name the host or a wildcard that covers it.
func (l *lookup) rules(namespaces []string, host string) []*mesh.DestinationRule {
	var found []*mesh.DestinationRule
	for _, ns := range namespaces {
		for h := range mesh.Covering(host) {
			found = append(found, l.state.DestinationRules(ns, h)...)
		}
	}
	return found
}

// ruleNamespaces are the namespaces in which DestinationRules for a host are looked up: the client's, the service's and
// the root namespace.
func (l *lookup) ruleNamespaces(host string) []string {
	var list []string
	if l.client != l.root {
		list = append(list, l.client)
	}
	if services := l.state.ServicesOf(host, l.client); len(services) > 0 && !slices.Contains(list, services[0].GetNamespace()) {
		list = append(list, services[0].GetNamespace())
	}
	if !slices.Contains(list, l.root) {
		list = append(list, l.root)
	}
	return list
}

// fewHosts is the number of hosts of a resource up to which passedOver looks at each.
const fewHosts = 8

// passedOver lists the VirtualServices and DestinationRules that name a host in question and have no effect on the
// resource, with the reason.
func (l *lookup) passedOver(topics []mesh.Topic) []contract.ExplainedObject {
	hosts := 0
	for _, t := range topics {
		if t.Subject == mesh.SubjectDestinationRule || t.Subject == mesh.SubjectHostRoutes {
			hosts++
		}
	}
	if hosts > 2*fewHosts {
		return nil
	}
	var list []contract.ExplainedObject
	seen := map[mesh.Key]bool{}
	add := func(o input.Origin, reason string) {
		if l.used[o.Key] || seen[o.Key] {
			return
		}
		seen[o.Key] = true
		shown := describeOrigin(o)
		shown.Detail = reason
		list = append(list, shown)
	}
	for _, t := range topics {
		switch {
		case t.Subject == mesh.SubjectService && l.key.Sidecar != "":
			for _, svc := range l.state.ServicesOf(t.A, l.client) {
				add(input.Origin{Key: mesh.ServiceKey(svc), Source: svc.GetSource()},
					"the Sidecar "+l.key.Sidecar+" does not import it, or another one of its name goes before it")
			}
		case t.Subject == mesh.SubjectDestinationRule && t.A != "*":
			for _, rule := range l.rules(l.namespaces(mesh.KindDestinationRule), t.A) {
				add(input.Origin{Key: rule.Key, Source: rule.Source}, l.whyRuleIsNotUsed(t.A, rule))
			}
		case t.Subject == mesh.SubjectHostRoutes && t.B != "*":
			found := l.state.VirtualServicesOf(l.client, t.A, t.B)
			imported := input.NewView(l.key, l.state).Reader().VirtualServicesOf(t.A, t.B)
			for i, vs := range found {
				reason := l.whyNotForSidecars(vs, found[:i], t.B)
				if !slices.Contains(imported, vs) {
					reason = "the Sidecar " + l.key.Sidecar + " does not import it"
				}
				add(input.Origin{Key: vs.Key, Source: vs.Source}, reason)
			}
			for _, ns := range l.namespaces(mesh.KindVirtualService) {
				for _, vs := range l.state.VirtualServicesOf(ns, t.A, t.B) {
					add(input.Origin{Key: vs.Key, Source: vs.Source}, l.hidden(vs.ExportedTo))
				}
			}
			if t.A != contract.MeshGateway {
				continue
			}
			for _, gateway := range l.keys(mesh.KindGateway) {
				for _, vs := range l.state.VirtualServicesOf(l.client, gateway, t.B) {
					if slices.Contains(vs.Spec.GetHosts(), "*") {
						continue // it is about every host at the gateway, not about this one
					}
					add(input.Origin{Key: vs.Key, Source: vs.Source}, "it is bound to gateway "+gateway+" and not to mesh")
				}
			}
		case t.Subject == mesh.SubjectGatewayRoutes && t.B != contract.MeshGateway:
			found := l.state.VirtualServices(l.client, t.B)
			for i, vs := range found {
				if l.host == "" || slices.Contains(vs.Spec.GetHosts(), l.host) {
					add(input.Origin{Key: vs.Key, Source: vs.Source}, l.whyNotInGatewayRoutes(vs, found[:i]))
				}
			}
		}
	}
	return list
}

// whyNotForSidecars returns the reason why a VirtualService for a host has no effect on sidecars; before are those that
// take precedence.
func (l *lookup) whyNotForSidecars(vs *mesh.VirtualService, before []*mesh.VirtualService, host string) string {
	for _, other := range before {
		switch {
		case !l.used[other.Key]:
		case slices.Contains(other.Spec.GetHosts(), host) == slices.Contains(vs.Spec.GetHosts(), host):
			return "VirtualService " + other.Key.Namespace + "/" + other.Key.Name +
				" is older or, at the same age, first by name, and the first for a host decides"
		default:
			return "VirtualService " + other.Key.Namespace + "/" + other.Key.Name + " is for a more specific host"
		}
	}
	return "none of its routes is for this port and this proxy"
}

// whyNotInGatewayRoutes returns the reason why a VirtualService of a gateway has no effect on its routes; before are
// the older ones.
func (l *lookup) whyNotInGatewayRoutes(vs *mesh.VirtualService, before []*mesh.VirtualService) string {
	for _, other := range before {
		if l.used[other.Key] && slices.ContainsFunc(other.Spec.GetHosts(),
			func(h string) bool { return slices.Contains(vs.Spec.GetHosts(), h) }) {
			return "VirtualService " + other.Key.Namespace + "/" + other.Key.Name +
				" is older or, at the same age, first by name, and of several routes for a host that match everything the first counts"
		}
	}
	return "it has no host in common with the servers of this port, or no route for them"
}

func (l *lookup) hidden(exportedTo []string) string {
	return "it is exported to " + strings.Join(exportedTo, ", ") + " and not to the proxy's namespace " + l.client
}

// whyRuleIsNotUsed returns the reason why a DestinationRule for the host has no effect.
func (l *lookup) whyRuleIsNotUsed(host string, rule *mesh.DestinationRule) string {
	namespaces := l.ruleNamespaces(host)
	selector := rule.Spec.GetWorkloadSelector().GetMatchLabels()
	switch {
	case !slices.Contains(namespaces, rule.Key.Namespace):
		return "rules for this host are looked up in namespaces " + strings.Join(namespaces, ", ")
	case !rule.Visible(l.client):
		return l.hidden(rule.ExportedTo)
	case len(selector) > 0 && (rule.Key.Namespace != l.client || !mesh.Matches(selector, l.key.Labels)):
		return "its workload selector does not select the proxy"
	case slices.ContainsFunc(l.state.DestinationRules(rule.Key.Namespace, rule.Spec.GetHost()),
		func(o *mesh.DestinationRule) bool { return l.used[o.Key] }):
		return "older rules for the host have a trafficPolicy and all of its subsets already"
	default:
		return "a rule for a more specific host, or of a namespace that goes before, is there"
	}
}

// keys lists the objects of a kind as "<namespace>/<name>".
func (l *lookup) keys(kind string) []string {
	var list []string
	for _, part := range l.state.Held(maxKeys) {
		if part.GetKind() == kind {
			list = append(list, part.GetKeys()...)
		}
	}
	return list
}

// maxKeys bounds how many keys are read from one part of a snapshot.
const maxKeys = 1 << 16

// namespaces lists the namespaces that have objects of a kind, and the proxy's own.
func (l *lookup) namespaces(kind string) []string {
	list := []string{l.client}
	for _, key := range l.keys(kind) {
		ns, _, _ := strings.Cut(key, "/")
		list = append(list, ns)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// narrow keeps what concerns one virtual host of a route configuration.
func (l *lookup) narrow(origins []input.Origin, topics []mesh.Topic, vh *route.VirtualHost) ([]input.Origin, []mesh.Topic) {
	host, _, _ := resourcename.ParseSniffedRouteConfig(vh.GetName())
	hosts := map[string]bool{host: true}
	for _, cluster := range clusters(vh) {
		if c, ok := resourcename.ParseCluster(cluster); ok {
			hosts[c.Hostname] = true
		}
	}
	l.host = host
	concerned := routedBy(vh)
	for _, o := range l.origins {
		if o.Key.Kind == mesh.KindVirtualService && !concerned[o.Key] {
			delete(l.used, o.Key) // it has an effect on other virtual hosts of the route configuration
		}
	}
	for h := range hosts {
		for _, rule := range l.rules(l.ruleNamespaces(h), h) {
			concerned[rule.Key] = true
		}
	}
	origins = slices.DeleteFunc(slices.Clone(origins), func(o input.Origin) bool {
		switch o.Key.Kind {
		case mesh.KindService:
			name, _, _ := strings.Cut(o.Key.Name, "/")
			return !hosts[name]
		case mesh.KindEndpointSet:
			name, _, _ := strings.Cut(o.Key.Name, ":")
			return !hosts[name]
		case mesh.KindVirtualService, mesh.KindDestinationRule:
			return !concerned[o.Key]
		}
		return false
	})
	topics = slices.DeleteFunc(slices.Clone(topics), func(t mesh.Topic) bool {
		switch t.Subject {
		case mesh.SubjectService, mesh.SubjectDestinationRule, mesh.SubjectEndpoints:
			return !hosts[t.A]
		case mesh.SubjectHostRoutes:
			return t.B != host
		case mesh.SubjectServices:
			return true
		case mesh.SubjectGatewayRoutes:
			return t.B == contract.MeshGateway
		}
		return false
	})
	return origins, topics
}

// routedBy lists the VirtualServices that the routes of a virtual host were made from. The metadata of the routes names
// them: "/apis/networking.istio.io/v1/namespaces/<namespace>/virtual-service/<name>".
func routedBy(vh *route.VirtualHost) map[mesh.Key]bool {
	keys := map[mesh.Key]bool{}
	for _, r := range vh.GetRoutes() {
		parts := strings.Split(r.GetMetadata().GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue(), "/")
		if len(parts) == 8 && parts[6] == "virtual-service" {
			keys[mesh.Key{Kind: mesh.KindVirtualService, Namespace: parts[5], Name: parts[7]}] = true
		}
	}
	return keys
}

// clusters lists the clusters that a virtual host routes to.
func clusters(vh *route.VirtualHost) []string {
	var list []string
	for _, r := range vh.GetRoutes() {
		action := r.GetRoute()
		list = append(list, action.GetCluster())
		for _, w := range action.GetWeightedClusters().GetClusters() {
			list = append(list, w.GetName())
		}
		for _, m := range action.GetRequestMirrorPolicies() {
			list = append(list, m.GetCluster())
		}
	}
	return list
}

// virtualHostIn finds a virtual host of a route configuration; nil if there is none.
func virtualHostIn(item plan.Item, name string) *route.VirtualHost {
	for _, vh := range routeConfiguration(item).GetVirtualHosts() {
		if vh.GetName() == name {
			return vh
		}
	}
	return nil
}

func parsePort(text string) uint32 {
	n, _ := strconv.ParseUint(text, 10, 16) // the port in a topic
	return uint32(n)
}
