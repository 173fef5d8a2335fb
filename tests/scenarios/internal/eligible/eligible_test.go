package eligible

import (
	"strings"
	"testing"

	"fairlead.dev/tests/scenarios/internal/format"
)

// TestNeedsMachines: what a scenario contains decides whether its workloads can be Pods, and the reason names it.
func TestNeedsMachines(t *testing.T) {
	later, two := false, 2
	plain := func() *format.Scenario {
		return &format.Scenario{
			Topology: &format.Topology{
				Mesh: "trustDomain: cluster.local", DNS: map[string][]string{"www.example.com": {"server"}},
				Workloads: []format.Workload{{Name: "server", Kind: format.Sidecar, Capture: format.Redirect, Locality: "r/z/s"}},
			},
			Steps: []format.Step{
				{Apply: "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: a, namespace: b}}"},
				{Delete: []string{"VirtualService/b/a"}},
				{Config: &format.Config{Of: "server", Clusters: &format.Holdings{Has: []string{"x"}}}},
				{Call: &format.Call{From: "client", URL: "http://www.example.com/", Via: "server"}},
				{Call: &format.Call{From: format.Outside, URL: "http://www.example.com/"}},
				{Apply: "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: a, namespace: b}, spec: {hosts: " +
					"[www.example.com]}}"},
			},
		}
	}
	step := func(s format.Step) func(*format.Scenario) {
		return func(all *format.Scenario) { all.Steps = append(all.Steps, s) }
	}
	for want, change := range map[string]func(*format.Scenario){
		"":                                 func(*format.Scenario) {},
		"needs ipv6":                       func(s *format.Scenario) { s.Needs = []string{"ipv6"} },
		"trustDomain other":                func(s *format.Scenario) { s.Topology.Mesh = "trustDomain: other" },
		"rootNamespace root":               func(s *format.Scenario) { s.Topology.Mesh = "rootNamespace: root" },
		"speaks xDS itself":                func(s *format.Scenario) { s.Topology.Workloads[0].Kind = format.Proxyless },
		"another capture: TPROXY":          func(s *format.Scenario) { s.Topology.Workloads[0].Capture = format.TProxy },
		"network of its own":               func(s *format.Scenario) { s.Topology.Workloads[0].Network = "n" },
		"server comes later":               func(s *format.Scenario) { s.Topology.Workloads[0].Start = &later },
		"stops server":                     step(format.Step{Stop: "server"}),
		"kills server/proxy":               step(format.Step{Eventually: &format.Eventually{Steps: []format.Step{{Kill: "server/proxy"}}}}),
		"gives proxies files":              step(format.Step{Files: map[string]map[string]*format.FileText{"server": nil}}),
		"counts what a proxy holds":        step(format.Step{Config: &format.Config{Endpoints: &format.Holdings{Max: &two}}}),
		"gives the caller another address": step(format.Step{Background: &format.Background{Call: format.Call{SourceIP: "203.0.113.1"}}}),
		"deletes a Pod":                    step(format.Step{Delete: []string{"Pod/apps/server"}}),
		"writes a Pod":                     step(format.Step{ApplyNoWait: "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}}"}),
		"writes the mesh's settings": step(
			format.Step{Apply: "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}}"}),
		"keys served by an authority":     step(format.Step{Apply: "{kind: RequestAuthentication, spec: {jwksUri: '${jwksHttpsUri:k}'}}"}),
		"unix socket":                     step(format.Step{Apply: "{kind: Sidecar, spec: {defaultEndpoint: unix:///x}}"}),
		"tells nodes apart":               step(format.Step{Apply: "{kind: Service, spec: {internalTrafficPolicy: Local}}"}),
		"look up www.example.com, a name": step(format.Step{Call: &format.Call{From: "client", URL: "http://www.example.com/"}}),
		"look up www.example.com, a":      step(format.Step{Apply: "{kind: ServiceEntry, spec: {hosts: [www.example.com]}}"}),
		"look up the names":               step(format.Step{Apply: "{kind: ServiceEntry, spec: {resolution: DYNAMIC_DNS}}"}),
		"calls Service web, which it has made, from naked": func(s *format.Scenario) {
			web := format.Step{Apply: "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: apps}}"}
			s.Steps = append(s.Steps, web, format.Step{Call: &format.Call{From: "server", URL: "http://web.apps/"}},
				format.Step{Call: &format.Call{From: "naked", URL: "http://web.apps:80/"}})
		},
		"needs IPv6": step(format.Step{Apply: "{kind: Service, spec: {ipFamilies: [IPv6]}}"}),
	} {
		s := plain()
		change(s)
		if got := NeedsMachines(s); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
