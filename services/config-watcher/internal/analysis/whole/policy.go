package whole

import (
	"fmt"
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// selectorOf is the selector of a Service's or a ServiceEntry's workloads.
func selectorOf(o *Object) map[string]string {
	switch b := o.Body.(type) {
	case *corev1.Service:
		return b.Spec.Selector
	case *networking.ServiceEntry:
		return b.GetWorkloadSelector().GetLabels()
	}
	return nil
}

// policyKinds are the kinds with a selector of workloads. Gateways and Services have checks of their own.
var policyKinds = []string{"Sidecar", "PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy", "Telemetry", "EnvoyFilter",
	"WasmPlugin", "TrafficExtension", "ProxyConfig", "DestinationRule", "ServiceEntry"}

// policySelector returns the selector of an object of policyKinds, and its JSON path.
func policySelector(o *Object) (field string, selector map[string]string) {
	switch b := o.Body.(type) {
	case interface {
		GetSelector() *typev1beta1.WorkloadSelector
	}:
		return "spec.selector.matchLabels", b.GetSelector().GetMatchLabels()
	case interface {
		GetWorkloadSelector() *networking.WorkloadSelector
	}:
		return "spec.workloadSelector.labels", b.GetWorkloadSelector().GetLabels()
	case *networking.DestinationRule:
		return "spec.workloadSelector.matchLabels", b.GetWorkloadSelector().GetMatchLabels()
	}
	return "", nil
}

// checkSelectors finds selectors of policies that select nothing.
func checkSelectors(r *run) {
	for _, kind := range policyKinds {
		for _, o := range r.kind(kind) {
			field, selector := policySelector(o)
			namespace := r.reach(o)
			switch kind {
			case "DestinationRule", "ServiceEntry", "Sidecar":
				namespace = o.Key.Namespace
			}
			if len(selector) == 0 || len(r.selected(namespace, selector)) > 0 {
				continue
			}
			code := finding.PolicySelectsNothing
			if kind == "Sidecar" || kind == "Telemetry" {
				code = finding.SelectorSelectsNothing
			}
			r.report(o, code, field, object.LabelText(selector), "no workload has these labels: the object has no effect",
				"start the workload, or write the labels that it has")
		}
	}
}

// exclusive are the kinds of which a workload takes one, with the codes for two without a selector and for two that
// select one workload.
var exclusive = []struct {
	kind               string
	without, conflicts finding.Code
}{
	{"Sidecar", finding.SidecarsWithoutSelector, finding.SidecarsConflict},
	{"Telemetry", finding.TelemetriesWithoutSelector, finding.TelemetriesConflict},
	{"PeerAuthentication", finding.PeerAuthenticationsConflict, finding.PeerAuthenticationsConflict},
}

// checkSelectorConflicts finds objects of which a workload takes only one, although several are for it.
func checkSelectorConflicts(r *run) {
	for _, e := range exclusive {
		whole, chosen := map[string][]*Object{}, map[string][]*Object{}
		for _, o := range r.kind(e.kind) {
			if _, selector := policySelector(o); len(selector) == 0 {
				whole[o.Key.Namespace] = append(whole[o.Key.Namespace], o)
			} else {
				chosen[o.Key.Namespace] = append(chosen[o.Key.Namespace], o)
			}
		}
		for ns, list := range whole {
			if e.kind == "Telemetry" {
				list = slices.DeleteFunc(slices.Clone(list), func(o *Object) bool { return targeted(o) })
			}
			for _, o := range list {
				if len(list) > 1 {
					r.report(o, e.without, "spec", nil,
						fmt.Sprintf("namespace %s has %d objects of the kind without a selector, %s, of which the oldest counts", ns, len(list),
							sentence(names(list))),
						"keep one, or give the others selectors")
				}
			}
		}
		for ns, list := range chosen {
			r.conflicts(ns, list, e.conflicts)
		}
	}
}

func targeted(o *Object) bool {
	t, ok := o.Body.(*telemetry.Telemetry)
	return ok && (t.GetTargetRef() != nil || len(t.GetTargetRefs()) > 0)
}

// names lists the names of the first objects, one more than a message has.
func names(list []*Object) []string {
	var out []string
	for _, o := range list[:min(len(list), maxNamed+1)] {
		out = append(out, o.Key.Name)
	}
	return out
}

// conflicts reports the objects of a namespace that select a workload which another one selects.
func (r *run) conflicts(namespace string, list []*Object, code finding.Code) {
	if len(list) < 2 {
		return
	}
	reach := namespace
	if namespace == r.settings.GetRootNamespace() && code != finding.SidecarsConflict {
		reach = ""
	}
	by := map[*workload][]*Object{}
	for _, o := range list {
		_, selector := policySelector(o)
		for _, w := range r.selected(reach, selector) {
			by[w] = append(by[w], o)
		}
	}
	told := map[*Object]bool{}
	for _, w := range r.workloads {
		if len(by[w]) < 2 {
			continue
		}
		for _, o := range by[w] {
			if told[o] {
				continue
			}
			told[o] = true
			field, selector := policySelector(o)
			r.report(o, code, field, object.LabelText(selector),
				fmt.Sprintf("%s select %s %s/%s, and the oldest counts", sentence(names(by[w])), w.Key.Kind, w.Key.Namespace, w.Key.Name),
				"give them selectors that exclude each other, or join them")
		}
	}
}

// checkTelemetryProviders finds Telemetries that name no provider where no default is set.
func checkTelemetryProviders(r *run) {
	defaults := r.settings.GetDefaultProviders()
	for o, t := range bodies[*telemetry.Telemetry](r, "Telemetry") {
		for i, tr := range t.GetTracing() {
			for j, p := range tr.GetProviders() {
				if r.lightstep(p.GetName()) {
					r.report(o, finding.FieldDeprecated, fmt.Sprintf("spec.tracing[%d].providers[%d].name", i, j), p.GetName(),
						"is a provider of the kind lightstep, which is deprecated", "use one of the kind opentelemetry")
				}
			}
		}
		for i, l := range t.GetAccessLogging() {
			if len(l.GetProviders()) == 0 && !l.GetDisabled().GetValue() && len(defaults.GetAccessLogging()) == 0 &&
				r.settings.GetAccessLogFile() == "" {
				r.report(o, finding.TelemetryWithoutProvider, fmt.Sprintf("spec.accessLogging[%d]", i), nil,
					"names no provider, and the mesh configuration has no default one", "name a provider, or set defaultProviders.accessLogging")
			}
		}
	}
}

// lightstep reports whether an extension provider is of the kind lightstep.
func (r *run) lightstep(name string) bool {
	return slices.ContainsFunc(r.settings.GetExtensionProviders(), func(p *mesh.MeshConfig_ExtensionProvider) bool {
		return p.GetName() == name && p.GetLightstep() != nil //nolint:staticcheck // deprecated in Istio, still served
	})
}

// checkReach finds objects that configure the proxies of a namespace in which nothing has a proxy.
func checkReach(r *run) {
	for _, kind := range []string{"Sidecar", "PeerAuthentication", "Telemetry", "EnvoyFilter", "WasmPlugin", "TrafficExtension",
		"ProxyConfig", "AuthorizationPolicy", "RequestAuthentication"} {
		for _, o := range r.kind(kind) {
			ns := o.Key.Namespace
			if ns == r.settings.GetRootNamespace() || r.get("", "Namespace", "", ns) == nil && len(r.selected(ns, nil)) == 0 {
				continue
			}
			if !slices.ContainsFunc(r.selected(ns, nil), r.inMesh) && !r.injects(ns) {
				r.report(o, finding.NamespaceWithoutProxies, "metadata.namespace", ns,
					"no workload of the namespace has a proxy, and none would be injected",
					"put the object where the workloads are, or have sidecars injected")
			}
		}
	}
}

// peerPolicies are the PeerAuthentications of a mesh.
type peerPolicies struct {
	root   string
	whole  map[string]*Object   // by namespace, the oldest without a selector
	chosen map[string][]*Object // by namespace, oldest first
}

func (r *run) peerPolicies() peerPolicies {
	out := peerPolicies{r.settings.GetRootNamespace(), map[string]*Object{}, map[string][]*Object{}}
	list := slices.Clone(r.kind("PeerAuthentication"))
	list = slices.DeleteFunc(list, func(o *Object) bool { return o.Valid == nil })
	slices.SortStableFunc(list, func(a, b *Object) int { return object.CompareAge(a.Valid, b.Valid) })
	for _, o := range list {
		if _, selector := policySelector(o); len(selector) > 0 {
			out.chosen[o.Key.Namespace] = append(out.chosen[o.Key.Namespace], o)
		} else if out.whole[o.Key.Namespace] == nil {
			out.whole[o.Key.Namespace] = o
		}
	}
	return out
}

// mode is the mode of mutual TLS at a port of a workload, and the PeerAuthentication that sets it.
func (p peerPolicies) mode(w *workload, port uint32) (mode, by string) {
	consider := func(o *Object) {
		body := o.Body.(*security.PeerAuthentication)
		m := body.GetMtls().GetMode()
		if at := body.GetPortLevelMtls()[port]; at.GetMode() != security.PeerAuthentication_MutualTLS_UNSET {
			m = at.GetMode()
		}
		if m != security.PeerAuthentication_MutualTLS_UNSET && mode == "" {
			mode, by = m.String(), fmt.Sprintf("PeerAuthentication %s/%s", o.Key.Namespace, o.Key.Name)
		}
	}
	for _, o := range p.chosen[w.Key.Namespace] {
		if _, selector := policySelector(o); object.HasLabels(w.labels, selector) {
			consider(o)
			break
		}
	}
	for _, ns := range []string{w.Key.Namespace, p.root} {
		if o := p.whole[ns]; o != nil {
			consider(o)
		}
	}
	if mode == "" {
		return "PERMISSIVE", ""
	}
	return mode, by
}

// targets lists the ports of a workload that a port of a Service leads to; all ports if it is 0.
func (r *run) targets(owner *Object, w *workload, port uint32) []uint32 {
	var out []uint32
	for _, p := range normalise.PortsOf(owner.Valid) {
		switch {
		case port != 0 && p.Number != port:
		case p.TargetPortName != "":
			out = append(out, r.namedPort(w, p.TargetPortName))
		case p.TargetPort != 0:
			out = append(out, p.TargetPort)
		default:
			out = append(out, p.Number)
		}
	}
	return out
}

func (r *run) namedPort(w *workload, name string) uint32 {
	for _, c := range w.spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return uint32(p.ContainerPort)
			}
		}
	}
	return 0
}
