// Package validate decodes objects of Kubernetes' and Istio's kinds strictly and checks every field by Istio's own
// rules. All configuration passes it: the sources, the config API (package storeapi) and the webhook (package
// admission) call Document for each object, `config-watcher validate` calls it through package offline, and a broken
// PeerAuthentication becomes a Hold (HoldOf, HoldsIn). kinds.go has the table of kinds; each kind's check function is
// in the file of its name. It has no
// state and does no I/O.
package validate

import (
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// API groups.
const (
	GroupNetworking = "networking.istio.io"
	GroupSecurity   = "security.istio.io"
	GroupTelemetry  = "telemetry.istio.io"
	GroupExtensions = "extensions.istio.io"
	GroupDiscovery  = "discovery.k8s.io"
	// GroupGatewayAPI has kinds that are not read.
	GroupGatewayAPI = "gateway.networking.k8s.io"
)

// Scope says whether a kind's objects have a namespace.
type Scope int

// Scopes.
const (
	Namespaced Scope = iota
	Cluster
)

// kind is one row of the table of kinds.
type kind struct {
	group    string
	name     string
	versions []string
	scope    Scope
	// newSpec makes an empty Istio spec; nil for Kubernetes kinds.
	newSpec func() proto.Message
	// newBody makes an empty Kubernetes object; nil for Istio kinds.
	newBody func() any
	// check checks a decoded body; nil if strict decoding is enough.
	check func(c *checker, o *object.Object)
}

func istio[T any, P interface {
	*T
	proto.Message
}](group, name string, versions []string, check func(*checker, *object.Object, P)) kind {
	return kind{
		group: group, name: name, versions: versions, newSpec: func() proto.Message { return P(new(T)) },
		check: func(c *checker, o *object.Object) { check(c, o, o.Body.(P)) },
	}
}

func kubernetes[T any](group, name, version string, scope Scope, check func(*checker, *object.Object, *T)) kind {
	k := kind{group: group, name: name, versions: []string{version}, scope: scope, newBody: func() any { return new(T) }}
	if check != nil {
		k.check = func(c *checker, o *object.Object) { check(c, o, o.Body.(*T)) }
	}
	return k
}

var networkingVersions = []string{"v1", "v1beta1", "v1alpha3"}

// kinds is every kind that Fairlead reads. In a group of Istio, or of Fairlead, another kind is a mistake; elsewhere it
// is ignored, as in Istio.
var kinds = []kind{
	istio(GroupNetworking, "VirtualService", networkingVersions, checkVirtualService),
	istio(GroupNetworking, "DestinationRule", networkingVersions, checkDestinationRule),
	istio(GroupNetworking, "Gateway", networkingVersions, checkGateway),
	istio(GroupNetworking, "Sidecar", networkingVersions, checkSidecar),
	istio(GroupNetworking, "ServiceEntry", networkingVersions, checkServiceEntry),
	istio(GroupNetworking, "WorkloadEntry", networkingVersions, checkWorkloadEntry),
	istio(GroupNetworking, "WorkloadGroup", networkingVersions, checkWorkloadGroup),
	istio(GroupNetworking, "EnvoyFilter", []string{"v1alpha3"}, checkEnvoyFilter),
	istio(GroupNetworking, "ProxyConfig", []string{"v1beta1"}, checkProxyConfig),
	istio(GroupSecurity, "PeerAuthentication", []string{"v1", "v1beta1"}, checkPeerAuthentication),
	istio[security.RequestAuthentication](GroupSecurity, "RequestAuthentication", []string{"v1", "v1beta1"},
		refuseUnenforced[*security.RequestAuthentication]("tokens would not be verified")),
	istio[security.AuthorizationPolicy](GroupSecurity, "AuthorizationPolicy", []string{"v1", "v1beta1"},
		refuseUnenforced[*security.AuthorizationPolicy]("access would not be restricted")),
	istio(GroupTelemetry, "Telemetry", []string{"v1", "v1alpha1"}, checkTelemetry),
	istio(GroupExtensions, "WasmPlugin", []string{"v1alpha1"}, checkWasmPlugin),
	istio(GroupExtensions, "TrafficExtension", []string{"v1alpha1"}, checkTrafficExtension),

	kubernetes[corev1.Namespace]("", "Namespace", "v1", Cluster, nil),
	kubernetes[corev1.Node]("", "Node", "v1", Cluster, nil),
	kubernetes("", "Service", "v1", Namespaced, checkService),
	kubernetes("", "Endpoints", "v1", Namespaced, checkEndpoints),
	kubernetes("", "Pod", "v1", Namespaced, checkPod),
	kubernetes("", "ConfigMap", "v1", Namespaced, checkConfigMap),
	kubernetes("", "Secret", "v1", Namespaced, checkSecret),
	kubernetes[corev1.ServiceAccount]("", "ServiceAccount", "v1", Namespaced, nil),
	kubernetes[discoveryv1.EndpointSlice](GroupDiscovery, "EndpointSlice", "v1", Namespaced, checkEndpointSlice),
	kubernetes[networkingv1.Ingress](GroupIngress, "Ingress", "v1", Namespaced, checkIngress),
	kubernetes[networkingv1.IngressClass](GroupIngress, "IngressClass", "v1", Cluster, checkIngressClass),

	kubernetes(GroupFairlead, KindIdentityBan, "v1", Cluster, checkIdentityBan),
}

// find returns the row of a kind; own reports whether the group is Istio's or Fairlead's, whose kinds are all known.
func find(group, name string) (k *kind, own bool) {
	for i := range kinds {
		if kinds[i].group == group {
			if kinds[i].name == name {
				return &kinds[i], true
			}
			own = own || kinds[i].newSpec != nil || group == GroupFairlead
		}
	}
	return nil, own
}

// OwnGroup reports whether the group is Istio's or Fairlead's: every kind of it that is not in the table is a mistake.
func OwnGroup(group string) bool {
	_, own := find(group, "")
	return own
}

// Canonical is the API version that objects of the kind are stored under; empty for unknown kinds.
func Canonical(group, name string) string {
	k, _ := find(group, name)
	if k == nil {
		return ""
	}
	if group == "" {
		return k.versions[0]
	}
	return group + "/" + k.versions[0]
}

// ScopeOf returns the kind's scope; ok is false for unknown kinds.
func ScopeOf(group, name string) (scope Scope, ok bool) {
	k, _ := find(group, name)
	if k == nil {
		return Namespaced, false
	}
	return k.scope, true
}

// GroupsOf lists the API groups that have a kind of this name.
func GroupsOf(name string) []string {
	var out []string
	for i := range kinds {
		if kinds[i].name == name {
			out = append(out, kinds[i].group)
		}
	}
	return out
}

// GroupOf is the API group of a kind that only one group has, or the first one; empty for unknown kinds.
func GroupOf(name string) string {
	if groups := GroupsOf(name); len(groups) > 0 {
		return groups[0]
	}
	return ""
}

// refuseUnenforced refuses every object of a policy kind: one that is stored but not enforced would only look like
// protection.
func refuseUnenforced[P proto.Message](consequence string) func(*checker, *object.Object, P) {
	return func(c *checker, o *object.Object, _ P) {
		c.fail("spec", nil, o.Key.Kind+" is not enforced by this version of Fairlead, "+consequence,
			"remove the object, or keep the workload out of reach by other means")
	}
}
