package replica

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Kinds of resources, as they stand in configv1.ResourceKey.kind.
const (
	KindService            = "Service"
	KindEndpointSet        = "EndpointSet"
	KindWorkload           = "Workload"
	KindNamespace          = "Namespace"
	KindMeshConfig         = "MeshConfig"
	KindVirtualService     = "VirtualService"
	KindDestinationRule    = "DestinationRule"
	KindGateway            = "Gateway"
	KindSidecar            = "Sidecar"
	KindPeerAuthentication = "PeerAuthentication"
	KindEnvoyFilter        = "EnvoyFilter"
)

// Key names one resource of the mesh.
type Key struct {
	Kind, Namespace, Name string
}

// String returns "Kind/namespace/name".
func (k Key) String() string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

func keyOf(k *configv1.ResourceKey) Key {
	return Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
}

// path is the key within its kind, in the form that configv1.Held.keys wants: "<namespace>/<name>".
func (k Key) path() string { return k.Namespace + "/" + k.Name }

// Hash is a resource's content hash: equal hashes mean equal bodies.
type Hash [16]byte
