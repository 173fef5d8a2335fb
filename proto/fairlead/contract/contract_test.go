package contract_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

func TestGatewayNamesResolveToNamespaceAndName(t *testing.T) {
	for in, want := range map[string]string{
		"mesh": "mesh", "g": "ns/g", "./g": "ns/g", "x/g": "x/g", "g.x": "x/g", "g.x.svc.cluster.local": "x/g", "g.": "ns/g.",
		"a.b.c": "ns/a.b.c",
	} {
		if got := contract.GatewayName(in, "ns"); got != want {
			t.Errorf("GatewayName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestResourceNamesAreThoseOfTheContract(t *testing.T) {
	set := &configv1.EndpointSet{Hostname: "a.b", Port: 80, Cluster: "Kubernetes"}
	if got := contract.EndpointSetName(set); got != "a.b:80/Kubernetes" {
		t.Errorf("got %q", got)
	}
	set.Audience = "apps"
	if got := contract.EndpointSetName(set); got != "a.b:80/Kubernetes/apps" {
		t.Errorf("got %q", got)
	}
	if got := contract.ServiceName(&configv1.Service{Hostname: "a.b", Audience: "apps"}); got != "a.b/apps" {
		t.Errorf("got %q", got)
	}
}

func TestHostnameOfKeys(t *testing.T) {
	const host = "*.example.com"
	for _, visibility := range []string{"", "default"} {
		set := &configv1.EndpointSet{Hostname: host, Port: 80, Cluster: "Kubernetes", Audience: visibility}
		for _, name := range []string{contract.ServiceName(&configv1.Service{Hostname: host, Audience: visibility}),
			contract.EndpointSetName(set)} {
			if got := contract.HostnameOf(name); got != host {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
}
