package analyzers

import (
	"strings"

	"fairlead.dev/services/config-watcher/internal/analyze"
)

// Codes of messages that only a whole analysis has; those of a running mesh are in package analyze.
const (
	InternalError      analyze.Code = "InternalError"
	TextUnreadable     analyze.Code = "TextUnreadable"
	ObjectRefused      analyze.Code = "ObjectRefused"
	ObjectTwice        analyze.Code = "ObjectTwice"
	FieldWithoutEffect analyze.Code = "FieldWithoutEffect"
	FieldDeprecated    analyze.Code = "FieldDeprecated"
	ConditionFalse     analyze.Code = "ConditionFalse"

	AnnotationUnknown    analyze.Code = "AnnotationUnknown"
	AnnotationMisplaced  analyze.Code = "AnnotationMisplaced"
	AnnotationInvalid    analyze.Code = "AnnotationInvalid"
	AnnotationDeprecated analyze.Code = "AnnotationDeprecated"

	NamespaceNotInjected    analyze.Code = "NamespaceNotInjected"
	InjectedByDefault       analyze.Code = "InjectedByDefault"
	InjectionLabelsConflict analyze.Code = "InjectionLabelsConflict"
	PodWithoutSidecar       analyze.Code = "PodWithoutSidecar"
	SidecarNotRunning       analyze.Code = "SidecarNotRunning"
	PodsNotMade             analyze.Code = "PodsNotMade"
	ProxyVersionSkew        analyze.Code = "ProxyVersionSkew"
	ReservedUser            analyze.Code = "ReservedUser"
	ImageAutoOfTemplate     analyze.Code = "ImageAutoOfTemplate"
	ImageAutoOfPod          analyze.Code = "ImageAutoOfPod"
	WebhookInvalid          analyze.Code = "WebhookInvalid"
	WebhookHostInvalid      analyze.Code = "WebhookHostInvalid"
	WebhookAddress          analyze.Code = "WebhookAddress"

	PortWithoutProtocol    analyze.Code = "PortWithoutProtocol"
	ExternalNamePort       analyze.Code = "ExternalNamePort"
	ExternalNameTrap       analyze.Code = "ExternalNameTrap"
	ServiceSelectsNothing  analyze.Code = "ServiceSelectsNothing"
	ServiceProtocolsDiffer analyze.Code = "ServiceProtocolsDiffer"
	TargetPortShared       analyze.Code = "TargetPortShared"
	ServiceHidden          analyze.Code = "ServiceHidden"

	PortRequired       analyze.Code = "PortRequired"
	RouteUnreachable   analyze.Code = "RouteUnreachable"
	MatchUnused        analyze.Code = "MatchUnused"
	HostNotInGateway   analyze.Code = "HostNotInGateway"
	InternalGateway    analyze.Code = "InternalGateway"
	SubsetNotAtGateway analyze.Code = "SubsetNotAtGateway"
	RegexTrap          analyze.Code = "RegexTrap"

	SubsetSelectsNothing    analyze.Code = "SubsetSelectsNothing"
	ServerNotVerified       analyze.Code = "ServerNotVerified"
	ServerNotVerifiedAtPort analyze.Code = "ServerNotVerifiedAtPort"
	MutualTLSMismatch       analyze.Code = "MutualTLSMismatch"

	GatewayPortNotInService analyze.Code = "GatewayPortNotInService"
	CertificateShared       analyze.Code = "CertificateShared"
	CredentialExpired       analyze.Code = "CredentialExpired"
	CredentialExpiring      analyze.Code = "CredentialExpiring"

	SelectorSelectsNothing      analyze.Code = "SelectorSelectsNothing"
	PolicySelectsNothing        analyze.Code = "PolicySelectsNothing"
	SidecarsConflict            analyze.Code = "SidecarsConflict"
	SidecarsWithoutSelector     analyze.Code = "SidecarsWithoutSelector"
	TelemetriesConflict         analyze.Code = "TelemetriesConflict"
	TelemetriesWithoutSelector  analyze.Code = "TelemetriesWithoutSelector"
	TelemetryWithoutProvider    analyze.Code = "TelemetryWithoutProvider"
	PeerAuthenticationsConflict analyze.Code = "PeerAuthenticationsConflict"
	NamespaceWithoutProxies     analyze.Code = "NamespaceWithoutProxies"
	JWKSTrap                    analyze.Code = "JWKSTrap"

	EntryAddressesMissing analyze.Code = "EntryAddressesMissing"
	EntryProtocolsDiffer  analyze.Code = "EntryProtocolsDiffer"
	NetworkWithoutGateway analyze.Code = "NetworkWithoutGateway"
	RegistryUnknown       analyze.Code = "RegistryUnknown"
	GatewayAPIOld         analyze.Code = "GatewayAPIOld"

	DiscoverySelectsNothing analyze.Code = "DiscoverySelectsNothing"

	EnvoyFilterInternals   analyze.Code = "EnvoyFilterInternals"
	PatchInternals         analyze.Code = "PatchInternals"
	PatchRelative          analyze.Code = "PatchRelative"
	PatchRelativeOfVersion analyze.Code = "PatchRelativeOfVersion"
	PatchReplaceIgnored    analyze.Code = "PatchReplaceIgnored"
	PatchAddIgnored        analyze.Code = "PatchAddIgnored"
	PatchRemoveIgnored     analyze.Code = "PatchRemoveIgnored"
)

// Description is a row of the reference page, docs/reference/findings.md.
type Description struct {
	analyze.Description
	// Needs are the kinds of which some object must be known for the message to be certain.
	Needs []string
	// Mesh is true for a code that a running mesh tells of as well.
	Mesh bool
}

func row(code analyze.Code, severity analyze.Severity, istio string, needs []string, about, effect string) Description {
	return Description{analyze.Description{Code: code, Severity: severity, Istio: istio, About: about, Effect: effect}, needs, false}
}

// severities are those of the codes of a running mesh that are no warnings here, as in Istio.
var severities = map[analyze.Code]analyze.Severity{
	analyze.HostNotFound: analyze.Error, analyze.PortNotFound: analyze.Error, analyze.SubsetNotFound: analyze.Error,
	analyze.GatewayNotFound:  analyze.Error,
	analyze.DelegateNotFound: analyze.Error, analyze.CredentialNotFound: analyze.Error, analyze.CredentialUnusable: analyze.Error,
	analyze.NothingSelected:        analyze.Error,
	analyze.VirtualServiceShadowed: analyze.Error, analyze.ServerShadowed: analyze.Error,
}

// needs are those of the codes of a running mesh.
var needs = map[analyze.Code][]string{
	analyze.HostNotFound: {anyService}, analyze.RuleHostNotFound: {anyService}, analyze.NothingSelected: {anyWorkload},
	analyze.NamespaceNotFound: {"Namespace"}, analyze.NamespaceEmpty: {anyService},
	analyze.CredentialNotFound: {"Secret"}, analyze.CredentialUnusable: {"Secret"}, analyze.GatewayNotFound: nil, analyze.SubsetNotFound: nil,
	analyze.DelegateNotFound: {"VirtualService"}, analyze.IngressClassNotFound: {"IngressClass"},
}

// described finds the description of a code.
var described = func() map[analyze.Code]Description {
	out := map[analyze.Code]Description{}
	for _, d := range Descriptions() {
		out[d.Code] = d
	}
	return out
}()

func knownCode(code string) bool {
	for _, d := range Descriptions() {
		if strings.EqualFold(code, string(d.Code)) || strings.EqualFold(code, d.Istio) {
			return true
		}
	}
	for _, e := range Elsewhere() {
		if strings.EqualFold(code, e.Code) {
			return true
		}
	}
	return false
}

// Descriptions lists every code, in the order of the reference page.
func Descriptions() []Description {
	var out []Description
	for _, d := range analyze.Descriptions() {
		if s := severities[d.Code]; s != "" {
			d.Severity = s
		}
		out = append(out, Description{d, needs[d.Code], true})
	}
	return append(out, own...)
}

var workloads = []string{anyWorkload}

// own are the rows of the codes above.
var own = []Description{
	row(TextUnreadable, analyze.Error, "", nil, "Text of a file is no object.", "Nothing of it is taken over."),
	row(ObjectRefused, analyze.Error, "IST0106", nil, "An object is not valid.", "Its last good version stays in force, or nothing."),
	row(FieldWithoutEffect, analyze.Warning, "IST0133", nil, "A field of a valid object has no effect, or another one than it looks like.",
		"The field has no effect."),
	row(FieldDeprecated, analyze.Warning, "IST0002", nil, "A field is deprecated in Istio's API.",
		"It works; a later version of the API may not have it."),
	row(ObjectTwice, analyze.Warning, "", nil, "Two files hold the same object.", "The first one counts."),
	row(ConditionFalse, analyze.Warning, "IST0171", nil, "A condition in the status of an object is false.",
		"The message of the condition says it."),
	row(InternalError, analyze.Error, "IST0001", nil, "The analysis of an object has failed, which is a defect of Fairlead.",
		"Other objects are analyzed."),

	row(AnnotationUnknown, analyze.Warning, "IST0108", nil, "An annotation in a domain of Istio is none of Istio's.", "It has no effect."),
	row(AnnotationMisplaced, analyze.Warning, "IST0107", nil, "An annotation of Istio stands on an object of another kind.",
		"It has no effect."),
	row(AnnotationInvalid, analyze.Warning, "IST0125", nil, "The value of an annotation cannot be used.",
		"It has no effect, or the Pod's proxy does not start."),
	row(AnnotationDeprecated, analyze.Info, "IST0135", nil, "An annotation is deprecated in Istio.", "A later version may not have it."),

	row(NamespaceNotInjected, analyze.Info, "IST0102", nil, "A namespace has no label that says whether its Pods get a sidecar.",
		"They get none."),
	row(InjectedByDefault, analyze.Info, "IST0148", nil,
		"A namespace has no label that says whether its Pods get a sidecar, and the injector injects by default.", "They get one."),
	row(InjectionLabelsConflict, analyze.Warning, "IST0123", nil,
		"A namespace has both `istio-injection` and `istio.io/rev`, or a value of the former that is none.", "`istio-injection` counts."),
	row(PodWithoutSidecar, analyze.Warning, "IST0103", nil, "A Pod has no sidecar although its labels or its namespace ask for one.",
		"It is not in the mesh."),
	row(SidecarNotRunning, analyze.Error, "", nil,
		"A container that injection has put into a Pod does not run: it ends again and again, or its image cannot be pulled.",
		"The Pod is not ready, or what it sends passes no proxy."),
	row(PodsNotMade, analyze.Error, "", nil,
		"The API server refuses the Pods of a Deployment with sidecars, because of Pod Security or a quota for example.",
		"There are fewer Pods than wanted, or none."),
	row(ProxyVersionSkew, analyze.Warning, "IST0158", nil,
		"A Pod's proxy has another image than the injector writes, or without its ConfigMap another one than most of the namespace.",
		"Proxies of two versions run side by side."),
	row(ReservedUser, analyze.Warning, "IST0144", nil, "An application beside a sidecar runs as user 1337, the proxy's.",
		"What it sends passes the proxy by."),
	row(ImageAutoOfTemplate, analyze.Warning, "IST0146", nil,
		"A Deployment or another template has a container with `image: auto`, and no injector is called for it.", "Its Pods cannot start."),
	row(ImageAutoOfPod, analyze.Error, "IST0147", nil, "A Pod has a container with `image: auto`, and no injector is called for it.",
		"It cannot start."),
	row(WebhookInvalid, analyze.Error, "IST0139", []string{"Service"},
		"A webhook of the mesh calls a Service or port that is not there, or two injectors are called for the same Pods.",
		"The API server refuses or skips what the webhook is for."),
	row(WebhookHostInvalid, analyze.Warning, "IST0163", nil, "The URL of a webhook of the mesh has no host.", "The API server calls nobody."),
	row(WebhookAddress, analyze.Info, "IST0164", nil, "The URL of a webhook of the mesh names an address.",
		"The webhook fails when the address changes."),

	row(PortWithoutProtocol, analyze.Info, "IST0118", nil, "A port of a Service names no protocol.", "Proxies detect it for each connection."),
	row(ExternalNamePort, analyze.Warning, "IST0150", nil, "A port of an ExternalName Service is TCP, or names no protocol.",
		"It takes the connections of other hosts on the port."),
	row(ExternalNameTrap, analyze.Warning, "", nil,
		"The name of an ExternalName Service is an address, the Service itself, or a Service that does not exist.", "Requests are answered 503."),
	row(ServiceSelectsNothing, analyze.Warning, "", workloads, "A Service selects no workload.", "Requests are answered 503."),
	row(ServiceProtocolsDiffer, analyze.Warning, "IST0116", nil,
		"Two Services select a workload with the same port and different transport protocols.", "One of them decides."),
	row(TargetPortShared, analyze.Warning, "IST0137", nil, "Two Services lead to one port of a workload from different ports.",
		"Routes and policies by port see one of them."),
	row(ServiceHidden, analyze.Warning, "", nil, "A ServiceEntry has the host of a Kubernetes Service.",
		"Its ports and endpoints do not count."),

	row(PortRequired, analyze.Error, "IST0112", []string{anyService}, "A destination names no port, and its service has several.",
		"Requests go to the port that the client has used, if the service has it."),
	row(RouteUnreachable, analyze.Warning, "IST0130", nil, "Routes before it take all that a route of a VirtualService matches.",
		"The route is never used."),
	row(MatchUnused, analyze.Info, "IST0131", nil, "A match before it takes all that a match of a VirtualService matches.",
		"The match is never used."),
	row(HostNotInGateway, analyze.Warning, "IST0132", nil,
		"A VirtualService has a host that no server of its Gateway takes for its namespace.",
		"Requests for the host are answered 404 at the gateway."),
	row(InternalGateway, analyze.Warning, "IST0165", nil, "A VirtualService names a Gateway that Istio makes from one of the Gateway API.",
		"There is none of this name here."),
	row(SubsetNotAtGateway, analyze.Warning, "IST0140", nil,
		"A route of a gateway leads to a host without a subset, and the host's VirtualService for sidecars chooses subsets.",
		"Requests from the gateway pass the subsets by."),
	row(RegexTrap, analyze.Info, "", nil, "A regular expression matches something else than it looks like: Envoy matches the whole text.",
		"The route takes other requests than meant."),

	row(SubsetSelectsNothing, analyze.Error, "IST0173", workloads, "A subset of a DestinationRule selects no workload of its host.",
		"Requests to the subset are answered 503."),
	row(ServerNotVerified, analyze.Warning, "IST0128", nil, "TLS settings of a DestinationRule name no certificates of authorities.",
		"The operating system's authorities are used, or nothing is verified."),
	row(ServerNotVerifiedAtPort, analyze.Warning, "IST0129", nil,
		"TLS settings of a port of a DestinationRule name no certificates of authorities.",
		"The operating system's authorities are used, or nothing is verified."),
	row(MutualTLSMismatch, analyze.Error, "", nil,
		"A DestinationRule sends plain text to a server whose PeerAuthentication is STRICT, or mutual TLS to one that is DISABLE or has no "+
			"sidecar.", "Connections are reset."),

	row(GatewayPortNotInService, analyze.Warning, "IST0162", []string{"Service"},
		"No Service of a Gateway's workloads leads to a port of the Gateway.", "Nobody reaches the port through the Service."),
	row(CertificateShared, analyze.Warning, "IST0138", nil, "Two Gateways of the same workloads use one certificate.",
		"Clients that use one HTTP/2 connection for hosts of both get 404."),
	row(CredentialExpired, analyze.Error, "IST0161", nil,
		"A certificate of a Gateway, a DestinationRule or an Ingress has ended, or has not begun.", "Handshakes fail."),
	row(CredentialExpiring, analyze.Warning, "", nil, "A certificate of a Gateway, a DestinationRule or an Ingress ends within 30 days.",
		"Handshakes will fail."),

	row(SelectorSelectsNothing, analyze.Error, "IST0101", workloads, "The selector of a Sidecar or Telemetry selects no workload.",
		"The object has no effect."),
	row(PolicySelectsNothing, analyze.Warning, "IST0127", workloads,
		"The selector of a policy, an EnvoyFilter, an extension, a ProxyConfig, a DestinationRule or a ServiceEntry selects no workload.",
		"The object has no effect."),
	row(SidecarsConflict, analyze.Error, "IST0110", nil, "Two Sidecars select one workload.", "The oldest counts."),
	row(SidecarsWithoutSelector, analyze.Error, "IST0111", nil, "A namespace has several Sidecars without a selector.", "The oldest counts."),
	row(TelemetriesConflict, analyze.Error, "IST0159", nil, "Two Telemetries of a namespace select one workload.", "The oldest counts."),
	row(TelemetriesWithoutSelector, analyze.Error, "IST0160", nil, "A namespace has several Telemetries without a selector.",
		"The oldest counts."),
	row(TelemetryWithoutProvider, analyze.Warning, "IST0157", nil, "A Telemetry names no provider, and the mesh configuration has no default.",
		"It has no effect."),
	row(PeerAuthenticationsConflict, analyze.Warning, "", nil,
		"Several PeerAuthentications of a namespace are for one workload, or have no selector.", "The oldest counts."),
	row(NamespaceWithoutProxies, analyze.Info, "", workloads, "An object configures the proxies of a namespace in which nothing has a proxy.",
		"It has no effect."),
	row(JWKSTrap, analyze.Warning, "", nil,
		"The keys of a RequestAuthentication come from an address that is not fetched, without TLS, or are not named.",
		"Tokens are refused, or somebody else chooses the keys."),

	row(EntryAddressesMissing, analyze.Warning, "IST0134", nil,
		"A ServiceEntry has a TCP port and no addresses, and proxies capture no DNS by default.", "It takes every connection to the port."),
	row(EntryProtocolsDiffer, analyze.Warning, "IST0177", nil, "Two ServiceEntries name different protocols for one port of a host.",
		"The oldest counts."),
	row(NetworkWithoutGateway, analyze.Warning, "", []string{"Service"}, "A workload is of a network to which no gateway's Service belongs.",
		"Workloads of other networks cannot reach it."),
	row(RegistryUnknown, analyze.Error, "IST0126", nil, "meshNetworks names a registry that is no cluster.",
		"The network has no endpoints from it."),
	row(DiscoverySelectsNothing, analyze.Warning, "", []string{"Namespace"}, "One of MeshConfig's discoverySelectors selects no namespace.",
		"Without another one that does, nothing outside the root namespace is in the mesh."),
	row(GatewayAPIOld, analyze.Warning, "IST0176", nil, "A CRD of the Gateway API is older than Istio of this version expects.",
		"Its objects may be read otherwise than meant."),

	row(EnvoyFilterInternals, analyze.Info, "IST0133", nil, "An EnvoyFilter depends on how proxies are configured inside.",
		"It may stop working with another version."),
	row(PatchInternals, analyze.Warning, "", nil,
		"An EnvoyFilter names a filter or listener that no proxy has: an old name, or one of Istio's own proxy.",
		"The patch does nothing, or the proxy rejects the listener."),
	row(PatchRelative, analyze.Warning, "IST0151", nil, "A patch of an EnvoyFilter without a priority depends on other patches.",
		"The order is that of age."),
	row(PatchRelativeOfVersion, analyze.Warning, "IST0155", nil,
		"A patch of an EnvoyFilter without a priority depends on other patches and on the version of the proxy.", "It may go during an upgrade."),
	row(PatchReplaceIgnored, analyze.Error, "IST0152", nil, "A patch replaces something else than a filter.", "It has no effect."),
	row(PatchAddIgnored, analyze.Error, "IST0153", nil, "A patch adds to a route configuration or a route.", "It has no effect."),
	row(PatchRemoveIgnored, analyze.Error, "IST0154", nil, "A patch removes a route configuration or a route.", "It has no effect."),
}
