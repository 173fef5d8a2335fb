package sidecarscope_test

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

func TestForRouteConfig(t *testing.T) {
	sidecar := &networking.Sidecar{Egress: []*networking.IstioEgressListener{
		{Hosts: []string{"far/*"}, Port: &networking.SidecarPort{Number: 8080, Protocol: "HTTP", Name: "http"}},
		{Hosts: []string{"./*"}},
	}}
	state := meshtest.State(t,
		meshtest.Service("default", "near.default.svc.cluster.local", 80), meshtest.Service("far", "far.far.svc.cluster.local", 8080),
		meshtest.Config(mesh.KindSidecar, "default", "default", sidecar))
	limited := (&class.Key{Type: class.Sidecar, Interception: class.Redirect, Namespace: "default",
		DNSDomain: "default.svc.cluster.local"}).WithSidecar(state, nil)
	free := *limited
	free.Sidecar = ""
	for name, tc := range map[string]struct {
		key       *class.Key
		route     string
		ok        bool
		port      uint32
		implicit  bool
		near, far bool
	}{
		"no Sidecar":           {&free, "8080", true, 8080, true, true, true},
		"a port of a Sidecar":  {limited, "8080", true, 8080, false, false, true},
		"all other ports":      {limited, "80", true, 80, true, true, false},
		"no forward proxy":     {limited, "http_proxy", false, 0, false, false, false},
		"nothing of the kind":  {&free, "www", false, 0, false, false, false},
		"no port of a Sidecar": {limited, "127.0.0.1_8080", false, 0, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := input.NewView(tc.key, state).Reader()
			l, ok := sidecarscope.ForRouteConfig(r, tc.route)
			if ok != tc.ok || l.Port != tc.port || l.Implicit != tc.implicit {
				t.Fatalf("listener %+v, %v", l, ok)
			}
			if !ok {
				return
			}
			for host, want := range map[string]bool{"near.default.svc.cluster.local": tc.near, "far.far.svc.cluster.local": tc.far} {
				listed := false
				for _, svc := range l.Services(r) {
					listed = listed || svc.GetHostname() == host
				}
				if found := l.Service(r, host) != nil; found != want || listed != want {
					t.Errorf("%s is found: %v, listed: %v, want %v", host, found, listed, want)
				}
			}
			for namespace, want := range map[string]bool{"default": tc.near, "far": tc.far} {
				if l.Admits(r, namespace, "www.example.com") != want {
					t.Errorf("a VirtualService of %s is admitted: %v", namespace, !want)
				}
			}
		})
	}
}
