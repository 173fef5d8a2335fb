package finding

import "strings"

// Severity says how bad a finding is.
type Severity string

// Severities.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// rank orders severities, the worst first.
var rank = map[Severity]int{Error: 0, Warning: 1, Info: 2}

// AtLeast reports whether a severity is as bad as a threshold, or worse.
func (s Severity) AtLeast(threshold Severity) bool { return rank[s] <= rank[threshold] }

// Code names a kind of finding. Codes are stable, because people search for them and tools filter by them.
type Code string

// Anchor is the code's anchor in the reference page, docs/reference/findings.md.
func (c Code) Anchor() string { return strings.ToLower(string(c)) }

// Reference is the code's place in the reference page.
func (c Code) Reference() string { return "docs/reference/findings.md#" + c.Anchor() }

// Codes of a running mesh. A whole analysis has them as well.
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
	ProviderNotFound       Code = "ProviderNotFound"
	RegistryHostTaken      Code = "RegistryHostTaken"
	RouteShadowed          Code = "RouteShadowed"
)

// Codes that only a whole analysis has.
const (
	InternalError      Code = "InternalError"
	TextUnreadable     Code = "TextUnreadable"
	ObjectRefused      Code = "ObjectRefused"
	ObjectTwice        Code = "ObjectTwice"
	FieldWithoutEffect Code = "FieldWithoutEffect"
	FieldDeprecated    Code = "FieldDeprecated"
	ConditionFalse     Code = "ConditionFalse"

	AnnotationUnknown    Code = "AnnotationUnknown"
	AnnotationMisplaced  Code = "AnnotationMisplaced"
	AnnotationInvalid    Code = "AnnotationInvalid"
	AnnotationDeprecated Code = "AnnotationDeprecated"

	NamespaceNotInjected    Code = "NamespaceNotInjected"
	InjectedByDefault       Code = "InjectedByDefault"
	InjectionLabelsConflict Code = "InjectionLabelsConflict"
	PodWithoutSidecar       Code = "PodWithoutSidecar"
	SidecarNotRunning       Code = "SidecarNotRunning"
	PodsNotMade             Code = "PodsNotMade"
	ProxyVersionSkew        Code = "ProxyVersionSkew"
	ReservedUser            Code = "ReservedUser"
	ImageAutoOfTemplate     Code = "ImageAutoOfTemplate"
	ImageAutoOfPod          Code = "ImageAutoOfPod"
	WebhookInvalid          Code = "WebhookInvalid"
	WebhookHostInvalid      Code = "WebhookHostInvalid"
	WebhookAddress          Code = "WebhookAddress"

	PortWithoutProtocol    Code = "PortWithoutProtocol"
	ExternalNamePort       Code = "ExternalNamePort"
	ExternalNameTrap       Code = "ExternalNameTrap"
	ServiceSelectsNothing  Code = "ServiceSelectsNothing"
	ServiceProtocolsDiffer Code = "ServiceProtocolsDiffer"
	TargetPortShared       Code = "TargetPortShared"
	ServiceHidden          Code = "ServiceHidden"

	PortRequired       Code = "PortRequired"
	RouteUnreachable   Code = "RouteUnreachable"
	MatchUnused        Code = "MatchUnused"
	HostNotInGateway   Code = "HostNotInGateway"
	InternalGateway    Code = "InternalGateway"
	SubsetNotAtGateway Code = "SubsetNotAtGateway"
	RegexTrap          Code = "RegexTrap"

	SubsetSelectsNothing    Code = "SubsetSelectsNothing"
	ServerNotVerified       Code = "ServerNotVerified"
	ServerNotVerifiedAtPort Code = "ServerNotVerifiedAtPort"
	MutualTLSMismatch       Code = "MutualTLSMismatch"

	GatewayPortNotInService Code = "GatewayPortNotInService"
	CertificateShared       Code = "CertificateShared"
	CredentialExpired       Code = "CredentialExpired"
	CredentialExpiring      Code = "CredentialExpiring"

	SelectorSelectsNothing      Code = "SelectorSelectsNothing"
	PolicySelectsNothing        Code = "PolicySelectsNothing"
	SidecarsConflict            Code = "SidecarsConflict"
	SidecarsWithoutSelector     Code = "SidecarsWithoutSelector"
	TelemetriesConflict         Code = "TelemetriesConflict"
	TelemetriesWithoutSelector  Code = "TelemetriesWithoutSelector"
	TelemetryWithoutProvider    Code = "TelemetryWithoutProvider"
	PeerAuthenticationsConflict Code = "PeerAuthenticationsConflict"
	NamespaceWithoutProxies     Code = "NamespaceWithoutProxies"
	JWKSTrap                    Code = "JWKSTrap"
	SourceNamespaceNotFound     Code = "SourceNamespaceNotFound"
	PolicyNotEnforced           Code = "PolicyNotEnforced"
	TokensNotVerified           Code = "TokensNotVerified"
	ClaimRouteWithoutTokens     Code = "ClaimRouteWithoutTokens"

	EntryAddressesMissing Code = "EntryAddressesMissing"
	EntryProtocolsDiffer  Code = "EntryProtocolsDiffer"
	NetworkWithoutGateway Code = "NetworkWithoutGateway"
	RegistryUnknown       Code = "RegistryUnknown"
	GatewayAPIOld         Code = "GatewayAPIOld"

	AttachedRouteUnreachable Code = "AttachedRouteUnreachable"
	AttachedRouteTakes       Code = "AttachedRouteTakes"

	GatewayClassNotFound     Code = "GatewayClassNotFound"
	GatewayNotAccepted       Code = "GatewayNotAccepted"
	ListenerNotServed        Code = "ListenerNotServed"
	ListenerTaken            Code = "ListenerTaken"
	GatewayAddressUnusable   Code = "GatewayAddressUnusable"
	GatewayServiceNotFound   Code = "GatewayServiceNotFound"
	DatagramsDropped         Code = "DatagramsDropped"
	ListenerReferenceInvalid Code = "ListenerReferenceInvalid"
	RouteParentNotFound      Code = "RouteParentNotFound"
	RouteNotAttached         Code = "RouteNotAttached"
	RouteServiceInvalid      Code = "RouteServiceInvalid"
	RouteBackendInvalid      Code = "RouteBackendInvalid"
	RouteRuleUnsupported     Code = "RouteRuleUnsupported"
	TLSPolicyNotAccepted     Code = "TLSPolicyNotAccepted"

	DiscoverySelectsNothing Code = "DiscoverySelectsNothing"

	EnvoyFilterInternals   Code = "EnvoyFilterInternals"
	PatchInternals         Code = "PatchInternals"
	PatchRelative          Code = "PatchRelative"
	PatchRelativeOfVersion Code = "PatchRelativeOfVersion"
	PatchReplaceIgnored    Code = "PatchReplaceIgnored"
	PatchAddIgnored        Code = "PatchAddIgnored"
	PatchRemoveIgnored     Code = "PatchRemoveIgnored"
)
