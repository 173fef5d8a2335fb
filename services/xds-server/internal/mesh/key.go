package mesh

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

// ServiceKey is the key of a service: its hostname, and where there are several of that for different audiences, its audience.
func ServiceKey(svc *configv1.Service) Key {
	return Key{KindService, svc.GetNamespace(), audienceName(svc.GetHostname(), svc.GetAudience())}
}

// EndpointSetKey is the key of a set of endpoints of a service.
func EndpointSetKey(svc *configv1.Service, set *configv1.EndpointSet) Key {
	name := set.GetHostname() + ":" + number(set.GetPort()) + "/" + set.GetCluster()
	return Key{KindEndpointSet, svc.GetNamespace(), audienceName(name, set.GetAudience())}
}

func audienceName(name, audience string) string {
	if audience == "" {
		return name
	}
	return name + "/" + audience
}

// path is the key within its kind, in the form that configv1.Held.keys wants: "<namespace>/<name>".
func (k Key) path() string { return k.Namespace + "/" + k.Name }

// Hash is a resource's content hash: equal hashes mean equal bodies.
type Hash [16]byte
