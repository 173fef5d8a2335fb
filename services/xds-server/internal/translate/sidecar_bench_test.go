package translate_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

const (
	servicesPerTeam = 20
	teamsWithProxy  = 100
)

func teamHost(team, i int) string { return fmt.Sprintf("svc%02d.team%03d.svc.cluster.local", i, team) }

func teamService(team int, host string, n int) *configv1.Resource {
	return meshtest.Service(fmt.Sprintf("team%03d", team), host, 80, func(s *configv1.Service) {
		s.Addresses = []string{fmt.Sprintf("10.%d.%d.%d", 96+n>>16, n>>8&255, n&255)}
	})
}

// teams has services, twenty to a namespace, with a VirtualService and a DestinationRule for every fifth. A Sidecar in
// every namespace admits its own services and those of namespace team000.
func teams(services int) []*configv1.Resource {
	var out []*configv1.Resource
	for n := range services {
		team, i := n/servicesPerTeam, n%servicesPerTeam
		ns, host := fmt.Sprintf("team%03d", team), teamHost(team, i)
		out = append(out, teamService(team, host, n), meshtest.Endpoints(ns, host, 80, fmt.Sprintf("10.1.%d.%d", n>>8&255, n&255)))
		if i%5 == 0 {
			out = append(out, teamRoute(team, i, 0),
				meshtest.Config(mesh.KindDestinationRule, ns, fmt.Sprint("dr", i), meshtest.DestinationRule(host, time.Second)))
		}
		if i == 0 {
			out = append(out, meshtest.Config(mesh.KindSidecar, ns, "default",
				&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"./*", "team000/*"}}}}))
		}
	}
	return out
}

func teamRoute(team, i, to int) *configv1.Resource {
	return meshtest.Config(mesh.KindVirtualService, fmt.Sprintf("team%03d", team), fmt.Sprint("vs", i), &networking.VirtualService{
		Hosts: []string{teamHost(team, i)},
		Http: []*networking.HTTPRoute{
			{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: teamHost(team, to)}}}}},
	})
}

// newTeams has a class in each of the first hundred namespaces after team000.
func newTeams(b *testing.B, services int) *benchEngine {
	b.Helper()
	c := newEngine(b)
	c.edit(teams(services)...)
	for team := 1; team <= min(teamsWithProxy, services/servicesPerTeam-1); team++ {
		ns := fmt.Sprintf("team%03d", team)
		c.plan(b, (&class.Key{
			Type: class.Sidecar, Namespace: ns, Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: ns + ".svc.cluster.local",
			VirtualHosts: true,
			Targets: []class.Target{{
				Hostname: teamHost(team, 0), Namespace: ns, Port: 80, TargetPort: 80, Protocol: int32(configv1.Protocol_PROTOCOL_HTTP),
			}},
		}).WithSidecar(c.state, nil))
	}
	return c
}

var teamSizes = []int{3000, 10000}

// BenchmarkSidecarsColdStart plans classes in namespaces whose Sidecars admit 40 services, in meshes of different
// sizes.
func BenchmarkSidecarsColdStart(b *testing.B) {
	for _, services := range teamSizes {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			for b.Loop() {
				runtime.GC()
				before := heapBytes()
				c := newTeams(b, services)
				b.ReportMetric(float64(heapBytes()-before)/1e6, "MB")
				runtime.KeepAlive(c)
			}
		})
	}
}

// BenchmarkSidecarsChange brings these classes to a revision with one change.
func BenchmarkSidecarsChange(b *testing.B) {
	for _, services := range teamSizes {
		c := newTeams(b, services)
		changes := map[string]func(i int) *configv1.Resource{
			"endpoints": func(i int) *configv1.Resource {
				return meshtest.Endpoints("team007", teamHost(7, 1), 80, fmt.Sprintf("10.3.%d.%d", i>>8&255, i&255))
			},
			"shared endpoints": func(i int) *configv1.Resource {
				return meshtest.Endpoints("team000", teamHost(0, 1), 80, fmt.Sprintf("10.3.%d.%d", i>>8&255, i&255))
			},
			"virtual service": func(i int) *configv1.Resource { return teamRoute(7, 0, i%2) },
			"service changed": func(i int) *configv1.Resource { return teamService(7, teamHost(7, 1), 1<<18+i) },
			"service added": func(i int) *configv1.Resource {
				return teamService(i%100, fmt.Sprintf("new%d.team%03d.svc.cluster.local", i, i%100), 1<<19+i)
			},
		}
		for name, make := range changes {
			i := 0
			b.Run(fmt.Sprintf("%s/services=%d", name, services), func(b *testing.B) {
				for b.Loop() {
					i++
					c.edit(make(i))
				}
			})
		}
	}
}
