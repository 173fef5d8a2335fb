package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// Subject says what a Topic is about.
type Subject uint8

// Subjects of look-ups. The comment says what A and B of the Topic hold.
const (
	// SubjectService: A = hostname.
	SubjectService Subject = iota + 1
	// SubjectServices, the list of services exported to a namespace: A = that namespace or "*", B = the services'
	// namespace or "" for all.
	SubjectServices
	// SubjectEndpoints: A = hostname, B = port.
	SubjectEndpoints
	// SubjectGatewayRoutes, the VirtualServices bound to a gateway: A = namespace exported to or "*", B = gateway.
	SubjectGatewayRoutes
	// SubjectHostRoutes, the VirtualServices of a gateway that name a host: A = gateway, B = host, "*" also for any
	// wildcard host.
	SubjectHostRoutes
	// SubjectDestinationRule: A = host, or "*" for any wildcard host.
	SubjectDestinationRule
	// SubjectSidecars: A = namespace.
	SubjectSidecars
	// SubjectPeerAuthentications: A = namespace.
	SubjectPeerAuthentications
	// SubjectGateways, the Gateways whose selector holds a label: A = "key=value", or "" for those without a selector.
	SubjectGateways
	// SubjectWorkload: A = namespace, B = name.
	SubjectWorkload
	// SubjectAddress, the workloads of an address: A = address.
	SubjectAddress
	// SubjectMesh, the mesh-wide settings.
	SubjectMesh
	// SubjectRelevantLabels, the label keys that objects test: A = namespace of the workloads, or "*".
	SubjectRelevantLabels
	// SubjectServicesAt, the services at an address and port: A = port, B = address, or "" for those without one.
	SubjectServicesAt
	// SubjectSpeaks, the services whose port of a number speaks a protocol: A = port, B = protocol.
	SubjectSpeaks
	// SubjectSuffix, whether there are services under a wildcard host: A = the wildcard host.
	SubjectSuffix
	// SubjectOwnNamespace, whether a namespace is the client's, which never changes: A = namespace.
	SubjectOwnNamespace
	// SubjectEnvoyFilters, the EnvoyFilters with patches in a context: A = namespace exported to or "*", B = the
	// PatchContext.
	SubjectEnvoyFilters
	// SubjectProxyMatches, the conditions that EnvoyFilters have on proxies: A = namespace exported to or "*".
	SubjectProxyMatches
	// SubjectCredential: A = identity of the proxy that it is for, B = name, or "<namespace>/<name>" if the namespace
	// is not the identity's.
	SubjectCredential
	// SubjectCredentialUse, whether a DestinationRule has a credentialName: A = namespace exported to or "*", B = name;
	// or whether one has a workload selector besides: A = its namespace, B = "".
	SubjectCredentialUse
	// SubjectMeshGateways, whether a Gateway passes mesh TLS through.
	SubjectMeshGateways
	// SubjectNetworkGateways, the gateways of a network: A = network, or "" for whether there is any of any network.
	SubjectNetworkGateways
	// SubjectClusters, whether any service looks different to clients of different clusters.
	SubjectClusters
	// SubjectDestinations, the VirtualServices of sidecars that send to a host: A = host.
	SubjectDestinations
	// SubjectSignedBundle, the trust bundle that the ca has signed.
	SubjectSignedBundle
	// SubjectJwks: A = name of the resource.
	SubjectJwks
	// SubjectAuthorizationPolicies: A = namespace, or "*" for whether the client's namespace has any of its own.
	SubjectAuthorizationPolicies
	// SubjectRequestAuthentications: as SubjectAuthorizationPolicies.
	SubjectRequestAuthentications
	// SubjectGatewayListeners, the listeners of the Gateway API for workloads with a label: A = their namespace, B =
	// "key=value".
	SubjectGatewayListeners
	// SubjectAttachedDomains, the set of domains of the routes of a listener: A = listener.
	SubjectAttachedDomains
	// SubjectAttachedRoutes, the routes of a listener for a domain: A = listener, B = domain.
	SubjectAttachedRoutes
	// SubjectServiceRoutes, the routes that are attached to a service: A = hostname.
	SubjectServiceRoutes
	// SubjectBackendTLS, the BackendTLSPolicies of a service: A = hostname.
	SubjectBackendTLS
	// SubjectUDPBackend, whether a UDPRoute sends to a service: A = hostname.
	SubjectUDPBackend
	// SubjectRoutedPort, whether a route of HTTP is attached to a port number of any service: A = port, "0" for routes
	// that are attached to all ports of a service.
	SubjectRoutedPort
	// SubjectGRPCBackend, the ports of a service that GRPCRoutes send to: A = hostname.
	SubjectGRPCBackend
	// SubjectDerived and all above it are free for answers that a caller derives from several look-ups.
	SubjectDerived Subject = 128
)

// Topic names one answer of a Snapshot. Equal topics mean the same question.
type Topic struct {
	Subject Subject
	A, B    string
}

// String says what was looked up, for people who ask what a resource was made from.
func (t Topic) String() string {
	switch t.Subject {
	case SubjectService:
		return "Service with host " + t.A
	case SubjectServices:
		if t.B == "" {
			return "Services exported to " + namespaceText(t.A)
		}
		return "Services of namespace " + t.B + " exported to " + namespaceText(t.A)
	case SubjectEndpoints:
		return "endpoints of " + t.A + " port " + t.B
	case SubjectGatewayRoutes:
		return "VirtualServices exported to " + namespaceText(t.A) + " and bound to " + gatewayText(t.B)
	case SubjectHostRoutes:
		return "VirtualService for " + hostText(t.B) + ", bound to " + gatewayText(t.A)
	case SubjectDestinations:
		return "VirtualService that sends to " + hostText(t.A)
	case SubjectDestinationRule:
		return "DestinationRule for " + hostText(t.A)
	case SubjectSidecars:
		return "Sidecar in namespace " + t.A
	case SubjectPeerAuthentications:
		return "PeerAuthentication in namespace " + t.A
	case SubjectAuthorizationPolicies, SubjectRequestAuthentications:
		kind := KindAuthorizationPolicy
		if t.Subject == SubjectRequestAuthentications {
			kind = KindRequestAuthentication
		}
		if t.A == "*" {
			return kind + " in the proxy's namespace"
		}
		return kind + " in " + namespaceText(t.A)
	case SubjectGateways:
		if t.A == "" {
			return "Gateway without a selector"
		}
		return "Gateway that selects " + t.A
	case SubjectWorkload:
		return "Workload " + t.A + "/" + t.B
	case SubjectAddress:
		return "Workload with address " + t.A
	case SubjectOwnNamespace:
		return "whether " + t.A + " is the proxy's namespace"
	case SubjectEnvoyFilters:
		kind, side, _ := strings.Cut(t.B, "/")
		return "EnvoyFilter for " + namespaceText(t.A) + " with patches of a " + side + " " + kind
	case SubjectProxyMatches:
		return "conditions on proxies, of EnvoyFilters for " + namespaceText(t.A)
	case SubjectCredential:
		return "Secret " + t.B + " for " + t.A
	case SubjectCredentialUse:
		if t.B == "" {
			return "DestinationRule of " + namespaceText(t.A) + " with workloadSelector and credentialName"
		}
		return "DestinationRule for " + namespaceText(t.A) + " with credentialName " + t.B
	case SubjectMeshGateways:
		return "Gateway with a server of mode AUTO_PASSTHROUGH"
	case SubjectNetworkGateways:
		if t.A == "" {
			return "Service with a network's gateways"
		}
		return "Service with gateways of network " + t.A
	case SubjectClusters:
		return "Service of several clusters"
	case SubjectJwks:
		return "Jwks " + t.A
	case SubjectSignedBundle:
		return "trust bundle of the ca"
	case SubjectMesh:
		return "MeshConfig"
	case SubjectRelevantLabels:
		return "selectors of workload labels in " + namespaceText(t.A)
	case SubjectGatewayListeners:
		return "Gateway or ListenerSet of the Gateway API that selects " + t.B + " in " + namespaceText(t.A)
	case SubjectAttachedDomains:
		return "hosts of the routes of listener " + t.A
	case SubjectAttachedRoutes:
		return "route of the Gateway API for " + hostText(cmp.Or(t.B, "*")) + " at listener " + t.A
	case SubjectServiceRoutes:
		return "route of the Gateway API with the parent " + t.A
	case SubjectUDPBackend:
		return "UDPRoute that sends to " + t.A
	case SubjectGRPCBackend:
		return "GRPCRoute that sends to " + t.A
	case SubjectRoutedPort:
		if t.A == number(0) {
			return "HTTPRoute or GRPCRoute of all ports of a Service"
		}
		return "HTTPRoute or GRPCRoute of port " + t.A + " of a Service"
	case SubjectBackendTLS:
		return "BackendTLSPolicy for " + t.A
	case SubjectServicesAt:
		if t.B == "" {
			return "Service without an address on port " + t.A
		}
		return "Service at " + net.JoinHostPort(t.B, t.A)
	case SubjectSpeaks:
		n, _ := strconv.ParseInt(t.B, 10, 32)                                      // SpeakingTopic wrote it
		protocol := strings.TrimPrefix(configv1.Protocol(n).String(), "PROTOCOL_") //nolint:gosec // as above
		return "Service that speaks " + protocol + " on port " + t.A
	case SubjectSuffix:
		return "Service under " + t.A
	default:
		return fmt.Sprintf("derived answer %d of %q and %q", t.Subject, t.A, t.B)
	}
}

func namespaceText(ns string) string {
	switch ns {
	case "*":
		return "all namespaces"
	case Global:
		return "no namespace in particular"
	default:
		return "namespace " + ns
	}
}

func hostText(host string) string {
	if host == "*" {
		return "a wildcard host"
	}
	return "host " + host
}

func gatewayText(gateway string) string {
	if gateway == contract.MeshGateway {
		return "the mesh"
	}
	return "gateway " + gateway
}

// Topics is a set of topics.
type Topics map[Topic]struct{}

// Add puts a topic into the set.
func (t Topics) Add(topic Topic) { t[topic] = struct{}{} }

// Has reports whether the set holds the topic.
func (t Topics) Has(topic Topic) bool {
	_, ok := t[topic]
	return ok
}

// joined adds other topics to the set, which is made if it is nil.
func (t Topics) joined(other Topics) Topics {
	if t == nil {
		t = Topics{}
	}
	maps.Copy(t, other)
	return t
}

// Meets reports whether two sets have a topic in common.
func (t Topics) Meets(other Topics) bool {
	few, many := t, other
	if len(many) < len(few) {
		few, many = many, few
	}
	for topic := range few {
		if many.Has(topic) {
			return true
		}
	}
	return false
}
