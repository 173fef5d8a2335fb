package finding

import (
	"slices"
	"strings"
)

// Description is a row of the reference page, docs/reference/findings.md.
type Description struct {
	Code Code
	// Severity is that of a whole analysis, which is Istio's. In a running mesh every finding is a warning: it may be
	// intended, or repaired by an object that comes later.
	Severity Severity
	// Istio is the code of the message of Istio's analyzers for the same mistake, such as "IST0101"; "" if there is
	// none.
	Istio string
	// Needs are the kinds of which some object must be known for the finding to be certain.
	Needs []string
	// About describes the finding in one sentence.
	About string
	// Effect says what proxies do meanwhile.
	Effect string
}

// Needs that several kinds satisfy: a Pod or anything that makes Pods or stands for one, and what has a host.
const (
	AnyWorkload = "a workload"
	AnyService  = "a Service or ServiceEntry"
)

var (
	workloads, services = []string{AnyWorkload}, []string{AnyService}
	// kubernetesServices is for findings about Services alone.
	kubernetesServices, namespaces, secrets = []string{"Service"}, []string{"Namespace"}, []string{"Secret"}
	apiGateways                             = []string{"gateway.networking.k8s.io/Gateway"}
)

// Descriptions lists every code, in the order of the reference page.
func Descriptions() []Description { return slices.Concat(OfRunningMesh, OfWholeMesh) }

// described finds the description of a code.
var described = func() map[Code]Description {
	out := map[Code]Description{}
	for _, d := range Descriptions() {
		out[d.Code] = d
	}
	return out
}()

// Describe returns the description of a code.
func (c Code) Describe() Description { return described[c] }

// Known reports whether a text names a code, one of Istio's included; case does not count.
func Known(code string) bool {
	return slices.ContainsFunc(Descriptions(), func(d Description) bool {
		return strings.EqualFold(code, string(d.Code)) || strings.EqualFold(code, d.Istio)
	}) || slices.ContainsFunc(Elsewhere(), func(r Reason) bool { return strings.EqualFold(code, r.Code) })
}

// OfRunningMesh describes the codes that a running mesh tells of, as a whole analysis does.
var OfRunningMesh = []Description{
	{HostNotFound, Error, "IST0101", services,
		"A destination of a VirtualService, a backend of an Ingress or an egress host of a Sidecar is no host of a Service or ServiceEntry " +
			"that the proxies in question see.",
		"Requests that are routed there are answered 503; the egress host has no effect."},
	{RuleHostNotFound, Warning, "IST0174", services, "The host of a DestinationRule is no host of a Service or ServiceEntry.",
		"The rule has no effect."},
	{PortNotFound, Error, "IST0101", nil, "A destination, or a backend of an Ingress, names a port that its service does not have.",
		"Requests that are routed there are answered 503."},
	{SubsetNotFound, Error, "IST0101", nil,
		"A destination names a subset that the DestinationRule of its host does not define. Rules are looked up in the client's namespace, " +
			"then the service's, then the root namespace; the first that has one decides.",
		"Requests that are routed there are answered 503."},
	{GatewayNotFound, Error, "IST0101", nil, "A VirtualService is bound to a Gateway that is not there.",
		"The routes have no effect at that gateway."},
	{DelegateNotFound, Error, "IST0101", []string{"VirtualService"},
		"A route delegates to a VirtualService that is not there, has hosts of its own or is not exported to the route's namespace.",
		"The route is left out."},
	{CredentialNotFound, Error, "IST0101", secrets,
		"A credentialName, or the secretName of an Ingress, stands for no Secret in the namespace of the gateway's workloads.",
		"TLS handshakes with that server fail."},
	{CredentialUnusable, Error, "IST0161", secrets,
		"A credentialName, or the secretName of an Ingress, stands for a Secret that holds no certificate and key, or no certificates to " +
			"verify with.",
		"TLS handshakes with that server fail."},
	{NamespaceNotFound, Warning, "", namespaces, "exportTo, a server's host or an egress host names a namespace in which nothing is.",
		"That part of the list has no effect."},
	{NamespaceEmpty, Warning, "", services, "An object is in a namespace that has no Namespace object, and in which no workload, Service, " +
		"ServiceEntry, Gateway or Ingress is.",
		"A policy, a Sidecar or a route of sidecars there has no effect; short names of hosts mean Services that are not there."},
	{NothingSelected, Error, "IST0101", workloads, "The selector of a Gateway, or of the gateways of Ingresses, selects no workload.",
		"Nothing listens for the Gateway or the Ingress."},
	{VirtualServiceShadowed, Error, "IST0109", nil,
		"An older VirtualService for the same host and gateway leaves routes without an effect. Sidecars take the oldest for a host; gateways " +
			"join them, but only the oldest route that matches everything counts.",
		"The routes have no effect."},
	{RuleShadowed, Warning, "", nil,
		"An older DestinationRule of the namespace for the same host has a trafficPolicy, or a subset of the same name: rules are joined, and " +
			"the older one decides.",
		"That policy or subset has no effect."},
	{RouteShadowed, Warning, "", nil,
		"A VirtualService has the host of a route of the Gateway API, at the Service or the gateway that it is attached to: that " +
			"wins.",
		"Clients that see the VirtualService are routed by it, and the route has no effect for them."},
	{ServerShadowed, Error, "IST0145", nil,
		"An older Gateway of the same workloads uses a server's port for another protocol, or terminates TLS for the same host on it.",
		"The server, or that host of it, has no effect."},
	{IngressClassNotFound, Warning, "", []string{"IngressClass"},
		"An Ingress names an IngressClass that is not there, or none while there is no default one.",
		"The mesh does not serve the Ingress."},
	{ConfinedToNamespace, Warning, "", nil,
		"In a mesh with tenants, an object that would take requests for what is not of its namespace is exported to others.",
		"It has effects in its own namespace alone."},
	{RegistryHostTaken, Warning, "", nil,
		"A service of a registry in Consul and another object have the same host.",
		"The older of the two counts, alone: endpoints and ports are not joined."},
	{ProviderNotFound, Error, "", nil,
		"An AuthorizationPolicy of action CUSTOM names a provider that MeshConfig does not have, that is of another kind, that has a field " +
			"which keeps it from being asked, or whose service or port is not there.",
		"What the rules match is denied; without the port, it is let through if the provider has `failOpen`."},
}

// OfWholeMesh describes the codes that only a whole analysis has.
var OfWholeMesh = []Description{
	{TextUnreadable, Error, "", nil, "Text of a file is no object.", "Nothing of it is taken over."},
	{ObjectRefused, Error, "IST0106", nil, "An object is not valid.", "Its last good version stays in force, or nothing."},
	{FieldWithoutEffect, Warning, "IST0133", nil, "A field of a valid object has no effect, or another one than it looks like.",
		"The field has no effect."},
	{FieldDeprecated, Warning, "IST0002", nil, "A field is deprecated in Istio's API.",
		"It works; a later version of the API may not have it."},
	{ObjectTwice, Warning, "", nil, "Two files hold the same object.", "The first one counts."},
	{ConditionFalse, Warning, "IST0171", nil, "A condition in the status of an object is false.",
		"The message of the condition says it."},
	{InternalError, Error, "IST0001", nil, "The analysis of an object has failed, which is a defect of Fairlead.",
		"Other objects are analyzed."},

	{AnnotationUnknown, Warning, "IST0108", nil, "An annotation in a domain of Istio is none of Istio's.", "It has no effect."},
	{AnnotationMisplaced, Warning, "IST0107", nil, "An annotation of Istio stands on an object of another kind.",
		"It has no effect."},
	{AnnotationInvalid, Warning, "IST0125", nil, "The value of an annotation cannot be used.",
		"It has no effect, or the Pod's proxy does not start."},
	{AnnotationDeprecated, Info, "IST0135", nil, "An annotation is deprecated in Istio.", "A later version may not have it."},

	{NamespaceNotInjected, Info, "IST0102", nil, "A namespace has no label that says whether its Pods get a sidecar.",
		"They get none."},
	{InjectedByDefault, Info, "IST0148", nil,
		"A namespace has no label that says whether its Pods get a sidecar, and the injector injects by default.", "They get one."},
	{InjectionLabelsConflict, Warning, "IST0123", nil,
		"A namespace has both `istio-injection` and `istio.io/rev`, or a value of the former that is none.", "`istio-injection` counts."},
	{PodWithoutSidecar, Warning, "IST0103", nil, "A Pod has no sidecar although its labels or its namespace ask for one.",
		"It is not in the mesh."},
	{SidecarNotRunning, Error, "", nil,
		"A container that injection has put into a Pod does not run: it ends again and again, or its image cannot be pulled.",
		"The Pod is not ready, or what it sends passes no proxy."},
	{PodsNotMade, Error, "", nil,
		"The API server refuses the Pods of a Deployment with sidecars, because of Pod Security or a quota for example.",
		"There are fewer Pods than wanted, or none."},
	{ProxyVersionSkew, Warning, "IST0158", nil,
		"A Pod's proxy has another image than the injector writes, or without its ConfigMap another one than most of the namespace.",
		"Proxies of two versions run side by side."},
	{ReservedUser, Warning, "IST0144", nil, "An application beside a sidecar runs as user 1337, the proxy's.",
		"What it sends passes the proxy by."},
	{ImageAutoOfTemplate, Warning, "IST0146", nil,
		"A Deployment or another template has a container with `image: auto`, and no injector is called for it.", "Its Pods cannot start."},
	{ImageAutoOfPod, Error, "IST0147", nil, "A Pod has a container with `image: auto`, and no injector is called for it.",
		"It cannot start."},
	{WebhookInvalid, Error, "IST0139", kubernetesServices,
		"A webhook of the mesh calls a Service or port that is not there, or two injectors are called for the same Pods.",
		"The API server refuses or skips what the webhook is for."},
	{WebhookHostInvalid, Warning, "IST0163", nil, "The URL of a webhook of the mesh has no host.", "The API server calls nobody."},
	{WebhookAddress, Info, "IST0164", nil, "The URL of a webhook of the mesh names an address.",
		"The webhook fails when the address changes."},

	{PortWithoutProtocol, Info, "IST0118", nil, "A port of a Service names no protocol.", "Proxies detect it for each connection."},
	{ExternalNamePort, Warning, "IST0150", nil, "A port of an ExternalName Service is TCP, or names no protocol.",
		"It takes the connections of other hosts on the port."},
	{ExternalNameTrap, Warning, "", nil,
		"The name of an ExternalName Service is an address, the Service itself, or a Service that does not exist.", "Requests are answered 503."},
	{ServiceSelectsNothing, Warning, "", workloads, "A Service selects no workload.", "Requests are answered 503."},
	{ServiceProtocolsDiffer, Warning, "IST0116", nil,
		"Two Services select a workload with the same port and different transport protocols.", "One of them decides."},
	{TargetPortShared, Warning, "IST0137", nil, "Two Services lead to one port of a workload from different ports.",
		"Routes and policies by port see one of them."},
	{ServiceHidden, Warning, "", nil, "A ServiceEntry has the host of a Kubernetes Service.",
		"Its ports and endpoints do not count."},

	{PortRequired, Error, "IST0112", services, "A destination names no port, and its service has several.",
		"Requests go to the port that the client has used, if the service has it."},
	{RouteUnreachable, Warning, "IST0130", nil, "Routes before it take all that a route of a VirtualService matches.",
		"The route is never used."},
	{MatchUnused, Info, "IST0131", nil, "A match before it takes all that a match of a VirtualService matches.",
		"The match is never used."},
	{HostNotInGateway, Warning, "IST0132", nil,
		"A VirtualService has a host that no server of its Gateway takes for its namespace.",
		"Requests for the host are answered 404 at the gateway."},
	{InternalGateway, Warning, "IST0165", nil, "A VirtualService names a Gateway that Istio makes from one of the Gateway API.",
		"There is none of this name here."},
	{SubsetNotAtGateway, Warning, "IST0140", nil,
		"A route of a gateway leads to a host without a subset, and the host's VirtualService for sidecars chooses subsets.",
		"Requests from the gateway pass the subsets by."},
	{RegexTrap, Info, "", nil, "A regular expression matches something else than it looks like: Envoy matches the whole text.",
		"The route takes other requests than meant."},

	{SubsetSelectsNothing, Error, "IST0173", workloads, "A subset of a DestinationRule selects no workload of its host.",
		"Requests to the subset are answered 503."},
	{ServerNotVerified, Warning, "IST0128", nil, "TLS settings of a DestinationRule name no certificates of authorities.",
		"The operating system's authorities are used, or nothing is verified."},
	{ServerNotVerifiedAtPort, Warning, "IST0129", nil,
		"TLS settings of a port of a DestinationRule name no certificates of authorities.",
		"The operating system's authorities are used, or nothing is verified."},
	{MutualTLSMismatch, Error, "", nil,
		"A DestinationRule sends plain text to a server whose PeerAuthentication is STRICT, or mutual TLS to one that is DISABLE or has no " +
			"sidecar.", "Connections are reset."},

	{GatewayPortNotInService, Warning, "IST0162", kubernetesServices,
		"No Service of a Gateway's workloads leads to a port of the Gateway.", "Nobody reaches the port through the Service."},
	{CertificateShared, Warning, "IST0138", nil, "Two Gateways of the same workloads use one certificate.",
		"Clients that use one HTTP/2 connection for hosts of both get 404."},
	{CredentialExpired, Error, "IST0161", nil,
		"A certificate of a Gateway, a DestinationRule or an Ingress has ended, or has not begun.", "Handshakes fail."},
	{CredentialExpiring, Warning, "", nil, "A certificate of a Gateway, a DestinationRule or an Ingress ends within 30 days.",
		"Handshakes will fail."},

	{SelectorSelectsNothing, Error, "IST0101", workloads, "The selector of a Sidecar or Telemetry selects no workload.",
		"The object has no effect."},
	{PolicySelectsNothing, Warning, "IST0127", workloads,
		"The selector of a policy, an EnvoyFilter, an extension, a ProxyConfig, a DestinationRule or a ServiceEntry selects no workload.",
		"The object has no effect."},
	{SidecarsConflict, Error, "IST0110", nil, "Two Sidecars select one workload.", "The oldest counts."},
	{SidecarsWithoutSelector, Error, "IST0111", nil, "A namespace has several Sidecars without a selector.", "The oldest counts."},
	{TelemetriesConflict, Error, "IST0159", nil, "Two Telemetries of a namespace select one workload.", "The oldest counts."},
	{TelemetriesWithoutSelector, Error, "IST0160", nil, "A namespace has several Telemetries without a selector.",
		"The oldest counts."},
	{TelemetryWithoutProvider, Warning, "IST0157", nil, "A Telemetry names no provider, and the mesh configuration has no default.",
		"It has no effect."},
	{PeerAuthenticationsConflict, Warning, "", nil,
		"Several PeerAuthentications of a namespace are for one workload, or have no selector.", "The oldest counts."},
	{NamespaceWithoutProxies, Info, "", workloads, "An object configures the proxies of a namespace in which nothing has a proxy.",
		"It has no effect."},
	{JWKSTrap, Warning, "", nil,
		"The keys of a RequestAuthentication come from an address that is not fetched, without TLS, or are not named.",
		"Tokens are refused, or somebody else chooses the keys."},
	{SourceNamespaceNotFound, Error, "IST0101", namespaces, "A source of an AuthorizationPolicy names a namespace that is not there.",
		"The source matches no caller."},
	{PolicyNotEnforced, Warning, "", workloads,
		"An AuthorizationPolicy or a RequestAuthentication selects a workload without a proxy, or with ports that pass its proxy by, " +
			"or asks a provider of kind envoyExtAuthzHttp about a TCP port.",
		"Requests and connections get in there without a check."},
	{TokensNotVerified, Warning, "", workloads,
		"A RequestAuthentication selects a proxyless gRPC server, which verifies no tokens.", "It denies every request with a token."},
	{ClaimRouteWithoutTokens, Error, "IST0149", workloads,
		"A VirtualService routes by claims of a token at a gateway for which there is no RequestAuthentication.",
		"No request has claims: the route takes none."},

	{EntryAddressesMissing, Warning, "IST0134", nil,
		"A ServiceEntry has a TCP port and no addresses, and proxies capture no DNS by default.", "It takes every connection to the port."},
	{EntryProtocolsDiffer, Warning, "IST0177", nil, "Two ServiceEntries name different protocols for one port of a host.",
		"The oldest counts."},
	{NetworkWithoutGateway, Warning, "", kubernetesServices, "A workload is of a network to which no gateway's Service belongs.",
		"Workloads of other networks cannot reach it."},
	{RegistryUnknown, Error, "IST0126", nil, "meshNetworks names a registry that is no cluster.",
		"The network has no endpoints from it."},
	{DiscoverySelectsNothing, Warning, "", namespaces, "One of MeshConfig's discoverySelectors selects no namespace.",
		"Without another one that does, nothing outside the root namespace is in the mesh."},
	{GatewayAPIOld, Warning, "IST0176", nil, "A CRD of the Gateway API is older than Istio of this version expects.",
		"Its objects may be read otherwise than meant."},
	{AttachedRouteUnreachable, Warning, "", nil,
		"A rule of the Gateway API that comes before it takes all that a match of an HTTPRoute or GRPCRoute matches.",
		"The match is never used for the host."},
	{AttachedRouteTakes, Info, "", nil,
		"An HTTPRoute or GRPCRoute of a file takes a host, or a part of its requests, from a route that is not of that file.",
		"The other route gets these requests no more once the file is applied."},
	{GatewayClassNotFound, Warning, "", nil, "A Gateway of the Gateway API names a GatewayClass that is not there.",
		"The mesh serves no listener of it, and no proxy is made for it."},
	{GatewayNotAccepted, Error, "", nil, "A Gateway, ListenerSet or GatewayClass of the Gateway API is not accepted as a whole.",
		"The condition Accepted or ResolvedRefs of its status is false."},
	{ListenerNotServed, Error, "", nil,
		"A listener of the Gateway API conflicts with another one, or has a protocol or port that is not served.",
		"Nobody listens for it; its routes stay attached."},
	{ListenerTaken, Warning, "", nil,
		"An older Gateway of the Gateway API, or one of Istio's API, which the same workloads serve, has the port for another protocol or " +
			"the same hostname.",
		"The listener is left out, with its routes."},
	{GatewayAddressUnusable, Error, "", nil,
		"An address of type Hostname of a Gateway of the Gateway API is no name of a Service.",
		"It stands for no workloads, and the Gateway is not programmed."},
	{GatewayServiceNotFound, Error, "", kubernetesServices,
		"An address of type Hostname of a Gateway of the Gateway API names a Service that is not there.",
		"It stands for no workloads, and the Gateway is not programmed."},
	{DatagramsDropped, Warning, "", nil,
		"An AuthorizationPolicy decides about a port of UDP of a Gateway of the Gateway API, to which policies cannot be applied.",
		"The port drops all datagrams."},
	{ListenerReferenceInvalid, Error, "", secrets,
		"A listener of the Gateway API names a Secret or ConfigMap that is not there, cannot be used or is not granted, or a kind that it " +
			"cannot take.",
		"A listener without its certificate is not served."},
	{RouteParentNotFound, Error, "", apiGateways, "A parent of a route or ListenerSet of the Gateway API is not there, or none is named.",
		"It has no effect there, and its status says nothing about this parent."},
	{RouteNotAttached, Error, "", nil,
		"No listener of a parent takes a route of the Gateway API, because of its name, port, kind, namespace or hostnames.",
		"The route has no effect at this parent."},
	{RouteServiceInvalid, Error, "", services,
		"A Service or ServiceEntry that is the parent of a route of the Gateway API is not there, or cannot be a parent.",
		"The route has no effect there."},
	{RouteBackendInvalid, Error, "", services,
		"A backend of a route of the Gateway API is not there, of a kind or protocol that does not do, or not granted by its namespace.",
		"Its share of the requests is answered 500."},
	{RouteRuleUnsupported, Error, "", nil, "A rule of a route of the Gateway API has a value or filter that is not supported.",
		"Its requests are answered 500, and a match that cannot be read matches nothing."},
	{TLSPolicyNotAccepted, Error, "", services, "A BackendTLSPolicy is not accepted, or an older one counts.",
		"If none of its authorities is valid, requests to the Service fail; they are never sent unverified."},

	{EnvoyFilterInternals, Info, "IST0133", nil, "An EnvoyFilter depends on how proxies are configured inside.",
		"It may stop working with another version."},
	{PatchInternals, Warning, "", nil,
		"An EnvoyFilter names a filter or listener that no proxy has: an old name, or one of Istio's own proxy.",
		"The patch does nothing, or the proxy rejects the listener."},
	{PatchRelative, Warning, "IST0151", nil, "A patch of an EnvoyFilter without a priority depends on other patches.",
		"The order is that of age."},
	{PatchRelativeOfVersion, Warning, "IST0155", nil,
		"A patch of an EnvoyFilter without a priority depends on other patches and on the version of the proxy.", "It may go during an upgrade."},
	{PatchReplaceIgnored, Error, "IST0152", nil, "A patch replaces something else than a filter.", "It has no effect."},
	{PatchAddIgnored, Error, "IST0153", nil, "A patch adds to a route configuration or a route.", "It has no effect."},
	{PatchRemoveIgnored, Error, "IST0154", nil, "A patch removes a route configuration or a route.", "It has no effect."},
}
