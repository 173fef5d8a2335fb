package gatewayapi

import "regexp"

// difference is a row of docs/reference/gateway-api-differences.md: what is not Istio's on purpose.
type difference struct {
	// what is different, what Istio and Fairlead do and the reason, as the page says them.
	what, istio, here, reason string
	// lines are the differences that the row explains, as differencesFound.add writes them.
	lines *regexp.Regexp
}

func lines(pattern string) *regexp.Regexp { return regexp.MustCompile(pattern) }

var differences = []difference{
	{
		what:   "Order of a match by a regular expression",
		istio:  "after the prefix `/`, which takes every request before it",
		here:   "after longer prefixes, before `/`",
		reason: "the specification leaves it open; behind `/` of another route it would never match",
		lines: lines(`^(benchmark-httproute|route-precedence): .* GET /foo.*: Istio 200 .*/svc3:80: .*, here 200 ` +
			`.*/svc2:80: `),
	},
	{
		what:   "A request in the mesh whose host is no name of the Service to whose address it goes",
		istio:  "goes there past the Service's routes",
		here:   "the Service's routes take it",
		reason: "the address decides (feature MeshClusterIPMatching)",
		lines:  lines(`/client \S+ \d+ http other\.test `),
	},
	{
		what:   "TLS passthrough and HTTPS on one port",
		istio:  "the passthrough listeners serve nothing",
		here:   "each listener serves its hostnames",
		reason: "the specification has them share a port by hostname",
		lines: lines(`^tls: .* 34000 tls (\S+ GET / by )?(a\.b\.example\.com|a\.example\.com|foo\.com)\b.*: Istio (closed|–), here ` +
			`certificate backend`),
	},
	{
		what:   "A request by a connection of HTTPS whose server name another listener has than the request's host",
		istio:  "404",
		here:   "421",
		reason: "the client opens a connection for the host (feature GatewayHTTPSListenerDetectMisdirectedRequests)",
		lines:  lines(` GET / by \S+: Istio (.*): 404, here (.*): 421$`),
	},
	{
		what:   "A server name that no TLSRoute of a listener has, where the listener terminates TLS",
		istio:  "goes to the one route of the listener",
		here:   "is closed",
		reason: "the route's hostnames say what it takes",
		lines:  lines(`^tls-terminate: .* 9443 tls (\S+ GET / by )?a\.\S*wild\.example\.com\b.*: Istio .*backend-wildcard.*, here (closed|–)$`),
	},
	{
		what:   "`tls.options[gateway.istio.io/tls-terminate-mode]: ISTIO_SIMPLE`",
		istio:  "shows clients the workload's certificate of the mesh",
		here:   "the listener is not accepted (`UnsupportedValue`)",
		reason: "clients without the mesh's authority cannot verify it; `ISTIO_MUTUAL` is for the others",
		lines: lines(`^tls: (.* builtin\.example[ :].*|.* terminate-istio-builtin (Accepted|ResolvedRefs): |istio-system/gateway ` +
			`Gateway (Accepted|ResolvedRefs): )`),
	},
	{
		what:   "Annotation `istio.io/ignore-policy-attachment` of a BackendTLSPolicy",
		istio:  "leaves the policy out (`IgnoredByIstio`)",
		here:   "means nothing",
		reason: "it keeps a policy from sidecars, and policies here are for gateways alone",
		lines:  lines(`BackendTLSPolicy ancestor .*: Istio False IgnoredByIstio, here –$`),
	},
	{
		what:   "Status of a BackendTLSPolicy whose target no route of a Gateway has as a backend",
		istio:  "says whether the policy is good, by its target",
		here:   "has no entry",
		reason: "ancestors are the Gateways by which a policy has effect, as the specification says",
		lines: lines(`^(backend-tls-policy|mix-backend-policy|backend-tls-policy-ignored): \S+ BackendTLSPolicy ancestor ` +
			`Service.*: Istio .*, here –$`),
	},
	{
		what:   "A Gateway of the same workloads as an older one, whose listener has a hostname and port of a listener of that one",
		istio:  "is accepted; the routes of both are served for HTTP, those of the older one for TLS and TCP",
		here:   "the listener is `Conflicted`, and not served",
		reason: "the specification wants the listeners of all Gateways that share an address to be distinct",
		lines: lines(`^(backend-tls-client-cert|gateway-invalid-parameters-ref|listenerset-invalid|tcp|tls): istio-system/\S+ Gateway ` +
			`(Accepted: Istio True Accepted, here False ListenersNotValid|listener \S+ ` +
			`(Accepted: Istio True Accepted, here False|Conflicted: Istio False NoConflicts, here True) (Hostname|Protocol)Conflict)$`),
	},
	{
		what:   "A request that is not one of gRPC, where only a GRPCRoute matches it",
		istio:  "goes to the GRPCRoute's backend",
		here:   "404",
		reason: "a GRPCRoute is for gRPC, so that an HTTPRoute with the same hostname gets what is not gRPC",
		lines:  lines(`^(grpc|http-grpc-same-host): .* http \S+ POST /(any\.Service/bar|foo\.FooService/Any): Istio 200 .*, here 404$`),
	},
	{
		what:   "Status of Gateways of class `istio-remote`, and of their routes",
		istio:  "none",
		here:   "as for all others",
		reason: "a problem of a listener or route is one there too",
		lines:  lines(`^eastwest-remote: .*: Istio –, here `),
	},
	{
		what:   "`ResolvedRefs` of a Gateway with a listener that is not resolved",
		istio:  "True",
		here:   "False, `ListenersNotResolved`",
		reason: "the condition sums up the listeners'",
		lines:  lines(`Gateway ResolvedRefs: Istio True ResolvedRefs, here False ListenersNotResolved$`),
	},
	{
		what:   "`ResolvedRefs` of a route with several backends that cannot be resolved",
		istio:  "says the reason of the last one",
		here:   "says that of the first one",
		reason: "nothing prefers one",
		lines:  lines(`^invalid: .* ResolvedRefs: Istio False InvalidKind, here False BackendNotFound$`),
	},
	{
		what:   "Listeners of a Gateway with an address of an unknown type",
		istio:  "are not judged, nor served",
		here:   "are judged and served, and `Accepted` of the Gateway is False",
		reason: "the Gateway may have been in use for long",
		lines: lines(`^(invalid: invalid-gateway-address/|listenerset-invalid: istio-system/not-accepted-parent (Gateway|` +
			`ListenerSet) listener ).*: Istio –, here `),
	},
	{
		what:   "`Accepted` of a ListenerSet whose Gateway is not accepted",
		istio:  "False, with the Gateway's reason",
		here:   "False, `ParentNotAccepted`",
		reason: "the specification has this reason",
		lines: lines(`^listenerset-invalid: istio-system/not-accepted-parent ListenerSet Accepted: Istio False ` +
			`UnsupportedAddress, here False ParentNotAccepted$`),
	},
	{
		what:   "Listeners of protocol UDP",
		istio:  "not supported",
		here:   "supported",
		reason: "UDPRoutes have them",
		lines:  lines(`^invalid: istio-system/udp-protocol Gateway `),
	},
	{
		what:   "`Accepted` of a ListenerSet's listener whose certificate may not be used",
		istio:  "False, `NoValidCACertificate`",
		here:   "True; `ResolvedRefs` is False",
		reason: "the specification has references in `ResolvedRefs`",
		lines:  lines(`^listenerset-cross-namespace: .* Accepted: Istio False NoValidCACertificate, here True Accepted$`),
	},
	{
		what:   "`Accepted` of a ListenerSet of which some listeners are not served",
		istio:  "True, `Accepted`",
		here:   "True, `ListenersNotValid`",
		reason: "the specification has this reason",
		lines:  lines(`^listenerset-.* ListenerSet Accepted: Istio True Accepted, here True ListenersNotValid$`),
	},
	{
		what:   "`ResolvedRefs` of a listener that conflicts with another",
		istio:  "none",
		here:   "as of every listener",
		reason: "its references are right or wrong all the same",
		lines:  lines(`^listenerset-(hostname|protocol)-conflict: .* ResolvedRefs: Istio –, here True ResolvedRefs$`),
	},
	{
		what:   "An HTTPS listener without `tls`",
		istio:  "of a Gateway accepted, of a ListenerSet not (`UnsupportedProtocol`)",
		here:   "not accepted (`UnsupportedValue`)",
		reason: "the protocol is supported, and the listener has no certificate",
		lines: lines(`^listenerset-(https-missing-tls|overlapping-port): .* Accepted: Istio .*, here (False ` +
			`UnsupportedValue|True ListenersNotValid)$`),
	},
	{
		what:   "A backend of kind InferencePool",
		istio:  "is looked up",
		here:   "is a kind that is not supported (`InvalidKind`)",
		reason: "inference gateways are not part of Fairlead",
		lines:  lines(`^reference-policy-inferencepool: .* Istio False RefNotPermitted, here False InvalidKind$`),
	},
	{
		what:   "A route that a listener allows neither by its namespace nor by its hostnames",
		istio:  "`NoMatchingListenerHostname`",
		here:   "`NotAllowedByListeners`",
		reason: "either is true",
		lines:  lines(`^route-binding: .*: Istio False NoMatchingListenerHostname, here False NotAllowedByListeners$`),
	},
	{
		what:   "Conditions of unknown types in a route's entry of this controller",
		istio:  "stay",
		here:   "go",
		reason: "the entry is the controller's own; those of other controllers stay",
		lines:  lines(`^status: .* dummy: Istio True dummy, here –$`),
	},
	{
		what:   "`OverlappingTLSConfig` of listeners whose hostnames overlap",
		istio:  "none",
		here:   "True, `OverlappingHostnames`",
		reason: "the specification wants it",
		lines:  lines(`^tls(-terminate)?: .* OverlappingTLSConfig: Istio –, here True OverlappingHostnames$`),
	},
	{
		what:   "`supportedKinds` of a TLS listener that terminates",
		istio:  "TCPRoute and TLSRoute",
		here:   "TLSRoute",
		reason: "a TCPRoute has no server name by which listeners of a port differ",
		lines:  lines(`^tls-terminate: .* supportedKinds: Istio TCPRoute,TLSRoute, here TLSRoute$`),
	},
}
