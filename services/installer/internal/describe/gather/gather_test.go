package gather_test

import (
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/describe/gather"
	"fairlead.dev/services/installer/internal/kinds"
)

// shop starts a config-watcher with a Service and its Pod; b.shop is a connected proxy whose Pod nobody knows.
func shop(t *testing.T) *clitest.Fixture {
	m := clitest.New(t)
	object := func(kind, name, manifest string) *configv1.Object {
		return &configv1.Object{Key: kinds.Key(kind, "shop", name), Source: "file", Manifest: []byte(manifest)}
	}
	m.SetFiles([]*configv1.Object{
		object("Service", "web", `{"metadata":{"name":"web","namespace":"shop"},"spec":{"selector":{"app":"web"},"ports":[`+
			`{"name":"http","port":80,"targetPort":8080}]}}`),
		object("Pod", "a", `{"metadata":{"name":"a","namespace":"shop","labels":{"app":"web"}}}`),
		object("PeerAuthentication", "strict", `{"metadata":{"name":"strict","namespace":"shop"},"spec":{"mtls":{"mode":"STRICT"}}}`),
	}, nil)
	proxies := clitest.TwoProxies()
	for _, p := range proxies {
		p.Namespace = "shop"
	}
	m.SetFleet(proxies, nil)
	return m
}

func TestAServiceHasItsPodsAndPorts(t *testing.T) {
	d, err := gather.Describe(t.Context(), gather.Config{Mesh: shop(t).Mesh(), Kind: "Service", Name: "web.shop"})
	if err != nil || len(d.Services) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	s := d.Services[0]
	if s.Host != "web.shop.svc.cluster.local" || len(s.Pods) != 1 || s.Pods[0].Name != "a" || s.Pods[0].Proxy != "connected" {
		t.Errorf("%+v", s)
	}
	if len(s.Ports) != 1 || s.Ports[0].Protocol != "HTTP" || s.Ports[0].Server != "STRICT" || s.Ports[0].Client != "ISTIO_MUTUAL (automatic)" {
		t.Errorf("%+v", s.Ports)
	}
	if len(d.Unknown) != 1 || !strings.Contains(d.Unknown[0], "add --xds-server-address") {
		t.Errorf("unknown: %q", d.Unknown)
	}
}

func TestAPodHasItsPoliciesAndProxy(t *testing.T) {
	d, err := gather.Describe(t.Context(), gather.Config{Mesh: shop(t).Mesh(), Kind: "Pod", Name: "a", Namespace: "shop"})
	if err != nil || d.Pod == nil || d.Pod.Proxy == nil || d.Pod.Proxy.Types["LDS"] != "ERROR" {
		t.Fatalf("%+v, %v", d, err)
	}
	if len(d.Pod.Policies) != 1 || d.Pod.Policies[0].Name != "strict" || len(d.Services) != 1 {
		t.Errorf("%+v, %+v", d.Pod.Policies, d.Services)
	}
	if d.Findings[0].Code != "ProxyRejected" || d.Findings[0].Level != "error" {
		t.Errorf("findings: %+v", d.Findings)
	}
}

func TestWhatIsNotThereIsNamed(t *testing.T) {
	mesh := shop(t).Mesh()
	for name, tc := range map[string]struct{ kind, name, says string }{
		"a Service of another name":      {"Service", "wbe.shop", `no Service wbe in namespace shop; did you mean "web"?`},
		"a Service of another namespace": {"Service", "web", "no Service web in namespace default; there is one in shop: name it with -n"},
		"a Pod that nobody knows":        {"Pod", "c.shop", "no Pod c in namespace shop"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gather.Describe(t.Context(), gather.Config{Mesh: mesh, Kind: tc.kind, Name: tc.name})
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v", err)
			}
		})
	}
}
