package running

import (
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Concerns reports whether findings depend on objects of the key's kind.
func Concerns(k object.Key) bool { return rowOf(k).update != nil }

// kind is a row of the table of kinds.
type kind struct {
	// update takes over a change of an object; nil for one that is gone.
	update func(*Mesh, object.Key, *object.Object)
	// checks are those of its objects, if update is updateAnalyzed.
	checks []func(*reader)
}

func rowOf(k object.Key) kind { return table[object.Key{Group: k.Group, Kind: k.Kind}] }

// table is the kinds that findings depend on.
var table = map[object.Key]kind{
	{Kind: "Secret"}: {update: func(m *Mesh, k object.Key, o *object.Object) {
		m.updateSecret(ref{k.Namespace, k.Name}, secretOf(o))
	}},
	{Kind: "ConfigMap"}: {update: func(m *Mesh, k object.Key, o *object.Object) {
		m.updateConfigMap(ref{k.Namespace, k.Name}, secretOf(o).authority)
	}},
	{Kind: "Namespace"}: {update: func(m *Mesh, k object.Key, o *object.Object) { m.updateNamespace(k.Name, o != nil) }},
	{Kind: "Pod"}:       {update: (*Mesh).updatePod},
	{Kind: "Service"}:   checked(checkExportTo),
	{Group: kinds.GroupNetworking, Kind: "WorkloadEntry"}: {update: (*Mesh).updatePod},
	{Group: kinds.GroupNetworking, Kind: "VirtualService"}: checked(checkOwnNamespace, checkDestinations, checkGateways, checkDelegates,
		checkExportTo, checkConfined, checkRoutesShadowed),
	{Group: kinds.GroupNetworking, Kind: "DestinationRule"}: checked(checkOwnNamespace, checkRuleHost, checkRuleCredentials, checkExportTo,
		checkConfined, checkRuleShadowed),
	{Group: kinds.GroupNetworking, Kind: "Gateway"}:      checked(checkSelector, checkServerHosts, checkCredentials, checkServersShadowed),
	{Group: kinds.GroupNetworking, Kind: "Sidecar"}:      checked(checkOwnNamespace, checkEgress),
	{Group: kinds.GroupNetworking, Kind: "ServiceEntry"}: checked(checkExportTo, checkConfined, checkRegistryHosts),
	{Group: kinds.GroupNetworking, Kind: "EnvoyFilter"}:  checked(checkOwnNamespace),
	{Group: kinds.GroupNetworking, Kind: "ProxyConfig"}:  checked(checkOwnNamespace),
	{Group: kinds.GroupGatewayAPI, Kind: "HTTPRoute"}:    checked(checkServiceRoute),
	{Group: kinds.GroupGatewayAPI, Kind: "GRPCRoute"}:    checked(checkServiceRoute),
	{Group: kinds.GroupGatewayAPI, Kind: "TLSRoute"}:     checked(checkServiceRoute),
	{Group: kinds.GroupGatewayAPI, Kind: "TCPRoute"}:     checked(checkServiceRoute),
	{Group: kinds.GroupIngress, Kind: "Ingress"}:         checked(checkIngress),
	{Group: kinds.GroupIngress, Kind: "IngressClass"}:    checked(),

	{Group: kinds.GroupSecurity, Kind: "PeerAuthentication"}:    checked(checkOwnNamespace),
	{Group: kinds.GroupSecurity, Kind: "AuthorizationPolicy"}:   checked(checkOwnNamespace, checkProvider),
	{Group: kinds.GroupSecurity, Kind: "RequestAuthentication"}: checked(checkOwnNamespace),
	{Group: kinds.GroupTelemetry, Kind: "Telemetry"}:            checked(checkOwnNamespace),
	{Group: kinds.GroupExtensions, Kind: "WasmPlugin"}:          checked(checkOwnNamespace),
}

// checked is the row of a kind whose objects are checked.
func checked(checks ...func(*reader)) kind {
	return kind{update: (*Mesh).updateAnalyzed, checks: checks}
}
