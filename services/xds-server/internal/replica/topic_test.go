package replica_test

import (
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/replica"
)

// TestTopicsSayWhatTheyAre gives every subject words of its own.
func TestTopicsSayWhatTheyAre(t *testing.T) {
	for want, topic := range map[string]replica.Topic{
		"Service with host a.b":                             replica.ServiceTopic("a.b"),
		"Services exported to all namespaces":               replica.ServicesInTopics("shop", "")[0],
		"Services of namespace x exported to":               replica.ServicesInTopics("shop", "x")[1],
		"endpoints of a.b port 80":                          replica.EndpointsTopic("a.b", 80),
		"bound to the mesh":                                 replica.VirtualServicesTopics("shop", "mesh")[0],
		"VirtualService for host a.b, bound to gateway x/y": replica.VirtualServicesOfTopics("x/y", "a.b")[0],
		"DestinationRule for host a.b":                      replica.DestinationRulesTopics("a.b")[0],
		"DestinationRule for a wildcard host":               replica.DestinationRulesTopics("a.b")[1],
		"Sidecar in namespace shop":                         replica.SidecarNamedTopic("shop"),
		"PeerAuthentication in namespace shop":              replica.PeerAuthenticationsTopic("shop"),
		"Gateway without a selector":                        replica.GatewaysTopics(map[string]string{"a": "b"})[0],
		"Gateway that selects a=b":                          replica.GatewaysTopics(map[string]string{"a": "b"})[1],
		"Workload shop/web":                                 replica.WorkloadTopic("shop", "web"),
		"Workload with address 10.0.0.1":                    replica.AddressTopic("10.0.0.1"),
		"MeshConfig":                                        replica.MeshTopic(),
		"selectors of workload labels in namespace shop":    replica.SelectedLabelsTopics("shop")[0],
		"Service at 10.0.0.1:80":                            replica.ServicesAtTopic(80, "10.0.0.1"),
		"Service without an address on port 80":             replica.ServicesAtTopic(80, ""),
		"Service that speaks HTTP2 on port 80":              replica.SpeakingTopic(80, configv1.Protocol_PROTOCOL_HTTP2),
		"Service under *.b":                                 replica.AnyUnderTopic("*.b"),
		"derived answer":                                    {Subject: replica.SubjectDerived, A: "x"},
	} {
		if got := topic.String(); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
