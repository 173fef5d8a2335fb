package serve_test

import (
	"maps"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func changedRouteConfigs() *configv1.Resource { return routeConfigs("x-changed") }

func service(host string, port uint32) *configv1.Resource {
	return meshtest.Service("default", host, port)
}

func TestVirtualHostsFollowTheirRouteConfiguration(t *testing.T) {
	r := startHosts(t, append(basicMesh(), service("c", 81))...)
	c := r.delta("pod", "default")
	c.connectHosts("+"+hostNameA, "+"+hostNameB)
	r.acked("pod")

	// A route configuration that is subscribed to later brings its virtual hosts, without a request for them.
	c.subscribe(rds, "81")
	routes := c.expect(rds, "+81")
	c.ack(c.expect(vhds, "+81/c:81"))
	c.ack(routes)
	r.acked("pod")

	// All changes of a revision to one route configuration come in one response, and nothing else comes.
	r.change([]*configv1.Resource{virtualService("v", hostA), service("d", 80)}, basicMesh()[2:])
	c.ack(c.expect(vhds, "+"+hostNameA, "+80/d:80", "-"+hostNameB))
	r.acked("pod")

	// A changed route configuration does not send its virtual hosts again.
	r.edit(changedRouteConfigs())
	c.ack(c.expect(rds, "+80", "+81"))
	r.acked("pod")
	c.silent("only the route configurations changed")

	// After an unsubscription and a new subscription, all virtual hosts are sent again.
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesUnsubscribe: []string{"81"}})
	c.ack(c.expect(vhds, "-81/c:81")) // or the client would state later that it holds it
	r.until("pod", "unsubscribed", func(p *configv1.ProxyStatus) bool { return typeStatus(p, rds).GetResources() == 1 })
	r.edit(virtualService("w", "c"))
	c.silent("no route configuration contains it")
	c.subscribe(rds, "81")
	c.ack(c.expect(rds, "+81"))
	c.ack(c.expect(vhds, "+81/c:81"))
	r.acked("pod")
}

func TestVirtualHostsRequestedBeforeRoutes(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(vhds)
	c.silent("an empty answer would release nothing")
	c.subscribe(rds, "80", "9000")
	c.ack(c.expect(rds, "+80", "+9000"))
	c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB)) // and nothing for the inline one
	r.acked("pod")
}

func TestRouteConfigurationWithoutVirtualHostsIsAnswered(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(rds, "80", "81", "82")
	c.ack(c.expect(rds, "+80", "+81", "+82"))
	c.subscribe(vhds)
	c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB, "-81/none", "-82/none"))
	r.acked("pod")
	r.edit(service("c", 81))
	c.ack(c.expect(vhds, "+81/c:81"))
	r.acked("pod")
}

func TestSotwHasNoVirtualHosts(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.sotw("pod", "default")
	c.subscribe(rds, "80")
	c.ack(c.expect(rds, "80"))
	if got := r.acked("pod"); len(got.GetTypes()) != 1 {
		t.Errorf("status %v", got)
	}
}

// held returns the versions that a client holds of basicMesh's route configurations and virtual hosts, and of a few
// more.
func held(t *testing.T, resources ...*configv1.Resource) (routes, hosts map[string]string) {
	t.Helper()
	r := startHosts(t, resources...)
	c := r.delta("pod", "default")
	c.subscribe(rds, "80", "81")
	m := c.expect(rds, "+80", "+81")
	c.ack(m)
	c.subscribe(vhds)
	return versions(m), versions(c.next())
}

func TestVirtualHostsOnReconnect(t *testing.T) {
	mesh := append(basicMesh(), service("c", 81))
	routes, hosts := held(t, mesh...)
	with := func(extra map[string]string) map[string]string {
		all := maps.Clone(hosts)
		maps.Copy(all, extra)
		return all
	}
	askRoutes := func(c *deltaClient, names ...string) {
		versions := map[string]string{}
		for _, n := range names {
			versions[n] = routes[n]
		}
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: names, InitialResourceVersions: versions})
	}
	askHosts := func(c *deltaClient, held map[string]string) {
		c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: vhds, InitialResourceVersions: held})
	}
	for _, c := range []struct {
		name string
		edit []*configv1.Resource
		gone []*configv1.Resource
		run  func(c *deltaClient)
		want []string
	}{
		{"nothing changed, routes first", nil, nil, func(c *deltaClient) { askRoutes(c, "80", "81"); askHosts(c, hosts) }, nil},
		{"nothing changed, virtual hosts first", nil, nil, func(c *deltaClient) { askHosts(c, hosts); askRoutes(c, "80", "81") }, nil},
		{
			"one changed, one new, one gone", []*configv1.Resource{virtualService("v", hostA), service("d", 81)}, mesh[2:4],
			func(c *deltaClient) { askRoutes(c, "80", "81"); askHosts(c, hosts) },
			[]string{"+" + hostNameA, "+81/d:81", "-" + hostNameB},
		},
		{
			"hosts that do not exist are removed, those of other route configurations ignored", nil, nil,
			func(c *deltaClient) {
				askHosts(c, with(map[string]string{"80/ghost:80": "x", "9999/other:1": "x", "nonsense": "y"}))
				askRoutes(c, "80", "81")
			},
			[]string{"-80/ghost:80"},
		},
		{
			"hosts of a route configuration that the client does not hold are not held either", nil, nil,
			func(c *deltaClient) {
				askHosts(c, hosts)
				askRoutes(c, "80")
				c.subscribe(rds, "81")
				c.ack(c.expect(rds, "+81"))
			},
			[]string{"+81/c:81"},
		},
		{
			"a route configuration held without any host is answered", nil, nil,
			func(c *deltaClient) {
				askRoutes(c, "80", "81")
				askHosts(c, map[string]string{"81/c:81": hosts["81/c:81"]})
			},
			[]string{"+" + hostNameA, "+" + hostNameB},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startHosts(t, mesh...)
			if len(c.edit)+len(c.gone) > 0 {
				r.change(c.edit, c.gone)
			}
			client := r.delta("again", "default")
			c.run(client)
			if c.want == nil {
				client.silent("nothing to say")
			} else {
				client.ack(client.expect(vhds, c.want...))
			}
			r.acked("again")
			r.edit(virtualService("later", "c"))
			client.ack(client.expect(vhds, "+81/c:81"))
		})
	}
}

func TestRejectedVirtualHosts(t *testing.T) {
	t.Run("of one route configuration", func(t *testing.T) {
		r := startHosts(t, basicMesh()...)
		c := r.delta("pod", "default")
		c.connectHosts("+"+hostNameA, "+"+hostNameB)
		r.acked("pod")
		r.change([]*configv1.Resource{virtualService("v", hostA)}, basicMesh()[2:])
		c.nack(c.expect(vhds, "+"+hostNameA, "-"+hostNameB), "no")
		if got := r.rejected("pod", vhds); !slices.Equal(got.GetResourceNames(), []string{hostNameA}) {
			t.Errorf("rejection %v", got)
		}
		c.silent("a rejected version is not sent again")
		r.edit(service("d", 80))
		// The whole type is sent except what was rejected, and what may not have been removed is removed again.
		c.ack(c.expect(vhds, "+80/d:80", "-"+hostNameB))
		r.edit(virtualService("w", hostA))
		c.ack(c.expect(vhds, "+"+hostNameA))
		if got := typeStatus(r.acked("pod"), vhds).GetRejection(); got != nil {
			t.Errorf("rejection after mending: %v", got)
		}
	})
	t.Run("first ones, the message names the route configuration", func(t *testing.T) {
		r := startHosts(t, append(basicMesh(), service("c", 81))...)
		c := r.delta("pod", "default")
		c.subscribe(rds, "80", "81")
		c.ack(c.expect(rds, "+80", "+81"))
		c.subscribe(vhds)
		c.nack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB, "+81/c:81"),
			"Only unique values for domains are permitted. Duplicate entry of domain c in route 81")
		c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB))
		if got := r.rejected("pod", vhds); !slices.Equal(got.GetResourceNames(), []string{"81/c:81"}) {
			t.Errorf("rejection %v", got)
		}
		r.edit(virtualService("v", "c"))
		c.ack(c.expect(vhds, "+81/c:81"))
		r.acked("pod")
	})
	t.Run("first ones, the message names none", func(t *testing.T) {
		r := startHosts(t, append(basicMesh(), service("c", 81))...)
		c := r.delta("pod", "default")
		c.subscribe(rds, "80", "81", "82")
		c.ack(c.expect(rds, "+80", "+81", "+82"))
		c.subscribe(vhds)
		c.nack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB, "+81/c:81", "-82/none"), "bad regex")
		// Each route configuration in a response of its own: the good ones are served.
		c.nack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB), "bad regex")
		c.ack(c.expect(vhds, "+81/c:81"))
		c.silent("the rejected one is not sent")
		if got := r.rejected("pod", vhds); !slices.Equal(got.GetResourceNames(), []string{hostNameA, hostNameB}) {
			t.Errorf("rejection %v", got)
		}
		// One of them changes, so that the set is another one.
		r.edit(virtualService("v", hostA))
		c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB))
		r.acked("pod")
	})
	t.Run("a rejected route configuration has none", func(t *testing.T) {
		r := startHosts(t, basicMesh()...)
		c := r.delta("pod", "default")
		c.subscribe(vhds)
		c.subscribe(rds, "80")
		routes := c.expect(rds, "+80")
		c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB)) // Envoy drops them
		c.nack(routes, "no")
		c.ack(c.expect(vhds, "-"+hostNameA, "-"+hostNameB))
		r.rejected("pod", rds)
		r.edit(changedRouteConfigs())
		c.ack(c.expect(rds, "+80"))
		c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB))
		r.acked("pod")
	})
}

func TestVirtualHostsWaitForClusters(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	c.subscribe(vhds)
	c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB))
	r.acked("pod")
	r.edit(timeoutRule("r", hostA, 7), meshtest.Service("default", hostC, 80), virtualService("v", hostA))
	clusters := c.expect(cds, "+80|"+hostA, "+80|"+hostC)
	c.ack(c.expect(eds, "+80|"+hostA))
	c.ack(c.expect(vhds, "+"+hostNameA)) // leads to a cluster that is known
	if p := typeStatus(r.status("pod"), vhds); !slices.Equal(p.GetPendingNames(), []string{"80/" + hostC + ":80"}) {
		t.Errorf("the virtual host of a cluster that is not warm has to wait: %v", p)
	}
	c.ack(clusters)
	c.ack(c.expect(vhds, "+80/"+hostC+":80"))
	r.acked("pod")

	// A cluster is removed after the virtual host that may have referred to it.
	r.change(nil, basicMesh()[:2])
	hosts := c.expect(vhds, "-"+hostNameA)
	c.ack(hosts)
	c.ack(c.expect(cds, "-80|"+hostA))
}
