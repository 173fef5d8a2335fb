package gatewayapi

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What is read of the Gateway API's kinds.
type (
	ref struct {
		Group, Kind     *string
		Namespace, Name string
		SectionName     string
		Port            int
		Weight          *int
		Filters         []filter
	}
	listener struct {
		Name, Hostname, Protocol string
		Port                     int
	}
	gateway struct {
		Spec struct {
			GatewayClassName string
			Addresses        []struct{ Type, Value string }
			Listeners        []listener
		}
	}
	listenerSet struct {
		Spec struct {
			ParentRef ref
			Listeners []listener
		}
	}
	named struct{ Type, Name, Value string }
	match struct {
		Path                 named
		Method               json.RawMessage
		Headers, QueryParams []named
	}
	filter struct {
		Type string
		CORS *struct {
			AllowOrigins, AllowMethods, AllowHeaders []string
		}
		RequestMirror *struct{ BackendRef ref }
	}
	rule struct {
		Matches     []match
		Filters     []filter
		BackendRefs []ref
		Retry       *struct{ Codes []int }
	}
	route struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			ParentRefs []ref
			Hostnames  []string
			Rules      []rule
		}
	}
)

func into(o *unstructured.Unstructured, typed any) error {
	raw, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, typed)
}

// service is the Service of a Gateway's workload; "" if nobody serves it.
func (g *gateway) service(name string) string {
	if g.Spec.GatewayClassName != "istio" {
		return ""
	}
	if len(g.Spec.Addresses) == 0 {
		return name + "-istio"
	}
	if a := g.Spec.Addresses[0]; a.Type == "Hostname" && !isMissing(a.Value) {
		return a.Value
	}
	return ""
}

// services are the Services that a route names, as parents or backends.
func (r *route) services() []ref {
	var out []ref
	add := func(refs ...ref) {
		for _, ref := range refs {
			ref.Namespace = or(ref.Namespace, r.Metadata.Namespace)
			out = append(out, ref)
		}
	}
	add(r.parents("Service")...)
	for _, rule := range r.Spec.Rules {
		for _, b := range rule.BackendRefs {
			if b.isService() {
				add(b)
			}
		}
		for _, f := range rule.Filters {
			if m := f.RequestMirror; m != nil && m.BackendRef.isService() {
				add(m.BackendRef)
			}
		}
	}
	return out
}

// parents are those of a kind.
func (r *route) parents(kind string) (out []ref) {
	for _, p := range r.Spec.ParentRefs {
		if p.Kind != nil && *p.Kind == kind {
			out = append(out, p)
		}
	}
	return out
}

func (r *ref) isService() bool {
	return (r.Kind == nil || *r.Kind == "Service") && (r.Group == nil || *r.Group == "")
}
