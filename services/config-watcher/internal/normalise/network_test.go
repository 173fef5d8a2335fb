package normalise

import (
	"fmt"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// resolve tells the addresses of a host name; none forgets it.
func (s *state) resolve(name string, addresses ...string) {
	s.t.Helper()
	c := Change{Key: GatewayNameKey(name)}
	if len(addresses) > 0 {
		c.Object = &object.Object{Key: c.Key, Body: &object.GatewayName{Name: name, Addresses: addresses}}
	}
	s.change(c)
}

// gateways are those of a service in all clusters: "network/cluster addresses:port".
func (s *state) gateways(host string) string {
	svc := s.service("apps", host)
	var out []string
	if svc.GetNetworkGateway() != nil {
		out = append(out, gatewayText(svc.NetworkGateway))
	}
	for _, g := range svc.GetMoreNetworkGateways() {
		out = append(out, gatewayText(g))
	}
	return strings.Join(out, "; ")
}

func gatewayText(g *configv1.NetworkGateway) string {
	return fmt.Sprintf("%s/%s %s:%d", g.Network, g.Cluster, strings.Join(g.Addresses, ","), g.Port)
}

// TestNetworkGateways: a Service with a network label is the network's gateway at its external addresses, those of
// its host names included.
func TestNetworkGateways(t *testing.T) {
	for name, c := range map[string]struct{ labels, more, want string }{
		"load balancer": {"topology.istio.io/network: n2",
			"status: {loadBalancer: {ingress: [{ip: 192.0.2.9}, {ip: 192.0.2.1}, {hostname: lb.example.com}]}}", "n2 [192.0.2.1 192.0.2.9] 15443"},
		"external IPs": {"topology.istio.io/network: n2, networking.istio.io/gatewayPort: '443'",
			"spec: {externalIPs: [192.0.2.1], ports: [{port: 15443}]}", "n2 [192.0.2.1] 443"},
		"nowhere yet":  {"topology.istio.io/network: n2", "spec: {ports: [{port: 15443}]}", " [] 0"},
		"a name alone": {"topology.istio.io/network: n2", "status: {loadBalancer: {ingress: [{hostname: lb.example.com}]}}", " [] 0"},
		"a name that is known": {"topology.istio.io/network: n2",
			"status: {loadBalancer: {ingress: [{hostname: GW.example.com.}, {ip: 192.0.2.1, hostname: other.example.com}]}}",
			"n2 [192.0.2.1 192.0.2.7 192.0.2.8] 15443"},
		"of no network": {"a: b", "spec: {externalIPs: [192.0.2.1], ports: [{port: 15443}]}", " [] 0"},
		"port of no use": {"topology.istio.io/network: n2, networking.istio.io/gatewayPort: '70000'",
			"spec: {externalIPs: [192.0.2.1], ports: [{port: 15443}]}", "n2 [192.0.2.1] 15443"},
	} {
		t.Run(name, func(t *testing.T) {
			yaml := "---\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps, labels: {" + c.labels + "}}\n" + c.more + "\n"
			if !strings.Contains(c.more, "spec:") {
				yaml += "spec: {ports: [{port: 15443}]}\n"
			}
			s := newState(t, yaml)
			s.resolve("gw.example.com", "192.0.2.8", "192.0.2.7")
			s.resolve("other.example.com", "192.0.2.9")
			g := s.service("apps", fqdnA).GetNetworkGateway()
			if got := fmt.Sprint(g.GetNetwork(), " ", g.GetAddresses(), " ", g.GetPort()); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestAddressesOfAGatewayFollowItsNames: a name that comes, changes and goes.
func TestAddressesOfAGatewayFollowItsNames(t *testing.T) {
	s := newState(t, "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps, labels: {topology.istio.io/network: n2}}\n"+
		"spec: {ports: [{port: 15443}]}\nstatus: {loadBalancer: {ingress: [{hostname: gw.example.com}]}}\n")
	for _, step := range []struct {
		addresses []string
		want      string
	}{
		{nil, ""}, {[]string{"192.0.2.1"}, "n2/Kubernetes 192.0.2.1:15443"},
		{[]string{"192.0.2.2", "192.0.2.3"}, "n2/Kubernetes 192.0.2.2,192.0.2.3:15443"}, {nil, ""},
	} {
		s.resolve("gw.example.com", step.addresses...)
		if got := s.gateways(aHost); got != step.want {
			t.Errorf("with %v gateways %q, want %q", step.addresses, got, step.want)
		}
	}
}

// meshNetworks is a mesh configuration with networks.
func meshNetworks(text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: '', meshNetworks: '" + text + "'}\n"
}

// TestMeshNetworks: networks of clusters, of ranges of addresses, and gateways by Service, address and name.
func TestMeshNetworks(t *testing.T) {
	unlabelled := func(text string) string {
		return strings.Replace(text, "labels: {topology.istio.io/network: x}", "labels: {}", 1)
	}
	s := newState(t, unlabelled(clusterOf("10.1.0.1", "10.0.0.1", "x", "here")))
	s.applyIn("east", unlabelled(clusterOf("10.2.0.1", "10.9.0.1", "x", "there")))
	network := func() string { return s.workload("apps", "a-1").GetNetwork() }
	if network() != "" {
		t.Errorf("network %q without networks", network())
	}
	s.apply(meshNetworks("networks: {n1: {endpoints: [{fromRegistry: Kubernetes}]}, n2: {endpoints: [{fromRegistry: east}], gateways: " +
		"[{registryServiceName: a.apps.svc.cluster.local, port: 443}, {address: gw.example.com, port: 15443}, " +
		"{address: 192.0.2.5, port: 15443}]}}"))
	if network() != "n1" {
		t.Errorf("network %q of the own cluster", network())
	}
	networks := map[string]string{}
	for k, r := range s.held {
		for _, e := range r.GetEndpointSet().GetEndpoints() {
			networks[k.Name+" "+e.GetAddress()] = e.GetNetwork()
		}
	}
	if networks[aHost+":80/east 10.9.0.1"] != "n2" || networks[aHost+":80/Kubernetes 10.0.0.1"] != "n1" {
		t.Errorf("networks of endpoints %v", networks)
	}
	stated := func() string {
		var out []string
		for _, g := range s.held[resource.Key{Kind: resource.KindMeshConfig, Name: "default"}].GetMeshConfig().GetNetworkGateways() {
			out = append(out, gatewayText(g))
		}
		return strings.Join(out, "; ")
	}
	if got := stated(); got != "n2/ 192.0.2.5:15443" {
		t.Errorf("stated gateways %q", got)
	}
	s.resolve("gw.example.com", "192.0.2.6")
	if got := stated(); got != "n2/ 192.0.2.5,192.0.2.6:15443" {
		t.Errorf("stated gateways %q with a name", got)
	}
	// The Service is in both clusters: only that of the network's cluster is its gateway.
	const exposed = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps}\n" +
		"spec: {clusterIP: 10.3.0.1, selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}], externalIPs: [%s]}\n"
	s.apply(fmt.Sprintf(exposed, "192.0.2.1"))
	s.applyIn("east", fmt.Sprintf(exposed, "192.0.2.2"))
	if got := s.gateways(aHost); got != "n2/east 192.0.2.2:443" {
		t.Errorf("gateways %q", got)
	}
	s.apply(meshNetworks("networks: {n3: {endpoints: [{fromCidr: 10.0.0.0/24}]}, n4: {endpoints: [{fromCidr: 10.0.0.0/8}]}}"))
	if got := s.gateways(aHost); got != "" || network() != "n4" || stated() != "" {
		t.Errorf("gateways %q, network %q, stated %q by ranges alone", got, network(), stated())
	}
	s.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system, labels: {topology.istio.io/network: own}}\n")
	if network() != "own" {
		t.Errorf("network %q although a label names one", network())
	}
}
