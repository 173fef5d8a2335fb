package mesh

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// writer changes a State that nobody else can see yet and collects the topics it touches.
type writer struct {
	state  *Snapshot
	forked map[string]bool
	topics Topics
	// private collects changes of State.Private.
	private map[string]Topics
}

// replace puts next in place of what the key holds (nil: nothing) and reports whether that changed anything.
func (w *writer) replace(key Key, next *entry) bool {
	x, ok := w.state.kinds[key.Kind]
	if !ok {
		if next == nil {
			return false
		}
		x = newIndex[*entry]()
		w.state.kinds[key.Kind], w.forked[key.Kind] = x, true
	}
	old, held := x.get(key.path())
	if next == nil && !held || next != nil && held && old.hash == next.hash {
		return false
	}
	if !w.forked[key.Kind] {
		x = x.fork()
		w.state.kinds[key.Kind], w.forked[key.Kind] = x, true
	}
	if held {
		w.post(old, false)
	}
	if next == nil {
		x.remove(key.path())
		return true
	}
	x.set(key.path(), next)
	w.post(next, true)
	return true
}

// put adds or removes one posting of an index.
func put[V any](x index[V], add bool, key string, v V) {
	if add {
		x.set(key, v)
	} else {
		x.remove(key)
	}
}

func (w *writer) touch(subject Subject, a, b string) { w.topics.Add(Topic{subject, a, b}) }

// post adds an entry to the indices or removes it, and touches every topic whose answer contains it.
func (w *writer) post(e *entry, add bool) {
	switch v := e.value.(type) {
	case *configv1.Service:
		w.postService(e, v, add)
	case *configv1.EndpointSet:
		port := number(v.GetPort())
		put(w.state.endpoints, add, join(v.GetHostname(), port, e.key.Namespace, v.GetAudience(), v.GetCluster()), e)
		w.touch(SubjectEndpoints, v.GetHostname(), port)
		svc, ok := w.state.services.get(join(v.GetHostname(), e.key.Namespace, v.GetAudience()))
		if ok && svc.value.(*configv1.Service).GetHeadless() {
			w.placePods(svc, v, add)
		}
	case *configv1.Workload:
		for _, a := range v.GetAddresses() {
			put(w.state.addresses, add, join(a, e.key.Namespace, e.key.Name), e)
			w.touch(SubjectAddress, a, "")
		}
		w.count(w.state.accounts, join(e.key.Namespace, v.GetServiceAccount()), add)
		w.touch(SubjectWorkload, e.key.Namespace, e.key.Name)
	case *meshSettings:
		if w.state.mesh = defaultMesh(); add {
			w.state.mesh = v
		}
		keys := map[string]string{}
		for _, label := range v.settings.GetLocalityLbSetting().GetFailoverPriority() {
			key, _, _ := strings.Cut(label, "=")
			keys[key] = ""
		}
		w.selects("*", keys, add)
		w.touch(SubjectMesh, "", "")
	case *VirtualService:
		w.postVirtualService(v, add)
	case *DestinationRule:
		w.postDestinationRule(v, add)
	case *Sidecar:
		put(w.state.sidecars, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
		w.touch(SubjectSidecars, v.Key.Namespace, "")
	case *PeerAuthentication:
		put(w.state.authentications, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
		w.touch(SubjectPeerAuthentications, v.Key.Namespace, "")
		w.selects(v.Key.Namespace, v.Spec.GetSelector().GetMatchLabels(), add)
	case *EnvoyFilter:
		w.postEnvoyFilter(v, add)
	case *Gateway:
		pair := firstPair(v.Spec.GetSelector())
		put(w.state.gateways, add, join(pair, age(v.Created), v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectGateways, pair, "")
		if passesMesh(v.Spec) {
			w.meshGateway(add)
		}
		w.selects("*", v.Spec.GetSelector(), add)
	}
}

// meshGateway counts the Gateways that pass mesh TLS through.
func (w *writer) meshGateway(add bool) {
	if add {
		w.state.meshGateways++
	} else {
		w.state.meshGateways--
	}
	if w.state.meshGateways == 0 || w.state.meshGateways == 1 && add {
		w.touch(SubjectMeshGateways, "", "")
	}
}

func passesMesh(g *networking.Gateway) bool {
	return slices.ContainsFunc(g.GetServers(), func(s *networking.Server) bool {
		return s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
	})
}

func (w *writer) postService(e *entry, v *configv1.Service, add bool) {
	put(w.state.services, add, join(v.GetHostname(), v.GetNamespace(), v.GetAudience()), e)
	if network := v.GetNetworkGateway().GetNetwork(); network != "" {
		put(w.state.networks, add, join(network, v.GetHostname(), v.GetNamespace(), v.GetAudience()), e)
		w.touch(SubjectNetworkGateways, network, "")
		w.touch(SubjectNetworkGateways, "", "")
	}
	w.touch(SubjectService, v.GetHostname(), "")
	for _, to := range v.GetExportedTo() {
		put(w.state.exported, add, join(to, v.GetNamespace(), v.GetHostname(), v.GetAudience()), e)
		w.touch(SubjectServices, to, v.GetNamespace())
		w.touch(SubjectServices, to, "")
	}
	w.place(e, v, add)
	for _, to := range v.GetExportedTo() {
		w.count(w.state.suffixes, join(to, reversed(v.GetHostname())), add)
	}
	for wildcard := range Covering(v.GetHostname()) {
		if strings.HasPrefix(wildcard, "*") {
			w.touch(SubjectSuffix, wildcard, "")
			w.differs(explicit(v.GetExportedTo()), add, AnyUnderTopic(wildcard))
		}
	}
	w.privateService(e, v, add)
	if MindsNode(v) {
		for _, to := range v.GetExportedTo() {
			w.selects(to, map[string]string{LabelHostname: ""}, add)
		}
	}
}

// LabelHostname is the label that says which node a workload, and an endpoint of a service with MindsNode, is on.
const LabelHostname = "kubernetes.io/hostname"

// MindsNode tells whether clients of a service have to know their own node.
func MindsNode(v *configv1.Service) bool {
	return v.GetNodeLocal() || v.GetTrafficDistribution() == "PreferSameNode"
}

func (w *writer) postVirtualService(v *VirtualService, add bool) {
	gateways := boundTo(v)
	if slices.Contains(gateways, "mesh") {
		w.postDestinations(v, add)
	}
	for _, to := range v.ExportedTo {
		for _, gw := range gateways {
			put(w.state.gatewayRoutes, add, join(to, gw, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectGatewayRoutes, to, gw)
		}
		w.selects(to, sourceLabels(v), add)
	}
	for _, gw := range gateways {
		for _, host := range v.Spec.GetHosts() {
			put(w.state.hostRoutes, add, join(gw, host, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectHostRoutes, gw, host)
			w.touch(SubjectHostRoutes, gw, wildcardOr(host))
		}
	}
	w.privateVirtualService(v, gateways, add)
}

func (w *writer) postDestinationRule(v *DestinationRule, add bool) {
	host := v.Spec.GetHost()
	put(w.state.rules, add, join(v.Key.Namespace, host, age(v.Created), v.Key.Name), v)
	w.touch(SubjectDestinationRule, wildcardOr(host), "")
	w.selects(v.Key.Namespace, v.Spec.GetWorkloadSelector().GetMatchLabels(), add)
	if keys := failoverLabels(v.Spec); len(keys) > 0 {
		for _, to := range v.ExportedTo {
			w.selects(to, keys, add)
		}
	}
	w.postCredentialUses(v, add)
	w.privateDestinationRule(v, add)
}

// failoverLabels lists the label keys by which a rule compares the client with endpoints.
func failoverLabels(rule *networking.DestinationRule) map[string]string {
	keys := map[string]string{}
	read := func(p *networking.LoadBalancerSettings) {
		for _, label := range p.GetLocalityLbSetting().GetFailoverPriority() {
			key, _, _ := strings.Cut(label, "=")
			keys[key] = ""
		}
	}
	policy := func(p *networking.TrafficPolicy) {
		read(p.GetLoadBalancer())
		for _, port := range p.GetPortLevelSettings() {
			read(port.GetLoadBalancer())
		}
	}
	policy(rule.GetTrafficPolicy())
	for _, subset := range rule.GetSubsets() {
		policy(subset.GetTrafficPolicy())
	}
	return keys
}

// count keeps the number of objects behind a key and returns it.
func (w *writer) count(x index[int], key string, add bool) int {
	n, _ := x.get(key)
	if add {
		n++
	} else {
		n--
	}
	if n > 0 {
		x.set(key, n)
	} else {
		x.remove(key)
	}
	return n
}

// selects counts the label keys that selectors of a scope test.
func (w *writer) selects(scope string, labels map[string]string, add bool) {
	for key := range labels {
		if n := w.count(w.state.selected, join(scope, key), add); n == 0 || n == 1 && add {
			w.touch(SubjectSelectedLabels, scope, "")
		}
	}
}

// wildcardOr returns "*" for a wildcard host and the host itself otherwise.
func wildcardOr(host string) string {
	if strings.HasPrefix(host, "*") {
		return "*"
	}
	return host
}

// boundTo lists the gateways of a VirtualService as "mesh" or "<namespace>/<name>", each once.
func boundTo(v *VirtualService) []string {
	gateways := map[string]bool{}
	add := func(gw string) {
		if gw != "mesh" && !strings.Contains(gw, "/") {
			gw = v.Key.Namespace + "/" + gw
		}
		gateways[gw] = true
	}
	for _, gw := range v.Spec.GetGateways() {
		add(gw)
	}
	// A match may name gateways of its own; config-watcher has added them to those of the object.
	if len(gateways) == 0 {
		gateways["mesh"] = true
	}
	return sortedKeys(gateways)
}

// sourceLabels joins the label keys that the matches of a VirtualService test on the client.
func sourceLabels(v *VirtualService) map[string]string {
	keys := map[string]string{}
	for _, route := range v.Spec.GetHttp() {
		for _, m := range route.GetMatch() {
			for k := range m.GetSourceLabels() {
				keys[k] = ""
			}
		}
	}
	for _, route := range v.Spec.GetTcp() {
		for _, m := range route.GetMatch() {
			for k := range m.GetSourceLabels() {
				keys[k] = ""
			}
		}
	}
	for _, route := range v.Spec.GetTls() {
		for _, m := range route.GetMatch() {
			for k := range m.GetSourceLabels() {
				keys[k] = ""
			}
		}
	}
	return keys
}

// firstPair returns the first label of a selector as "key=value", "" for an empty one: each Gateway is indexed once.
func firstPair(selector map[string]string) string {
	if len(selector) == 0 {
		return ""
	}
	k := sortedKeys(selector)[0]
	return k + "=" + selector[k]
}
