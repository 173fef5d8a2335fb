package replica

import (
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// writer changes a State that nobody else can see yet and collects the topics it touches.
type writer struct {
	state  *State
	forked map[string]bool
	topics Topics
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
		port := strconv.FormatUint(uint64(v.GetPort()), 10)
		put(w.state.endpoints, add, join(v.GetHostname(), port, e.key.Namespace, v.GetCluster()), e)
		w.touch(SubjectEndpoints, v.GetHostname(), port)
	case *configv1.Workload:
		for _, a := range v.GetAddresses() {
			put(w.state.addresses, add, join(a, e.key.Namespace, e.key.Name), e)
			w.touch(SubjectAddress, a, "")
		}
		w.touch(SubjectWorkload, e.key.Namespace, e.key.Name)
	case *meshSettings:
		if w.state.mesh = defaultMesh(); add {
			w.state.mesh = v
		}
		w.touch(SubjectMesh, "", "")
	case *VirtualService:
		w.postVirtualService(v, add)
	case *DestinationRule:
		w.postDestinationRule(v, add)
	case *Sidecar:
		put(w.state.sidecars, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
		w.touch(SubjectSidecars, v.Key.Namespace, "")
		w.selects(v.Key.Namespace, v.Spec.GetWorkloadSelector().GetLabels(), add)
	case *PeerAuthentication:
		put(w.state.authentications, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
		w.touch(SubjectPeerAuthentications, v.Key.Namespace, "")
		w.selects(v.Key.Namespace, v.Spec.GetSelector().GetMatchLabels(), add)
	case *Gateway:
		pair := firstPair(v.Spec.GetSelector())
		put(w.state.gateways, add, join(pair, age(v.Created), v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectGateways, pair, "")
		w.selects("*", v.Spec.GetSelector(), add)
	}
}

func (w *writer) postService(e *entry, v *configv1.Service, add bool) {
	put(w.state.services, add, join(v.GetHostname(), v.GetNamespace(), e.key.Name), e)
	w.touch(SubjectService, v.GetHostname(), "")
	for _, to := range v.GetExportedTo() {
		put(w.state.exported, add, join(to, v.GetNamespace(), v.GetHostname()), e)
		w.touch(SubjectServices, to, v.GetNamespace())
		w.touch(SubjectServices, to, "")
	}
}

func (w *writer) postVirtualService(v *VirtualService, add bool) {
	gateways := boundTo(v)
	for _, to := range v.ExportedTo {
		for _, gw := range gateways {
			put(w.state.gatewayRoutes, add, join(to, gw, age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectGatewayRoutes, to, gw)
			for _, host := range v.Spec.GetHosts() {
				put(w.state.hostRoutes, add, join(to, gw, host, age(v.Created), v.Key.Namespace, v.Key.Name), v)
				w.touch(SubjectHostRoutes, gw, wildcardOr(host))
			}
		}
		w.selects(to, sourceLabels(v), add)
	}
}

func (w *writer) postDestinationRule(v *DestinationRule, add bool) {
	host := v.Spec.GetHost()
	put(w.state.rules, add, join(v.Key.Namespace, host, age(v.Created), v.Key.Name), v)
	w.touch(SubjectDestinationRule, wildcardOr(host), "")
	w.selects(v.Key.Namespace, v.Spec.GetWorkloadSelector().GetMatchLabels(), add)
}

// selects counts the label keys that selectors of a scope test.
func (w *writer) selects(scope string, labels map[string]string, add bool) {
	for key := range labels {
		k := join(scope, key)
		n, _ := w.state.selected.get(k)
		if add {
			n++
		} else {
			n--
		}
		if n > 0 {
			w.state.selected.set(k, n)
		} else {
			w.state.selected.remove(k)
		}
		if n == 0 || n == 1 && add {
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
	// A match may name gateways of its own, but only among those of the object: nothing to add for them.
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
