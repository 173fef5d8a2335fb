package cli

import "strings"

// shortKinds are kubectl's and istioctl's short names of the kinds that the store knows.
var shortKinds = map[string]string{
	"vs": "VirtualService", "dr": "DestinationRule", "gw": "Gateway", "se": "ServiceEntry", "we": "WorkloadEntry", "wg": "WorkloadGroup",
	"sc": "Sidecar", "ef": "EnvoyFilter", "pa": "PeerAuthentication", "ra": "RequestAuthentication", "ap": "AuthorizationPolicy",
	"eps": "EndpointSlice", "no": "Node", "svc": "Service", "po": "Pod", "ns": "Namespace", "cm": "ConfigMap", "sa": "ServiceAccount",
}

// kindNames are the kinds in their own spelling.
var kindNames = []string{
	"VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "WorkloadEntry", "WorkloadGroup", "EnvoyFilter", "ProxyConfig",
	"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy", "Telemetry", "WasmPlugin",
	"Service", "Pod", "Namespace", "ConfigMap", "ServiceAccount", "EndpointSlice", "Node", "Secret", "IdentityBan",
}

// clusterScoped are the kinds without a namespace.
var clusterScoped = map[string]bool{"Namespace": true, "Node": true, "IdentityBan": true}

// kindSpellings are what completion offers: the kinds in lower case, and their short names.
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

// kindName makes the kind of what a person writes: short name, any case, plural. A name that is not known is left to the server.
func kindName(s string) string {
	lower := strings.ToLower(s)
	// virtualservices.networking.istio.io
	lower, _, _ = strings.Cut(lower, ".")
	if k, ok := shortKinds[lower]; ok {
		return k
	}
	for _, k := range kindNames {
		one := strings.ToLower(k)
		plural := one + "s"
		switch {
		case strings.HasSuffix(one, "y"):
			plural = strings.TrimSuffix(one, "y") + "ies"
		case strings.HasSuffix(one, "s"):
			plural = one + "es"
		}
		if lower == one || lower == plural {
			return k
		}
	}
	return s
}
