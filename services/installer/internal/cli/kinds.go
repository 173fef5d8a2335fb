package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"

	"fairlead.dev/services/installer/internal/objectfile"
)

// shortKinds are kubectl's and istioctl's short names of the kinds that the store knows.
var shortKinds = map[string]string{
	"vs": "VirtualService", "dr": "DestinationRule", "gw": "Gateway", "se": "ServiceEntry", "we": "WorkloadEntry", "wg": "WorkloadGroup",
	"sc": "Sidecar", "ef": "EnvoyFilter", "pa": "PeerAuthentication", "ra": "RequestAuthentication", "ap": "AuthorizationPolicy",
	"eps": "EndpointSlice", "no": "Node", "svc": "Service", "po": "Pod", "ns": "Namespace", "cm": "ConfigMap", "sa": "ServiceAccount",
	"ing": "Ingress",
}

// kindNames are the kinds that config-watcher knows, as their objects spell them.
var kindNames = []string{
	"VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "WorkloadEntry", "WorkloadGroup", "EnvoyFilter", "ProxyConfig",
	"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy", "Telemetry", "WasmPlugin",
	"Service", "Endpoints", "Pod", "Namespace", "ConfigMap", "ServiceAccount", "EndpointSlice", "Node", "Secret", "Ingress", "IngressClass",
	"IdentityBan",
}

// clusterScoped are the kinds without a namespace.
var clusterScoped = map[string]bool{"Namespace": true, "Node": true, "IngressClass": true, "IdentityBan": true}

// kindSpellings yields what completion offers: the kinds in lower case, and their short names.
func kindSpellings(yield func(string) bool) {
	for _, k := range kindNames {
		if !yield(strings.ToLower(k)) {
			return
		}
	}
	for s := range shortKinds {
		if !yield(s) {
			return
		}
	}
}

// kindName returns the kind that a person means: a short name, any case, the plural. An unknown name is wrong usage,
// and the error suggests the nearest one.
func kindName(s string) (string, error) {
	// The group of a name like virtualservices.networking.istio.io does not count.
	lower, _, _ := strings.Cut(strings.ToLower(s), ".")
	if k, ok := shortKinds[lower]; ok {
		return k, nil
	}
	written := map[string]string{}
	for _, k := range kindNames {
		one := strings.ToLower(k)
		written[one], written[plural(one)] = k, k
	}
	if k, ok := written[lower]; ok {
		return k, nil
	}
	hint := "; kinds are " + strings.Join(kindNames, ", ")
	if near := nearest.Name(lower, slices.Sorted(maps.Keys(written))); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", written[near])
	}
	return "", usage(errors.New("unknown kind \"" + s + "\"" + hint))
}

func plural(one string) string {
	switch {
	case strings.HasSuffix(one, "y"):
		return strings.TrimSuffix(one, "y") + "ies"
	case one == "endpoints":
		return one
	case strings.HasSuffix(one, "s"):
		return one + "es"
	}
	return one + "s"
}

// checkKind refuses an object of an unknown kind in one of Istio's API groups: it is a typing mistake.
func checkKind(o *objectfile.Object) error {
	if slices.Contains(kindNames, o.Kind) || !strings.HasSuffix(o.GroupVersionKind().Group, ".istio.io") {
		return nil
	}
	_, err := kindName(o.Kind)
	return refused(o.Refuse("kind", err.Error(), ""))
}
