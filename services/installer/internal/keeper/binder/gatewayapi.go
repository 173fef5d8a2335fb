package binder

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
)

// Kinds of the Gateway API that needs come from. Their definitions may be absent.
var (
	apiClasses  = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "gatewayclasses"}
	apiGateways = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "gateways"}
	apiSets     = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "listenersets"}
	apiPolicies = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "backendtlspolicies"}
	// apiGrants are read in the older version, which every release of the Gateway API serves.
	apiGrants = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1beta1", Resource: "referencegrants"}
)

const (
	kindListenerSet = "ListenerSet"
	kindSecret      = "Secret"
	kindConfigMap   = "ConfigMap"
)

// gatewayAPI are the objects of the Gateway API.
type gatewayAPI struct {
	classes, gateways, sets, policies, grants []*unstructured.Unstructured
}

// fieldsOfAPI are the fields of the specs of its kinds that are read.
var fieldsOfAPI = map[string][]string{
	"GatewayClass": {"controllerName"}, kindGateway: {"gatewayClassName", "listeners", "tls", "infrastructure"},
	kindListenerSet: {"parentRef", "listeners"}, "BackendTLSPolicy": {"validation"}, "ReferenceGrant": {"from", "to"},
}

// credentials adds the namespaces of the Secrets and ConfigMaps that Gateways of the mesh's classes, the ListenerSets
// of these, and BackendTLSPolicies name: their own namespace, and another one while a grant is there.
func (a *gatewayAPI) credentials(out need) {
	ours := map[string]bool{}
	for _, c := range a.classes {
		controller, _, _ := unstructured.NestedString(c.Object, "spec", "controllerName")
		ours[c.GetName()] = gatewaydeploy.Ours(gatewayv1.GatewayController(controller))
	}
	gateways := map[string]bool{}
	for _, g := range a.gateways {
		if class, _, _ := unstructured.NestedString(g.Object, "spec", "gatewayClassName"); !ours[class] {
			continue
		}
		gateways[g.GetNamespace()+"/"+g.GetName()] = true
		a.refer(out, g)
		if kind, _, _ := unstructured.NestedString(g.Object, "spec", "infrastructure", "parametersRef", "kind"); kind == kindConfigMap {
			out.add(g.GetNamespace(), name(g))
		}
	}
	for _, s := range a.sets {
		parent, _, _ := unstructured.NestedMap(s.Object, "spec", "parentRef")
		if gateways[text(parent, "namespace", s.GetNamespace())+"/"+text(parent, "name", "")] {
			a.refer(out, s)
		}
	}
	for _, p := range a.policies {
		if len(list(p.Object, "spec", "validation", "caCertificateRefs")) > 0 {
			out.add(p.GetNamespace(), name(p)) // its references have no namespace
		}
	}
}

// refer adds the namespaces that a Gateway or ListenerSet names Secrets or ConfigMaps of.
func (a *gatewayAPI) refer(out need, o *unstructured.Unstructured) {
	var refs []map[string]any
	for _, l := range list(o.Object, "spec", "listeners") {
		refs = append(refs, list(l, "tls", "certificateRefs")...)
	}
	validations := list(o.Object, "spec", "tls", "frontend", "perPort")
	if whole, found, _ := unstructured.NestedMap(o.Object, "spec", "tls", "frontend", "default"); found {
		validations = append(validations, map[string]any{"tls": whole})
	}
	for _, v := range validations {
		refs = append(refs, list(v, "tls", "validation", "caCertificateRefs")...)
	}
	if own, found, _ := unstructured.NestedMap(o.Object, "spec", "tls", "backend", "clientCertificateRef"); found {
		refs = append(refs, own)
	}
	for _, ref := range refs {
		namespace := text(ref, "namespace", o.GetNamespace())
		if namespace == o.GetNamespace() || a.granted(o, text(ref, "kind", kindSecret), namespace, text(ref, "name", "")) {
			out.add(namespace, name(o))
		}
	}
}

// granted reports whether a ReferenceGrant of the namespace allows the object to refer to another one there.
func (a *gatewayAPI) granted(from *unstructured.Unstructured, kind, namespace, named string) bool {
	return slices.ContainsFunc(a.grants, func(g *unstructured.Unstructured) bool {
		return g.GetNamespace() == namespace &&
			slices.ContainsFunc(list(g.Object, "spec", "from"), func(f map[string]any) bool {
				return f["group"] == contract.GroupGatewayAPI && f["kind"] == from.GetKind() && f["namespace"] == from.GetNamespace()
			}) &&
			slices.ContainsFunc(list(g.Object, "spec", "to"), func(t map[string]any) bool {
				return text(t, "group", "") == "" && t["kind"] == kind && (text(t, "name", "") == "" || t["name"] == named)
			})
	})
}

// text is the text in a field; otherwise if there is none.
func text(of map[string]any, field, otherwise string) string {
	if v, _ := of[field].(string); v != "" {
		return v
	}
	return otherwise
}
