package mesh_test

import (
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// TestTopicsSayWhatTheyAre gives every subject words of its own.
func TestTopicsSayWhatTheyAre(t *testing.T) {
	for want, topic := range map[string]mesh.Topic{
		"Service with host a.b":                             mesh.ServiceTopic("a.b"),
		"Services exported to all namespaces":               mesh.ServicesInTopics("shop", "")[0],
		"Services of namespace x exported to":               mesh.ServicesInTopics("shop", "x")[1],
		"endpoints of a.b port 80":                          mesh.EndpointsTopic("a.b", 80),
		"bound to the mesh":                                 mesh.VirtualServicesTopics("shop", "mesh")[0],
		"VirtualService for host a.b, bound to gateway x/y": mesh.VirtualServicesOfTopics("x/y", "a.b")[0],
		"DestinationRule for host a.b":                      mesh.DestinationRulesTopics("a.b")[0],
		"DestinationRule for a wildcard host":               mesh.DestinationRulesTopics("a.b")[1],
		"Sidecar in namespace shop":                         mesh.SidecarNamedTopic("shop"),
		"PeerAuthentication in namespace shop":              mesh.PeerAuthenticationsTopic("shop"),
		"Gateway without a selector":                        mesh.GatewaysTopics(map[string]string{"a": "b"})[0],
		"Gateway that selects a=b":                          mesh.GatewaysTopics(map[string]string{"a": "b"})[1],
		"Workload shop/web":                                 mesh.WorkloadTopic("shop", "web"),
		"Workload with address 10.0.0.1":                    mesh.AddressTopic("10.0.0.1"),
		"Jwks ":                                             mesh.JwksTopic(contract.KeySource{Issuer: "a"}),
		"MeshConfig":                                        mesh.SettingsTopic(),
		"selectors of workload labels in namespace shop":    mesh.Empty().RelevantLabelsTopics("shop")[0],
		"Service at 10.0.0.1:80":                            mesh.ServicesAtTopic(80, "10.0.0.1"),
		"Service without an address on port 80":             mesh.ServicesAtTopic(80, ""),
		"Service that speaks HTTP2 on port 80":              mesh.SpeakingTopic(80, configv1.Protocol_PROTOCOL_HTTP2),
		"Service under *.b":                                 mesh.AnyUnderTopic("*.b"),
		"Gateway or ListenerSet of the Gateway API that selects a=b in namespace shop": mesh.GatewayListenersTopics("shop",
			map[string]string{"a": "b"})[0],
		"hosts of the routes of listener":            mesh.AttachedDomainsTopic("x/y/http"),
		"for a wildcard host at listener x/y/http":   mesh.AttachedRoutesTopic("x/y/http", ""),
		"for host a.b at listener x/y/http":          mesh.AttachedRoutesTopic("x/y/http", "a.b"),
		"route of the Gateway API with the parent a": mesh.ServiceRoutesTopic("a"),
		"GRPCRoute that sends to a":                  mesh.GRPCBackendTopic("a"),
		"UDPRoute that sends to a":                   mesh.UDPBackendTopic("a"),
		"GRPCRoute of port 80 of a Service":          mesh.RoutedPortTopics(80)[0],
		"GRPCRoute of all ports of a Service":        mesh.RoutedPortTopics(80)[1],
		"BackendTLSPolicy for a":                     mesh.BackendTLSTopic("a"),
		"derived answer":                             {Subject: mesh.SubjectDerived, A: "x"},
	} {
		if got := topic.String(); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
