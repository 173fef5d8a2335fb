package describe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
)

// Service is a Kubernetes Service.
type Service struct {
	Namespace, Name, Host string
	Selector              map[string]string
	Ports                 []corev1.ServicePort
	Location              string
}

// Services lists the Services of a namespace; empty means all.
func (m *Mesh) Services(namespace string) ([]Service, error) {
	var list []Service
	for _, o := range m.of("Service") {
		if namespace != "" && o.Namespace != namespace {
			continue
		}
		var spec corev1.ServiceSpec
		if len(o.Spec) > 0 {
			if err := json.Unmarshal(o.Spec, &spec); err != nil {
				return nil, fmt.Errorf("Service %s: %w", o.ID(), err)
			}
		}
		list = append(list, Service{o.Namespace, o.Name, o.Name + "." + o.Namespace + ".svc." + m.Domain, spec.Selector, spec.Ports, o.Location})
	}
	slices.SortFunc(list, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// Selects reports whether the Service leads to a workload.
func (s Service) Selects(w Workload) bool {
	return w.Namespace == s.Namespace && len(s.Selector) > 0 && selects(s.Selector, w.Labels)
}

// Protocol is the protocol that the mesh uses for a port, as Istio's kinds write it; "" if proxies detect it.
func Protocol(p corev1.ServicePort) string {
	return contract.ProtocolName(contract.PortProtocol(p.Port, p.Name, string(p.Protocol), p.AppProtocol))
}

// ClientTLS is the TLS mode that DestinationRules set for a port of a host, and the rule that does; "" if none does.
// rules are the names of those that count, "<namespace>/<name>".
func (m *Mesh) ClientTLS(rules []string, port uint32) (mode, rule string, err error) {
	for _, o := range m.of("DestinationRule") {
		if !slices.Contains(rules, o.ID()) {
			continue
		}
		spec, err := decode(o, &networking.DestinationRule{})
		if err != nil {
			return "", "", err
		}
		tls := spec.GetTrafficPolicy().GetTls()
		for _, p := range spec.GetTrafficPolicy().GetPortLevelSettings() {
			if p.GetPort().GetNumber() == port {
				tls = p.GetTls()
			}
		}
		if tls != nil {
			return tls.GetMode().String(), o.ID(), nil
		}
	}
	return "", "", nil
}

// Subset is a subset of a DestinationRule with the number of workloads that it selects.
type Subset struct {
	Rule   string            `json:"destinationRule"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Pods   int               `json:"pods"`
}

// Subsets lists the subsets of rules, with the workloads that they select.
func (m *Mesh) Subsets(rules []string, workloads []Workload) (list []Subset, err error) {
	for _, o := range m.of("DestinationRule") {
		if !slices.Contains(rules, o.ID()) {
			continue
		}
		spec, err := decode(o, &networking.DestinationRule{})
		if err != nil {
			return nil, err
		}
		for _, s := range spec.GetSubsets() {
			subset := Subset{Rule: o.ID(), Name: s.GetName(), Labels: s.GetLabels()}
			for _, w := range workloads {
				if selects(s.GetLabels(), w.Labels) {
					subset.Pods++
				}
			}
			list = append(list, subset)
		}
	}
	return list, nil
}

// Exposure is a way into a Service from outside of the mesh.
type Exposure struct {
	Gateway        string   `json:"gateway"`
	VirtualService string   `json:"virtualService"`
	Hosts          []string `json:"hosts"`
	// Missing is true if there is no such Gateway.
	Missing bool `json:"missing,omitempty"`
}

// Exposures lists the Gateways that lead to a host, by the VirtualServices that route there.
func (m *Mesh) Exposures(host string) ([]Exposure, error) {
	list := []Exposure{}
	gateways := m.of("Gateway")
	for _, o := range m.of("VirtualService") {
		spec, err := decode(o, &networking.VirtualService{})
		if err != nil {
			return nil, err
		}
		if !m.routesTo(spec, o.Namespace, host) {
			continue
		}
		for _, g := range spec.GetGateways() {
			if g == contract.MeshGateway {
				continue
			}
			if !strings.Contains(g, "/") {
				g = o.Namespace + "/" + g
			}
			there := slices.ContainsFunc(gateways, func(x Object) bool { return x.ID() == g })
			list = append(list, Exposure{Gateway: g, VirtualService: o.ID(), Hosts: spec.GetHosts(), Missing: !there})
		}
	}
	return list, nil
}

// routesTo reports whether a route of a VirtualService leads to a host.
func (m *Mesh) routesTo(spec *networking.VirtualService, namespace, host string) bool {
	is := func(d *networking.Destination) bool { return m.host(d.GetHost(), namespace) == host }
	for _, r := range spec.GetHttp() {
		if is(r.GetMirror()) || slices.ContainsFunc(r.GetRoute(),
			func(d *networking.HTTPRouteDestination) bool { return is(d.GetDestination()) }) ||
			slices.ContainsFunc(r.GetMirrors(), func(d *networking.HTTPMirrorPolicy) bool { return is(d.GetDestination()) }) {
			return true
		}
	}
	for _, r := range spec.GetTcp() {
		if slices.ContainsFunc(r.GetRoute(), func(d *networking.RouteDestination) bool { return is(d.GetDestination()) }) {
			return true
		}
	}
	for _, r := range spec.GetTls() {
		if slices.ContainsFunc(r.GetRoute(), func(d *networking.RouteDestination) bool { return is(d.GetDestination()) }) {
			return true
		}
	}
	return false
}
