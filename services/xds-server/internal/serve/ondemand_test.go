package serve_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
)

func TestVirtualHostsOnDemand(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default").onDemand()
	c.connectHosts("-80/none")
	r.acked("pod")

	c.subscribe(vhds, hostNameA)
	c.ack(c.expect(vhds, "+"+hostNameA))
	r.edit(virtualService("v", hostA))
	c.ack(c.expect(vhds, "+"+hostNameA))

	// A host that no service has gets a virtual host too, and real routes when its service appears.
	c.subscribe(vhds, "80/later:80")
	c.ack(c.expect(vhds, "+80/later:80"))
	r.edit(service("later", 80))
	c.ack(c.expect(vhds, "+80/later:80"))
	r.remove(service("later", 80))
	c.ack(c.expect(vhds, "+80/later:80"))

	// A virtual host that does not exist is answered with "not found", and sent once it exists.
	c.subscribe(vhds, "80/none:80")
	c.ack(c.expect(vhds, "?80/none:80"))
	c.silent("an absent name")
	p := r.acked("pod")
	if got := typeStatus(p, vhds).GetResources(); got != 2 {
		t.Errorf("%d virtual hosts held, want 2", got)
	}

	// Virtual hosts of a route configuration that the client does not hold wait for it.
	c.subscribe(vhds, "81/"+hostA+":81")
	c.silent("no route configuration")
	c.subscribe(rds, "81")
	c.ack(c.expect(rds, "+81"))
	c.ack(c.expect(vhds, "+81/"+hostA+":81"))
	r.acked("pod")
}

func TestClustersOnDemand(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default").onDemand()
	c.subscribe(cds)
	c.ack(c.expect(cds))
	c.subscribe(cds, "80|"+hostA, "80|nowhere")
	c.ack(c.expect(cds, "+80|"+hostA, "-80|nowhere"))
	c.subscribe(eds, "80|"+hostA)
	c.ack(c.expect(eds, "+80|"+hostA))
	r.acked("pod")
	// Envoy never requests it again: it is sent when it appears.
	r.edit(service("nowhere", 80))
	c.ack(c.expect(cds, "+80|nowhere"))
	r.remove(service("nowhere", 80))
	c.ack(c.expect(cds, "-80|nowhere"))
	r.edit(service("nowhere", 80))
	c.ack(c.expect(cds, "+80|nowhere"))
	r.acked("pod")
	// Other services that appear change nothing.
	r.edit(service("other", 80))
	if got := typeStatus(r.acked("pod"), cds); got.GetSent().GetSequence() == r.Sequence || got.GetResources() != 2 {
		t.Errorf("status %v", got)
	}
}

func TestOnDemandReconnect(t *testing.T) {
	first := startHosts(t, basicMesh()...)
	c := first.delta("pod", "default").onDemand()
	c.subscribe(rds, "80")
	routes := c.expect(rds, "+80")
	c.ack(routes)
	c.subscribe(vhds, hostNameA)
	hosts := c.expect(vhds, "+"+hostNameA)
	c.ack(hosts)
	c.subscribe(cds, "*", "80|"+hostA)
	clusters := c.expect(cds, "+80|"+hostA)
	c.ack(clusters)
	first.acked("pod")

	// Like Envoy, the client states the versions of all that it holds, without the names that it has requested before.
	r := startHosts(t, basicMesh()...)
	again := r.delta("pod", "default").onDemand()
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, InitialResourceVersions: versions(clusters)})
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: vhds, InitialResourceVersions: versions(hosts)})
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: []string{"80"},
		InitialResourceVersions: versions(routes)})
	again.silent("all is held")
	r.acked("pod")
	r.edit(virtualService("v", hostA), timeoutRule("r", hostA, 3))
	again.ack(again.expect(cds, "+80|"+hostA))
	again.ack(again.expect(vhds, "+"+hostNameA))
	r.acked("pod")
}

func TestRestartedProxyIsSentWhatItsWorkloadHasRequested(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	use := func(c *deltaClient) {
		c.subscribe(cds, "*")
		c.ack(c.expect(cds))
		c.connectHosts("-80/none")
		c.subscribe(vhds, hostNameA)
		c.ack(c.expect(vhds, "+"+hostNameA))
		c.subscribe(cds, "80|"+hostA, "80|nowhere")
		c.ack(c.expect(cds, "+80|"+hostA, "-80|nowhere"))
		r.acked("pod")
		c.cancel()
		r.gone("pod")
	}
	use(r.delta("pod", "default").onDemand())
	c := r.delta("pod", "default").onDemand()
	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA))
	c.connectHosts("+" + hostNameA)
	r.acked("pod")
	r.edit(virtualService("v", hostA))
	c.ack(c.expect(vhds, "+"+hostNameA)) // it is kept up to date
	r.acked("pod")
	c.cancel()
	r.gone("pod")

	other := r.delta("other", "default").onDemand()
	other.subscribe(cds, "*")
	other.ack(other.expect(cds)) // another workload of the class has requested nothing

	r.clock.Advance(31 * time.Minute)
	late := r.delta("pod", "default").onDemand()
	late.subscribe(cds, "*")
	late.ack(late.expect(cds))
}

// TestRefusalOfHeldNamesIsRecorded has a client that holds more clusters than its identity may have names.
func TestRefusalOfHeldNamesIsRecorded(t *testing.T) {
	r := startWith(t, setup{translators: withVirtualHosts, change: func(c *serve.Config) { c.MaxNamesBytes = 1 << 10 }}, basicMesh())
	c := r.delta("pod", "default").onDemand()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: []string{"*"},
		InitialResourceVersions: map[string]string{"80|a": "x", "80|b": "x"}})
	c.ack(c.expect(cds, "-80|a", "-80|b"))
	refusals := r.ADS.Refusals()
	if len(refusals) != 1 || refusals[0].GetBudget() != "names" || !strings.Contains(refusals[0].GetNodeId(), "pod") {
		t.Errorf("refusals: %v", refusals)
	}
	r.acked("pod")
}

func TestOnDemandLimit(t *testing.T) {
	r := startWith(t, setup{translators: withVirtualHosts, change: func(c *serve.Config) { c.MaxOnDemandHosts = 3 }}, basicMesh())
	c := r.delta("pod", "default").onDemand()
	c.connectHosts("-80/none")
	var names, want []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("80/h%d:80", i))
		want = append(want, "+"+names[i])
	}
	c.subscribe(vhds, names...)
	c.ack(c.expect(vhds, "?80/h3:80", "?80/h4:80", want[0], want[1], want[2]))
	c.subscribe(vhds, "80/h9:80")
	c.ack(c.expect(vhds, "?80/h9:80"))
	p := r.acked("pod")
	if got := typeStatus(p, vhds).GetResources(); got != 3 {
		t.Errorf("%d held", got)
	}
	const metric = "# HELP fairlead_xds_server_refused_virtual_hosts_total Virtual hosts asked for on demand that were refused because the " +
		"stream had asked for too many.\n# TYPE fairlead_xds_server_refused_virtual_hosts_total counter\n" +
		"fairlead_xds_server_refused_virtual_hosts_total 3\n"
	if err := testutil.GatherAndCompare(r.Registry, strings.NewReader(metric), "fairlead_xds_server_refused_virtual_hosts_total"); err != nil {
		t.Error(err)
	}
	// An unsubscribed one makes room.
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: vhds, ResourceNamesUnsubscribe: []string{"80/h0:80"}})
	c.subscribe(vhds, "80/h9:80")
	c.ack(c.expect(vhds, "+80/h9:80"))
}

// gone waits until the proxy has no stream any more.
func (r *fixture) gone(pod string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if p := r.status(pod); p != nil {
			return fmt.Errorf("still connected: %v", p)
		}
		return nil
	})
}

func TestProxyBecomesOnDemand(t *testing.T) {
	r := startHosts(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	c.connectHosts("+"+hostNameA, "+"+hostNameB)
	r.acked("pod")
	annotate := func(value string) *configv1.Resource {
		return meshtest.Workload("default", "pod", "10.0.0.1", func(w *configv1.Workload) {
			w.Annotations = map[string]string{"fairlead.dev/on-demand": value}
		})
	}
	r.edit(annotate("true"))
	got := []string{}
	for range 2 {
		m := c.next()
		got = append(got, describe(m)...)
		c.ack(m)
	}
	if want := []string{"-" + hostNameA, "-" + hostNameB, "-80|" + hostA, "-80|" + hostB}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.acked("pod")
	r.edit(annotate("false"))
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	c.ack(c.expect(vhds, "+"+hostNameA, "+"+hostNameB))
	r.acked("pod")
}
