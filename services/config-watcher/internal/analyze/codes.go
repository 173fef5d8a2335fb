package analyze

// Codes of findings.
const (
	HostNotFound           Code = "HostNotFound"
	PortNotFound           Code = "PortNotFound"
	RuleHostNotFound       Code = "RuleHostNotFound"
	SubsetNotFound         Code = "SubsetNotFound"
	GatewayNotFound        Code = "GatewayNotFound"
	DelegateNotFound       Code = "DelegateNotFound"
	CredentialNotFound     Code = "CredentialNotFound"
	CredentialUnusable     Code = "CredentialUnusable"
	NamespaceNotFound      Code = "NamespaceNotFound"
	NamespaceEmpty         Code = "NamespaceEmpty"
	NothingSelected        Code = "NothingSelected"
	VirtualServiceShadowed Code = "VirtualServiceShadowed"
	RuleShadowed           Code = "DestinationRuleShadowed"
	ServerShadowed         Code = "GatewayShadowed"
	IngressClassNotFound   Code = "IngressClassNotFound"
	ConfinedToNamespace    Code = "ConfinedToNamespace"
)

// Description is a row of the reference page, docs/reference/findings.md.
type Description struct {
	Code     Code
	Severity Severity
	// Istio is the code of the message of Istio's analyzers for the same mistake; "" if there is none.
	Istio string
	// About describes the finding in one sentence.
	About string
	// Effect says what proxies do meanwhile.
	Effect string
}

// Descriptions lists every code, in the order of the reference page.
func Descriptions() []Description {
	return []Description{
		{HostNotFound, Warning, "IST0101",
			"A destination of a VirtualService, a backend of an Ingress or an egress host of a Sidecar is no host of a Service or ServiceEntry " +
				"that the proxies in question see.",
			"Requests that are routed there are answered 503; the egress host has no effect."},
		{RuleHostNotFound, Warning, "IST0174", "The host of a DestinationRule is no host of a Service or ServiceEntry.",
			"The rule has no effect."},
		{PortNotFound, Warning, "IST0101", "A destination, or a backend of an Ingress, names a port that its service does not have.",
			"Requests that are routed there are answered 503."},
		{SubsetNotFound, Warning, "IST0101",
			"A destination names a subset that the DestinationRule of its host does not define. Rules are looked up in the client's namespace, " +
				"then the service's, then the root namespace; the first that has one decides.",
			"Requests that are routed there are answered 503."},
		{GatewayNotFound, Warning, "IST0101", "A VirtualService is bound to a Gateway that is not there.",
			"The routes have no effect at that gateway."},
		{DelegateNotFound, Warning, "IST0101",
			"A route delegates to a VirtualService that is not there, has hosts of its own or is not exported to the route's namespace.",
			"The route is left out."},
		{CredentialNotFound, Warning, "IST0101",
			"A credentialName, or the secretName of an Ingress, stands for no Secret in the namespace of the gateway's workloads.",
			"TLS handshakes with that server fail."},
		{CredentialUnusable, Warning, "IST0161",
			"A credentialName, or the secretName of an Ingress, stands for a Secret that holds no certificate and key, or no certificates to " +
				"verify with.",
			"TLS handshakes with that server fail."},
		{NamespaceNotFound, Warning, "", "exportTo, a server's host or an egress host names a namespace in which nothing is.",
			"That part of the list has no effect."},
		{NamespaceEmpty, Warning, "", "An object is in a namespace that has no Namespace object, and in which no workload, Service, " +
			"ServiceEntry, Gateway or Ingress is.",
			"A policy, a Sidecar or a route of sidecars there has no effect; short names of hosts mean Services that are not there."},
		{NothingSelected, Warning, "IST0101", "The selector of a Gateway, or of the gateways of Ingresses, selects no workload.",
			"Nothing listens for the Gateway or the Ingress."},
		{VirtualServiceShadowed, Warning, "IST0109",
			"An older VirtualService for the same host and gateway leaves routes without an effect. Sidecars take the oldest for a host; gateways " +
				"join them, but only the oldest route that matches everything counts.",
			"The routes have no effect."},
		{RuleShadowed, Warning, "",
			"An older DestinationRule of the namespace for the same host has a trafficPolicy, or a subset of the same name: rules are joined, and " +
				"the older one decides.",
			"That policy or subset has no effect."},
		{ServerShadowed, Warning, "IST0145",
			"An older Gateway of the same workloads uses a server's port for another protocol, or terminates TLS for the same host on it.",
			"The server, or that host of it, has no effect."},
		{IngressClassNotFound, Warning, "", "An Ingress names an IngressClass that is not there, or none while there is no default one.",
			"The mesh does not serve the Ingress."},
		{ConfinedToNamespace, Warning, "",
			"In a mesh with tenants, an object that would take requests for what is not of its namespace is exported to others.",
			"It has effects in its own namespace alone."},
	}
}
