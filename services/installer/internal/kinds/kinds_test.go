package kinds

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/objectfile"
)

func TestNamesOfKinds(t *testing.T) {
	for text, want := range map[string]string{
		"vs": "VirtualService", "VirtualServices": "VirtualService", "virtualservice.networking.istio.io": "VirtualService",
		"proxyconfigs": "ProxyConfig", "authorizationpolicies": "AuthorizationPolicy", "endpoints": "Endpoints", "ingressclasses": "IngressClass",
		"gateway": "Gateway", "gateways.networking.istio.io": "Gateway", "gateway.gateway.networking.k8s.io": APIGateway,
		"Gateways.gateway.networking.k8s.io": APIGateway, "gtw": APIGateway, "httproutes": "HTTPRoute", "backendtlspolicies": "BackendTLSPolicy",
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for text, hint := range map[string]string{"virtualservce": "did you mean VirtualService?", "banana": "; kinds are VirtualService, "} {
		if _, err := Parse(text); process.ExitCode(err) != process.ExitUsage || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if all := Spellings(); !slices.Contains(all, "vs") || !slices.Contains(all, "telemetry") {
		t.Errorf("spellings: %q", all)
	}
}

func TestNamesOfObjects(t *testing.T) {
	for words, want := range map[string]string{
		"": "/", "vs": "VirtualService/", "vs/web": "VirtualService/web", "vs web": "VirtualService/web", "vs/web web": "", "vs/": "",
	} {
		kind, name, err := ParseObject(strings.Fields(words))
		if (err != nil) != (want == "") || err == nil && kind+"/"+name != want {
			t.Errorf("%q: %s/%s, %v", words, kind, name, err)
		}
	}
	for want, key := range map[string][3]string{
		"VirtualService default/web": {"VirtualService", "", "web"}, "Service shop/web": {"Service", "shop", "web"},
		"Node n1": {"Node", "", "n1"},
	} {
		if got := Text(Key(key[0], key[1], key[2])); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAMisspeltKindOfIstioIsRefused(t *testing.T) {
	for kind, want := range map[string]string{
		"AuthorizationPolicy": "", "AuthorizationPolicies": "write AuthorizationPolicy", "authorizationpolicy": "write AuthorizationPolicy",
		"AuthorisationPolicy": "did you mean AuthorizationPolicy?",
	} {
		list, err := objectfile.Parse("a.yaml", []byte("apiVersion: security.istio.io/v1\nkind: "+kind+"\nmetadata: {name: x}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(list[0]); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestKeysOfGateways(t *testing.T) {
	for kind, want := range map[string]string{
		"Gateway": "Gateway default/a ", APIGateway: APIGateway + " default/a gateway.networking.k8s.io/v1",
	} {
		key := Key(kind, "", "a")
		if got := Text(key) + " " + key.GetApiVersion(); got != want || key.GetKind() != "Gateway" || NameOf(key) != kind {
			t.Errorf("%s is %s of kind %s", kind, got, key.GetKind())
		}
	}
}
