// Package kinds has the kinds of objects that config-watcher knows: their names as people write them on a command line,
// and the keys of their objects.
package kinds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/objectfile"
)

// shortKinds are kubectl's and istioctl's short names of the kinds that the store knows.
var shortKinds = map[string]string{
	"vs": "VirtualService", "dr": "DestinationRule", "gw": "Gateway", "se": "ServiceEntry", "we": "WorkloadEntry", "wg": "WorkloadGroup",
	"sc": "Sidecar", "ef": "EnvoyFilter", "pa": "PeerAuthentication", "ra": "RequestAuthentication", "ap": "AuthorizationPolicy",
	"eps": "EndpointSlice", "no": "Node", "svc": "Service", "po": "Pod", "ns": "Namespace", "cm": "ConfigMap", "sa": "ServiceAccount",
	"ing": "Ingress", "gtw": APIGateway, "gc": "GatewayClass", "lset": "ListenerSet", "btlspolicy": "BackendTLSPolicy",
	"refgrant": "ReferenceGrant",
}

// APIGateway is the Gateway of the Gateway API, written with its group: the bare Gateway is Istio's.
const APIGateway = "Gateway.gateway.networking.k8s.io"

// Names are the kinds that config-watcher knows, as their objects spell them.
var Names = []string{
	"VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "WorkloadEntry", "WorkloadGroup", "EnvoyFilter", "ProxyConfig",
	"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy", "Telemetry", "WasmPlugin",
	"Service", "Endpoints", "Pod", "Namespace", "ConfigMap", "ServiceAccount", "EndpointSlice", "Node", "Secret", "Ingress", "IngressClass",
	APIGateway, "GatewayClass", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute", "BackendTLSPolicy",
	"ReferenceGrant", "IdentityBan",
}

// ClusterScoped are the kinds without a namespace.
var ClusterScoped = map[string]bool{"Namespace": true, "Node": true, "IngressClass": true, "IdentityBan": true, "GatewayClass": true}

// Spellings are what completion offers: the kinds in lower case, and their short names.
func Spellings() []string {
	return slices.AppendSeq(lists.Map(Names, strings.ToLower), maps.Keys(shortKinds))
}

// Parse returns the kind that a person means: a short name, any case, the plural. An unknown name is wrong usage,
// and the error suggests the nearest one.
func Parse(s string) (string, error) {
	// The group of a name like virtualservices.networking.istio.io does not count, but for a Gateway.
	lower, group, _ := strings.Cut(strings.ToLower(s), ".")
	if kind, of, _ := strings.Cut(strings.ToLower(APIGateway), "."); group == of && (lower == kind || lower == Plural(kind)) {
		return APIGateway, nil
	}
	if k, ok := shortKinds[lower]; ok {
		return k, nil
	}
	written := map[string]string{}
	for _, k := range Names {
		one := strings.ToLower(k)
		written[one], written[Plural(one)] = k, k
	}
	if k, ok := written[lower]; ok {
		return k, nil
	}
	hint := "; kinds are " + strings.Join(Names, ", ")
	if near := nearest.Name(lower, slices.Sorted(maps.Keys(written))); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", written[near])
	}
	return "", process.Usage(errors.New("unknown kind \"" + s + "\"" + hint))
}

// Plural is the plural of a kind, in lower case.
func Plural(one string) string {
	switch {
	case strings.HasSuffix(one, "y") && !strings.HasSuffix(one, "ay"):
		return strings.TrimSuffix(one, "y") + "ies"
	case one == "endpoints":
		return one
	case strings.HasSuffix(one, "s"):
		return one + "es"
	}
	return one + "s"
}

// Check refuses an object of an unknown kind in one of Istio's API groups: it is a typing mistake.
func Check(o *objectfile.Object) error {
	if slices.Contains(Names, o.Kind) || !strings.HasSuffix(o.GroupVersionKind().Group, ".istio.io") {
		return nil
	}
	meant, err := Parse(o.Kind)
	if err != nil {
		return process.Refused(o.Refuse("kind", err.Error(), ""))
	}
	return process.Refused(o.Refuse("kind", fmt.Sprintf("unknown kind %q", o.Kind), "write "+meant))
}

// Key returns the key of an object of a kind as Parse returns it; an empty namespace means "default" for kinds that
// have one.
func Key(kind, namespace, name string) *configv1.ObjectKey {
	if namespace == "" && !ClusterScoped[kind] {
		namespace = objectfile.DefaultNamespace
	}
	out := &configv1.ObjectKey{Kind: kind, Namespace: namespace, Name: name}
	if one, group, apart := strings.Cut(kind, "."); apart {
		out.Kind, out.ApiVersion = one, group+"/v1"
	}
	return out
}

// NameOf is the kind of an object as Parse returns it.
func NameOf(key *configv1.ObjectKey) string {
	if group, _, _ := strings.Cut(key.GetApiVersion(), "/"); key.GetKind()+"."+group == APIGateway {
		return APIGateway
	}
	return key.GetKind()
}

// Text names an object, "VirtualService shop/web".
func Text(key *configv1.ObjectKey) string {
	return NameOf(key) + " " + FullName(key.GetNamespace(), key.GetName())
}

// FullName is "<namespace>/<name>", or the name alone for an object without a namespace.
func FullName(namespace, name string) string { return strings.TrimPrefix(namespace+"/"+name, "/") }

// ParseObject parses KIND, KIND/NAME and KIND NAME; no argument gives two empty strings.
func ParseObject(a []string) (kind, name string, err error) {
	if len(a) == 0 {
		return "", "", nil
	}
	kind, name, slash := strings.Cut(a[0], "/")
	switch {
	case slash && (len(a) > 1 || name == ""):
		return "", "", process.Usagef("%q: write KIND/NAME, or KIND NAME", strings.Join(a, " "))
	case len(a) > 1:
		name = a[1]
	}
	kind, err = Parse(kind)
	return kind, name, err
}
