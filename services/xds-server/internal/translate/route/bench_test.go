package route_test

import (
	"fmt"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

// largeMesh has services with addresses in ten namespaces, every tenth with a VirtualService.
func largeMesh(b *testing.B, services int) *mesh.Snapshot {
	var out []*configv1.Resource
	for i := range services {
		namespace := fmt.Sprintf("ns-%d", i%10)
		host := fmt.Sprintf("svc-%d.%s.svc.cluster.local", i, namespace)
		out = append(out, meshtest.Service(namespace, host, 80, func(s *configv1.Service) {
			s.Addresses = []string{fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)}
		}))
		if i%10 == 0 {
			out = append(out, meshtest.Config(mesh.KindVirtualService, namespace, fmt.Sprintf("vs-%d", i), &networking.VirtualService{
				Hosts: []string{host}, Gateways: []string{"mesh"},
				Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}}}},
			}, meshtest.Aged(time.Duration(i))))
		}
	}
	return meshtest.State(b, out...)
}

// The time to build a virtual host must not depend on the number of services.
func BenchmarkVirtualHost(b *testing.B) {
	for _, services := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			key := &class.Key{Type: class.Sidecar, Interception: class.Redirect, Namespace: "ns-0", DNSDomain: "ns-0.svc.cluster.local",
				VirtualHosts: true}
			view := input.NewView(key, largeMesh(b, services))
			for b.Loop() {
				if m, err := (route.VirtualHosts{}).Build(view.Reader(), "80/svc-10.ns-0.svc.cluster.local:80"); m == nil || err != nil {
					b.Fatal(m, err)
				}
			}
		})
	}
}

func BenchmarkRouteConfig(b *testing.B) {
	key := &class.Key{Type: class.Sidecar, Interception: class.Redirect, Namespace: "ns-0", DNSDomain: "ns-0.svc.cluster.local"}
	view := input.NewView(key, largeMesh(b, 1000))
	for b.Loop() {
		if m, err := (route.Translator{}).Build(view.Reader(), "80"); m == nil || err != nil {
			b.Fatal(m, err)
		}
	}
}
