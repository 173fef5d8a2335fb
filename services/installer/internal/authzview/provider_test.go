package authzview_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzview"
)

// TestServicesOfProviders: asking at a port that a service lacks fails.
func TestServicesOfProviders(t *testing.T) {
	const settings = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n" +
		"    extensionProviders:\n" +
		"    - {name: away, envoyExtAuthzHttp: {service: away.shop.svc.cluster.local, port: 80}}\n" +
		"    - {name: there, envoyExtAuthzHttp: {service: two.shop.svc.cluster.local, port: 80}}\n" +
		"    - {name: no-port, envoyExtAuthzHttp: {service: shop/two.shop.svc.cluster.local, port: 81}}\n" +
		"    - {name: open, envoyExtAuthzGrpc: {service: ask.example.com, port: 81, failOpen: true}}\n" +
		"    - {name: entry, envoyExtAuthzGrpc: {service: ask.example.com, port: 9000}}\n"
	const entry = "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: ask, namespace: shop}\n" +
		"spec: {hosts: [ask.example.com], ports: [{number: 9000, name: grpc, protocol: GRPC}], resolution: DNS}\n"
	for name, c := range map[string]struct {
		answers map[string]authz.Answer
		want    []string
	}{
		"away":    {nil, []string{"asks", `service "away.shop.svc.cluster.local"`, "is in none of the files"}},
		"there":   {nil, []string{"asks"}},
		"no-port": {map[string]authz.Answer{"no-port": authz.Allows}, []string{"denied", "has no port 81", "what its rules match is denied"}},
		"open":    {nil, []string{"allowed", "failOpen allows what its rules match"}},
		"entry":   {nil, []string{"asks"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := load(t, labelled+twoPorts+settings+entry+policy("p", "action: CUSTOM, provider: {name: "+name+"}, rules: [{}]"))
			mustAnswer(t, check(t, m, "outside", "pod/server", authzview.Request{Answers: c.answers}), c.want...)
		})
	}
}

func TestAnswersOfUnknownProviders(t *testing.T) {
	m := load(t, shop)
	caller, _ := m.Caller("outside", "")
	target, err := m.Target("web", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Check(caller, target, authzview.Request{Answers: map[string]authz.Answer{"oppa": authz.Allows}})
	if err == nil || !strings.Contains(err.Error(), `no AuthorizationPolicy has provider "oppa"; did you mean "opa"?`) {
		t.Error(err)
	}
}
