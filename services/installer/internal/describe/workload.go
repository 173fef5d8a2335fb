package describe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// policyKinds are the kinds that apply to workloads by a selector, in the order in which they are shown. Those of the
// root namespace apply to all namespaces: with a selector too, unless selectorAtHome is set.
var policyKinds = []struct {
	kind           string
	selectorAtHome bool
	// one is set if one object counts, that of the narrowest scope and there the oldest.
	one bool
}{
	{"Sidecar", true, true}, {"AuthorizationPolicy", false, false}, {"RequestAuthentication", false, false}, {"EnvoyFilter", false, false},
	{"Telemetry", true, false}, {"WasmPlugin", false, false}, {"ProxyConfig", true, false},
}

// selectorOf reads the selector of an object of any of these kinds.
func selectorOf(o Object) (map[string]string, error) {
	var spec struct {
		Selector         struct{ MatchLabels map[string]string }
		WorkloadSelector struct{ Labels, MatchLabels map[string]string }
		TargetRefs       []json.RawMessage
		TargetRef        json.RawMessage
	}
	if len(o.Spec) > 0 {
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID(), err)
		}
	}
	for _, s := range []map[string]string{spec.Selector.MatchLabels, spec.WorkloadSelector.Labels, spec.WorkloadSelector.MatchLabels} {
		if len(s) > 0 {
			return s, nil
		}
	}
	return nil, nil
}

// scopeFor is the scope in which an object applies to the workload; "" if it does not.
func (m *Mesh) scopeFor(o Object, w Workload, selectorAtHome bool) (string, error) {
	selector, err := selectorOf(o)
	switch {
	case err != nil:
		return "", err
	case o.Namespace == w.Namespace && len(selector) == 0 && o.Namespace != m.RootNamespace:
		return ofNamespace, nil
	case o.Namespace == m.RootNamespace && len(selector) == 0:
		return ofMesh, nil
	case o.Namespace == w.Namespace && selects(selector, w.Labels), o.Namespace == m.RootNamespace && !selectorAtHome &&
		selects(selector, w.Labels):
		return ofWorkload, nil
	}
	return "", nil
}

// scopeOrder sorts the narrowest scope first.
var scopeOrder = []string{ofWorkload, ofNamespace, ofMesh}

// Policies lists the objects that apply to a workload, PeerAuthentications apart.
func (m *Mesh) Policies(w Workload) ([]Applied, error) {
	out := []Applied{}
	for _, k := range policyKinds {
		var list []Applied
		for _, o := range m.of(k.kind) {
			scope, err := m.scopeFor(o, w, k.selectorAtHome)
			if err != nil {
				return nil, err
			}
			if scope != "" {
				list = append(list, applied(o, scope, ""))
			}
		}
		slices.SortStableFunc(list, func(a, b Applied) int { return slices.Index(scopeOrder, a.Scope) - slices.Index(scopeOrder, b.Scope) })
		if k.one && len(list) > 1 {
			for i := range list[1:] {
				list[i+1].Detail = fmt.Sprintf("without effect: %s %s/%s counts", k.kind, list[0].Namespace, list[0].Name)
			}
		}
		out = append(out, list...)
	}
	return out, nil
}

// PortMode is the mode of mutual TLS that a workload's port has.
type PortMode struct {
	// Port of the workload; 0 stands for all others.
	Port uint32 `json:"port"`
	// Mode is "STRICT", "PERMISSIVE" or "DISABLE".
	Mode string `json:"mode"`
	// From is the PeerAuthentication that says so; empty for the mesh's default.
	From string `json:"from,omitempty"`
}

// defaultMode is the mode without a PeerAuthentication.
const defaultMode = "PERMISSIVE"

// Modes are the modes of a workload's ports: those that differ, and at last the one of all others. applied are the
// PeerAuthentications that decide, the narrowest first; an older one of a scope counts.
func (m *Mesh) Modes(w Workload) (modes []PortMode, from []Applied, err error) {
	byScope := map[string]*security.PeerAuthentication{}
	named := map[string]Object{}
	for _, o := range m.of("PeerAuthentication") {
		scope, err := m.scopeFor(o, w, true)
		if err != nil {
			return nil, nil, err
		}
		if scope == "" {
			continue
		}
		if _, taken := byScope[scope]; taken {
			from = append(from, applied(o, scope, fmt.Sprintf("without effect: PeerAuthentication %s is older", named[scope].ID())))
			continue
		}
		spec, err := decode(o, &security.PeerAuthentication{})
		if err != nil {
			return nil, nil, err
		}
		byScope[scope], named[scope] = spec, o
		from = append(from, applied(o, scope, "mode "+modeText(spec.GetMtls())))
	}
	slices.SortStableFunc(from, func(a, b Applied) int { return slices.Index(scopeOrder, a.Scope) - slices.Index(scopeOrder, b.Scope) })
	rest := PortMode{Mode: defaultMode}
	for _, scope := range scopeOrder {
		if mode := byScope[scope].GetMtls().GetMode(); byScope[scope].GetMtls() != nil && mode != security.PeerAuthentication_MutualTLS_UNSET {
			rest.Mode, rest.From = mode.String(), named[scope].ID()
			break
		}
	}
	if own := byScope[ofWorkload]; own != nil {
		for port, mtls := range own.GetPortLevelMtls() {
			p := PortMode{Port: port, Mode: mtls.GetMode().String(), From: named[ofWorkload].ID()}
			if mtls.GetMode() == security.PeerAuthentication_MutualTLS_UNSET {
				p.Mode, p.From = rest.Mode, cmp.Or(rest.From, named[ofWorkload].ID())
			}
			modes = append(modes, p)
		}
	}
	slices.SortFunc(modes, func(a, b PortMode) int { return int(a.Port) - int(b.Port) })
	return append(modes, rest), from, nil
}

func modeText(m *security.PeerAuthentication_MutualTLS) string {
	if m == nil || m.GetMode() == security.PeerAuthentication_MutualTLS_UNSET {
		return "inherited"
	}
	return m.GetMode().String()
}

// ModeOf is the mode of one port.
func ModeOf(modes []PortMode, port uint32) PortMode {
	for _, m := range modes {
		if m.Port == port {
			return m
		}
	}
	return modes[len(modes)-1]
}

// Conflict says why clients cannot reach a port, "" if they can: mode is the server's, client the TLS mode of the
// DestinationRule's settings ("" without any), and sidecar tells whether the server has a proxy.
func Conflict(mode, client string, sidecar bool) string {
	mutual := client == "ISTIO_MUTUAL" || client == "MUTUAL"
	switch {
	case !sidecar && client == "ISTIO_MUTUAL":
		return "clients use mutual TLS of the mesh, and the server has no sidecar that speaks it: remove tls from the DestinationRule, or " +
			"inject the Pods"
	case !sidecar:
		return ""
	case mode == "STRICT" && client == "DISABLE":
		return "clients send plain text, and the server takes mutual TLS alone: remove tls from the DestinationRule, or make the " +
			"PeerAuthentication PERMISSIVE"
	case mode == "STRICT" && client == "SIMPLE":
		return "clients show no certificate, and the server takes mutual TLS alone: write tls mode ISTIO_MUTUAL in the DestinationRule, or " +
			"make the PeerAuthentication PERMISSIVE"
	case mode == "DISABLE" && mutual:
		return "clients use mutual TLS, and the server takes plain text alone: remove tls from the DestinationRule, or the mode DISABLE from " +
			"the PeerAuthentication"
	}
	return ""
}

// Modes of automatic mutual TLS.
const automatic = "ISTIO_MUTUAL (automatic)"

// ClientMode says how clients connect: as the DestinationRule writes, else by automatic mutual TLS.
func ClientMode(rule string, mode string, sidecar bool) string {
	switch {
	case rule != "":
		return rule
	case sidecar && mode != "DISABLE":
		return automatic
	}
	return "DISABLE (automatic)"
}

// host resolves the host of a destination as the mesh does: a name without a dot is of the object's namespace.
func (m *Mesh) host(text, namespace string) string {
	if text == "" || strings.Contains(text, ".") {
		return text
	}
	return text + "." + namespace + ".svc." + m.Domain
}
