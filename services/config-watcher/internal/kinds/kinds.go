// Package kinds names what the mesh reads: the kinds of objects with their API groups, versions and scopes (this file),
// the kinds that unread ones may be mistaken for (similar.go), and the keys of objects with a meaning of their own
// (key.go). It knows no rule of any kind: package decode makes objects of the table's types, package validate checks
// them.
package kinds

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// API groups.
const (
	GroupNetworking = "networking.istio.io"
	GroupSecurity   = "security.istio.io"
	GroupTelemetry  = "telemetry.istio.io"
	GroupExtensions = "extensions.istio.io"
	GroupDiscovery  = "discovery.k8s.io"
	// GroupIngress is that of Ingress and IngressClass.
	GroupIngress = "networking.k8s.io"
	// GroupMCS is that of the Multi-Cluster Services API.
	GroupMCS = mcsv1beta1.GroupName
	// GroupFairlead is that of Fairlead's own kinds.
	GroupFairlead = "fairlead.dev"
	// GroupGatewayAPI is that of the Gateway API, which has a Gateway beside Istio's.
	GroupGatewayAPI = gatewayv1.GroupName
)

// IdentityBan is the kind that bans an identity from the mesh.
const IdentityBan = "IdentityBan"

// Kinds of the Multi-Cluster Services API.
const (
	ServiceExport = "ServiceExport"
	ServiceImport = "ServiceImport"
)

// Kind is one row of the table of kinds.
type Kind struct {
	Group, Name string
	// Versions that can be read; objects are stored under the first.
	Versions []string
	// ClusterScoped is true for a kind whose objects have no namespace.
	ClusterScoped bool
	// NewSpec makes an empty spec of a kind of Istio; nil for other kinds.
	NewSpec func() proto.Message
	// NewBody makes an empty Go object of another kind; nil for Istio's.
	NewBody func() any
}

// Canonical is the API version that objects of the kind are stored under.
func (k *Kind) Canonical() string {
	if k.Group == "" {
		return k.Versions[0]
	}
	return k.Group + "/" + k.Versions[0]
}

func istio[T any, P interface {
	*T
	proto.Message
}](group, name string, versions ...string) Kind {
	return Kind{Group: group, Name: name, Versions: versions, NewSpec: func() proto.Message { return P(new(T)) }}
}

func namespaced[T any](group, name string) Kind {
	return Kind{Group: group, Name: name, Versions: []string{"v1"}, NewBody: func() any { return new(T) }}
}

// multiCluster is a kind of the Multi-Cluster Services API, whose versions have the same fields. v1beta1 is the stored
// one.
func multiCluster[T any](name string) Kind {
	return Kind{Group: GroupMCS, Name: name, Versions: []string{"v1beta1", "v1alpha1"}, NewBody: func() any { return new(T) }}
}

// gatewayAPI is a kind of the Gateway API, with the versions that its definitions serve. They have the same fields.
func gatewayAPI[T any](name string, versions ...string) Kind {
	return Kind{Group: GroupGatewayAPI, Name: name, Versions: versions, NewBody: func() any { return new(T) }}
}

func clusterScoped[T any](group, name string) Kind { return ofCluster(namespaced[T](group, name)) }

func ofCluster(k Kind) Kind {
	k.ClusterScoped = true
	return k
}

// table is every kind that Fairlead reads. In a group of Istio, or of Fairlead, another kind is a mistake; elsewhere it
// is ignored, as in Istio. The rules of a kind are in the package of its group below validate.
var table = []Kind{
	istio[networking.VirtualService](GroupNetworking, "VirtualService", "v1", "v1beta1", "v1alpha3"),
	istio[networking.DestinationRule](GroupNetworking, "DestinationRule", "v1", "v1beta1", "v1alpha3"),
	istio[networking.Gateway](GroupNetworking, "Gateway", "v1", "v1beta1", "v1alpha3"),
	istio[networking.Sidecar](GroupNetworking, "Sidecar", "v1", "v1beta1", "v1alpha3"),
	istio[networking.ServiceEntry](GroupNetworking, "ServiceEntry", "v1", "v1beta1", "v1alpha3"),
	istio[networking.WorkloadEntry](GroupNetworking, "WorkloadEntry", "v1", "v1beta1", "v1alpha3"),
	istio[networking.WorkloadGroup](GroupNetworking, "WorkloadGroup", "v1", "v1beta1", "v1alpha3"),
	istio[networking.EnvoyFilter](GroupNetworking, "EnvoyFilter", "v1alpha3"),
	istio[networkingv1beta1.ProxyConfig](GroupNetworking, "ProxyConfig", "v1beta1"),
	istio[security.PeerAuthentication](GroupSecurity, "PeerAuthentication", "v1", "v1beta1"),
	istio[security.RequestAuthentication](GroupSecurity, "RequestAuthentication", "v1", "v1beta1"),
	istio[security.AuthorizationPolicy](GroupSecurity, "AuthorizationPolicy", "v1", "v1beta1"),
	istio[telemetry.Telemetry](GroupTelemetry, "Telemetry", "v1", "v1alpha1"),
	istio[extensions.WasmPlugin](GroupExtensions, "WasmPlugin", "v1alpha1"),
	istio[extensions.TrafficExtension](GroupExtensions, "TrafficExtension", "v1alpha1"),

	clusterScoped[corev1.Namespace]("", "Namespace"),
	clusterScoped[corev1.Node]("", "Node"),
	namespaced[corev1.Service]("", "Service"),
	namespaced[object.Endpoints]("", "Endpoints"),
	namespaced[corev1.Pod]("", "Pod"),
	namespaced[corev1.ConfigMap]("", "ConfigMap"),
	namespaced[corev1.Secret]("", "Secret"),
	namespaced[corev1.ServiceAccount]("", "ServiceAccount"),
	namespaced[discoveryv1.EndpointSlice](GroupDiscovery, "EndpointSlice"),
	namespaced[networkingv1.Ingress](GroupIngress, "Ingress"),
	clusterScoped[networkingv1.IngressClass](GroupIngress, "IngressClass"),

	multiCluster[mcsv1beta1.ServiceExport](ServiceExport),
	multiCluster[mcsv1beta1.ServiceImport](ServiceImport),

	ofCluster(gatewayAPI[gatewayv1.GatewayClass]("GatewayClass", "v1", "v1beta1")),
	gatewayAPI[gatewayv1.Gateway]("Gateway", "v1", "v1beta1"),
	gatewayAPI[gatewayv1.ListenerSet]("ListenerSet", "v1"),
	gatewayAPI[gatewayv1.HTTPRoute]("HTTPRoute", "v1", "v1beta1"),
	gatewayAPI[gatewayv1.GRPCRoute]("GRPCRoute", "v1"),
	gatewayAPI[gatewayv1.TLSRoute]("TLSRoute", "v1", "v1alpha3", "v1alpha2"),
	gatewayAPI[gatewayv1.TCPRoute]("TCPRoute", "v1", "v1alpha2"),
	gatewayAPI[gatewayv1.UDPRoute]("UDPRoute", "v1", "v1alpha2"),
	gatewayAPI[gatewayv1.BackendTLSPolicy]("BackendTLSPolicy", "v1", "v1alpha3"),
	gatewayAPI[gatewayv1.ReferenceGrant]("ReferenceGrant", "v1", "v1beta1"),

	clusterScoped[object.IdentityBan](GroupFairlead, IdentityBan),
}

// All lists every kind that Fairlead reads, in the order of the table.
func All() []Kind { return slices.Clone(table) }

// Find returns the row of a kind, which the caller must not change; nil for a kind that is not read.
func Find(group, name string) *Kind {
	for i := range table {
		if table[i].Group == group && table[i].Name == name {
			return &table[i]
		}
	}
	return nil
}

// OwnGroup reports whether the group is Istio's or Fairlead's: every kind of it that is not in the table is a mistake.
func OwnGroup(group string) bool {
	return group == GroupFairlead || slices.ContainsFunc(table, func(k Kind) bool { return k.Group == group && k.NewSpec != nil })
}

// Canonical is the API version that objects of the kind are stored under; empty for unknown kinds.
func Canonical(group, name string) string {
	if k := Find(group, name); k != nil {
		return k.Canonical()
	}
	return ""
}

// OfIstio reports whether an object is of a kind of Istio's, which servers of configuration have.
func OfIstio(k object.Key) bool {
	kind := Find(k.Group, k.Kind)
	return kind != nil && kind.NewSpec != nil
}

// ClusterScoped reports whether objects of a kind have no namespace; an unknown kind's are assumed to have one.
func ClusterScoped(group, name string) bool {
	k := Find(group, name)
	return k != nil && k.ClusterScoped
}

// ByName returns the API group and the kind that a name means: "VirtualService", or with its group
// "Gateway.gateway.networking.k8s.io". The bare name of a kind that several groups have means that of the table's
// first: Gateway is Istio's. ok is false for unknown kinds.
func ByName(name string) (group, kind string, ok bool) {
	if kind, group, ok = strings.Cut(name, "."); ok {
		return group, kind, Find(group, kind) != nil
	}
	groups := groupsOf(name)
	if len(groups) == 0 {
		return "", name, false
	}
	return groups[0], name, true
}

// Matches reports whether a key is of the kind that a name means, see ByName; the empty name means every kind.
func Matches(name string, k object.Key) bool {
	if name == "" {
		return true
	}
	group, kind, known := ByName(name)
	return known && k.Group == group && k.Kind == kind
}

// groupsOf lists the API groups that have a kind of this name.
func groupsOf(name string) []string {
	var out []string
	for i := range table {
		if table[i].Name == name {
			out = append(out, table[i].Group)
		}
	}
	return out
}

// NamesOf lists the kinds of an API group.
func NamesOf(group string) []string {
	var out []string
	for i := range table {
		if table[i].Group == group {
			out = append(out, table[i].Name)
		}
	}
	return out
}

// Names lists every kind that is read, sorted.
func Names() []string {
	var out []string
	for i := range table {
		out = append(out, table[i].Name)
	}
	slices.Sort(out)
	return out
}
