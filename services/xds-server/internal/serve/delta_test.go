package serve_test

import (
	"fmt"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func virtualService(name string, hosts ...string) *configv1.Resource {
	return meshtest.Config(mesh.KindVirtualService, "default", name, &networking.VirtualService{Hosts: hosts})
}

func TestDeltaFirstConfigAndUpdates(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")

	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	c.subscribe(eds, "80|"+hostA, "80|"+hostB)
	c.ack(c.expect(eds, "+80|"+hostA, "+80|"+hostB))
	c.subscribe(lds) // legacy wildcard
	c.ack(c.expect(lds, "+80"))
	c.subscribe(rds, "80")
	c.ack(c.expect(rds, "+80"))
	p := r.acked("pod")
	if got := typeStatus(p, eds); got.GetResources() != 2 || got.GetBytesSent() == 0 || got.GetAcked().GetSequence() != 1 {
		t.Errorf("status of EDS: %v", got)
	}

	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	c.ack(c.expect(eds, "+80|"+hostA))
	r.acked("pod")

	r.edit(virtualService("v", hostA))
	c.ack(c.expect(rds, "+80"))
	r.acked("pod")
}

func TestDeltaUnrelatedChangeSendsNothing(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	before := r.acked("pod")
	for i := range 3 {
		r.edit(meshtest.Workload("other", "w", fmt.Sprintf("10.2.0.%d", i)), meshtest.Service("other", "o.other", 81, meshtest.Visible("other")))
		p := r.status("pod")
		if p.GetAcked().GetSequence() != r.Sequence {
			t.Fatalf("revision %d changes nothing for the proxy and must count as acknowledged at once, got %d", r.Sequence,
				p.GetAcked().GetSequence())
		}
		for _, ty := range p.GetTypes() {
			if got, want := ty.GetBytesSent(), typeStatus(before, ty.GetTypeUrl()).GetBytesSent(); got != want {
				t.Errorf("%s: %d bytes sent, before the change %d", short(ty.GetTypeUrl()), got, want)
			}
		}
	}
}

func TestDeltaUpdatedClusterIsFollowedByItsEndpoints(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.edit(timeoutRule("r", hostA, 7), meshtest.Service("default", hostC, 80), virtualService("v", hostA),
		meshtest.PeerAuthentication("default", "p", "STRICT"))
	clusters := c.expect(cds, "+80|"+hostA, "+80|"+hostC)
	endpoints := c.expect(eds, "+80|"+hostA)
	// Envoy sends the ACK of clusters after it has their endpoints. Listeners and routes wait for that ACK, because
	// they may refer to the new cluster.
	c.ack(endpoints)
	if p := r.status("pod"); !typeStatus(p, cds).GetAwaiting() || typeStatus(p, lds).GetAwaiting() || typeStatus(p, rds).GetAwaiting() {
		t.Errorf("listeners or routes went out before the clusters were warm: %v", p)
	}
	c.ack(clusters)
	c.ack(c.expect(lds, "+80"))
	c.ack(c.expect(rds, "+80"))
	r.acked("pod")
}

func TestDeltaUpdatedClusterDelaysNothing(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.edit(timeoutRule("r", hostA, 7), virtualService("v", hostA))
	clusters := c.expect(cds, "+80|"+hostA)
	endpoints := c.expect(eds, "+80|"+hostA)
	c.ack(c.expect(rds, "+80"))
	c.ack(endpoints)
	c.ack(clusters)
	r.acked("pod")
}

func TestDeltaOrderTimeout(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	timers := r.clock.Waiters()
	r.edit(timeoutRule("r", hostA, 7), meshtest.Service("default", hostC, 80), virtualService("v", hostA))
	c.expect(cds, "+80|"+hostA, "+80|"+hostC)
	c.ack(c.expect(eds, "+80|"+hostA))
	r.clock.WaitFor(t, timers+1)
	r.clock.Advance(5 * time.Second)
	c.ack(c.expect(rds, "+80")) // although the clusters were never acknowledged
}

func TestDeltaClusterIsRemovedLast(t *testing.T) {
	mesh := basicMesh()
	r := start(t, append(mesh, virtualService("v", hostA))...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.change([]*configv1.Resource{virtualService("v", hostB)}, mesh[:2])
	routes := c.expect(rds, "+80")
	if p := r.status("pod"); typeStatus(p, cds).GetAwaiting() {
		t.Error("the cluster was removed while routes may still refer to it")
	}
	c.ack(routes)
	clusters := c.expect(cds, "-80|"+hostA)
	c.ack(clusters)
	// A client that stays subscribed is told in the end that the endpoints are gone.
	c.ack(c.expect(eds, "-80|"+hostA))
	r.acked("pod")
}

func TestDeltaAbsentResources(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(eds, "80|"+hostA, "80|nowhere")
	c.ack(c.expect(eds, "+80|"+hostA, "-80|nowhere"))
	if got := typeStatus(r.acked("pod"), eds).GetResources(); got != 1 {
		t.Errorf("%d resources held, want 1", got)
	}
	r.edit(meshtest.Service("default", "nowhere", 80))
	c.ack(c.expect(eds, "+80|nowhere"))
	r.acked("pod")
}

func TestDeltaEmptyWildcardIsAnswered(t *testing.T) {
	r := start(t, meshtest.Workload("default", "w", "10.0.0.1"))
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.ack(c.expect(cds))
	c.subscribe(eds)
	c.subscribe(rds)
	c.subscribe(lds)
	c.ack(c.expect(lds)) // an empty list of endpoints or routes means none, not all
	r.acked("pod")
}

func TestDeltaSubscribeAgainSendsAgain(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(eds, "80|"+hostA)
	c.ack(c.expect(eds, "+80|"+hostA))
	c.subscribe(eds, "80|"+hostA)
	c.ack(c.expect(eds, "+80|"+hostA))
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesUnsubscribe: []string{"80|" + hostA}})
	r.until("pod", "unsubscribed", func(p *configv1.ProxyStatus) bool { return typeStatus(p, eds).GetResources() == 0 })
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	c.subscribe(eds, "80|"+hostB)
	c.ack(c.expect(eds, "+80|"+hostB)) // nothing came for the name that was unsubscribed
}

func TestDeltaWildcardAndNames(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(cds, "*", "80|"+hostA)
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	// If only the name is unsubscribed while the wildcard stays, the resource is sent again.
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesUnsubscribe: []string{"80|" + hostA}})
	c.ack(c.expect(cds, "+80|"+hostA))
	// Without the wildcard too, nothing is left.
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesUnsubscribe: []string{"*"}})
	r.until("pod", "unsubscribed", func(p *configv1.ProxyStatus) bool { return typeStatus(p, cds).GetResources() == 0 })
	r.edit(timeoutRule("r", hostA, 7))
	if p := r.acked("pod"); typeStatus(p, cds).GetAwaiting() {
		t.Error("an update was sent to a client that subscribes to nothing")
	}
}

func TestDeltaReconnect(t *testing.T) {
	mesh := basicMesh()
	first := start(t, mesh...)
	clusters, endpoints, listeners, routes := first.delta("pod", "default").connectAll()
	reconnect := func(r *fixture) *deltaClient {
		c := r.delta("again", "default")
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, InitialResourceVersions: versions(clusters)})
		c.send(&discovery.DeltaDiscoveryRequest{
			TypeUrl: eds, ResourceNamesSubscribe: []string{"80|" + hostA, "80|" + hostB}, InitialResourceVersions: versions(endpoints),
		})
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: lds, InitialResourceVersions: versions(listeners)})
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: []string{"80"}, InitialResourceVersions: versions(routes)})
		return c
	}
	for name, r := range map[string]*fixture{"same replica": first, "another replica": start(t, mesh...)} {
		t.Run(name+", nothing changed", func(t *testing.T) {
			c := reconnect(r)
			defer c.cancel()
			testkit.Eventually(t, patience, func() error {
				if p := r.status("again"); len(p.GetTypes()) != 4 {
					return fmt.Errorf("status %v", p)
				}
				return nil
			})
			p := r.acked("again")
			for _, ty := range p.GetTypes() {
				if ty.GetBytesSent() != 0 || ty.GetSent() != nil {
					t.Errorf("%s: %d bytes sent", short(ty.GetTypeUrl()), ty.GetBytesSent())
				}
				if ty.GetAcked().GetSequence() == 0 {
					t.Errorf("%s: holds all it should, and no revision counts as acknowledged", short(ty.GetTypeUrl()))
				}
			}
			select {
			case m := <-c.got:
				t.Errorf("got %v", m)
			default:
			}
		})
	}
	t.Run("another replica, something changed", func(t *testing.T) {
		r := start(t, append(mesh[:2:2], meshtest.Service("default", "c", 80), timeoutRule("r", hostA, 3))...)
		c := reconnect(r)
		clusters := c.expect(cds, "+80|"+hostA, "+80|c", "-80|"+hostB)
		c.ack(clusters)
		c.ack(c.expect(eds, "+80|"+hostA, "-80|"+hostB)) // A's because its cluster warms
	})
}

func TestInvalidNodeIsRefused(t *testing.T) {
	r := start(t, basicMesh()...)
	for name, change := range map[string]func(*discovery.DeltaDiscoveryRequest){
		"no node":      func(m *discovery.DeltaDiscoveryRequest) { m.Node = nil },
		"no id":        func(m *discovery.DeltaDiscoveryRequest) { m.Node.Id = "" },
		"garbage":      func(m *discovery.DeltaDiscoveryRequest) { m.Node.Id = "x" },
		"unknown type": func(m *discovery.DeltaDiscoveryRequest) { m.Node.Id = "waypoint~10.0.0.1~a.b~b.svc" },
		"no namespace": func(m *discovery.DeltaDiscoveryRequest) { m.Node.Id = "sidecar~10.0.0.1~a~b.svc" },
		"no type url":  func(m *discovery.DeltaDiscoveryRequest) { m.TypeUrl = "" },
		"name too long": func(m *discovery.DeltaDiscoveryRequest) {
			m.ResourceNamesSubscribe = []string{string(make([]byte, 5000))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.delta("pod", "default")
			m := &discovery.DeltaDiscoveryRequest{TypeUrl: eds, Node: node("pod", "default"), ResourceNamesSubscribe: []string{"x"}}
			change(m)
			if err := c.stream.Send(m); err != nil {
				t.Fatal(err)
			}
			c.endsWith(codes.InvalidArgument)
		})
	}
	t.Run("too many names", func(t *testing.T) {
		c := r.delta("pod", "default")
		for i := 0; ; i++ {
			m := &discovery.DeltaDiscoveryRequest{TypeUrl: eds, Node: node("pod", "default")}
			for j := range 1000 {
				m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, fmt.Sprintf("80|%d-%d", i, j))
			}
			if err := c.stream.Send(m); err != nil {
				break
			}
		}
		c.endsWith(codes.ResourceExhausted)
	})
}

func TestNoConfigurationYet(t *testing.T) {
	r := start(t)
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.endsWith(codes.Unavailable)
}

func TestStreamsEndAtTheirMaximumAgeAndOnDrain(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	r.clock.WaitFor(t, 2) // connection age and watchdog
	r.clock.Advance(30 * time.Minute)
	c.askedToReconnect("maximum connection age reached")
	c = r.delta("pod", "default")
	c.connectAll()
	r.ADS.Drain()
	c.askedToReconnect("shutting down")
	testkit.Eventually(t, patience, func() error {
		if got := r.ADS.Statuses(); len(got) != 0 {
			return fmt.Errorf("still connected: %v", got)
		}
		return nil
	})
}
