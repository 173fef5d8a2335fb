package oracle

// AnalysisDifferences are the messages that one analysis has alone.
var AnalysisDifferences = []AnalysisDifference{
	// What Fairlead tells.
	{
		Ours: true, Codes: "ServiceSelectsNothing NamespaceWithoutProxies NamespaceNotFound NamespaceEmpty SidecarNotRunning PodsNotMade " +
			"DestinationRuleShadowed MutualTLSMismatch RegexTrap ExternalNameTrap ServiceHidden PeerAuthenticationsConflict PatchInternals " +
			"JWKSTrap CredentialExpiring NetworkWithoutGateway DiscoverySelectsNothing ObjectTwice ProviderNotFound PolicyNotEnforced " +
			"TokensNotVerified",
		What: "codes that Istio has no message for", Reason: "Each is a mistake that users of either make.",
		Example: "conflicts: rules-of-one-host",
	},
	{
		Ours: true, FilesOnly: true,
		Codes: "IST0101 IST0102 IST0103 IST0107 IST0108 IST0110 IST0111 IST0112 IST0116 IST0118 IST0123 IST0125 IST0126 IST0127 IST0135 " +
			"IST0137 IST0139 IST0140 IST0144 IST0145 IST0146 IST0147 IST0148 IST0149 IST0150 IST0158 IST0159 " +
			"IST0161 IST0162 IST0171 IST0173 IST0174",
		What: "checks of files that `istioctl analyze --use-kube=false` leaves out",
		Reason: "istioctl needs an API server for what reads Services, Pods and Namespaces. Fairlead runs the checks if the files have objects " +
			"of the kinds.", Example: "workloads: pod-without-a-proxy",
	},
	{
		Ours: true, Codes: "IST0133", What: "fields without effect in Fairlead",
		Reason: "`fairlead validate` warns of them; istioctl warns of what has no effect in Istio.", Example: "conflicts: telemetry-of-no-pod",
	},
	{
		Ours: true, Codes: "IST0108", Kinds: "Deployment StatefulSet DaemonSet Job CronJob", What: "annotations of a template",
		Reason: "They are those of its Pods. istioctl looks at the Pods, once they are there.", Example: "annotations: of-a-deployment",
	},
	{
		Ours: true, Codes: "IST0101", Kinds: "VirtualService",
		What:    "hosts that only a wildcard host of a ServiceEntry covers, and delegates that are not there",
		Reason:  "Routes are for hosts as they are listed: requests are answered 503, or the route is left out.",
		Example: "references: host-under-a-wildcard",
	},
	{
		Ours: true, Codes: "IST0132", Kinds: "VirtualService", What: "a VirtualService of which the Gateway has some hosts and not others",
		Reason: "Requests for the others are answered 404. istioctl tells if the Gateway has none.", Example: "references: host-not-in-gateway",
	},
	{
		Ours: true, Codes: "IST0130 IST0131", Kinds: "VirtualService",
		What: "matches of which an earlier one takes more than the same path or a longer one: everything with `prefix: /`, or the same with " +
			"fewer conditions", Reason: "They are never used, as equal ones.", Example: "conflicts: route-behind-everything",
	},
	{
		Ours: true, Codes: "IST0109", Kinds: "VirtualService", What: "VirtualServices of one host at a gateway",
		Reason: "Of their routes that match everything only the oldest has an effect.", Example: "conflicts: routes-of-one-host-at-a-gateway",
	},
	{
		Ours: true, FilesOnly: true, Codes: "IST0002", Kinds: "Telemetry", What: "providers of the kind lightstep",
		Reason: "istioctl does not read the mesh configuration in files.", Example: "validation: lightstep",
	},
	{
		Ours: true, Codes: "IST0145", Kinds: "Gateway", What: "two protocols at one port", Reason: "The younger server has no effect.",
		Example: "conflicts: gateways-of-one-port-and-two-protocols",
	},
	{
		Ours: true, Codes: "IST0165", Kinds: "VirtualService", What: "names of Gateways that Istio makes, whether they are there or not",
		Reason: "Fairlead makes none, so that the name is always a mistake.", Example: "references: internal-gateway",
	},
	{
		Ours: true, Codes: "IST0002", Kinds: "DestinationRule", Beside: "IST0133", What: "deprecated fields, all under one code",
		Reason: "istioctl tells of some of them as a warning of the schema.", Example: "validation: warned",
	},
	{
		Ours: true, Codes: "IST0126", Kinds: "ConfigMap", What: "registries in meshNetworks, at their ConfigMap",
		Reason: "istioctl names an object MeshNetworks that there is not.", Example: "validation: networks-with-an-unknown-registry",
	},
	{
		Ours: true, Codes: "IST0139", Kinds: "MutatingWebhookConfiguration", What: "two injectors that are called for the same Pods",
		Reason: "Both inject.", Example: "workloads: webhooks-of-one-namespace",
	},
	{
		Ours: true, Codes: "IST0158", Kinds: "Pod", What: "another proxy image, at the Pod",
		Reason:  "It is the Pod that is made again. istioctl names the namespace, and reads its label alone.",
		Example: "workloads: proxy-of-another-version",
	},
	{
		Ours: true, Codes: "IST0163 IST0164", Kinds: "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
		What: "addresses in webhooks of an API server, and URLs without a host", Reason: "istioctl tells of addresses, in files alone.",
		Example: "workloads: webhook-of-an-address",
	},
	{
		Ours: true, Codes: "IST0176", What: "any CRD of the Gateway API that is too old", Reason: "istioctl looks at some of them.",
		Example: "validation: gateway-api-version",
	},
	{
		Ours: true, Codes: "IST0151 IST0155", Kinds: "EnvoyFilter", What: "the first code without a proxyVersion, the second with one",
		Reason:  "istioctl tells either of them, depending on the EnvoyFilter that it has read before.",
		Example: "extensions: relative-with-a-proxy-version",
	},

	// What istioctl tells.
	{
		Codes: "IST0109", Kinds: "VirtualService", Beside: "IST0109", What: "all VirtualServices of one host",
		Reason: "The oldest one has its effect; Fairlead tells of those that have none.", Example: "conflicts: routes-of-one-host",
	},
	{
		Codes: "IST0145", Kinds: "Gateway", What: "servers of two Gateways for the same port and host in plain HTTP",
		Reason: "Both have their effect: routes of both are joined.", Example: "conflicts: gateways-of-one-port-and-host",
	},
	{
		Codes: "IST0151 IST0155", Kinds: "EnvoyFilter", What: "the other code", Reason: "See above.",
		Example: "extensions: relative-with-a-proxy-version",
	},
	{
		Codes: "IST0132", Kinds: "VirtualService", Beside: "IST0101", What: "hosts that a Gateway does not have which is not there",
		Reason: "That the Gateway is not there says it.", Example: "references: gateway-unknown",
	},
	{
		Codes: "IST0140", Kinds: "VirtualService", What: "VirtualServices of gateways whose hosts no other VirtualService chooses subsets of",
		Reason: "There is no subset that requests would pass by.", Example: "references: host-not-in-gateway",
	},
	{
		Codes: "IST0133", Kinds: "ServiceEntry", Beside: "IST0134", What: "TCP ports without addresses, a second time",
		Reason: "One message says it.", Example: "conflicts: service-entry-of-nothing-known",
	},
	{
		FilesOnly: true, Codes: "IST0101", Kinds: "VirtualService", What: "subsets of a host of which the files have no Service",
		Reason: "What the files do not have may be in the cluster.", Example: "references: subset-of-a-host-elsewhere",
	},
	{
		Codes: "IST0133", Kinds: "DestinationRule", Beside: "IST0002", What: "deprecated fields",
		Reason: "Fairlead has one code for all of them.", Example: "validation: warned",
	},
	{
		Codes: "IST0126", Kinds: "MeshNetworks", What: "registries in meshNetworks, at an object MeshNetworks",
		Reason: "Fairlead names the ConfigMap.", Example: "validation: networks-with-an-unknown-registry",
	},
	{
		Codes: "IST0158", Kinds: "Namespace", Beside: "IST0158", What: "another proxy image, at the namespace",
		Reason: "Fairlead names the Pods.", Example: "workloads: proxy-of-another-version",
	},
}
