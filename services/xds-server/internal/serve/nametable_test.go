package serve_test

import (
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

const nds = ndsv1.NameTableType

// startNaming is start with name tables besides.
func startNaming(t *testing.T, resources ...*configv1.Resource) *fixture {
	t.Helper()
	return startWith(t, setup{log: testkit.Logger(t), translators: func(set *plantest.Set) []plan.Translator {
		return append(set.Translators(), nametable.Translator{})
	}}, resources)
}

func vip(host, address string) *configv1.Resource {
	return meshtest.Service("default", host, 80, func(s *configv1.Service) { s.Addresses = []string{address} })
}

// addressOf returns the addresses of a host in a name table.
func addressOf(t *testing.T, table *anypb.Any, host string) []string {
	t.Helper()
	m := &ndsv1.NameTable{}
	if err := table.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m.GetTable()[host].GetIps()
}

// nextNames takes responses until the name table comes and acknowledges all. It returns the name table and the types
// before it.
func (c *deltaClient) nextNames() (table *discovery.DeltaDiscoveryResponse, before []string) {
	c.t.Helper()
	for {
		m := c.next()
		c.ack(m)
		if m.GetTypeUrl() == nds {
			return m, before
		}
		before = append(before, m.GetTypeUrl())
	}
}

// TestNameTableDelta: Istio's agent requests all name tables, of which there is one, on the stream of its Envoy.
func TestNameTableDelta(t *testing.T) {
	r := startNaming(t, append(basicMesh(), vip(hostC, "10.96.0.1"))...)
	c, other := r.delta("pod", "default"), r.delta("other", "default")
	c.connectAll()
	other.connectAll()
	c.subscribe(nds) // legacy wildcard, as Istio's agents do
	first := c.expect(nds, "+"+nametable.Name)
	c.ack(first)
	if got := addressOf(t, first.GetResources()[0].GetResource(), hostC); !slices.Equal(got, []string{"10.96.0.1"}) {
		t.Errorf("%s is at %v", hostC, got)
	}
	p := r.acked("pod")
	sent := typeStatus(p, nds).GetBytesSent()

	// A new name comes after the cluster that it leads to.
	r.edit(vip("d.example.com", "10.96.0.2"))
	second, before := c.nextNames()
	if got := addressOf(t, second.GetResources()[0].GetResource(), "d.example.com"); !slices.Equal(got, []string{"10.96.0.2"}) {
		t.Errorf("the new service is at %v", got)
	}
	if !slices.Contains(before, cds) {
		t.Errorf("the name table came after %v only", before)
	}
	if now := typeStatus(r.acked("pod"), nds).GetBytesSent(); now <= sent {
		t.Errorf("%d bytes sent, before the change %d", now, sent)
	} else {
		sent = now
	}

	// A change that the name table does not contain sends none.
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"), timeoutRule("rule", hostA, 3))
	for range 2 { // clusters, endpoints
		m := c.next()
		if m.GetTypeUrl() == nds {
			t.Fatal("endpoints of a service with a VIP have changed the name table")
		}
		c.ack(m)
	}
	if now := typeStatus(r.acked("pod"), nds).GetBytesSent(); now != sent {
		t.Errorf("%d bytes sent, before the change %d", now, sent)
	}
	// A proxy that has not requested the name table is not sent one.
	if st := typeStatus(r.status("other"), nds); st != nil {
		t.Errorf("who has not asked: %v", st)
	}

	// A client that holds the current name table is not sent it again.
	c.cancel()
	again := r.delta("pod", "default")
	again.send(&discovery.DeltaDiscoveryRequest{TypeUrl: nds, InitialResourceVersions: versions(second)})
	r.edit(vip("e.example.com", "10.96.0.3"))
	third := again.expect(nds, "+"+nametable.Name)
	if got := addressOf(t, third.GetResources()[0].GetResource(), "e.example.com"); !slices.Equal(got, []string{"10.96.0.3"}) {
		t.Errorf("the first response to who held the table is not about the change: %v", got)
	}

	// A rejected name table is not sent again before it has changed.
	again.nack(third, "in a mood")
	r.rejected("pod", nds)
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.10"))
	r.edit(vip("f.example.com", "10.96.0.4"))
	fourth := again.expect(nds, "+"+nametable.Name)
	if got := addressOf(t, fourth.GetResources()[0].GetResource(), "f.example.com"); !slices.Equal(got, []string{"10.96.0.4"}) {
		t.Errorf("after a rejection: %v", got)
	}
	again.ack(fourth)
	r.acked("pod")
}

// TestNameTableByName: a client may request the name table by its name.
func TestNameTableByName(t *testing.T) {
	r := startNaming(t)
	r.edit(vip(hostA, "10.96.0.1"))
	c := r.delta("pod", "default")
	c.subscribe(nds, nametable.Name)
	c.ack(c.expect(nds, "+"+nametable.Name))
	c.subscribe(nds, "another")
	c.ack(c.expect(nds, "-another"))
	r.remove(vip(hostA, "10.96.0.1"))
	m := c.expect(nds, "+"+nametable.Name)
	c.ack(m)
	if got := addressOf(t, m.GetResources()[0].GetResource(), hostA); got != nil {
		t.Errorf("%s is still at %v", hostA, got)
	}
}

// TestNameTableSotw does the same with sotw, where an empty list of names means all.
func TestNameTableSotw(t *testing.T) {
	r := startNaming(t, append(basicMesh(), vip(hostC, "10.96.0.1"))...)
	c := r.sotw("pod", "default")
	c.subscribe(nds)
	first := c.next()
	c.ack(first)
	if len(first.GetResources()) != 1 || first.GetVersionInfo() == "" ||
		!slices.Equal(addressOf(t, first.GetResources()[0], hostC), []string{"10.96.0.1"}) {
		t.Fatalf("got %v", first)
	}
	r.acked("pod")
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9")) // which is not in the name table
	r.edit(vip(hostC, "10.96.0.2"))
	second := c.next()
	c.ack(second)
	if second.GetVersionInfo() == first.GetVersionInfo() ||
		!slices.Equal(addressOf(t, second.GetResources()[0], hostC), []string{"10.96.0.2"}) {
		t.Errorf("got %v", second)
	}
	r.acked("pod")

	c.cancel()
	again := r.sotw("pod", "default")
	again.accepted[nds] = second.GetVersionInfo()
	again.subscribe(nds)
	r.acked("pod")
	r.edit(vip(hostC, "10.96.0.3"))
	if third := again.next(); !slices.Equal(addressOf(t, third.GetResources()[0], hostC), []string{"10.96.0.3"}) {
		t.Errorf("the first response to who held the table is not about the change: %v", third)
	}
}
