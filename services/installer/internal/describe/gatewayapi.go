package describe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// GatewayAPI is the group of the Gateway API. Several controllers may serve its objects.
const GatewayAPI = "gateway.networking.k8s.io"

// RouteKinds are the kinds of routes of the Gateway API.
var RouteKinds = []string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"}

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
	// Conditions are what controllers say about it in the route's status, "Accepted by NAME", or why not.
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

// routeStatus is what controllers have written about a route.
type routeStatus struct {
	Parents []struct {
		ParentRef      reference
		ControllerName string
		Conditions     []struct{ Type, Status, Reason, Message string }
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
	var status routeStatus
	for _, part := range []struct {
		text json.RawMessage
		into any
	}{{o.Spec, &spec}, {o.Status, &status}} {
		if len(part.text) == 0 {
			continue
		}
		if err := json.Unmarshal(part.text, part.into); err != nil {
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
	controllers := []string{}
	for i, p := range spec.ParentRefs {
		p = p.complete(GatewayAPI, "Gateway", o.Namespace)
		attached = attached || p.names(s)
		parent := RouteParent{Parent: p.String()}
		field := fmt.Sprintf("spec.parentRefs[%d]", i)
		if *p.Group == GatewayAPI && p.Kind == "Gateway" &&
			!slices.ContainsFunc(m.of(APIGateway), func(g Object) bool { return g.Namespace == p.Namespace && g.Name == p.Name }) {
			r.Problems = append(r.Problems,
				Problem{"error", "ParentMissing", field, fmt.Sprintf("there is no Gateway %s/%s of %s", p.Namespace, p.Name, GatewayAPI)})
		}
		for _, st := range status.Parents {
			if st.ParentRef.complete(GatewayAPI, "Gateway", o.Namespace).String() != p.String() {
				continue
			}
			if !slices.Contains(controllers, st.ControllerName) {
				controllers = append(controllers, st.ControllerName)
			}
			for _, c := range st.Conditions {
				if c.Status == "True" {
					parent.Conditions = append(parent.Conditions, c.Type+" by "+st.ControllerName)
					continue
				}
				parent.Conditions = append(parent.Conditions, fmt.Sprintf("not %s by %s (%s)", c.Type, st.ControllerName, c.Reason))
				r.Problems = append(r.Problems,
					Problem{"error", "RouteNot" + c.Type, field, fmt.Sprintf("%s says %s: %s", st.ControllerName, c.Reason, c.Message)})
			}
		}
		r.Parents = append(r.Parents, parent)
	}
	if len(r.Rules) == 0 && !attached {
		return nil, nil
	}
	if len(spec.ParentRefs) == 0 {
		r.Problems = append(r.Problems, Problem{"error", "ParentMissing", "spec.parentRefs", "it is attached to nothing; name a Gateway"})
	}
	unread := "the mesh does not read the Gateway API: the route has no effect on its proxies; write a Gateway and a VirtualService of " +
		"networking.istio.io/v1"
	if len(controllers) > 0 {
		unread = fmt.Sprintf("%s serves it, and not this mesh: it has no effect on the mesh's proxies", strings.Join(controllers, ", "))
	}
	r.Problems = append(r.Problems, Problem{"warning", "RouteUnread", "", unread})
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return strings.Compare(a.Level+a.Field, b.Level+b.Field) })
	return r, nil
}
