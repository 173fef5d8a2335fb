package gateway_test

import (
	"fmt"
	"slices"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
)

const (
	asHTTP = configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP
	asTCP  = configv1.ListenerProtocol_LISTENER_PROTOCOL_TCP
	asUDP  = configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP
)

func listener(name string, port uint32, protocol configv1.ListenerProtocol, hostname string) *configv1.GatewayListener {
	return &configv1.GatewayListener{Name: name, Port: port, Protocol: protocol, Hostname: hostname}
}

// Of several Gateways with the same port the oldest decides what it accepts, and of the same hostname the oldest has
// it. TCP and UDP do not meet. Ports of the gateway's Service become target ports.
func TestListenersOfSeveralGateways(t *testing.T) {
	labels := map[string]string{"app": "edge"}
	owned := func(name string, age int32, listeners ...*configv1.GatewayListener) *configv1.Resource {
		return meshtest.GatewayAPI(mesh.KindGatewayListeners, "edge", name, &configv1.GatewayListeners{
			Gateway: "edge/" + name, Listeners: listeners,
			Selections: []*configv1.WorkloadSelection{{Namespace: "edge", Labels: labels}, {Namespace: "edge", Labels: labels}},
		}, func(c *configv1.GatewayAPIConfig) { c.CreationTime.Nanos = age })
	}
	state := meshtest.State(t,
		owned("younger", 2, listener("a", 80, asHTTP, ""), listener("b", 80, asHTTP, "b.com"), listener("c", 53, asTCP, ""),
			listener("d", 90, asTCP, "")),
		owned("older", 1, listener("a", 80, asHTTP, ""), listener("c", 53, asUDP, ""), listener("d", 90, asHTTP, "")))
	r := input.NewView(&class.Key{Type: class.Router, Namespace: "edge", Labels: labels, Interception: class.None, Addresses: []string{"10.0.0.1"},
		Targets: []class.Target{{Port: 53, TargetPort: 5353, Protocol: int32(configv1.Protocol_PROTOCOL_UDP)}, {Port: 80, TargetPort: 8080}}},
		state).Reader()
	var got []string
	for _, port := range gateway.Ports(r) {
		for _, l := range port.Listeners {
			got = append(got, fmt.Sprint(port.Name(), " ", l.Reference()))
		}
	}
	want := []string{
		"10.0.0.1_53 edge/younger/c", "10.0.0.1_90 edge/older/d", "udp|10.0.0.1_5353 edge/older/c", "10.0.0.1_8080 edge/older/a",
		"10.0.0.1_8080 edge/younger/b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A domain is served by the listener with the most specific hostname that covers it.
func TestListenerForADomain(t *testing.T) {
	var port gateway.Port
	for _, hostname := range []string{"*.example.com", "a.example.com", "*.b.example.com"} {
		port.Listeners = append(port.Listeners, gateway.Listener{Owner: &mesh.GatewayListeners{Spec: &configv1.GatewayListeners{}},
			Spec: listener(hostname, 80, asHTTP, hostname)})
	}
	for domain, want := range map[string]string{
		"a.example.com": "a.example.com", "c.example.com": "*.example.com", "x.a.example.com": "*.example.com",
		"x.b.example.com": "*.b.example.com", "b.example.com": "*.example.com", "*.b.example.com": "*.b.example.com",
		"*.x.b.example.com": "*.b.example.com", "*.a.example.com": "*.example.com", "example.com": "", "*.com": "", "*": "",
	} {
		l, ok := port.ListenerFor(domain)
		if l.Spec.GetName() != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", domain, l.Spec.GetName(), want)
		}
	}
}
