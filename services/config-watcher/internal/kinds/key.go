package kinds

import "fairlead.dev/services/config-watcher/internal/object"

// DefaultNamespace is the namespace of a namespaced object that names none.
const DefaultNamespace = "default"

// Name of the ConfigMap with the mesh configuration, and of its entries, as in Istio.
const (
	MeshNamespace = "istio-system"
	MeshName      = "istio"
	MeshKey       = "mesh"
	NetworksKey   = "meshNetworks"
)

// IsMeshConfig reports whether the key names the ConfigMap with the mesh configuration.
func IsMeshConfig(k object.Key) bool {
	return k.Kind == "ConfigMap" && k.Group == "" && k.Namespace == MeshNamespace && k.Name == MeshName
}

// IsCredential reports whether a key is a Secret's or a ConfigMap's, which no revision holds.
func IsCredential(k object.Key) bool {
	return k.Group == "" && (k.Kind == "Secret" || k.Kind == "ConfigMap")
}

// IsIdentityBan reports whether a key is an IdentityBan's.
func IsIdentityBan(k object.Key) bool { return k.Group == GroupFairlead && k.Kind == IdentityBan }

// IsEndpoint reports whether an object is of a kind that only says where workloads are and whether they are ready.
// Changes of such objects overtake queued configuration.
func IsEndpoint(k object.Key) bool {
	switch k.Group {
	case "":
		return k.Kind == "Pod" || k.Kind == "Endpoints"
	case GroupDiscovery:
		return k.Kind == "EndpointSlice"
	case GroupNetworking:
		return k.Kind == "WorkloadEntry"
	}
	return false
}
