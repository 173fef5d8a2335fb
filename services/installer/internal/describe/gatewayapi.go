package describe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
)

// GatewayAPI is the group of the Gateway API. Beside the mesh other controllers may serve its objects.
const GatewayAPI = "gateway.networking.k8s.io"

// RouteKinds are the kinds of routes of the Gateway API.
var RouteKinds = []string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"}

// APIGateway is the kind, in Mesh.Objects, of the Gateway of the Gateway API: Istio's is Gateway.
const APIGateway = "Gateway." + GatewayAPI

// Route is a route of the Gateway API that concerns a Service.
type Route struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Rules are the numbers, from 1, of the rules that lead to the Service, among Of. There are none if the route is
	// only attached to the Service.
	Rules     []int         `json:"rules,omitempty"`
	Of        int           `json:"of"`
	Hostnames []string      `json:"hostnames,omitempty"`
	Parents   []RouteParent `json:"parents"`
	// Problems are what is wrong with it.
	Problems []Problem `json:"-"`
}

// RouteParent is what a route is attached to.
type RouteParent struct {
	// Parent is "Gateway shop/web" or "Service shop/web", with the section or the port that is meant.
	Parent string `json:"parent"`
	// Conditions are what the mesh says about it, "Accepted", or why not.
	Conditions []string `json:"conditions,omitempty"`
}

// Problem is something that is wrong with a route.
type Problem struct{ Level, Code, Field, Message string }

// reference is a parentRef or a backendRef.
type reference struct {
	Group                              *string
	Kind, Name, Namespace, SectionName string
	Port                               int32
}

// complete fills in what a reference of an object leaves out.
func (r reference) complete(group, kind, namespace string) reference {
	if r.Group == nil {
		r.Group = &group
	}
	if r.Kind == "" {
		r.Kind = kind
	}
	if r.Namespace == "" {
		r.Namespace = namespace
	}
	return r
}

// names reports whether a complete reference is of a Service.
func (r reference) names(s Service) bool {
	return *r.Group == "" && r.Kind == "Service" && r.Namespace == s.Namespace && r.Name == s.Name
}

func (r reference) String() string {
	text := r.Kind + " " + r.Namespace + "/" + r.Name
	if r.SectionName != "" {
		text += ", section " + r.SectionName
	}
	if r.Port > 0 {
		text += fmt.Sprintf(", port %d", r.Port)
	}
	return text
}

// routeSpec is what the specs of all kinds of routes have.
type routeSpec struct {
	ParentRefs []reference
	Hostnames  []string
	Rules      []struct {
		BackendRefs []reference
		Filters     []struct {
			RequestMirror struct{ BackendRef reference }
		}
	}
}

// Routes lists the routes of the Gateway API that lead to a Service or are attached to it, with what is wrong with
// them.
func (m *Mesh) Routes(s Service) (list []Route, err error) {
	for _, kind := range RouteKinds {
		for _, o := range m.of(kind) {
			r, err := m.route(o, s)
			if err != nil {
				return nil, err
			}
			if r != nil {
				list = append(list, *r)
			}
		}
	}
	return list, nil
}

// route is nil if the object does not concern the Service.
func (m *Mesh) route(o Object, s Service) (*Route, error) {
	var spec routeSpec
	if len(o.Spec) > 0 {
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID(), err)
		}
	}
	r := &Route{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Of: len(spec.Rules), Hostnames: spec.Hostnames, Parents: []RouteParent{}}
	for i, rule := range spec.Rules {
		backends := map[string]reference{}
		for k, b := range rule.BackendRefs {
			backends[fmt.Sprintf("spec.rules[%d].backendRefs[%d]", i, k)] = b
		}
		for k, f := range rule.Filters {
			backends[fmt.Sprintf("spec.rules[%d].filters[%d].requestMirror.backendRef", i, k)] = f.RequestMirror.BackendRef
		}
		leads := false
		for field, b := range backends {
			if b = b.complete("", "Service", o.Namespace); !b.names(s) {
				continue
			}
			leads = true
			if !slices.ContainsFunc(s.Ports, func(p corev1.ServicePort) bool { return p.Port == b.Port }) {
				r.Problems = append(r.Problems,
					Problem{"error", "BackendPortMissing", field + ".port",
						fmt.Sprintf("Service %s/%s has no port %d; name one of its ports", s.Namespace, s.Name, b.Port)})
			}
		}
		if leads {
			r.Rules = append(r.Rules, i+1)
		}
	}
	attached := false
	for i, p := range spec.ParentRefs {
		p = p.complete(GatewayAPI, "Gateway", o.Namespace)
		attached = attached || p.names(s)
		parent := RouteParent{Parent: p.String()}
		field := fmt.Sprintf("spec.parentRefs[%d]", i)
		conditions := o.Parents[parent.Parent]
		if len(conditions) == 0 {
			parent.Conditions = []string{"not of this mesh"}
			r.Problems = append(r.Problems, m.foreign(p, field))
		}
		for _, c := range conditions {
			if c.Status == "True" {
				parent.Conditions = append(parent.Conditions, c.Type)
				continue
			}
			parent.Conditions = append(parent.Conditions, fmt.Sprintf("not %s (%s)", c.Type, c.Reason))
			r.Problems = append(r.Problems, Problem{"error", "RouteNot" + c.Type, field, c.Reason + ": " + c.Message})
		}
		r.Parents = append(r.Parents, parent)
	}
	if len(r.Rules) == 0 && !attached {
		return nil, nil
	}
	if len(spec.ParentRefs) == 0 {
		r.Problems = append(r.Problems, Problem{"error", "ParentMissing", "spec.parentRefs", "it is attached to nothing; name a Gateway"})
	}
	for _, c := range o.Conditions {
		if c.Type == "Programmed" && c.Status != "True" && c.Reason != "Invalid" {
			r.Problems = append(r.Problems, Problem{"warning", "RouteNotProgrammed", "", c.Reason + ": " + c.Message})
		}
	}
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return strings.Compare(a.Level+a.Field, b.Level+b.Field) })
	return r, nil
}

// foreign says why a parent of a route says nothing of it.
func (m *Mesh) foreign(p reference, field string) Problem {
	kind := p.Kind
	if *p.Group == GatewayAPI && kind == "Gateway" {
		kind = APIGateway
	}
	there := slices.ContainsFunc(m.of(kind), func(o Object) bool { return o.Namespace == p.Namespace && o.Name == p.Name })
	if *p.Group == GatewayAPI && (kind == APIGateway || kind == "ListenerSet") && !there {
		return Problem{"error", "ParentMissing", field, fmt.Sprintf("there is no %s %s/%s of %s", p.Kind, p.Namespace, p.Name, GatewayAPI)}
	}
	return Problem{"warning", "ParentForeign", field, fmt.Sprintf("%s is not of this mesh: another controller serves it, or none", p)}
}

// ServedGateway is a Gateway of the Gateway API that a gateway's workload serves.
type ServedGateway struct {
	Gateway string `json:"gateway"`
	// Listeners are "web (HTTP, port 80)".
	Listeners []string `json:"listeners"`
	// Conditions are "Accepted", or why not.
	Conditions []string `json:"conditions,omitempty"`
}

// ServedGateways lists the Gateways of the Gateway API that have a workload: those whose address is a Service that
// selects it, or that it was made for. services are those of its namespace.
func (m *Mesh) ServedGateways(w Workload, services []Service) (list []ServedGateway, err error) {
	for _, o := range m.of(APIGateway) {
		var spec struct {
			Addresses []struct {
				Type  *string
				Value string
			}
			Listeners []struct {
				Name, Protocol string
				Port           int32
			}
		}
		if len(o.Spec) > 0 {
			if err := json.Unmarshal(o.Spec, &spec); err != nil {
				return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID(), err)
			}
		}
		serves := o.Namespace == w.Namespace && w.Labels[contract.GatewayNameLabel] == gatewaydeploy.LabelValue(o.Name)
		if len(spec.Addresses) == 1 && spec.Addresses[0].Type != nil && *spec.Addresses[0].Type == "Hostname" {
			host := m.host(spec.Addresses[0].Value, o.Namespace)
			serves = slices.ContainsFunc(services, func(s Service) bool {
				return s.Selects(w) && (s.Host == host || strings.HasSuffix(host, ".svc") && s.Host == host+"."+m.Domain)
			})
		}
		if !serves {
			continue
		}
		g := ServedGateway{Gateway: o.ID(), Listeners: []string{}}
		for _, l := range spec.Listeners {
			g.Listeners = append(g.Listeners, fmt.Sprintf("%s (%s, port %d)", l.Name, l.Protocol, l.Port))
		}
		for _, c := range o.Conditions {
			if c.Status == "True" {
				g.Conditions = append(g.Conditions, c.Type)
			} else {
				g.Conditions = append(g.Conditions, fmt.Sprintf("not %s (%s: %s)", c.Type, c.Reason, c.Message))
			}
		}
		list = append(list, g)
	}
	return list, nil
}
